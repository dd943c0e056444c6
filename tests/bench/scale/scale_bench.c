/* What a fleet costs its master and its proxy: CSV lines `name,value,unit,ratio,against` for 10 to 10,000 engines beside the
 * 496 ranks of 62 hosts. The ratio is to the smallest fleet: it may grow as the logarithm does, by 1.5 from 506 workers to
 * 10,496.
 *
 *   heartbeat   ALIVE and the share of the ticks that goes with it, while answers are out
 *   route       the proxy's choice of an engine for a request; done: its end
 *   commit      all that PREPARE, COMMIT and the news of it cost for one engine, in the master and in the proxy
 *   step        the longest single step of the master: for so long nobody else is heard
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cluster.h"
#include "master/io_int.h"
#include "net_peers.h"

enum { RANKS = 496, FLEETS = 4, FIGURES_MAX = 16, TURNS = 3, PEERS = 1000 };

typedef struct figure {
    const char *name, *unit;
    double value;
} figure;

static double clock_ns; /* of reading the clock twice: it is in every measure, all of which are CPU time */

static double each(const cluster_cost *x, uint64_t n)
{
    return n ? fmax((double)x->ns - clock_ns * (double)x->events, 0) / (double)n : 0;
}

static void clock_measure(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < 100000; i++) {
        uint64_t at = cluster_cpu_ns();
        sum += cluster_cpu_ns() - at;
    }
    clock_ns = (double)sum / 100000;
}

static double longest(const cluster *c, cluster_op from, cluster_op to)
{
    uint64_t ns = 0;
    for (cluster_op op = from; op <= to; op++) ns = K2_MAX(ns, c->cost[op].ns_max);
    return (double)ns / 1000;
}

static uint32_t measure(uint32_t engines, figure *out)
{
    uint32_t n = 0;
    cluster *c = cluster_new(RANKS, engines);
    cluster_begin(c);
    const cluster_cost *x = c->cost;
    out[n++] = (figure){"launch", "ns", each(&x[OP_LAUNCH], c->launches)};
    out[n++] = (figure){"hello", "ns", each(&x[OP_HELLO], x[OP_HELLO].events)};
    double step = longest(c, OP_LAUNCH, OP_OTHER), proxy_step = longest(c, PX_TABLE, PX_FAILED);
    cluster_beats(c, 4);
    uint64_t beats = x[OP_ALIVE].events;
    out[n++] = (figure){"heartbeat", "ns", each(&x[OP_ALIVE], beats) + each(&x[OP_TICK], beats)};
    out[n++] = (figure){"probe", "ns", each(&x[PX_PROBE], c->probes_answered)};
    cluster_costs_clear(c);
    for (uint32_t round = 0; round < 8 * CLUSTER_BEATS; round++) {
        cluster_round(c);
        if (round % 8 == 0) cluster_kill(c, (round * 7919u) % engines);
    }
    while (c->master->phase != K2M_PHASE_GENERATE) cluster_round(c);
    out[n++] = (figure){"exit", "ns", each(&x[OP_EXIT], x[OP_EXIT].events)};
    out[n++] = (figure){"commit_master", "ns", each(&x[OP_COMMIT], c->versions * engines)};
    out[n++] = (figure){"commit_proxy", "ns", each(&x[PX_TABLE], c->versions * engines)};
    step = fmax(step, longest(c, OP_LAUNCH, OP_OTHER));
    proxy_step = fmax(proxy_step, longest(c, PX_TABLE, PX_FAILED));
    cluster_costs_clear(c);
    cluster_route(c, 50000, 4000);
    out[n++] = (figure){"route", "ns", each(&x[PX_ROUTE], x[PX_ROUTE].events)};
    out[n++] = (figure){"done", "ns", each(&x[PX_DONE], x[PX_DONE].events)};
    out[n++] = (figure){"progress", "ns", each(&x[PX_PROGRESS], x[PX_PROGRESS].events)};
    out[n++] = (figure){"step_master_longest", "us", step};
    out[n++] = (figure){"step_proxy_longest", "us", proxy_step};
    out[n++] = (figure){"master_bytes", "MiB", (double)c->master_bytes / (1 << 20)};
    out[n++] = (figure){"proxy_bytes", "MiB", (double)c->proxy_bytes / (1 << 20)};
    cluster_free(c);
    return n;
}

/* What a heartbeat costs besides the core's part: a POLL is read and a NOP is written, whatever the fleet. */
static double wire_ns(void)
{
    const k2_wire_metric gauges[] = {{"running", 3}, {"queued", 0}, {"tokens_per_s", 1234.5}, {"cache_tokens", 4096}};
    const k2_msg poll = {.type = K2_MSG_POLL, .worker = 7, .incarnation = 8, .seq = 9, .poll = {"serving", {gauges, 4}}};
    const k2_msg nop = {.type = K2_MSG_NOP, .worker = 7, .incarnation = 8, .seq = 9};
    k2_buf in, out;
    k2_buf_init(&in, 4096);
    k2_buf_init(&out, 4096);
    K2_ASSERT(k2_wire_encode(&poll, &in, NULL) == K2_OK);
    uint64_t from = cluster_cpu_ns();
    enum { TIMES = 20000 };
    for (int i = 0; i < TIMES; i++) {
        k2_msg m;
        K2_ASSERT(k2_wire_decode(in.data, in.len, &m, NULL) == K2_OK);
        k2_msg_free(&m);
        k2_buf_clear(&out);
        K2_ASSERT(k2_wire_encode(&nop, &out, NULL) == K2_OK);
    }
    double ns = (double)(cluster_cpu_ns() - from) / TIMES;
    k2_buf_fini(&in);
    k2_buf_fini(&out);
    return ns;
}

/* What one worker more costs, by part; the cores' share is held by scale_test. */
static void print_memory(const figure *small, const figure *large, uint32_t n, double workers)
{
    for (uint32_t i = 0; i < n; i++) {
        if (small[i].unit[0] != 'M') continue;
        printf("scale_%s_a_worker,%.0f,bytes,,\n", small[i].name, (large[i].value - small[i].value) * (1 << 20) / workers);
    }
    size_t polls = 24; /* of k2_least */
    printf("scale_master_io_a_worker,%zu,bytes,,\n", sizeof(k2m_slot) + polls);
    printf("scale_net_a_worker,%zu,bytes,,\n", net_peers_bytes(PEERS));
}

int main(void)
{
    static const uint32_t fleets[FLEETS] = {10, 100, 1000, 10000};
    figure figures[FLEETS][FIGURES_MAX];
    uint32_t n = 0;
    clock_measure();
    printf("name,value,unit,ratio,against\n");
    for (int turn = 0; turn < TURNS; turn++) /* the least of the turns: what else the machine does can only add */
        for (int f = 0; f < FLEETS; f++) {
            figure now[FIGURES_MAX];
            n = measure(fleets[f], now);
            for (uint32_t i = 0; i < n; i++)
                if (turn == 0 || now[i].value < figures[f][i].value) figures[f][i] = now[i];
        }
    for (uint32_t i = 0; i < n; i++)
        for (int f = 0; f < FLEETS; f++) {
            const figure *x = &figures[f][i], *least = &figures[0][i];
            printf("scale_%s_%u,%.1f,%s,%.2f,10 engines\n", x->name, fleets[f], x->value, x->unit,
                   least->value > 0 ? x->value / least->value : 0);
        }
    printf("scale_wire_heartbeat,%.0f,ns,,\n", wire_ns());
    print_memory(figures[2], figures[3], n, fleets[3] - fleets[2]);
    return 0;
}
