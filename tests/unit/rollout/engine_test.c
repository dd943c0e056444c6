/* engine - a real model on a real thread: tokens and log-probabilities are those of each request alone, and the
 * log-probabilities are the trainer's, bit for bit, at any batch, page size, chunk, pool, number of threads, and after a change
 * of weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "rollout/engine_int.h"
#include "tests/unit/rollout/tiny_int.h"

enum { CONTEXT = 120, JOBS = 24 };

typedef struct crowd {
    k2_loop *loop;
    k2i_engine *engine;
    k2i_job jobs[JOBS];
    int32_t tokens[JOBS][CONTEXT];
    float logps[JOBS][CONTEXT];
    uint32_t done, want;
    k2_model *old;
    bool switched;
    uint64_t version; /* what on_switched has said last */
} crowd;

static void on_news(void *arg, k2i_job *job)
{
    crowd *w = arg;
    if (job->finish == K2I_RUNNING) return;
    if (++w->done == w->want) k2_loop_stop(w->loop);
}

static k2i_engine_plan plan(uint32_t batch, uint32_t chunk, uint32_t page_tokens, uint32_t cache_tokens, uint32_t threads)
{
    return (k2i_engine_plan){.threads = threads,
                             .core = {.batch_max = batch,
                                      .prefill_chunk = chunk,
                                      .requests_max = JOBS,
                                      .pages = (cache_tokens + page_tokens - 1) / page_tokens,
                                      .page_tokens = page_tokens,
                                      .context_max = CONTEXT,
                                      .repetition = {.min_period = 1, .max_period = 4, .count = 4}}};
}

static crowd *crowd_new(const k2i_engine_plan *p, uint64_t weights_seed)
{
    crowd *w = k2_alloc(sizeof *w);
    k2_dims dims = tiny_dims();
    w->loop = k2_loop_new();
    w->engine = k2i_engine_new(w->loop, p, &dims,
                               &(k2i_weights){.model = tiny_model(weights_seed, p->threads), .version = 1, .digest = {1, 1}});
    for (uint32_t i = 0; i < JOBS; i++) {
        k2i_job *job = &w->jobs[i];
        uint64_t group = i / 4;
        job->on_news = on_news;
        job->arg = w;
        k2i_request *r = &job->req;
        r->seed = 11;
        r->trajectory = i;
        r->tokens = w->tokens[i];
        r->logps = w->logps[i];
        r->prompt_len = 1 + (uint32_t)k2_rand_below(4, K2_STREAM_TEST, group, 0, 70);
        r->new_max = 1 + (uint32_t)k2_rand_below(4, K2_STREAM_TEST, i, 1, CONTEXT - 71);
        for (uint32_t p_ = 0; p_ < r->prompt_len; p_++)
            w->tokens[i][p_] = (int32_t)k2_rand_below(4, K2_STREAM_TEST, p_ < 25 ? 0 : group, 10 + p_, 264);
        r->sampling = (k2i_sampling){.temperature = i % 5 ? 0.9 : 0, .top_p = i % 3 ? 1 : 0.9, .top_k = i % 7 == 1 ? 20 : 0};
        r->repetition = i % 2;
        r->stop_ids[0] = 7;
        r->stop_count = 1;
    }
    return w;
}

static void crowd_run(crowd *w, uint32_t first, uint32_t count)
{
    w->done = 0;
    w->want = count;
    for (uint32_t i = first; i < first + count; i++) assert_int_equal(k2i_engine_submit(w->engine, &w->jobs[i]), K2_OK);
    k2_loop_run(w->loop);
}

static void crowd_free(crowd *w)
{
    k2i_engine_stop(w->engine);
    k2_loop_free(w->loop);
    k2i_engine_free(w->engine);
    k2_model_free(w->old);
    k2_free(w);
}

/* The trainer's forward over the whole sequence. */
static void check_against_trainer(const crowd *w, uint64_t weights_seed)
{
    k2_model *m = tiny_model(weights_seed, 1);
    k2_arena arena;
    k2_arena_init(&arena, k2_model_act_bytes(k2_model_dims(m), 1, CONTEXT) + 65536);
    for (uint32_t i = 0; i < JOBS; i++) {
        const k2i_request *r = &w->jobs[i].req;
        int32_t targets[CONTEXT];
        float logp[CONTEXT];
        uint32_t starts[2] = {0, r->len};
        for (uint32_t t = 0; t < r->len; t++) targets[t] = t + 1 < r->len ? r->tokens[t + 1] : -1;
        k2_model_batch batch = {
            .tokens_count = r->len, .seqs_count = 1, .tokens = r->tokens, .seq_starts = starts, .targets = targets};
        k2_model_fwd(m, &batch, &arena, &(k2_model_out){.logp = logp});
        k2_arena_reset(&arena, 0);
        assert_memory_equal(r->logps, logp + r->prompt_len - 1, (r->len - r->prompt_len) * sizeof(float));
    }
    k2_arena_fini(&arena);
    k2_model_free(m);
}

static void check_same(const crowd *a, const crowd *b)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        const k2i_request *x = &a->jobs[i].req, *y = &b->jobs[i].req;
        assert_int_equal(x->len, y->len);
        assert_int_equal(x->finish, y->finish);
        assert_memory_equal(x->tokens, y->tokens, x->len * sizeof(int32_t));
        assert_memory_equal(x->logps, y->logps, (x->len - x->prompt_len) * sizeof(float));
    }
}

static void test_any_mix_equals_one_at_a_time_and_the_trainer(void **state)
{
    (void)state;
    k2i_engine_plan one = plan(1, 7, 16, 4 * CONTEXT, 1);
    crowd *alone = crowd_new(&one, 5);
    for (uint32_t i = 0; i < JOBS; i++) crowd_run(alone, i, 1);
    check_against_trainer(alone, 5);
    uint32_t stopped = 0, repeated = 0;
    for (uint32_t i = 0; i < JOBS; i++) {
        stopped += alone->jobs[i].finish == K2I_STOP;
        repeated += alone->jobs[i].finish == K2I_REPETITION;
    }
    print_message("of %d: stopped %u, repeated %u\n", JOBS, stopped, repeated);
    static const struct {
        uint32_t batch, chunk, page_tokens, cache_tokens, threads;
    } mixes[] = {{24, 256, 16, 8192, 1}, {24, 256, 16, 8192, 2}, {8, 32, 4, 400, 1},
                 {5, 1, 1, 160, 1},      {16, 13, 7, 300, 2},    {24, 64, 64, 256, 1}};
    for (size_t m = 0; m < K2_COUNT(mixes); m++) {
        k2i_engine_plan p = plan(mixes[m].batch, mixes[m].chunk, mixes[m].page_tokens, mixes[m].cache_tokens, mixes[m].threads);
        crowd *w = crowd_new(&p, 5);
        crowd_run(w, 0, JOBS);
        check_same(alone, w);
        k2i_core_stats stats;
        k2i_engine_stats_get(w->engine, &stats);
        print_message("mix %zu: steps %llu, shared %llu, preempted %llu\n", m, (unsigned long long)stats.steps,
                      (unsigned long long)stats.cached_tokens, (unsigned long long)stats.preemptions);
        crowd_free(w);
    }
    crowd_free(alone);
}

static void on_switched(void *arg, k2_model *old)
{
    crowd *w = arg;
    w->old = old;
    w->switched = true;
    k2_loop_stop(w->loop);
}

static void test_change_of_weights(void **state)
{
    (void)state;
    k2i_engine_plan p = plan(24, 64, 16, 8192, 1);
    crowd *w = crowd_new(&p, 5);
    crowd_run(w, 0, JOBS);
    assert_true(w->jobs[0].version == 1);
    k2i_engine_switch(w->engine, &(k2i_weights){.model = tiny_model(6, 1), .version = 2, .digest = {2, 2}},
                      k2_loop_now_ns(w->loop) + K2_NS_PER_S, on_switched, w);
    assert_true(k2i_engine_switching(w->engine));
    k2_loop_run(w->loop);
    assert_true(w->switched && w->old);
    uint64_t version;
    k2_digest digest;
    k2i_engine_weights_get(w->engine, &version, &digest);
    assert_true(version == 2 && digest.hi == 2);
    crowd_run(w, 0, JOBS);
    assert_true(w->jobs[0].version == 2);
    check_against_trainer(w, 6);
    /* The same weights under another version: the model stays. */
    w->switched = false;
    k2_model_free(w->old);
    k2i_engine_switch(w->engine, &(k2i_weights){.version = 3, .digest = {2, 2}}, k2_loop_now_ns(w->loop) + K2_NS_PER_S,
                      on_switched, w);
    k2_loop_run(w->loop);
    assert_true(w->switched && !w->old);
    crowd_run(w, 0, JOBS);
    assert_true(w->jobs[0].version == 3);
    check_against_trainer(w, 6);
    crowd_free(w);
}

static void on_cut_news(void *arg, k2i_job *job)
{
    crowd *w = arg;
    if (job->finish == K2I_RUNNING) return;
    if (job->len > job->req.prompt_len) assert_int_equal(job->version, w->version);
    if (++w->done == w->want && w->switched) k2_loop_stop(w->loop);
}

static void on_cut_switched(void *arg, k2_model *old)
{
    crowd *w = arg;
    assert_null(old);
    w->switched = true;
    w->version++;
    if (w->done == w->want) k2_loop_stop(w->loop);
}

/* Whatever a switch overtakes was drawn by the weights of before, is told under their version, and before the switch is. */
static void test_news_come_before_the_switch(void **state)
{
    (void)state;
    k2i_engine_plan p = plan(JOBS, 64, 16, 8192, 1);
    crowd *w = crowd_new(&p, 5);
    w->version = 1;
    for (uint32_t i = 0; i < JOBS; i++) {
        w->jobs[i].on_news = on_cut_news;
        w->jobs[i].req.training = true;
    }
    for (uint32_t round = 0; round < 60; round++) {
        w->done = 0;
        w->want = JOBS / 2;
        w->switched = false;
        for (uint32_t i = 0; i < w->want; i++) {
            w->jobs[i].req.has_digest = true;
            w->jobs[i].req.digest = (k2_digest){1, w->version};
            assert_int_equal(k2i_engine_submit(w->engine, &w->jobs[i]), K2_OK);
        }
        k2i_weights next = {.version = w->version + 1, .digest = {1, w->version + 1}};
        k2i_engine_switch(w->engine, &next, k2_loop_now_ns(w->loop) + round * K2_NS_PER_MS / 4, on_cut_switched, w);
        k2_loop_run(w->loop);
        assert_true(w->done == w->want && w->switched);
    }
    crowd_free(w);
}

static void test_first_weights_and_cancel(void **state)
{
    (void)state;
    k2i_engine_plan p = plan(4, 64, 16, 8192, 1);
    crowd *w = crowd_new(&p, 5);
    k2_dims dims = tiny_dims();
    k2i_engine *empty = k2i_engine_new(w->loop, &p, &dims, &(k2i_weights){0});
    k2i_engine *full = w->engine;
    w->engine = empty;
    w->want = JOBS;
    for (uint32_t i = 0; i < JOBS; i++) {
        w->jobs[i].req.stop_count = 0;
        w->jobs[i].req.repetition = false;
        assert_int_equal(k2i_engine_submit(w->engine, &w->jobs[i]), K2_OK);
    }
    k2i_job more = {.req = w->jobs[0].req};
    assert_int_equal(k2i_engine_submit(w->engine, &more), K2_FULL);
    for (uint32_t i = 0; i < JOBS; i += 2) {
        k2i_engine_end(w->engine, &w->jobs[i], K2I_CANCELED);
        k2i_engine_end(w->engine, &w->jobs[i], K2I_CANCELED); /* twice does no harm */
    }
    k2i_engine_switch(w->engine, &(k2i_weights){.model = tiny_model(5, 1), .version = 1, .digest = {1, 1}}, 0, on_switched, w);
    while (w->done < JOBS || !w->switched) k2_loop_run(w->loop);
    assert_null(w->old);
    for (uint32_t i = 0; i < JOBS; i++) {
        k2i_finish want = i % 2 ? K2I_LENGTH : K2I_CANCELED;
        assert_int_equal(w->jobs[i].finish, want);
    }
    w->engine = full;
    k2i_engine_stop(empty);
    crowd *keep = w;
    k2i_engine_stop(full);
    k2_loop_free(w->loop);
    k2i_engine_free(empty);
    k2i_engine_free(full);
    k2_free(keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_mix_equals_one_at_a_time_and_the_trainer),
        cmocka_unit_test(test_change_of_weights),
        cmocka_unit_test(test_news_come_before_the_switch),
        cmocka_unit_test(test_first_weights_and_cancel),
    };
    return cmocka_run_group_tests_name("rollout_engine", tests, NULL, NULL);
}
