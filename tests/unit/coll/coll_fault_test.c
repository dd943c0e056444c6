/* Ranks that do something else, nothing, or die: everyone gets an error that names them, and nobody waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/coll/ranks_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3 };

typedef struct scenario {
    const char *name;
    bool processes_only;
    uint64_t deadline_ns;
    void (*odd)(k2_coll *c, rank_result *result); /* what rank 1 does; the others do a barrier, then an all_gather_f64 */
    void (*twist)(k2_coll_config *config, const void *arg);
    bool swapped; /* rank 1 gets locators in a wrong order */
    k2_code code;
    const char *text; /* in the error of somebody other than rank 1 */
} scenario;

static void others(k2_coll *c, rank_result *result)
{
    double all[RANKS], mine = 1;
    if (k2_coll_barrier(c, &result->error) == K2_OK) k2_coll_all_gather_f64(c, &mine, 1, all, &result->error);
}

static void odd_operation(k2_coll *c, rank_result *result)
{
    char bytes[8] = {0};
    if (k2_coll_barrier(c, &result->error) == K2_OK) k2_coll_broadcast(c, 0, bytes, sizeof bytes, &result->error);
}

static void odd_size(k2_coll *c, rank_result *result)
{
    double all[2 * RANKS], mine[2] = {1, 2};
    if (k2_coll_barrier(c, &result->error) == K2_OK) k2_coll_all_gather_f64(c, mine, 2, all, &result->error);
}

static void odd_order(k2_coll *c, rank_result *result)
{
    double all[RANKS], mine = 1;
    if (k2_coll_all_gather_f64(c, &mine, 1, all, &result->error) == K2_OK) k2_coll_barrier(c, &result->error);
}

/* Does the first and never the second, but stays alive until the others have given up on it. */
static void odd_silence(k2_coll *c, rank_result *result)
{
    k2_coll_barrier(c, &result->error);
    ranks_meet();
}

static void odd_death(k2_coll *c, rank_result *result)
{
    k2_coll_barrier(c, &result->error);
    _exit(0); /* as sudden as a kill: no code of ours runs */
}

static void odd_abort(k2_coll *c, rank_result *result)
{
    if (k2_coll_barrier(c, &result->error) != K2_OK) return;
    k2_coll_abort(c, "the loss is not finite");
    k2_coll_barrier(c, &result->error);
}

static void odd_leaving(k2_coll *c, rank_result *result)
{
    k2_coll_barrier(c, &result->error);
}

static void twist_group(k2_coll_config *config, const void *arg)
{
    (void)arg;
    if (config->rank == 1) config->group = 8;
}

static void twist_staging(k2_coll_config *config, const void *arg)
{
    (void)arg;
    if (config->rank == 1) config->bytes_max *= 2;
}

static void scenario_run(k2_coll *c, const char *const *locators, const void *arg, rank_result *result)
{
    const scenario *s = arg;
    const char *mine[RANKS] = {locators[0], locators[1], locators[2]};
    bool odd = k2_coll_rank(c) == 1;
    if (odd && s->swapped) mine[0] = locators[2], mine[2] = locators[0];
    k2_code code = k2_coll_join(c, mine, RANKS, &result->error);
    if (code == K2_OK && odd && s->odd != NULL)
        s->odd(c, result);
    else if (code == K2_OK)
        others(c, result);
    if (!odd && s->odd == odd_silence) ranks_meet();
    if (s->odd != odd_death && s->odd != odd_leaving)
        ranks_meet(); /* nobody closes before the others have seen what happened */

    /* The group is broken for good, with the same words. */
    k2_error again = {0};
    if (result->error.code != K2_OK && k2_coll_barrier(c, &again) != result->error.code) result->error.code = K2_INTERNAL;
    if (result->error.code != K2_OK && strcmp(again.text, result->error.text) != 0) result->error.code = K2_INTERNAL;
}

static const scenario scenarios[] = {
    {"another operation", false, 0, odd_operation, NULL, false, K2_PEER_PROTOCOL, "rank 1 does broadcast #3 (8 bytes)"},
    {"another size", false, 0, odd_size, NULL, false, K2_PEER_PROTOCOL, "rank 1 does all_gather_bytes #3 (16 bytes)"},
    {"another order", false, 0, odd_order, NULL, false, K2_PEER_PROTOCOL, "rank 1 does all_gather_bytes #2 (8 bytes)"},
    {"another group", false, 0, NULL, twist_group, false, K2_PEER_PROTOCOL, "rank 1 is in group 8"},
    {"another staging size", false, 0, NULL, twist_staging, false, K2_PEER_PROTOCOL, "rank 1: its staging area"},
    {"locators mixed up", false, 0, NULL, NULL, true, K2_PEER_PROTOCOL, "rank 1 has left: coll: rank 1: join #1"},
    {"silence", false, 500 * K2_NS_PER_MS, odd_silence, NULL, false, K2_TIMEOUT,
     "all_gather_bytes #3 (8 bytes) of group 7: rank 1 did not come within 500 ms; the last it began is barrier #2"},
    {"death", true, 0, odd_death, NULL, false, K2_PEER_CLOSED, "of group 7: rank 1"}, /* over tcp in the barrier already */
    {"abort", false, 0, odd_abort, NULL, false, K2_CANCELED, "rank 1 gave up: the loss is not finite"},
    {"leaving", false, 0, odd_leaving, NULL, false, K2_PEER_CLOSED, "of group 7: rank 1"},
};

static void a_rank_out_of_step_is_named_by_the_others(void **state)
{
    static const char *const transports[] = {"self", "shm", "tcp"};
    const scenario *s = *state;
    for (size_t t = 0; t < K2_COUNT(transports); t++) {
        rank_result r[RANKS];
        if (s->processes_only && t == 0) continue;
        ranks_spec spec = {.transport = transports[t],
                           .ranks = RANKS,
                           .bytes_max = 4096,
                           .deadline_ns = s->deadline_ns,
                           .run = scenario_run,
                           .arg = s,
                           .twist = s->twist};
        ranks_run(&spec, r);
        bool named = false;
        for (uint32_t i = 0; i < RANKS; i++) {
            if (i == 1) continue;
            /* Who comes after the others have broken the group and gone finds it closed. */
            if (!r[i].finished || (r[i].error.code != s->code && r[i].error.code != K2_PEER_CLOSED))
                fail_msg("%s: rank %u: %s: %s", transports[t], i, k2_code_name(r[i].error.code), r[i].error.text);
            named |= r[i].error.code == s->code && strstr(r[i].error.text, s->text) != NULL;
        }
        if (!named) fail_msg("%s: neither '%s' nor '%s' says '%s'", transports[t], r[0].error.text, r[2].error.text, s->text);
    }
}

int main(void)
{
    struct CMUnitTest tests[K2_COUNT(scenarios)];
    for (size_t i = 0; i < K2_COUNT(scenarios); i++)
        tests[i] = (struct CMUnitTest){.name = scenarios[i].name,
                                       .test_func = a_rank_out_of_step_is_named_by_the_others,
                                       .initial_state = (void *)(uintptr_t)&scenarios[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
