/* A model that multiplies in bf16 is the model that multiplies in f32, but for rounding: logits, gradients and where the
 * rounding ends. That its bits depend on nothing else is held by decode_test and grad_test. */
#include "tests/unit/model/model_test_int.h"

enum { TOKENS = 184 };
static const uint32_t LENS[] = {70, 3, 90, 1, 20};

typedef struct outcome {
    float logp[TOKENS], entropy[TOKENS], dlogp[TOKENS], *grads;
    size_t count;
} outcome;

static void run(outcome *o, k2_compute compute, const k2_dims *d, uint32_t threads)
{
    test_batch t = test_batch_new(d, LENS, K2_COUNT(LENS), 21);
    k2_model *m = test_model_in(compute, d, threads, 3);
    o->count = k2_model_param_count(m);
    o->grads = k2_alloc_array(o->count, sizeof(float));
    for (size_t i = 0; i < TOKENS; i++) o->dlogp[i] = (float)(k2_rand_unit(3, K2_STREAM_TEST, 5, i) - 0.5);
    test_run(m, threads, &t.b, &(k2_model_out){.logp = o->logp, .entropy = o->entropy}, o->dlogp, o->grads);
    test_batch_free(&t);
    k2_model_free(m);
}

/* The length of a - b by that of b. */
static double distance(const float *a, const float *b, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return all > 0 ? sqrt(off / all) : off;
}

/* Operands are off by 2^-9 at most, each element of a product by about as much of its row's size; over a few layers it adds up.
 * All experts take part: else a token near the border of two would jump to another one, and say nothing about the arithmetic.
 */
static void near_f32(void **state)
{
    (void)state;
    for (int kind = 0; kind < TEST_MODELS; kind++) {
        k2_dims d = test_dims(kind);
        d.num_experts_per_tok = d.n_routed_experts;
        d.topk_group = d.n_group;
        outcome f, b;
        run(&f, K2_COMPUTE_F32, &d, 1);
        run(&b, K2_COMPUTE_BF16, &d, 1);
        double logp = distance(b.logp, f.logp, TOKENS), grads = distance(b.grads, f.grads, f.count);
        print_message("kind %d: log-probabilities off by %.2g, gradients by %.2g\n", kind, logp, grads);
        assert_true(logp > 1e-4 && logp < 1e-2);
        assert_true(grads > 1e-3 && grads < 1e-1);
        k2_free(f.grads);
        k2_free(b.grads);
    }
}

/* Experts whose router rows differ by less than bf16 can tell are still told apart: the later ones score higher or lower, never
 * equal. */
static void router_stays_f32(void **state)
{
    (void)state;
    k2_dims d = test_dims(0);
    const uint32_t starts[2] = {0, 16};
    uint32_t loads[2][6];
    int32_t tokens[16], targets[16];
    float logp[16];
    for (int i = 0; i < 16; i++) {
        tokens[i] = i;
        targets[i] = -1;
    }
    k2_model_batch batch = {.tokens_count = 16, .seqs_count = 1, .tokens = tokens, .seq_starts = starts, .targets = targets};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        k2_model *m = test_model_in(bf16 ? K2_COMPUTE_BF16 : K2_COMPUTE_F32, &d, 1, 3);
        const k2_model_layout *l = k2_model_layout_of(m);
        for (size_t i = 0; i < l->params_count;
             i++) { /* what the router reads is the embedding, and each expert has its own digits of it */
            float *w = k2_model_params(m) + l->params[i].offset;
            if (strstr(l->params[i].name, "o_proj") || strstr(l->params[i].name, "down_proj"))
                memset(w, 0, l->params[i].count * sizeof(float));
            if (strstr(l->params[i].name, "mlp.gate.weight"))
                for (size_t e = 0; e < l->params[i].count; e++) w[e] = 1.0f + (float)(e / d.hidden_size) * 0x1p-12f;
            if (strstr(l->params[i].name, "correction_bias")) memset(w, 0, l->params[i].count * sizeof(float));
        }
        k2_model_params_changed(m);
        test_run(m, 1, &batch, &(k2_model_out){.logp = logp, .loads = loads[bf16]}, NULL, NULL);
        k2_model_free(m);
    }
    assert_memory_equal(loads[0], loads[1], sizeof(loads[0]));
    assert_true(loads[0][5] > 0 && loads[0][0] + loads[0][1] < 32);
}

/* A weight's gradient takes its tokens in pairs. Rows of logits come in blocks that a wide vocabulary makes small, and several
 * threads take more of them at once: no block may tear a pair. */
static void wide_vocabulary(void **state)
{
    (void)state;
    k2_dims d = test_dims(3);
    d.vocab_size = 24000; /* 43 rows to 4 MiB */
    outcome one, more;
    run(&one, K2_COMPUTE_BF16, &d, 1);
    for (uint32_t threads = 2; threads <= 3; threads++) {
        run(&more, K2_COMPUTE_BF16, &d, threads);
        assert_memory_equal(more.grads, one.grads, one.count * sizeof(float));
        k2_free(more.grads);
    }
    k2_free(one.grads);
}

static void names(void **state)
{
    (void)state;
    assert_int_equal(k2_compute_find("f32", true), K2_COMPUTE_F32);
    assert_int_equal(k2_compute_find("f32", false), K2_COMPUTE_F32_FORWARD);
    assert_int_equal(k2_compute_find("bf16", true), K2_COMPUTE_BF16);
    assert_int_equal(k2_compute_find("bf16", false), K2_COMPUTE_BF16_FORWARD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_f32),
        cmocka_unit_test(router_stays_f32),
        cmocka_unit_test(wide_vocabulary),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
