/* engine_core - against a model that is a hash: the state of a position is a digest of the state that the page table gives for
 * the position before it and of the token. One wrong page, offset or order, and every later token is another one. Whatever
 * batch, page size, chunk, pool, preemption, sharing, cancelling or cutting: tokens and log-probabilities are those of the
 * request alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "rollout/engine_core_int.h"

enum { VOCAB = 11, CONTEXT = 96, REQS = 48 };

/* ---- the model ------------------------------------------------------------------------------------------------------ */

typedef struct fake {
    uint64_t *state; /* [pages, page_tokens] */
    uint32_t pages, page_tokens;
    uint64_t weights;
    uint64_t rows; /* positions computed */
} fake;

static uint64_t next_state(uint64_t before, int32_t token, uint32_t position, uint64_t weights)
{
    uint64_t in[4] = {before, (uint64_t)token, position, weights};
    return k2_hash64(in, sizeof in, 1);
}

static void logits_of(uint64_t state, float out[VOCAB])
{
    for (uint32_t v = 0; v < VOCAB; v++) out[v] = (float)(k2_hash64(&state, sizeof state, v) % 64) / 16.0f;
}

static float logprob(const void *logits, uint32_t i, uint32_t token)
{
    const float *row = (const float *)logits + (size_t)i * VOCAB;
    double sum = 0;
    for (uint32_t v = 0; v < VOCAB; v++) sum += exp((double)row[v]);
    return (float)((double)row[token] - log(sum));
}

static void fake_run(fake *m, const k2i_row *rows, uint32_t count, float *logits)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t pt = m->page_tokens, p = rows[i].position;
        uint64_t before = p ? m->state[(size_t)rows[i].pages[(p - 1) / pt] * pt + (p - 1) % pt] : 0;
        uint64_t *here = &m->state[(size_t)rows[i].pages[p / pt] * pt + p % pt];
        *here = next_state(before, rows[i].token, p, m->weights);
        if (rows[i].want) {
            logits_of(*here, logits);
            logits += VOCAB;
        }
    }
    m->rows += count;
}

/* One sequence alone, without any engine. Gives the number of tokens drawn. */
static uint32_t alone(const k2i_request *r, const k2i_repetition *rule, uint64_t weights, int32_t *tokens, float *logps,
                      k2i_finish *why)
{
    k2i_sampler s;
    k2i_sampler_init(&s, VOCAB);
    memcpy(tokens, r->tokens, r->prompt_len * sizeof *tokens);
    uint64_t state = 0;
    uint32_t len = r->prompt_len;
    for (uint32_t p = 0; p < len; p++) state = next_state(state, tokens[p], p, weights);
    *why = K2I_LENGTH;
    uint32_t n = 0;
    while (n < r->new_max) {
        float row[VOCAB];
        uint32_t token;
        logits_of(state, row);
        assert_true(k2i_sample(&s, row, &r->sampling, NULL,
                               k2_rand_unit(r->seed, K2_STREAM_SAMPLE, r->trajectory, r->position + n), &token));
        logps[n++] = logprob(row, 0, token);
        tokens[len++] = (int32_t)token;
        if (r->stop_count && (int32_t)token == r->stop_ids[0]) {
            *why = K2I_STOP;
            break;
        }
        if (r->repetition && k2i_repeats(tokens + len - (r->position + n), (size_t)(r->position + n), rule)) {
            *why = K2I_REPETITION;
            break;
        }
        state = next_state(state, (int32_t)token, len - 1, weights);
    }
    k2i_sampler_fini(&s);
    return n;
}

/* ---- a random crowd ---------------------------------------------------------------------------------------------------- */

typedef struct crowd {
    uint64_t seed;
    k2i_core_config cfg;
    k2i_core *core;
    fake model;
    k2i_request reqs[REQS];
    int32_t tokens[REQS][CONTEXT];
    float logps[REQS][CONTEXT];
    bool canceled[REQS];
    uint32_t submitted, done;
} crowd;

static uint64_t pick(const crowd *w, uint64_t a, uint64_t b, uint64_t n)
{
    return k2_rand_below(w->seed, K2_STREAM_TEST, a, b, n);
}

static void crowd_make(crowd *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    uint32_t pt = (uint32_t[]){1, 2, 3, 4, 7, 16}[pick(w, 0, 0, 6)];
    uint32_t pages = (CONTEXT + pt - 1) / pt;
    pages += (uint32_t)pick(w, 0, 1, 4) * pages / 2; /* from barely one sequence to two and a half: preemption is common */
    w->cfg = (k2i_core_config){.batch_max = 1 + (uint32_t)pick(w, 0, 2, 12),
                               .prefill_chunk = 1 + (uint32_t)pick(w, 0, 3, 40),
                               .requests_max = REQS,
                               .pages = pages,
                               .page_tokens = pt,
                               .context_max = CONTEXT,
                               .vocab = VOCAB,
                               .repetition = {.min_period = 1, .max_period = 4, .count = 3}};
    w->core = k2i_core_new(&w->cfg);
    w->model =
        (fake){.pages = pages, .page_tokens = pt, .weights = 7, .state = k2_alloc_array((size_t)pages * pt, sizeof(uint64_t))};
    k2i_core_weights(w->core, (k2_digest){1, 1});
    for (uint32_t i = 0; i < REQS; i++) {
        k2i_request *r = &w->reqs[i];
        uint64_t group = i / 6; /* six requests share their prompt */
        *r = (k2i_request){
            .seed = 5, .trajectory = i, .tokens = w->tokens[i], .logps = w->logps[i], .user = (void *)(uintptr_t)i};
        r->prompt_len = 1 + (uint32_t)pick(w, 10 + group, 0, 60);
        r->new_max = 1 + (uint32_t)pick(w, 100 + i, 0, CONTEXT - 60);
        for (uint32_t p = 0; p < r->prompt_len; p++)
            w->tokens[i][p] = (int32_t)pick(w, p < 20 ? 5 : 10 + group, 10 + p, VOCAB); /* groups share a head as well */
        r->sampling = (k2i_sampling){.temperature = pick(w, 100 + i, 1, 4) ? 0.3 : 0,
                                     .top_p = pick(w, 100 + i, 2, 2) ? 0.8 : 1,
                                     .top_k = (uint32_t)pick(w, 100 + i, 3, 6)};
        r->repetition = pick(w, 100 + i, 4, 2);
        r->stop_count = (uint32_t)pick(w, 100 + i, 5, 2);
        r->stop_ids[0] = 3;
    }
}

static void crowd_free(crowd *w)
{
    k2i_core_free(w->core);
    k2_free(w->model.state);
}

static void collect(crowd *w)
{
    k2i_request *r;
    while ((r = k2i_core_touched(w->core)) != NULL) {
        if (r->finish != K2I_RUNNING) w->done++;
    }
}

static void check_alone(const crowd *w, uint32_t i)
{
    const k2i_request *r = &w->reqs[i];
    int32_t tokens[CONTEXT];
    float logps[CONTEXT];
    k2i_finish why;
    uint32_t n = alone(r, &w->cfg.repetition, w->model.weights, tokens, logps, &why), got = r->len - r->prompt_len;
    if (w->canceled[i] && r->finish == K2I_CANCELED) {
        assert_true(got <= n);
        n = got;
    } else {
        assert_int_equal(r->finish, why);
        assert_int_equal(got, n);
    }
    assert_memory_equal(r->tokens, tokens, (r->prompt_len + n) * sizeof *tokens);
    assert_memory_equal(r->logps, logps, n * sizeof *logps);
}

static k2i_todo step(crowd *w, uint64_t now)
{
    static float logits[16 * VOCAB];
    const k2i_row *rows;
    uint32_t count, wanted;
    k2i_todo todo = k2i_core_plan(w->core, now, &rows, &count, &wanted);
    if (todo == K2I_STEP) {
        assert_true(wanted <= w->cfg.batch_max && count <= w->cfg.batch_max + w->cfg.prefill_chunk);
        fake_run(&w->model, rows, count, logits);
        k2i_core_absorb(w->core, logits, logprob, logits);
    }
    collect(w);
    k2i_core_check(w->core);
    return todo;
}

static uint64_t preemptions, cached, canceled;

static void run_crowd(uint64_t seed)
{
    crowd *w = k2_alloc(sizeof *w);
    crowd_make(w, seed);
    for (uint64_t turn = 0; w->done < REQS; turn++) {
        assert_true(turn < 100000);
        while (w->submitted < REQS && pick(w, 1000 + turn, 0, 3))
            assert_int_equal(k2i_core_submit(w->core, &w->reqs[w->submitted++]), K2_OK);
        if (w->submitted && pick(w, 1000 + turn, 1, 40) == 0) {
            uint32_t i = (uint32_t)pick(w, 1000 + turn, 2, w->submitted);
            w->canceled[i] = true;
            k2i_core_end(w->core, &w->reqs[i], K2I_CANCELED);
        }
        step(w, 0);
    }
    assert_int_equal(step(w, 0), K2I_IDLE);
    for (uint32_t i = 0; i < REQS; i++) check_alone(w, i);
    k2i_core_stats stats;
    k2i_core_stats_get(w->core, &stats);
    assert_int_equal(stats.pages_held, 0);
    assert_int_equal(stats.finished, REQS);
    preemptions += stats.preemptions;
    cached += stats.cached_tokens;
    canceled += stats.canceled;
    crowd_free(w);
    k2_free(w);
}

static void test_any_crowd_gives_what_each_gives_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) run_crowd(seed);
    assert_true(preemptions > 100 && cached > 1000 && canceled > 100); /* the crowds did meet what they are for */
}

static void test_a_group_computes_its_prompt_once(void **state)
{
    (void)state;
    enum { SAMPLES = 8, PROMPT = 64, PT = 4, CHUNK = 24 };
    k2i_core_config cfg = {.batch_max = SAMPLES,
                           .prefill_chunk = CHUNK,
                           .requests_max = SAMPLES,
                           .pages = 200,
                           .page_tokens = PT,
                           .context_max = CONTEXT,
                           .vocab = VOCAB};
    crowd *w = k2_alloc(sizeof *w);
    w->cfg = cfg;
    w->core = k2i_core_new(&cfg);
    w->model = (fake){.pages = 200, .page_tokens = PT, .weights = 7, .state = k2_alloc_array(200 * PT, sizeof(uint64_t))};
    k2i_core_weights(w->core, (k2_digest){1, 1});
    for (uint32_t i = 0; i < SAMPLES; i++) {
        w->reqs[i] = (k2i_request){.seed = 5,
                                   .trajectory = i,
                                   .tokens = w->tokens[i],
                                   .logps = w->logps[i],
                                   .prompt_len = PROMPT,
                                   .new_max = 1,
                                   .sampling = {.temperature = 1, .top_p = 1}};
        for (uint32_t p = 0; p < PROMPT; p++) w->tokens[i][p] = (int32_t)(p * 7 % VOCAB);
        k2i_core_submit(w->core, &w->reqs[i]);
    }
    while (w->done < SAMPLES) step(w, 0);
    for (uint32_t i = 0; i < SAMPLES; i++) check_alone(w, i);
    /* The last page holds the last position, whose logits each sample computes for itself. */
    assert_int_equal(w->model.rows, PROMPT + (SAMPLES - 1) * PT);
    crowd_free(w);
    k2_free(w);
}

static void test_cut_and_continue_equals_uncut(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        crowd *w = k2_alloc(sizeof *w);
        crowd_make(w, seed);
        k2i_request *r = &w->reqs[0];
        r->repetition = true;
        r->new_max = CONTEXT - r->prompt_len;
        int32_t tokens[CONTEXT];
        float logps[CONTEXT], got[CONTEXT];
        k2i_finish why;
        uint32_t n = alone(r, &w->cfg.repetition, w->model.weights, tokens, logps, &why), prompt = r->prompt_len, so_far = 0;
        for (uint64_t part = 0;; part++) {
            r->prompt_len = prompt + so_far;
            r->position = so_far;
            r->new_max = K2_MIN(1 + (uint32_t)pick(w, 500 + part, 0, 9), CONTEXT - r->prompt_len);
            r->logps = got + so_far;
            assert_int_equal(k2i_core_submit(w->core, r), K2_OK);
            uint32_t done = w->done;
            while (w->done == done) step(w, 0);
            so_far = r->len - prompt;
            if (r->finish != K2I_LENGTH || so_far == CONTEXT - prompt) break;
        }
        assert_int_equal(r->finish, why);
        assert_int_equal(so_far, n);
        assert_memory_equal(r->tokens, tokens, (prompt + n) * sizeof *tokens);
        assert_memory_equal(got, logps, n * sizeof *logps);
        crowd_free(w);
        k2_free(w);
    }
}

static void test_weights_change_between_requests(void **state)
{
    (void)state;
    crowd *w = k2_alloc(sizeof *w);
    crowd_make(w, 3);
    const k2_digest one = {1, 1}, two = {2, 2};
    for (uint32_t i = 0; i < 4; i++) {
        w->reqs[i].stop_count = 0;
        w->reqs[i].repetition = false;
        w->reqs[i].new_max = 20;
        w->reqs[i].has_digest = i != 0;
        w->reqs[i].digest = i == 3 ? two : one;
    }
    w->reqs[1].training = true;
    k2i_core_submit(w->core, &w->reqs[0]);
    k2i_core_submit(w->core, &w->reqs[1]);
    step(w, 10);
    k2i_core_switch_begin(w->core, 1000);
    k2i_core_submit(w->core, &w->reqs[2]); /* waits, and then finds other weights */
    k2i_core_submit(w->core, &w->reqs[3]); /* waits for just these */
    k2i_todo todo;
    while ((todo = step(w, 20)) == K2I_STEP) continue;
    assert_int_equal(todo, K2I_SWITCH);
    assert_int_equal(w->done, 2);
    check_alone(w, 0);
    check_alone(w, 1);
    w->model.weights = 8;
    k2i_core_switch_done(w->core, two);
    while (w->done < 4) step(w, 30);
    assert_int_equal(w->reqs[2].finish, K2I_STALE);
    assert_int_equal(w->reqs[2].len, w->reqs[2].prompt_len);
    check_alone(w, 3);
    crowd_free(w);
    k2_free(w);
}

static void test_switch_deadline_restarts_plain_requests_and_ends_training_ones(void **state)
{
    (void)state;
    crowd *w = k2_alloc(sizeof *w);
    crowd_make(w, 4);
    for (uint32_t i = 0; i < 2; i++) {
        w->reqs[i].stop_count = 0;
        w->reqs[i].repetition = false;
        w->reqs[i].new_max = 30;
    }
    w->reqs[1].training = true;
    k2i_core_submit(w->core, &w->reqs[0]);
    k2i_core_submit(w->core, &w->reqs[1]);
    while (w->reqs[0].len < w->reqs[0].prompt_len + 3) step(w, 10);
    k2i_core_switch_begin(w->core, 1000);
    assert_int_equal(step(w, 1000), K2I_SWITCH);
    assert_int_equal(w->reqs[1].finish, K2I_STALE);
    assert_int_equal(w->reqs[0].finish, K2I_RUNNING);
    uint32_t before = w->reqs[0].len;
    k2i_core_switch_done(w->core, (k2_digest){2, 2});
    while (w->done < 2) step(w, 1001);
    assert_int_equal(w->reqs[0].finish, K2I_LENGTH);
    assert_true(w->reqs[0].len > before);
    crowd_free(w);
    k2_free(w);
}

static void test_bounds(void **state)
{
    (void)state;
    crowd *w = k2_alloc(sizeof *w);
    crowd_make(w, 5);
    k2i_core_free(w->core);
    w->cfg.requests_max = 2;
    w->core = k2i_core_new(&w->cfg);
    assert_int_equal(k2i_core_submit(w->core, &w->reqs[0]), K2_OK);
    assert_int_equal(k2i_core_submit(w->core, &w->reqs[1]), K2_OK);
    assert_int_equal(k2i_core_submit(w->core, &w->reqs[2]), K2_FULL);
    assert_int_equal(step(w, 0), K2I_IDLE); /* without weights nothing is let in */
    k2i_core_end(w->core, &w->reqs[0], K2I_CANCELED);
    collect(w);
    assert_int_equal(k2i_core_submit(w->core, &w->reqs[2]), K2_OK);
    crowd_free(w);
    k2_free(w);
}

static void test_values_that_are_not_finite_end_one_request(void **state)
{
    (void)state;
    crowd *w = k2_alloc(sizeof *w);
    crowd_make(w, 6);
    k2i_core_submit(w->core, &w->reqs[0]);
    const k2i_row *rows;
    uint32_t count, wanted = 0;
    float logits[VOCAB] = {NAN};
    while (w->done == 0) {
        assert_int_equal(k2i_core_plan(w->core, 0, &rows, &count, &wanted), K2I_STEP);
        k2i_core_absorb(w->core, logits, logprob, logits);
        collect(w);
    }
    assert_int_equal(w->reqs[0].finish, K2I_FAILED);
    assert_int_equal(w->reqs[0].len, w->reqs[0].prompt_len);
    k2i_core_check(w->core);
    crowd_free(w);
    k2_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_crowd_gives_what_each_gives_alone),
        cmocka_unit_test(test_a_group_computes_its_prompt_once),
        cmocka_unit_test(test_cut_and_continue_equals_uncut),
        cmocka_unit_test(test_weights_change_between_requests),
        cmocka_unit_test(test_switch_deadline_restarts_plain_requests_and_ends_training_ones),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_values_that_are_not_finite_end_one_request),
    };
    return cmocka_run_group_tests_name("rollout_engine_core", tests, NULL, NULL);
}
