/* logits - whatever the batch, the chunks, the pages, the pool, who came when, who was preempted, who left and what was found
 * in the cache: every row of logits that is ever computed for a position of a request is, to the bit, the row of that request
 * alone; and so is all that is told of its tokens. The core drives the real model here, without a thread, and the logits of
 * every row are looked at, wanted or not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "rollout/engine_core_int.h"
#include "tests/unit/rollout/tiny_int.h"

enum { VOCAB = 264, CONTEXT = 72, REQS = 14, TOPS = 3, WORLDS = 100 };

typedef struct told {
    int32_t tokens[CONTEXT];
    float logps[CONTEXT], prompt_logps[CONTEXT];
    uint32_t prompt_ranks[CONTEXT];
    k2i_top tops[CONTEXT * TOPS], prompt_tops[CONTEXT * TOPS];
    uint64_t rows[CONTEXT]; /* hash of the position's logits; 0: never computed */
} told;

typedef struct world {
    uint64_t seed;
    k2i_core_config cfg;
    k2i_core *core;
    k2_model *model;
    k2_model_kv kv;
    k2_arena arena;
    k2_model_row *rows;
    float *logits, *wanted; /* of all rows; of the wanted ones, as the core takes them */
    k2_softmax *softmax;
    k2i_request reqs[REQS];
    told told[REQS];
    uint32_t submitted, done, again; /* again: positions computed more than once */
} world;

static uint64_t pick(const world *w, uint64_t a, uint64_t b, uint64_t n)
{
    return k2_rand_below(w->seed, K2_STREAM_TEST, a, b, n);
}

/* ---- an engine without a thread ------------------------------------------------------------------------------------------ */

static void world_open(world *w, const k2i_core_config *cfg, k2_model *model)
{
    const k2_dims dims = tiny_dims();
    size_t rows = (size_t)cfg->batch_max + cfg->prefill_chunk;
    w->cfg = *cfg;
    w->core = k2i_core_new(cfg);
    w->model = model;
    k2i_core_weights(w->core, (k2_digest){1, 1});
    w->kv = (k2_model_kv){.page_tokens = cfg->page_tokens, .pages_count = cfg->pages};
    w->kv.pages = k2_alloc_aligned(64, (size_t)cfg->pages * k2_model_page_floats(&dims, cfg->page_tokens) * sizeof(float));
    k2_arena_init(&w->arena, k2_model_decode_bytes(&dims, 1, rows, CONTEXT) + 4096);
    w->rows = k2_alloc_array(rows, sizeof *w->rows);
    w->logits = k2_alloc_aligned(64, rows * VOCAB * sizeof(float));
    w->wanted = k2_alloc_aligned(64, rows * VOCAB * sizeof(float));
    w->softmax = k2_alloc_array(rows, sizeof *w->softmax);
}

static void world_close(world *w)
{
    k2i_core_free(w->core);
    k2_arena_fini(&w->arena);
    k2_free(w->kv.pages);
    k2_free(w->rows);
    k2_free(w->logits);
    k2_free(w->wanted);
    k2_free(w->softmax);
}

static float logprob(const void *arg, uint32_t i, uint32_t token)
{
    const world *w = arg;
    return k2_kern_logp(w->wanted + (size_t)i * VOCAB, &w->softmax[i], token);
}

/* The row's hash goes to its request; one that was there must be the same. */
static void note(world *w, const k2i_row *row, const float *logits)
{
    for (uint32_t i = 0; i < w->submitted; i++) {
        if (!w->reqs[i].running || w->reqs[i].slot != row->slot) continue;
        uint64_t hash = k2_hash64(logits, VOCAB * sizeof *logits, 1) | 1, *there = &w->told[i].rows[row->position];
        assert_true(*there == 0 || *there == hash);
        w->again += *there != 0;
        *there = hash;
        return;
    }
    fail_msg("a row of nobody");
}

static k2i_todo step(world *w)
{
    const k2i_row *rows;
    uint32_t count, wanted, n = 0;
    k2i_todo todo = k2i_core_plan(w->core, 0, &rows, &count, &wanted);
    if (todo == K2I_STEP) {
        assert_true(wanted <= w->cfg.batch_max + w->cfg.prompt_rows);
        k2_softmax spare;
        for (uint32_t i = 0; i < count; i++) {
            w->rows[i] = (k2_model_row){.token = rows[i].token,
                                        .position = rows[i].position,
                                        .page_table = rows[i].pages,
                                        .logits = w->logits + (size_t)i * VOCAB,
                                        .softmax = rows[i].want ? &w->softmax[n++] : &spare};
        }
        assert_int_equal(n, wanted);
        k2_model_decode(w->model, &w->kv, w->rows, count, &w->arena);
        n = 0;
        for (uint32_t i = 0; i < count; i++) {
            note(w, &rows[i], w->rows[i].logits);
            if (rows[i].want) memcpy(w->wanted + (size_t)n++ * VOCAB, w->rows[i].logits, VOCAB * sizeof(float));
        }
        k2i_core_absorb(w->core, w->wanted, logprob, w);
    }
    k2i_request *r;
    while ((r = k2i_core_touched(w->core)) != NULL) w->done += r->finish != K2I_RUNNING;
    k2i_core_check(w->core);
    return todo;
}

/* ---- requests ------------------------------------------------------------------------------------------------------------ */

static const k2i_bias bias[2] = {{17, 3.5f}, {40, -100}};

/* A third go on where an earlier one has ended (the next turn of a chat), a third share their group's prompt, a third neither.
 */
static void prompt_of(world *w, uint32_t i)
{
    k2i_request *r = &w->reqs[i];
    int32_t *tokens = w->told[i].tokens;
    uint64_t kind = pick(w, 20 + i, 0, 3), other = i ? pick(w, 20 + i, 1, i) : 0;
    r->prompt_len = 1 + (uint32_t)pick(w, 20 + (kind == 1 ? i / 4 * 4 : i), 2, CONTEXT / 2);
    for (uint32_t p = 0; p < r->prompt_len; p++) tokens[p] = (int32_t)pick(w, kind == 1 ? i / 4 : 20 + i, 10 + p, VOCAB);
    if (i == 0 || kind != 0) return;
    const k2i_request *before = &w->reqs[other];
    if (before->finish == K2I_RUNNING || before->len >= CONTEXT - 8) return;
    memcpy(tokens, before->tokens, before->len * sizeof *tokens);
    r->prompt_len = before->len + 1 + (uint32_t)pick(w, 20 + i, 3, 4);
    for (uint32_t p = before->len; p < r->prompt_len; p++) tokens[p] = (int32_t)pick(w, 20 + i, 10 + p, VOCAB);
}

static void request_make(world *w, uint32_t i)
{
    k2i_request *r = &w->reqs[i];
    told *t = &w->told[i];
    *r = (k2i_request){.seed = 5, .trajectory = i, .tokens = t->tokens, .logps = t->logps};
    prompt_of(w, i);
    r->new_max = (uint32_t)pick(w, 50 + i, 0, CONTEXT - r->prompt_len + 1);
    r->position = pick(w, 50 + i, 1, r->prompt_len + 1);
    r->new_min = r->position + pick(w, 50 + i, 2, 5);
    r->sampling = (k2i_sampling){.temperature = pick(w, 50 + i, 3, 4) ? 0.9 : 0,
                                 .top_p = pick(w, 50 + i, 4, 2) ? 0.9 : 1,
                                 .top_k = (uint32_t)pick(w, 50 + i, 5, 2) * 30,
                                 .min_p = pick(w, 50 + i, 6, 2) ? 0.01f : 0,
                                 .repetition = pick(w, 50 + i, 7, 2) ? 1.3f : 1,
                                 .frequency = pick(w, 50 + i, 8, 2) ? 0.4f : 0,
                                 .presence = pick(w, 50 + i, 9, 2) ? -0.2f : 0,
                                 .bias = bias,
                                 .bias_count = (uint32_t)pick(w, 50 + i, 10, 3)};
    for (; r->stop_count < pick(w, 50 + i, 11, 9); r->stop_count++) r->stop_ids[r->stop_count] = (int32_t)(30 * r->stop_count);
    r->top_count = (uint32_t)pick(w, 50 + i, 12, TOPS + 1);
    r->tops = t->tops;
    if (pick(w, 50 + i, 13, 3) && r->new_max > 0) return;
    r->prompt_logps = t->prompt_logps;
    r->prompt_ranks = t->prompt_ranks;
    r->prompt_top_count = (uint32_t)pick(w, 50 + i, 14, TOPS + 1);
    r->prompt_tops = t->prompt_tops;
}

/* The same request in an engine of its own: one row a step, one page. */
static void check_alone(const world *w, uint32_t i)
{
    static const k2i_core_config lone = {.batch_max = 1,
                                         .prefill_chunk = 1,
                                         .requests_max = 1,
                                         .pages = 1,
                                         .page_tokens = CONTEXT,
                                         .context_max = CONTEXT,
                                         .vocab = VOCAB,
                                         .prompt_rows = 1};
    const k2i_request *r = &w->reqs[i];
    world *one = k2_alloc(sizeof *one);
    told *t = &one->told[0];
    world_open(one, &lone, w->model);
    k2i_request *q = &one->reqs[0];
    *q = *r;
    memcpy(t->tokens, r->tokens, r->prompt_len * sizeof *t->tokens);
    q->tokens = t->tokens;
    q->logps = t->logps;
    q->tops = t->tops;
    if (r->prompt_logps) q->prompt_logps = t->prompt_logps, q->prompt_ranks = t->prompt_ranks, q->prompt_tops = t->prompt_tops;
    assert_int_equal(k2i_core_submit(one->core, q), K2_OK);
    one->submitted = 1;
    while (one->done == 0) step(one);
    uint32_t n = r->len - r->prompt_len;
    if (r->finish != K2I_CANCELED) {
        assert_int_equal(q->len, r->len);
        assert_int_equal(q->finish, r->finish);
        if (r->prompt_logps) {
            assert_memory_equal(t->prompt_logps, r->prompt_logps, r->prompt_len * sizeof *r->prompt_logps);
            assert_memory_equal(t->prompt_ranks, r->prompt_ranks, r->prompt_len * sizeof *r->prompt_ranks);
            assert_memory_equal(t->prompt_tops, r->prompt_tops, r->prompt_len * r->prompt_top_count * sizeof(k2i_top));
        }
    }
    assert_memory_equal(t->tokens, r->tokens, r->len * sizeof *t->tokens);
    assert_memory_equal(t->logps, r->logps, n * sizeof *t->logps);
    assert_memory_equal(t->tops, r->tops, (size_t)n * r->top_count * sizeof(k2i_top));
    for (uint32_t p = 0; p < r->len; p++)
        if (w->told[i].rows[p]) assert_true(w->told[i].rows[p] == t->rows[p]);
    world_close(one);
    k2_free(one);
}

/* ---- worlds -------------------------------------------------------------------------------------------------------------- */

static uint64_t preempted, hits, evicted, recomputed;

static void run_world(uint64_t seed, k2_model *model)
{
    world *w = k2_alloc(sizeof *w);
    w->seed = seed;
    uint32_t pt = (uint32_t[]){1, 2, 3, 5, 8, 16}[pick(w, 0, 0, 6)], least = (CONTEXT + pt - 1) / pt;
    k2i_core_config cfg = {.batch_max = 1 + (uint32_t)pick(w, 0, 1, 8),
                           .prefill_chunk = 1 + (uint32_t)pick(w, 0, 2, 40),
                           .requests_max = REQS,
                           .pages = least + (uint32_t)pick(w, 0, 3, least),
                           .page_tokens = pt,
                           .context_max = CONTEXT,
                           .vocab = VOCAB,
                           .prompt_rows = 1 + (uint32_t)pick(w, 0, 4, 9)};
    world_open(w, &cfg, model);
    for (uint64_t turn = 0; w->done < REQS; turn++) {
        assert_true(turn < 10000);
        while (w->submitted < REQS && pick(w, 1000 + turn, 0, 4) == 0) {
            request_make(w, w->submitted);
            assert_int_equal(k2i_core_submit(w->core, &w->reqs[w->submitted++]), K2_OK);
        }
        if (w->submitted && pick(w, 1000 + turn, 1, 60) == 0)
            k2i_core_end(w->core, &w->reqs[pick(w, 1000 + turn, 2, w->submitted)], K2I_CANCELED);
        step(w);
    }
    for (uint32_t i = 0; i < REQS; i++) check_alone(w, i);
    k2i_core_stats stats;
    k2i_core_stats_get(w->core, &stats);
    preempted += stats.preemptions;
    hits += stats.prefix_hits;
    evicted += stats.evictions;
    recomputed += w->again;
    world_close(w);
    k2_free(w);
}

static void test_every_row_of_logits_is_that_of_the_request_alone(void **state)
{
    (void)state;
    k2_model *model = tiny_model(5, 1);
    for (uint64_t seed = 1; seed <= WORLDS; seed++) run_world(seed, model);
    k2_model_free(model);
    print_message("preempted %llu, pages found %llu and given up %llu, rows computed again %llu\n",
                  (unsigned long long)preempted, (unsigned long long)hits, (unsigned long long)evicted,
                  (unsigned long long)recomputed);
    assert_true(preempted > 20 && hits > 100 && evicted > 100 && recomputed > 100);
}

/* The next turn of a chat finds the pages of the one before, its answer included, until the weights change. */
static void test_turns_share_pages_until_the_weights_change(void **state)
{
    (void)state;
    enum { PT = 4, FIRST = 21, ANSWER = 11 };
    k2i_core_config cfg = {.batch_max = 2,
                           .prefill_chunk = 8,
                           .requests_max = REQS,
                           .pages = 64,
                           .page_tokens = PT,
                           .context_max = CONTEXT,
                           .vocab = VOCAB,
                           .prompt_rows = 1};
    k2_model *model = tiny_model(5, 1);
    world *w = k2_alloc(sizeof *w);
    world_open(w, &cfg, model);
    for (uint32_t turn = 0; turn < 3; turn++) {
        k2i_request *r = &w->reqs[turn];
        told *t = &w->told[turn];
        *r = (k2i_request){.seed = 1, .tokens = t->tokens, .logps = t->logps, .new_max = ANSWER, .sampling = {.top_p = 1}};
        for (uint32_t p = 0; p < FIRST; p++) t->tokens[p] = (int32_t)(p * 31 % VOCAB);
        r->prompt_len = FIRST;
        if (turn > 0) {
            memcpy(t->tokens, w->told[0].tokens, (FIRST + ANSWER) * sizeof *t->tokens);
            for (uint32_t p = 0; p < 5; p++) t->tokens[FIRST + ANSWER + p] = (int32_t)p;
            r->prompt_len = FIRST + ANSWER + 5;
        }
        assert_int_equal(k2i_core_submit(w->core, r), K2_OK);
        w->submitted = turn + 1;
        while (w->done <= turn) step(w);
        if (turn == 1) {
            k2i_core_switch_begin(w->core, 0);
            assert_int_equal(step(w), K2I_SWITCH);
            k2i_core_switch_done(w->core, (k2_digest){2, 2});
        }
    }
    assert_int_equal(w->reqs[0].cached, 0);
    assert_int_equal(w->reqs[1].cached, (FIRST + ANSWER - 1) / PT * PT); /* the last token drawn was never computed */
    assert_int_equal(w->reqs[2].cached, 0);
    for (uint32_t i = 0; i < 3; i++) check_alone(w, i);
    world_close(w);
    k2_free(w);
    k2_model_free(model);
}

/* Widths of a whole number of cache lines, as all published ones are; others are rounded up to one. */
static void test_a_token_takes_its_latent_and_nothing_more(void **state)
{
    (void)state;
    static const uint32_t widths[][3] = {{512, 64, 576}, {32, 16, 48}, {16, 8, 32}};
    for (size_t i = 0; i < K2_COUNT(widths); i++) {
        k2_dims dims = tiny_dims();
        dims.kv_lora_rank = widths[i][0];
        dims.qk_rope_head_dim = widths[i][1];
        for (uint32_t pt = 1; pt <= 64; pt *= 2)
            assert_int_equal(k2_model_page_floats(&dims, pt), (size_t)pt * dims.num_hidden_layers * widths[i][2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_of_logits_is_that_of_the_request_alone),
        cmocka_unit_test(test_turns_share_pages_until_the_weights_change),
        cmocka_unit_test(test_a_token_takes_its_latent_and_nothing_more),
    };
    return cmocka_run_group_tests_name("rollout_logits", tests, NULL, NULL);
}
