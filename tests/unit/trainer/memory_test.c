/* What a trainer is planned to take, from the configuration alone. That it takes so much is held by tests/e2e/memory_test.sh.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/trainer/fixture.h"
#include "trainer/work_int.h"

static k2_config config_make(const char *recompute, const char *optimizer, uint32_t lanes)
{
    k2_config config = fixture_config();
    snprintf(config.trainer_recompute, sizeof(config.trainer_recompute), "%s", recompute);
    snprintf(config.trainer_optimizer, sizeof(config.trainer_optimizer), "%s", optimizer);
    config.trainer_threads = config.trainer_grad_lanes = lanes;
    return config;
}

static uint64_t total(const k2_config *c, uint32_t rank, uint32_t ranks)
{
    k2_dims d = fixture_dims();
    return k2_budget_trainer(c, &d, rank, ranks).total;
}

/* Fewer ranks' shards are larger; more tokens, lanes and updates take more; recompute less; only rank 0 publishes. */
static void test_directions(void **state)
{
    (void)state;
    k2_config plain = config_make("none", "adamw", 1), full = config_make("full", "adamw", 1),
              muon = config_make("none", "muon", 1), two = config_make("none", "adamw", 2);
    uint64_t base = total(&plain, 0, 1);
    assert_true(total(&full, 0, 1) < base && total(&muon, 0, 1) > base);
    two.trainer_micro_tokens *= 4;
    assert_true(total(&two, 0, 2) < total(&two, 0, 1) && total(&two, 1, 2) < total(&two, 0, 2));
    k2_config other = plain;
    other.trainer_micro_tokens *= 4;
    assert_true(total(&other, 0, 1) > base);
    k2_dims d = fixture_dims();
    other = plain;
    other.trainer_epochs = 2;
    assert_true(k2_budget_trainer(&other, &d, 0, 1).training > k2_budget_trainer(&plain, &d, 0, 1).training);
    other = plain;
    other.rollout_refill_max = 100; /* the batch has no more groups for that */
    assert_true(total(&other, 0, 1) == base);
    other = plain;
    other.pretrain_steps = 1;
    other.data_task_corpus = 1000000; /* which is not there yet */
    other.data_corpus[0] = 0;
    assert_true(total(&other, 0, 1) > base + 16 * other.data_task_corpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_directions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
