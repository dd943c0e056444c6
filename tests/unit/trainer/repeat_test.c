/* A step out of quarantine: repeated to the bit, and what was not finite named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/trainer/fixture.h"
#include "trainer/checkpoint_int.h"
#include "trainer/inspect_int.h"
#include "trainer/rl_int.h"
#include "trainer/trainer.h"

typedef struct plan {
    k2_config config;
    const char *spoil; /* weight that becomes infinite, or NULL */
    float reward;      /* of the first trajectory */
    bool pretrain;
    char bad[K2I_BAD_MAX];
    k2i_seen first;
} plan;

static void spoil(k2i_learner *l, const char *name)
{
    const k2_param *p = k2_model_layout_find(k2_model_layout_of(k2i_learner_model(l)), name);
    K2_ASSERT(p);
    k2i_learner_params(l)[p->offset + 3] = INFINITY;
    k2i_learner_params_changed(l);
}

static void look_body(fixture_rank *r)
{
    plan *p = (plan *)(uintptr_t)r->arg;
    k2_error err;
    fixture_batch *b = k2_alloc(sizeof(*b));
    k2i_metrics *metrics = k2_alloc(sizeof(*metrics));
    k2i_learner *l = fixture_learner(r->coll, 1, 48);
    fixture_batch_fill(b, 3, 0);
    if (p->reward != 0) b->list[0].reward = p->reward;
    fixture_batch_encode(b, 3);
    if (p->spoil) spoil(l, p->spoil);
    k2i_inspection seen;
    k2_digest before = fixture_digest(l);
    k2i_inspect(l, &p->config, &b->batch, p->pretrain, &seen);
    K2_ASSERT(k2_digest_equal(before, fixture_digest(l)) && seen.count == FIXTURE_COUNT);
    const char *bad = NULL;
    K2_ASSERT(k2i_rl_step(l, &p->config, &b->batch, metrics, &bad, &err) == K2_OK);
    if (bad) k2i_inspect_update(l, bad, &seen);
    snprintf(p->bad, sizeof(p->bad), "%s", seen.first_bad);
    p->first = seen.seen[0];
    double loss = 0;
    for (uint32_t i = 0; i < seen.count; i++) loss += seen.seen[i].loss;
    if (!bad && !p->pretrain) K2_ASSERT(fabs(loss - k2i_metrics_get(metrics, "loss")) < 1e-9);
    k2i_inspection_fini(&seen);
    k2i_learner_free(l);
    k2_buf_fini(&b->bytes);
    k2_free(metrics);
    k2_free(b);
}

static void test_names(void **state)
{
    (void)state;
    plan p = {.config = fixture_config()};
    fixture_run(1, look_body, &p);
    assert_string_equal(p.bad, "");
    assert_true(p.first.grad_norm > 0 && p.first.logp < 0 && p.first.ratio > 0 && p.first.tokens > 0 && !p.first.bad);
    p.spoil = "model.layers.1.mlp.experts.0.down_proj.weight";
    fixture_run(1, look_body, &p);
    assert_string_equal(p.bad, "weight model.layers.1.mlp.experts.0.down_proj.weight, before the step");
    p.spoil = NULL;
    p.reward = 1e26f; /* its gradient is finite, its square is not */
    p.config.trainer_clip_norm = 0;
    fixture_run(1, look_body, &p);
    assert_non_null(strstr(p.bad, "after the update: its element"));
    p.reward = 0;
    p.pretrain = true;
    fixture_run(1, look_body, &p);
    assert_string_equal(p.bad, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
