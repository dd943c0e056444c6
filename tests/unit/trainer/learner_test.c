/* Updates: the same bits for any ranks and threads, a loss that falls, and a NaN that changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/trainer/fixture.h"

enum { SEQS = 12, LONGEST = 16 };

/* Sequences that count upwards: there is something to learn. */
typedef struct text {
    int32_t tokens[SEQS][LONGEST + 1];
    k2i_seq seqs[SEQS];
    uint32_t lengths[SEQS];
    k2i_micro micros[SEQS];
    float logp[SEQS * LONGEST];
    k2i_pass pass;
} text;

static void text_fill(text *x, uint64_t step)
{
    k2_error err;
    uint64_t at = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t rows = 2 + (uint32_t)k2_rand_below(9, K2_STREAM_TEST, step, i, LONGEST - 2);
        int32_t from = (int32_t)k2_rand_below(9, K2_STREAM_TEST, step, 100 + i, 20);
        for (uint32_t t = 0; t <= rows; t++) x->tokens[i][t] = (from + (int32_t)t) % 40;
        x->seqs[i] = (k2i_seq){.tokens = x->tokens[i], .rows = rows, .at = at};
        x->lengths[i] = rows;
        at += rows;
    }
    x->pass = (k2i_pass){.ops = k2i_loss_find("cross_entropy"),
                         .scale = {.trajectories = SEQS, .tokens = at},
                         .seqs = x->seqs,
                         .micros = x->micros,
                         .logp = x->logp};
    K2_ASSERT(k2i_pack(x->lengths, SEQS, 32, 2, x->micros, &x->pass.micro_count, &err) == K2_OK);
}

static const k2i_update update = {
    .optim = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01}, .lr = 0.01, .clip_norm = 1, .bias_rate = 0.001};

static double train_with(k2i_learner *l, const k2i_update *how, uint64_t steps)
{
    text *x = k2_alloc(sizeof(*x));
    k2i_outcome outcome;
    k2_error err;
    for (uint64_t s = 0; s < steps; s++) {
        text_fill(x, s);
        K2_ASSERT(k2i_learner_update(l, &x->pass, how, &outcome, &err) == K2_OK && !outcome.skipped);
    }
    k2_free(x);
    return outcome.sums[K2I_SUM_LOSS];
}

static double train(k2i_learner *l, uint64_t steps)
{
    return train_with(l, &update, steps);
}

static void train_body(fixture_rank *r)
{
    const uint32_t *threads = r->arg;
    k2i_learner *l = fixture_learner(r->coll, *threads, 32);
    train(l, 3);
    r->digest = fixture_digest(l);
    k2i_learner_free(l);
}

static void test_same_bits(void **state)
{
    (void)state;
    uint32_t one = 1, two = 2, three = 3;
    k2_digest expected = fixture_run(1, train_body, &one);
    assert_true(k2_digest_equal(expected, fixture_run(1, train_body, &two)));
    assert_true(k2_digest_equal(expected, fixture_run(2, train_body, &one)));
    assert_true(k2_digest_equal(expected, fixture_run(2, train_body, &three)));
}

static void learn_body(fixture_rank *r)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 32);
    double first = train(l, 1), last = train(l, 60);
    K2_ASSERT(first > 3 && last < 0.5 * first);
    k2i_learner_free(l);
}

static void test_learns(void **state)
{
    (void)state;
    fixture_run(1, learn_body, NULL);
}

/* Computing again gives what keeping gives. */
static void recompute_body(fixture_rank *r)
{
    k2i_learner_config config = {.dims = fixture_dims(),
                                 .threads = 1,
                                 .lanes = 2,
                                 .micro_tokens = 32,
                                 .recompute = *(const k2_recompute *)r->arg,
                                 .coll = r->coll};
    k2i_learner *l = NULL;
    k2_error err;
    K2_ASSERT(k2i_learner_new(&config, &l, &err) == K2_OK);
    k2_model_init(k2i_learner_model(l), 5, 0.2);
    k2i_learner_params_changed(l);
    train(l, 3);
    r->digest = fixture_digest(l);
    k2i_learner_free(l);
}

static void test_recompute(void **state)
{
    (void)state;
    k2_digest expected = fixture_run(1, train_body, &(uint32_t){1});
    for (k2_recompute how = K2_RECOMPUTE_NONE; how <= K2_RECOMPUTE_FULL; how++)
        assert_true(k2_digest_equal(expected, fixture_run(1, recompute_body, &how)));
}

/* MuonClip: the largest score is one that no head has after its update, by the next pass on the same sequences. */
static void clip_body(fixture_rank *r)
{
    const uint32_t *threads = r->arg;
    k2i_learner_config config = {
        .dims = fixture_dims(), .threads = *threads, .lanes = 2, .micro_tokens = 32, .muon = true, .coll = r->coll};
    k2i_learner *l = NULL;
    k2i_update u = update;
    k2i_outcome first, second;
    k2_error err;
    text *x = k2_alloc(sizeof(*x));
    u.optim.momentum = 0.95;
    u.lr = 1e-6;
    K2_ASSERT(k2i_learner_new(&config, &l, &err) == K2_OK);
    k2_model_init(k2i_learner_model(l), 5, 0.5);
    k2i_learner_params_changed(l);
    text_fill(x, 0);
    K2_ASSERT(k2i_learner_update(l, &x->pass, &u, &first, &err) == K2_OK && first.qk_clipped == 0);
    u.qk_clip = 0.8 * first.score_max;
    K2_ASSERT(k2i_learner_update(l, &x->pass, &u, &first, &err) == K2_OK && first.qk_clipped > 0);
    u.qk_clip = 0;
    K2_ASSERT(k2i_learner_update(l, &x->pass, &u, &second, &err) == K2_OK);
    K2_ASSERT(second.score_max < first.score_max);
    u.lr = 0.01;
    u.qk_clip = 1;
    train_with(l, &u, 3);
    r->digest = fixture_digest(l);
    k2_free(x);
    k2i_learner_free(l);
}

static void test_muon_clip(void **state)
{
    (void)state;
    uint32_t one = 1, three = 3;
    k2_digest expected = fixture_run(1, clip_body, &one);
    assert_true(k2_digest_equal(expected, fixture_run(1, clip_body, &three)));
    assert_true(k2_digest_equal(expected, fixture_run(2, clip_body, &one)));
    assert_true(k2_digest_equal(expected, fixture_run(2, clip_body, &three)));
}

/* The auxiliary loss evens out what a strong router would crowd, and its figures do not depend on ranks. */
static double balance_after(fixture_rank *r, double weight)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 32);
    k2i_update u = update;
    u.bias_rate = 0;
    text *x = k2_alloc(sizeof(*x));
    k2i_outcome outcome;
    k2_error err;
    for (int s = 0; s < 20; s++) {
        text_fill(x, 0);
        x->pass.balance_weight = s < 19 ? weight : 1; /* the last pass measures it */
        K2_ASSERT(k2i_learner_update(l, &x->pass, &u, &outcome, &err) == K2_OK && !outcome.skipped);
    }
    r->digest = fixture_digest(l);
    k2_free(x);
    k2i_learner_free(l);
    return outcome.sums[K2I_SUM_BALANCE] / SEQS;
}

static void balance_body(fixture_rank *r)
{
    double without = balance_after(r, 0), with = balance_after(r, 1);
    K2_ASSERT(with < without && with > 0.5);
}

/* Where the loss has no gradient the auxiliary one alone moves nothing. */
static void balance_alone_body(fixture_rank *r)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 32);
    text *x = k2_alloc(sizeof(*x));
    k2i_outcome outcome;
    k2_error err;
    uint8_t *use = k2_alloc(sizeof(x->logp));
    text_fill(x, 0);
    x->pass.use = use; /* all K2I_USE_NONE */
    x->pass.balance_weight = 1;
    k2_digest before = fixture_digest(l);
    K2_ASSERT(k2i_learner_update(l, &x->pass, &update, &outcome, &err) == K2_OK && !outcome.skipped);
    K2_ASSERT(outcome.grad_norm > 0 && k2_digest_equal(before, fixture_digest(l)));
    r->digest = before;
    k2_free(use);
    k2_free(x);
    k2i_learner_free(l);
}

static void test_balance(void **state)
{
    (void)state;
    assert_true(k2_digest_equal(fixture_run(1, balance_body, NULL), fixture_run(2, balance_body, NULL)));
    fixture_run(2, balance_alone_body, NULL);
}

/* The bias moves by its rate, against the load; nothing else of the optimizer touches it. */
static void bias_body(fixture_rank *r)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 32);
    const k2_param *p =
        k2_model_layout_find(k2_model_layout_of(k2i_learner_model(l)), "model.layers.1.mlp.gate.e_score_correction_bias");
    train(l, 1);
    double sum = 0;
    for (uint32_t e = 0; e < 4; e++) sum += k2i_learner_loads(l)[e];
    for (uint32_t e = 0; e < 4; e++) {
        double load = k2i_learner_loads(l)[e], mean = sum / 4;
        float expected = load < mean ? 0.001f : load > mean ? -0.001f : 0;
        K2_ASSERT(k2i_learner_params(l)[p->offset + e] == expected);
    }
    K2_ASSERT(sum > 0 && k2i_learner_optim(l)->m[p->offset] == 0);
    k2i_learner_free(l);
}

static void test_bias(void **state)
{
    (void)state;
    fixture_run(1, bias_body, NULL);
}

static void nan_body(fixture_rank *r)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 32);
    train(l, 1);
    text *x = k2_alloc(sizeof(*x));
    text_fill(x, 7);
    float *weight =
        &k2i_learner_params(l)[k2_model_layout_find(k2_model_layout_of(k2i_learner_model(l)), "model.norm.weight")->offset];
    float held = *weight;
    *weight = NAN;
    k2i_learner_params_changed(l);
    k2i_outcome outcome;
    k2_error err;
    k2_digest before = fixture_digest(l);
    K2_ASSERT(k2i_learner_update(l, &x->pass, &update, &outcome, &err) == K2_OK);
    K2_ASSERT(outcome.skipped && k2_digest_equal(before, fixture_digest(l)) && k2i_learner_optim(l)->updates == 1);
    *weight = held;
    k2i_learner_params_changed(l);
    K2_ASSERT(k2i_learner_update(l, &x->pass, &update, &outcome, &err) == K2_OK && !outcome.skipped);
    r->digest = fixture_digest(l);
    k2_free(x);
    k2i_learner_free(l);
}

/* Finite gradients, but the update itself goes beyond what a float holds: it is not made. */
static void overflow_body(fixture_rank *r)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 32);
    train(l, 1);
    text *x = k2_alloc(sizeof(*x));
    text_fill(x, 7);
    k2i_update far = update;
    far.lr = 1e39;
    k2i_outcome outcome;
    k2_error err;
    k2_digest before = fixture_digest(l);
    K2_ASSERT(k2i_learner_update(l, &x->pass, &far, &outcome, &err) == K2_OK);
    K2_ASSERT(outcome.skipped && strcmp(outcome.bad, "a parameter or moment after the update") == 0);
    K2_ASSERT(k2_digest_equal(before, fixture_digest(l)) && k2i_learner_optim(l)->updates == 1);
    r->digest = before;
    k2_free(x);
    k2i_learner_free(l);
}

static void test_overflow_is_skipped(void **state)
{
    (void)state;
    assert_true(k2_digest_equal(fixture_run(1, overflow_body, NULL), fixture_run(2, overflow_body, NULL)));
}

static void test_nan_is_skipped(void **state)
{
    (void)state;
    assert_true(k2_digest_equal(fixture_run(1, nan_body, NULL), fixture_run(2, nan_body, NULL)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),      cmocka_unit_test(test_learns),
        cmocka_unit_test(test_recompute),      cmocka_unit_test(test_muon_clip),
        cmocka_unit_test(test_balance),        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_nan_is_skipped), cmocka_unit_test(test_overflow_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
