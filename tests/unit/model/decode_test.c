/* Trainer and engine agree: log-probabilities of decoding equal those of the packed forward bit for bit, whatever the mix of
 * rows, the page size, the chunks of a prompt and the number of threads. */
#include "tests/unit/model/model_test_int.h"

enum { SEQS = 6, LEN_MAX = 60, PAGES = 512 };

typedef struct engine {
    k2_model *m;
    k2_model_kv kv;
    k2_arena arena;
    uint32_t tables[SEQS][LEN_MAX], pages_used;
    uint32_t done[SEQS]; /* tokens already in the cache */
    uint32_t threads;
} engine;

static void engine_open(engine *e, k2_model *m, uint32_t threads, uint32_t page_tokens, uint64_t seed)
{
    *e = (engine){.m = m, .threads = threads, .kv = {.page_tokens = page_tokens, .pages_count = PAGES}};
    size_t floats = PAGES * k2_model_page_floats(k2_model_dims(m), page_tokens);
    e->kv.pages = k2_alloc_aligned(64, floats * sizeof(float));
    for (size_t i = 0; i < floats; i++) e->kv.pages[i] = NAN; /* what was not written must not be read */
    k2_arena_init(&e->arena, k2_model_decode_bytes(k2_model_dims(m), threads, SEQS * LEN_MAX, LEN_MAX));
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t p = 0; p < LEN_MAX; p++)
            e->tables[s][p] = (uint32_t)(k2_rand_u64(seed, K2_STREAM_TEST, 9, 0) + s * LEN_MAX + p) % PAGES;
    }
}

static void engine_close(engine *e)
{
    k2_free(e->kv.pages);
    k2_arena_fini(&e->arena);
}

/* One call: a random number of next tokens from each of some sequences, shuffled; compared with what the trainer said. */
static bool engine_step(engine *e, const test_batch *t, const float *logp, uint64_t seed, uint64_t step)
{
    size_t V = k2_model_dims(e->m)->vocab_size, n = 0;
    k2_model_row rows[SEQS * LEN_MAX];
    size_t from[SEQS * LEN_MAX];
    for (uint32_t s = 0; s < SEQS; s++) {
        uint32_t left = t->starts[s + 1] - t->starts[s] - e->done[s];
        uint64_t mode = k2_rand_below(seed, K2_STREAM_TEST, step * 100 + s, 0, 3);
        uint32_t take = mode == 0   ? 0
                        : mode == 1 ? 1
                                    : 1 + (uint32_t)k2_rand_below(seed, K2_STREAM_TEST, step * 100 + s, 1, 13);
        take = K2_MIN(take, left);
        for (uint32_t i = 0; i < take; i++, n++) {
            from[n] = t->starts[s] + e->done[s];
            rows[n] = (k2_model_row){.token = t->tokens[from[n]], .position = e->done[s]++, .page_table = e->tables[s]};
        }
    }
    for (size_t i = n; i > 1; i--) { /* rows may stand in any order */
        size_t j = (size_t)k2_rand_below(seed, K2_STREAM_TEST, step, i, i), f = from[j];
        k2_model_row r = rows[j];
        rows[j] = rows[i - 1];
        rows[i - 1] = r;
        from[j] = from[i - 1];
        from[i - 1] = f;
    }
    float *logits = k2_alloc_array(n * V + 1, sizeof(float));
    k2_softmax *soft = k2_alloc_array(n + 1, sizeof(*soft));
    for (size_t i = 0; i < n; i++) {
        if (t->targets[from[i]] < 0) continue;
        rows[i].logits = logits + i * V;
        rows[i].softmax = &soft[i];
    }
    k2_model_decode(e->m, &e->kv, rows, n, &e->arena);
    assert_int_equal(e->arena.used, 0);
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].logits) continue;
        float got = k2_kern_logp(rows[i].logits, rows[i].softmax, (size_t)t->targets[from[i]]);
        if (memcmp(&got, &logp[from[i]], sizeof(got)) != 0) {
            fail_msg("position %u: engine %.9g, trainer %.9g", rows[i].position, (double)got, (double)logp[from[i]]);
        }
    }
    k2_free(logits);
    k2_free(soft);
    for (uint32_t s = 0; s < SEQS; s++) {
        if (e->done[s] < t->starts[s + 1] - t->starts[s]) return true;
    }
    return false;
}

/* Few rows are cut by columns and heads, more by rows; with five threads there are fewer heads and experts than threads. */
static void same_bits_as_trainer(void **state)
{
    (void)state;
    static const uint32_t page_sizes[] = {1, 3, 16, 100}, threads[] = {1, 2, 3, 5};
    const uint32_t lens[SEQS] = {LEN_MAX, 1, 17, 33, 16, 48};
    for (int run = 0; run < 2 * TEST_MODELS; run++) {
        int kind = run % TEST_MODELS;
        bool bf16 = run >= TEST_MODELS;
        k2_dims d = test_dims(kind);
        k2_model *trained = test_model_in(bf16 ? K2_COMPUTE_BF16 : K2_COMPUTE_F32, &d, 1, 31 + (uint64_t)kind);
        test_batch t = test_batch_new(&d, lens, SEQS, 41 + (uint64_t)kind);
        float *logp = k2_alloc_array(t.b.tokens_count, sizeof(float));
        test_run(trained, 1, &t.b, &(k2_model_out){.logp = logp}, NULL, NULL);
        for (size_t i = 0; i < K2_COUNT(threads); i++) {
            engine e;
            k2_model *m = test_forward_of(trained, bf16 ? K2_COMPUTE_BF16_FORWARD : K2_COMPUTE_F32_FORWARD, threads[i]);
            engine_open(&e, m, threads[i], page_sizes[(i + (size_t)kind) % K2_COUNT(page_sizes)], i);
            for (uint64_t step = 0; engine_step(&e, &t, logp, 1000 + i, step); step++) assert_true(step < 1000);
            engine_close(&e);
            k2_model_free(m);
        }
        k2_free(logp);
        test_batch_free(&t);
        k2_model_free(trained);
    }
}

/* A sequence gives the same bits alone, in another batch and at another place of it. */
static void packing_does_not_matter(void **state)
{
    (void)state;
    const uint32_t lens[3] = {20, 31, 7};
    k2_dims d = test_dims(0);
    k2_model *m = test_model(&d, 1, 5);
    test_batch t = test_batch_new(&d, lens, 3, 6);
    float all[58], alone[58], entropy[58];
    test_run(m, 1, &t.b, &(k2_model_out){.logp = all, .entropy = entropy}, NULL, NULL);
    for (size_t s = 0; s < 3; s++) {
        uint32_t starts[2] = {0, lens[s]};
        k2_model_batch b = {.tokens_count = lens[s],
                            .seqs_count = 1,
                            .tokens = t.tokens + t.starts[s],
                            .targets = t.targets + t.starts[s],
                            .seq_starts = starts};
        test_run(m, 1, &b, &(k2_model_out){.logp = alone}, NULL, NULL);
        assert_memory_equal(alone, all + t.starts[s], lens[s] * sizeof(float));
    }
    for (size_t i = 0; i < 58; i++) {
        assert_true((t.targets[i] < 0) == (all[i] == 0.0f));
        assert_true(t.targets[i] < 0 ? entropy[i] == 0.0f : entropy[i] > 0.0f && entropy[i] <= logf(37) + 1e-5f);
    }
    test_batch_free(&t);
    k2_model_free(m);
}

/* Sequences that share their prompt's pages, one of them forked inside a page by copying it. */
static void prompts_share_pages(void **state)
{
    (void)state;
    const uint32_t lens[1] = {20};
    k2_dims d = test_dims(1);
    k2_model *m = test_model(&d, 1, 8);
    test_batch t = test_batch_new(&d, lens, 1, 9);
    float logp[20], logits[37];
    for (int i = 0; i < 20; i++) t.targets[i] = 3;
    test_run(m, 1, &t.b, &(k2_model_out){.logp = logp}, NULL, NULL);
    size_t floats = k2_model_page_floats(&d, 8);
    k2_model_kv kv = {.pages = k2_alloc_aligned(64, 6 * floats * sizeof(float)), .page_tokens = 8, .pages_count = 6};
    k2_arena arena;
    k2_arena_init(&arena, k2_model_decode_bytes(&d, 1, 20, 20));
    uint32_t first[3] = {4, 2, 0}, second[3] = {4, 5, 1}; /* page 4 is shared, page 2 copied to page 5 */
    k2_model_row rows[20];
    for (uint32_t i = 0; i < 13; i++) rows[i] = (k2_model_row){.token = t.tokens[i], .position = i, .page_table = first};
    k2_model_decode(m, &kv, rows, 13, &arena);
    memcpy(kv.pages + 5 * floats, kv.pages + 2 * floats, floats * sizeof(float));
    for (uint32_t i = 13; i < 20; i++) rows[i] = (k2_model_row){.token = 7, .position = i, .page_table = first};
    k2_model_decode(m, &kv, rows + 13, 7, &arena); /* the other sequence goes another way and must not disturb */
    k2_softmax soft;
    for (uint32_t i = 13; i < 20; i++) {
        rows[i] = (k2_model_row){.token = t.tokens[i], .position = i, .page_table = second, .logits = logits, .softmax = &soft};
        k2_model_decode(m, &kv, rows + i, 1, &arena);
        float got = k2_kern_logp(logits, &soft, 3);
        assert_memory_equal(&got, &logp[i], sizeof(float));
    }
    k2_arena_fini(&arena);
    k2_free(kv.pages);
    test_batch_free(&t);
    k2_model_free(m);
}

static void loads_count_every_choice(void **state)
{
    (void)state;
    const uint32_t lens[2] = {40, 30};
    k2_dims d = test_dims(2);
    k2_model *m = test_model(&d, 1, 8);
    test_batch t = test_batch_new(&d, lens, 2, 9);
    float logp[70];
    uint32_t loads[2 * 8], layers = k2_dims_moe_layers(&d);
    assert_int_equal(layers, 2);
    memset(loads, 0xff, sizeof(loads));
    test_run(m, 1, &t.b, &(k2_model_out){.logp = logp, .loads = loads}, NULL, NULL);
    for (uint32_t l = 0; l < layers; l++) {
        uint32_t sum = 0;
        for (uint32_t e = 0; e < 8; e++) sum += loads[l * 8 + e];
        assert_int_equal(sum, 70 * 3);
    }
    test_batch_free(&t);
    k2_model_free(m);
}

/* One token, and a batch without any target: nothing is learned and nothing breaks. */
static void smallest_batches(void **state)
{
    (void)state;
    for (int kind = 0; kind < TEST_MODELS; kind++) {
        k2_dims d = test_dims(kind);
        k2_model *m = test_model(&d, 1, 8);
        const int32_t token = 3, target = 5, none[2] = {-1, -1}, tokens[2] = {1, 2};
        const uint32_t one[2] = {0, 1}, two[2] = {0, 2};
        float logp[2] = {NAN, NAN}, dlogp[2] = {1, 1}, *grads = k2_alloc_array(k2_model_param_count(m), sizeof(float));
        k2_model_batch b = {.tokens_count = 2, .seqs_count = 1, .tokens = tokens, .targets = none, .seq_starts = two};
        test_run(m, 1, &b, &(k2_model_out){.logp = logp}, dlogp, grads);
        assert_true(logp[0] == 0.0f && logp[1] == 0.0f);
        for (size_t i = 0; i < k2_model_param_count(m); i++) assert_true(grads[i] == 0.0f);
        b = (k2_model_batch){.tokens_count = 1, .seqs_count = 1, .tokens = &token, .targets = &target, .seq_starts = one};
        test_run(m, 1, &b, &(k2_model_out){.logp = logp}, dlogp, grads);
        assert_true(logp[0] < 0.0f && k2_kern_sumsq(k2_model_param_count(m), grads) > 0.0);
        k2_free(grads);
        k2_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_trainer), cmocka_unit_test(packing_does_not_matter),
        cmocka_unit_test(prompts_share_pages),  cmocka_unit_test(loads_count_every_choice),
        cmocka_unit_test(smallest_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
