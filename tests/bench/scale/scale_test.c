/* What an event may cost: entries looked at, which is the same on every machine. In fleets of 16 to 4096 engines each kind of
 * event must stay within a number that grows with the logarithm of the fleet, amortised over the ticks that go with it, and no
 * single step may deal with the whole fleet. Everybody greets, weights come in two phases, requests are routed and answered,
 * engines and the proxy die and come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "cluster.h"

static const uint32_t fleets[] = {16, 128, 1024, 4096};

static double log2_of(uint32_t n)
{
    double levels = 0;
    for (; n > 1; n = (n + 1) / 2) levels++;
    return levels;
}

static void looks_within(const cluster *c, const char *what, uint64_t looks, uint64_t events, double each)
{
    double limit = each * log2_of(c->master->worker_count);
    if (events > 0 && (double)looks / (double)events <= limit) return;
    fail_msg("%s: %llu entries looked at for %llu of them in a fleet of %u, at most %.0f each", what, (unsigned long long)looks,
             (unsigned long long)events, c->master->worker_count, limit);
}

static uint64_t looks(const cluster *c, cluster_op op)
{
    return c->cost[op].looks;
}

static void costs_hold(const cluster *c)
{
    const cluster_cost *x = c->cost;
    uint64_t engines = c->master->rollouts;
    looks_within(c, "answer", looks(c, OP_ANSWER), x[OP_ANSWER].events, 1);
    looks_within(c, "death of an engine, and its next start", looks(c, OP_EXIT) + looks(c, OP_LAUNCH) + looks(c, OP_HELLO),
                 c->exits, 5);
    looks_within(c, "route", looks(c, PX_ROUTE), x[PX_ROUTE].events, 1.6);
    looks_within(c, "end of a request", looks(c, PX_DONE), x[PX_DONE].events, 1.3);
    looks_within(c, "progress", looks(c, PX_PROGRESS), x[PX_PROGRESS].events, 1.3);
    looks_within(c, "commit of a version for an engine", looks(c, OP_COMMIT), c->versions * engines, 2.2);
    looks_within(c, "an engine's lines in the proxy's table", looks(c, PX_TABLE), c->versions * engines, 2.2);
    /* A new version is one look at every engine; beyond that a step has its budget. */
    uint64_t most = 2 * (engines + 2 * c->master->trainers + K2M_STEP_WORKERS) * 16;
    for (uint32_t op = 0; op < CLUSTER_OPS; op++) assert_true(x[op].looks_max <= most);
    assert_true(x[OP_ALIVE].looks_max <= 64 && x[OP_ANSWER].looks_max <= 64);
}

static void an_event_costs_no_more_than_the_logarithm(void **state)
{
    (void)state;
    for (size_t f = 0; f < K2_COUNT(fleets); f++) {
        uint32_t n = fleets[f];
        cluster *c = cluster_new(8, n);
        cluster_begin(c);
        assert_int_equal(c->launches, n + 9);
        cluster_check(c);
        cluster_beats(c, 3);
        looks_within(c, "heartbeat, with its share of the ticks", looks(c, OP_ALIVE) + looks(c, OP_TICK),
                     c->cost[OP_ALIVE].events, 0.6);
        looks_within(c, "probe of an engine", looks(c, PX_PROBE), c->probes_answered, 2.2);
        cluster_costs_clear(c);
        for (uint32_t round = 0; round < 4 * CLUSTER_BEATS; round++) {
            cluster_round(c);
            if (round % 8 == 0) cluster_kill(c, (round * 7919u) % n);
        }
        while (c->master->phase != K2M_PHASE_GENERATE) cluster_round(c);
        cluster_route(c, 4 * n, n);
        assert_true(c->versions >= 2);
        costs_hold(c);
        cluster_kill_proxy(c);
        for (uint32_t round = 0; round < 3 * CLUSTER_BEATS; round++) cluster_round(c); /* all that died are back */
        while (c->master->phase != K2M_PHASE_GENERATE) cluster_round(c);
        cluster_check(c);
        cluster_end(c);
        if (c->end_code != K2_OK) fail_msg("%s", c->end_text);
        cluster_free(c);
    }
}

static void memory_grows_by_what_the_header_says(void **state)
{
    (void)state;
    cluster *small = cluster_new(8, 1000), *large = cluster_new(8, 2000);
    size_t master = (large->master_bytes - small->master_bytes) / 1000,
           proxy = (large->proxy_bytes - small->proxy_bytes) / 1000;
    if (master > K2M_WORKER_BYTES) fail_msg("master: %zu bytes a worker, %u are stated", master, K2M_WORKER_BYTES);
    if (proxy > K2I_PX_ENGINE_BYTES) fail_msg("proxy: %zu bytes an engine, %u are stated", proxy, K2I_PX_ENGINE_BYTES);
    cluster_free(small);
    cluster_free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_event_costs_no_more_than_the_logarithm),
                                       cmocka_unit_test(memory_grows_by_what_the_header_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
