/* Every policy loss against torch's autograd on the published form, and against central differences of a second writing of it,
 * whole batch at once and in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#define VECTORS_DIR K2_SOURCE_DIR "/tests/unit/trainer/vectors"
#include "tests/support/vectors.h"
#include "trainer/kl_int.h"
#include "trainer/loss_int.h"

static const char *const names[] = {"mirror", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++"};

/* One batch: trajectory i has tokens start[i] .. start[i+1]; groups of `size`. */
typedef struct sample {
    vectors v;
    float *scale, *reward, *logp, *old, *rollout, *weight, *reference;
    int32_t *lengths, *use;
    uint32_t *start, count, size, tokens;
    double *r; /* rewards */
} sample;

static sample sample_load(const char *file)
{
    sample s = {.v = vectors_load(file)};
    int32_t *size = vectors_take(&s.v, "", "size", 1);
    s.size = (uint32_t)*size;
    k2_free(size);
    s.scale = vectors_take(&s.v, "", "scale", 5);
    s.lengths = vectors_take(&s.v, "", "lengths", 0);
    for (uint32_t i = 0; i < s.v.count; i++)
        if (strcmp(s.v.records[i].name, "lengths") == 0) s.count = (uint32_t)s.v.records[i].count;
    s.reward = vectors_take(&s.v, "", "reward", s.count);
    s.start = k2_alloc_array(s.count + 1u, sizeof(*s.start));
    s.r = k2_alloc_array(s.count, sizeof(*s.r));
    for (uint32_t i = 0; i < s.count; i++) {
        s.start[i + 1] = s.start[i] + (uint32_t)s.lengths[i];
        s.r[i] = (double)s.reward[i];
    }
    s.tokens = s.start[s.count];
    s.logp = vectors_take(&s.v, "", "logp", s.tokens);
    s.old = vectors_take(&s.v, "", "old", s.tokens);
    s.rollout = vectors_take(&s.v, "", "rollout", s.tokens);
    s.weight = vectors_take(&s.v, "", "weight", s.tokens);
    s.reference = vectors_take(&s.v, "", "reference", s.tokens);
    s.use = vectors_take(&s.v, "", "use", s.tokens);
    return s;
}

static void sample_free(sample *s)
{
    void *const all[] = {s->scale, s->lengths, s->reward, s->start,     s->r,  s->logp,
                         s->old,   s->rollout, s->weight, s->reference, s->use};
    for (size_t i = 0; i < K2_COUNT(all); i++) k2_free(all[i]);
    vectors_free(&s->v);
}

static bool flat(const sample *s, uint32_t i)
{
    const double *g = s->r + i / s->size * s->size;
    for (uint32_t k = 1; k < s->size; k++)
        if (g[k] != g[0]) return false;
    return true;
}

static uint64_t used(const sample *s, uint32_t i)
{
    uint64_t n = 0;
    for (uint32_t t = s->start[i]; t < s->start[i + 1]; t++) n += s->use[t] != 0;
    return n;
}

/* As the trainer does it: advantages by group, then over the batch, then one trajectory after the other. */
static double ours(const sample *s, const k2i_loss_ops *ops, float *dlogp)
{
    double *advantage = k2_alloc_array(s->count, sizeof(*advantage));
    uint64_t *tokens = k2_alloc_array(s->count, sizeof(*tokens));
    float *none = k2_alloc_array(s->tokens, sizeof(*none));
    k2i_loss_sums sums = {0};
    k2i_loss_scale scale = {.tau = (double)s->scale[0],
                            .clip_low = (double)s->scale[1],
                            .clip_high = (double)s->scale[2],
                            .trajectories = s->count};
    for (uint32_t i = 0; i < s->count; i++) tokens[i] = ops->drops_flat && flat(s, i) ? 0 : used(s, i);
    for (uint32_t i = 0; i < s->count; i += s->size) ops->advantage(s->r + i, s->size, advantage + i);
    for (uint32_t i = 0; i < s->count; i++) scale.tokens += tokens[i];
    ops->over_batch(tokens, s->count, advantage);
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t at = s->start[i];
        k2i_loss_in in = {.count = s->start[i + 1] - at,
                          .logp = s->logp + at,
                          .logp_old = s->old + at,
                          .weight = tokens[i] > 0 ? s->weight + at : none,
                          .advantage = advantage[i]};
        ops->eval(&scale, &in, &sums, dlogp + at);
    }
    k2_free(none);
    k2_free(tokens);
    k2_free(advantage);
    return sums.loss;
}

static void expect_torchs(sample *s, const char *name, double got, const float *dlogp)
{
    float *loss = vectors_take(&s->v, "loss:", name, 1), *expected = vectors_take(&s->v, "dlogp:", name, s->tokens);
    assert_true(fabs(got - (double)*loss) <= 2e-6 * fmax(fabs((double)*loss), 0.01));
    for (uint32_t t = 0; t < s->tokens; t++)
        assert_true(fabsf(dlogp[t] - expected[t]) <= 1e-6f * fmaxf(fabsf(expected[t]), 0.01f));
    k2_free(expected);
    k2_free(loss);
}

static void test_torch(void **state)
{
    sample s = sample_load(*state);
    for (size_t l = 0; l < K2_COUNT(names); l++) {
        float *dlogp = k2_alloc_array(s.tokens, sizeof(float));
        double got = ours(&s, k2i_loss_find(names[l]), dlogp);
        expect_torchs(&s, names[l], got, dlogp);
        k2_free(dlogp);
    }
    sample_free(&s);
}

/* A token's reward to go, normalised over all tokens in the loss, as rl.c puts it together. */
static double to_go(const sample *s, k2i_kl_kind kind, double weight, float *dlogp)
{
    const k2i_loss_ops *ops = k2i_loss_find("reinforce++");
    double *k = k2_alloc_array(s->tokens, sizeof(*k)), *each = k2_alloc_array(s->tokens, sizeof(*each));
    uint64_t *tokens = k2_alloc_array(s->tokens, sizeof(*tokens));
    k2i_loss_sums sums = {0};
    k2i_loss_scale scale = {.clip_low = (double)s->scale[1], .clip_high = (double)s->scale[2]};
    for (uint32_t t = 0; t < s->tokens; t++) {
        tokens[t] = s->use[t] != 0;
        scale.tokens += tokens[t];
        if (tokens[t]) k[t] = k2i_kl_estimate(kind, (double)s->old[t] - (double)s->reference[t], NULL);
    }
    for (uint32_t i = 0; i < s->count; i++)
        k2i_kl_returns(s->r[i], weight, s->start[i + 1] - s->start[i], k + s->start[i], each + s->start[i]);
    ops->over_batch(tokens, s->tokens, each);
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t at = s->start[i];
        k2i_loss_in in = {.count = s->start[i + 1] - at,
                          .logp = s->logp + at,
                          .logp_old = s->old + at,
                          .weight = s->weight + at,
                          .each = each + at};
        ops->eval(&scale, &in, &sums, dlogp + at);
    }
    k2_free(tokens);
    k2_free(each);
    k2_free(k);
    return sums.loss;
}

static void test_reference(void **state)
{
    sample s = sample_load(*state);
    for (int kind = 0; kind < 3; kind++) {
        char name[24];
        float *dlogp = k2_alloc_array(s.tokens, sizeof(float));
        k2i_kl kl = {.place = K2I_KL_IN_LOSS, .kind = (k2i_kl_kind)kind, .weight = 0.5};
        uint64_t tokens = 0;
        double sum = 0;
        for (uint32_t i = 0; i < s.count; i++) tokens += used(&s, i);
        double got = k2i_kl_add(&kl, tokens, s.tokens, s.logp, s.reference, s.weight, dlogp, &sum);
        snprintf(name, sizeof(name), "kl k%d", kind + 1);
        expect_torchs(&s, name, got, dlogp);
        got = to_go(&s, kl.kind, kl.weight, dlogp);
        snprintf(name, sizeof(name), "to go k%d", kind + 1);
        expect_torchs(&s, name, got, dlogp);
        k2_free(dlogp);
    }
    sample_free(&s);
}

static void test_corrections(void **state)
{
    sample s = sample_load(*state);
    k2i_correction c = {.masks = strstr(*state, "icepop") != NULL, .min = (double)s.scale[3], .max = (double)s.scale[4]};
    uint32_t cut = 0;
    for (uint32_t t = 0; t < s.tokens; t++) {
        if (!s.use[t]) continue;
        float w = k2i_loss_correction(&c, s.old[t], s.rollout[t]);
        assert_true(fabsf(w - s.weight[t]) <= 2e-7f);
        cut += (double)w == (c.masks ? 0 : c.max);
    }
    assert_true(cut > 0);
    sample_free(&s);
}

/* ---- the second writing ---- */

static double clamped(const sample *s, double x)
{
    return fmin(fmax(x, 1 - (double)s->scale[1]), 1 + (double)s->scale[2]);
}

static double group_mean(const sample *s, uint32_t i, bool square)
{
    double sum = 0, mean = square ? group_mean(s, i, false) : 0;
    const double *g = s->r + i / s->size * s->size;
    for (uint32_t k = 0; k < s->size; k++) sum += square ? (g[k] - mean) * (g[k] - mean) : g[k];
    return sum / s->size;
}

/* E[r] or E[(r - m)^2] over tokens. */
static double batch_mean(const sample *s, bool square)
{
    double sum = 0, n = 0, mean = square ? batch_mean(s, false) : 0;
    for (uint32_t i = 0; i < s->count; i++) {
        double x = s->r[i] - mean;
        sum += (double)used(s, i) * (square ? x * x : s->r[i]);
        n += (double)used(s, i);
    }
    return sum / n;
}

/* logp in double; `frozen` stands where no gradient runs through. */
static double second(const sample *s, const char *name, const double *logp, const double *frozen)
{
    double by_token = 0, by_trajectory = 0, M = 0, tau = (double)s->scale[0];
    bool token_mean = strcmp(name, "mirror") != 0 && strcmp(name, "gspo") != 0 && strcmp(name, "rloo") != 0;
    for (uint32_t i = 0; i < s->count; i++) {
        double mean = group_mean(s, i, false), a = (s->r[i] - mean) / (sqrt(group_mean(s, i, true)) + 1e-6);
        double delta = 0, kept_delta = 0, kept = 0, weights = 0, plain = 0;
        if (strcmp(name, "dapo") == 0 && flat(s, i)) continue;
        if (strcmp(name, "reinforce++") == 0) a = (s->r[i] - batch_mean(s, false)) / (sqrt(batch_mean(s, true)) + 1e-6);
        for (uint32_t t = s->start[i]; t < s->start[i + 1]; t++) {
            double step = logp[t] - (double)s->old[t], w = s->use[t] ? (double)s->weight[t] : 0, p = exp(step);
            M += s->use[t] != 0;
            delta += w * step;
            weights += w;
            plain += w * logp[t];
            if (w != 0) kept_delta += step;
            kept += w != 0;
            by_token -= strcmp(name, "cispo") == 0 ? w * clamped(s, exp(frozen[t] - (double)s->old[t])) * a * logp[t]
                                                   : w * fmin(p * a, clamped(s, p) * a);
        }
        if (strcmp(name, "mirror") == 0) by_trajectory += pow(s->r[i] - mean - tau * delta, 2) / (2 * tau);
        if (strcmp(name, "rloo") == 0) by_trajectory -= (s->r[i] - (mean * s->size - s->r[i]) / (s->size - 1)) * plain;
        if (strcmp(name, "gspo") == 0 && kept > 0) {
            double ratio = exp(kept_delta / kept);
            by_trajectory -= weights / kept * fmin(ratio * a, clamped(s, ratio) * a);
        }
    }
    return token_mean ? by_token / M : by_trajectory / s->count;
}

static void test_differences(void **state)
{
    sample s = sample_load(*state);
    double *logp = k2_alloc_array(s.tokens, sizeof(double)), *frozen = k2_alloc_array(s.tokens, sizeof(double));
    float *dlogp = k2_alloc_array(s.tokens, sizeof(float));
    for (uint32_t t = 0; t < s.tokens; t++) logp[t] = frozen[t] = (double)s.logp[t];
    for (size_t l = 0; l < K2_COUNT(names); l++) {
        double loss = ours(&s, k2i_loss_find(names[l]), dlogp);
        assert_true(fabs(loss - second(&s, names[l], logp, frozen)) < 1e-12);
        for (uint32_t t = 0; t < s.tokens; t++) {
            logp[t] = frozen[t] + 1e-6;
            double up = second(&s, names[l], logp, frozen);
            logp[t] = frozen[t] - 1e-6;
            double down = second(&s, names[l], logp, frozen);
            logp[t] = frozen[t];
            assert_true(fabs((double)dlogp[t] - (up - down) / 2e-6) < 1e-8);
        }
    }
    k2_free(dlogp);
    k2_free(frozen);
    k2_free(logp);
    sample_free(&s);
}

int main(void)
{
    static char tis[] = "losses_tis.k2v", icepop[] = "losses_icepop.k2v";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_torch, tis),       cmocka_unit_test_prestate(test_torch, icepop),
        cmocka_unit_test_prestate(test_reference, tis),   cmocka_unit_test_prestate(test_reference, icepop),
        cmocka_unit_test_prestate(test_corrections, tis), cmocka_unit_test_prestate(test_corrections, icepop),
        cmocka_unit_test_prestate(test_differences, tis), cmocka_unit_test_prestate(test_differences, icepop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
