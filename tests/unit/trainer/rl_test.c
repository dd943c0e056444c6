/* Reinforcement-learning steps: what is masked, corrected, measured, undone; the same bits for one rank and two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/trainer/fixture.h"
#include "trainer/rl_int.h"

/* One step under a config; the metrics of the last run stay in `seen`. */
typedef struct plan {
    k2_config config;
    uint32_t old; /* tokens of an older version at the head of each third trajectory */
    /* Added to the reported log-probabilities of older tokens before an answer's last segment, of those in it, and of current
     * ones. */
    float shift_old, shift_last, shift;
    bool exact;  /* report what this trainer itself computes */
    float apart; /* every parameter of the reference model is so many times that of the model, more */
} plan;

static k2i_metrics seen;

/* What an engine with the same weights reports: the learner's own forward. */
static void logps_exact(k2i_learner *l, fixture_batch *b)
{
    k2i_seq seqs[FIXTURE_COUNT];
    uint32_t lengths[FIXTURE_COUNT], count;
    k2i_micro micros[FIXTURE_COUNT];
    float logp[FIXTURE_COUNT * FIXTURE_LONGEST];
    for (uint32_t i = 0; i < FIXTURE_COUNT; i++) {
        const k2_batch_trajectory *t = &b->list[i];
        lengths[i] = t->prompt_tokens + t->generated_tokens - 1;
        seqs[i] = (k2i_seq){
            .tokens = t->tokens, .rows = lengths[i], .first = t->prompt_tokens - 1, .at = (uint64_t)i * FIXTURE_LONGEST};
    }
    K2_ASSERT(k2i_pack(lengths, FIXTURE_COUNT, 48, 2, micros, &count, NULL) == K2_OK);
    k2i_pass pass = {.seqs = seqs, .micros = micros, .micro_count = count, .logp = logp};
    k2i_learner_forward(l, &pass);
    for (uint32_t i = 0; i < FIXTURE_COUNT; i++)
        memcpy(b->logps[i], logp + i * FIXTURE_LONGEST, b->list[i].generated_tokens * sizeof(float));
}

static void step_body(fixture_rank *r)
{
    const plan *p = r->arg;
    k2_coll_config alone = {.ranks = 1, .group = 1};
    k2_coll *coll;
    k2_error err;
    fixture_batch *b = k2_alloc(sizeof(*b));
    k2i_metrics *metrics = k2_alloc(sizeof(*metrics));
    bool reference = p->config.trainer_kl_weight > 0;
    k2i_learner *l = fixture_learner_beside(r->coll, (uint32_t)p->config.trainer_threads, 48, reference);
    size_t floats = k2_model_param_count(k2i_learner_model(l));
    for (size_t i = 0; i < floats && reference; i++) k2i_learner_reference(l)[i] *= 1 + p->apart;
    fixture_batch_fill(b, 3, p->old);
    K2_ASSERT(k2_coll_open(&alone, &coll, &err) == K2_OK && k2_coll_join(coll, NULL, 1, &err) == K2_OK);
    k2i_learner *whole = fixture_learner(coll, 1, 48); /* a forward of all trajectories, whatever this rank's lanes are */
    if (p->exact) logps_exact(whole, b);
    for (uint32_t i = 0; i < FIXTURE_COUNT; i++)
        for (uint32_t t = 0; t < b->list[i].generated_tokens; t++)
            b->logps[i][t] += b->versions[i][t] != 1                                 ? p->shift
                              : b->versions[i][b->list[i].generated_tokens - 1] == 1 ? p->shift_last
                                                                                     : p->shift_old;
    fixture_batch_encode(b, 3);
    const char *bad;
    K2_ASSERT(k2i_rl_check(&b->batch, k2_model_dims(k2i_learner_model(l)), &p->config, &err) == K2_OK);
    K2_ASSERT(k2i_rl_step(l, &p->config, &b->batch, metrics, &bad, &err) == K2_OK);
    r->digest = fixture_digest(l);
    if (r->rank == 0) seen = *metrics;
    k2i_learner_free(whole);
    k2_coll_close(coll);
    k2i_learner_free(l);
    k2_buf_fini(&b->bytes);
    k2_free(metrics);
    k2_free(b);
}

static double metric(const char *name)
{
    double value = k2i_metrics_get(&seen, name);
    assert_true(isnan(value) == 0);
    return value;
}

static k2_digest run(const plan *p)
{
    k2_digest one = fixture_run(1, step_body, p), two = fixture_run(2, step_body, p);
    assert_true(k2_digest_equal(one, two));
    return one;
}

static plan plan_make(void)
{
    return (plan){.config = fixture_config(), .exact = true};
}

static void test_on_policy(void **state)
{
    (void)state;
    plan p = plan_make();
    k2_digest mirror = run(&p);
    assert_true(metric("mismatch_max") == 0 && metric("mismatch_mean") == 0);
    assert_true(metric("ratio_min") == 1 && metric("ratio_max") == 1 && metric("correction_mean") == 1);
    assert_true(metric("skipped") == 0 && metric("updates") == 1 && metric("masked_tokens") == 0);
    assert_true(metric("grad_norm") > 0 && metric("entropy") > 3 && metric("tokens_loss") > 100);
    assert_true(metric("groups") == FIXTURE_GROUPS && metric("groups_flat") >= 1);
    assert_true(metric("reward_mean") > 0.2 && metric("reward_mean") < 1 && metric("load_max_vio") >= 0);
    snprintf(p.config.trainer_loss, sizeof(p.config.trainer_loss), "grpo");
    assert_false(k2_digest_equal(mirror, run(&p)));
    assert_true(metric("ratio_max") == 1 && metric("clip_share") == 0);
}

/* Several updates: ratios leave 1, pi_old stays what it was at the start. */
static void test_many_updates(void **state)
{
    (void)state;
    plan p = plan_make();
    p.config.trainer_epochs = 2;
    p.config.trainer_minibatches = 3;
    p.config.trainer_lr = 0.02;
    run(&p);
    assert_true(metric("updates") == 6 && metric("mismatch_max") == 0);
    assert_true(metric("ratio_max") > 1.001 || metric("ratio_min") < 0.999);
    snprintf(p.config.trainer_loss, sizeof(p.config.trainer_loss), "grpo");
    p.config.trainer_clip_low = p.config.trainer_clip_high = 0.001;
    run(&p);
    assert_true(metric("clip_share") > 0);
}

/* Masked tokens of older versions have no say: what the engine reported for them does not matter. */
static void test_older_tokens(void **state)
{
    (void)state;
    plan p = plan_make();
    p.old = 5;
    k2_digest masked = run(&p);
    double tokens = metric("tokens_loss");
    assert_true(metric("masked_tokens") > 5 && metric("mismatch_max") == 0);
    p.shift_old = -0.5f;
    assert_true(k2_digest_equal(masked, run(&p)));
    assert_true(metric("mismatch_max") == 0); /* measured over tokens of the current version only */
    snprintf(p.config.trainer_old_segments, sizeof(p.config.trainer_old_segments), "correct");
    assert_false(k2_digest_equal(masked, run(&p)));
    assert_true(metric("masked_tokens") == 0 && metric("tokens_loss") > tokens && metric("correction_mean") > 1.001);
}

/* An answer that ended while others of its group went on is in the loss with its last segment, whatever weights drew that: else
 * only the long ones of a group would be trained. */
static void test_answers_that_waited(void **state)
{
    (void)state;
    plan p = plan_make();
    p.old = FIXTURE_LONGEST; /* every third answer is older as a whole */
    k2_digest exact = run(&p);
    assert_true(metric("masked_tokens") == 0 && metric("correction_mean") == 1);
    p.shift_last = -0.5f;
    assert_false(k2_digest_equal(exact, run(&p)));
    assert_true(metric("masked_tokens") == 0 && metric("correction_mean") > 1.001);
}

static void test_correction_switch(void **state)
{
    (void)state;
    plan p = plan_make();
    k2_digest exact = run(&p);
    p.config.trainer_correction = false;
    assert_true(k2_digest_equal(exact, run(&p))); /* with the built-in engine every correction is exactly 1 */
    p.shift = -0.25f;
    assert_true(k2_digest_equal(exact, run(&p)));
    assert_true(fabs(metric("mismatch_mean") - 0.25) < 1e-5);
    p.config.trainer_correction = true;
    assert_false(k2_digest_equal(exact, run(&p)));
    assert_true(fabs(metric("correction_mean") - exp(0.25)) < 1e-5);
    p.config.trainer_correction_max = 1.125;
    run(&p);
    assert_true(metric("correction_mean") == 1.125);
}

/* Each loss goes its own way, the same one with one rank and two; only dapo leaves out the groups without a difference. */
static void test_losses(void **state)
{
    (void)state;
    static const char *const names[] = {"mirror", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++"};
    k2_digest digests[K2_COUNT(names)];
    plan p = plan_make();
    p.config.trainer_epochs = 2;
    for (size_t i = 0; i < K2_COUNT(names); i++) {
        snprintf(p.config.trainer_loss, sizeof(p.config.trainer_loss), "%s", names[i]);
        digests[i] = run(&p);
        assert_true(metric("updates") == 2 && metric("skipped") == 0 && metric("grad_norm") > 0);
        assert_true((metric("masked_tokens") > 0) == (strcmp(names[i], "dapo") == 0));
        for (size_t k = 0; k < i; k++) assert_false(k2_digest_equal(digests[i], digests[k]));
    }
}

static void place_kl(plan *p, double weight, const char *kind, const char *place)
{
    p->config.trainer_kl_weight = weight;
    snprintf(p->config.trainer_kl_estimator, sizeof(p->config.trainer_kl_estimator), "%s", kind);
    snprintf(p->config.trainer_kl_place, sizeof(p->config.trainer_kl_place), "%s", place);
}

/* A reference that is the model itself has no say in a step's first update, to the bit; but k1 in the loss, whose slope is that
 * of log pi itself. */
static void test_equal_reference(void **state)
{
    (void)state;
    plan p = plan_make();
    k2_digest off = run(&p);
    assert_true(isnan(k2i_metrics_get(&seen, "kl")) != 0);
    for (int k = 0; k < 6; k++) {
        place_kl(&p, 0.5, (const char *const[]){"k1", "k2", "k3"}[k % 3], k < 3 ? "loss" : "reward");
        assert_int_equal(k2_digest_equal(off, run(&p)), k != 0);
        assert_true(metric("kl") == 0);
    }
}

/* Another one has, and each place and estimator its own; the same with one rank and two. */
static void test_reference(void **state)
{
    (void)state;
    static const char *const losses[] = {"mirror", "grpo", "reinforce++"};
    for (size_t i = 0; i < K2_COUNT(losses); i++) {
        plan p = plan_make();
        k2_digest all[7];
        p.apart = 0.25f;
        p.config.trainer_epochs = p.config.trainer_minibatches = 2;
        snprintf(p.config.trainer_loss, sizeof(p.config.trainer_loss), "%s", losses[i]);
        all[6] = run(&p);
        for (int k = 0; k < 6; k++) {
            place_kl(&p, 0.5, (const char *const[]){"k1", "k2", "k3"}[k % 3], k < 3 ? "loss" : "reward");
            all[k] = run(&p);
            assert_true(k % 3 == 0 ? fabs(metric("kl")) > 1e-4 : metric("kl") > 1e-4);
            assert_false(k2_digest_equal(all[k], all[6]));
            for (int before = 0; before < k; before++)
                if (k2_digest_equal(all[before], all[k])) fail_msg("%s: %d as %d", losses[i], k, before);
        }
    }
}

/* In the loss it pulls: what is far from the reference comes nearer where nothing else has a gradient. */
static void test_reference_pulls(void **state)
{
    (void)state;
    plan p = plan_make();
    snprintf(p.config.trainer_loss, sizeof(p.config.trainer_loss), "grpo");
    place_kl(&p, 1000, "k3", "loss"); /* the rewards do not count beside it */
    p.config.trainer_lr = 0.002;
    p.apart = 0.25f;
    run(&p);
    double first = metric("kl");
    p.config.trainer_epochs = 8;
    run(&p);
    assert_true(metric("kl") == first); /* it is told of the first pass */
    assert_true(metric("loss") < 1000 * first * 0.8);
}

static void test_icepop(void **state)
{
    (void)state;
    plan p = plan_make();
    p.shift_old = p.shift_last = -2; /* e^2 is out of bounds, 1 is inside */
    p.old = 5;
    snprintf(p.config.trainer_old_segments, sizeof(p.config.trainer_old_segments), "correct");
    snprintf(p.config.trainer_correction_kind, sizeof(p.config.trainer_correction_kind), "icepop");
    p.config.trainer_correction_min = 0.5;
    p.config.trainer_correction_max = 5;
    run(&p);
    assert_true(metric("masked_tokens") > 5 && metric("correction_mean") == 1);
    p.shift_old = p.shift_last = 0;
    run(&p);
    assert_true(metric("masked_tokens") == 0);
}

static void test_lengths(void **state)
{
    (void)state;
    plan p = plan_make();
    k2_digest plain = run(&p);
    p.config.trainer_length_weight = 0.5;
    p.config.trainer_length_from = 4; /* the step is 3 */
    assert_true(k2_digest_equal(plain, run(&p)));
    p.config.trainer_length_from = 3;
    k2_digest length = run(&p);
    p.config.trainer_length_weight = 0;
    p.config.rollout_max_tokens = FIXTURE_LONGEST;
    p.config.trainer_overlong_tokens = 8;
    k2_digest overlong = run(&p);
    assert_false(k2_digest_equal(plain, length) || k2_digest_equal(plain, overlong) || k2_digest_equal(length, overlong));
}

/* The second update of the step meets infinity: the first one is undone too. */
static void start_body(fixture_rank *r)
{
    k2i_learner *l = fixture_learner(r->coll, 1, 48);
    r->digest = fixture_digest(l);
    k2i_learner_free(l);
}

static void test_bad_step_is_undone(void **state)
{
    (void)state;
    plan p = plan_make();
    p.config.trainer_epochs = 3;
    p.config.trainer_lr = 1e30;
    assert_true(k2_digest_equal(run(&p), fixture_run(1, start_body, NULL)));
    assert_true(metric("skipped") == 1 && metric("updates") == 0);
}

static void assert_refused(fixture_batch *b, const k2_config *config, k2_code code, const char *text)
{
    k2_dims dims = fixture_dims();
    k2_error err;
    fixture_batch_encode(b, 3);
    assert_int_equal(k2i_rl_check(&b->batch, &dims, config, &err), code);
    assert_string_equal(err.text, text);
    k2_buf_fini(&b->bytes);
}

static void test_refused(void **state)
{
    (void)state;
    k2_config config = fixture_config();
    fixture_batch *b = k2_alloc(sizeof(*b));
    fixture_batch_fill(b, 3, 0);
    b->tokens[2][0] = 40;
    assert_refused(b, &config, K2_BAD_INPUT, "trajectory 2: token 40 at 0, expected 0 to 39");
    b->tokens[2][0] = 1;
    b->versions[1][0] = 3;
    assert_refused(b, &config, K2_BAD_INPUT, "trajectory 1: token of version 3 at 0, expected at most 2");
    b->versions[1][0] = 2;
    b->list[0].prompt_tokens = 0;
    b->list[0].generated_tokens = 2;
    assert_refused(b, &config, K2_BAD_INPUT, "trajectory 0: 0 prompt and 2 generated tokens, expected at least one of each");
    fixture_batch_fill(b, 3, 0);
    b->list[0].prompt_tokens = 2;
    b->list[0].generated_tokens = 12;
    config.trainer_micro_tokens = 10;
    assert_refused(b, &config, K2_LIMIT,
                   "trajectory 0: 14 tokens, expected at most 64 (max_position_embeddings) and 11 (trainer.micro_tokens)");
    k2_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_policy),         cmocka_unit_test(test_many_updates),
        cmocka_unit_test(test_older_tokens),      cmocka_unit_test(test_answers_that_waited),
        cmocka_unit_test(test_correction_switch), cmocka_unit_test(test_losses),
        cmocka_unit_test(test_equal_reference),   cmocka_unit_test(test_reference),
        cmocka_unit_test(test_reference_pulls),   cmocka_unit_test(test_icepop),
        cmocka_unit_test(test_lengths),           cmocka_unit_test(test_bad_step_is_undone),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
