/* k2_sim - run seeds. Each must end like the undisturbed run; one that does not is named with the command that repeats it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_int.h"

#define POISON_EVERY 4u /* seeds: in one of so many some prompts end their engines */

typedef struct totals {
    uint64_t runs, deaths, masters, dropped, fenced, stale, longest_ns;
} totals;

static void print_faults(const sim *s)
{
    static const char *const names[] = {"drop",       "duplicate",    "delay",      "partition", "kill-trainer", "kill-rollout",
                                        "kill-proxy", "kill-master",  "stop",       "late-kill", "corrupt",      "slow",
                                        "clock-jump", "break-stream", "lose-score", "fail-train"};
    _Static_assert(K2_COUNT(names) == sizeof(sim_faults), "one name for each fault");
    const bool *flags = (const bool *)&s->faults;
    for (size_t i = 0; i < K2_COUNT(names); i++)
        if (flags[i]) fprintf(stderr, " %s", names[i]);
}

static bool one(uint64_t seed, const sim_truth *truth, bool trace, totals *t)
{
    sim *s = k2_alloc(sizeof *s);
    sim_init(s, seed, truth);
    s->trace = trace;
    bool ok = sim_run(s);
    if (!ok) {
        fprintf(stderr, "seed %llu at %.3f s: %s\nfaults:", (unsigned long long)seed, (double)s->now_ns / 1e9, s->broken);
        print_faults(s);
        fprintf(stderr, "\nrepeat: ./run sim --first %llu --seeds 1 --trace\n", (unsigned long long)seed);
    }
    t->runs++;
    t->deaths += s->deaths;
    t->masters += s->masters - (s->masters > 0);
    t->dropped += s->dropped;
    t->fenced += s->fenced;
    t->stale += s->stale;
    if (s->now_ns > s->faults_end_ns) t->longest_ns = K2_MAX(t->longest_ns, s->now_ns - s->faults_end_ns);
    sim_fini(s);
    k2_free(s);
    return ok;
}

/* A run in which nothing goes wrong but what its own prompts do. NULL: it does not end as it should. */
static sim *calm_run(bool poison)
{
    sim *s = k2_alloc(sizeof *s);
    sim_init(s, 0, NULL);
    s->poison = poison;
    if (sim_run(s)) return s;
    fprintf(stderr, "the undisturbed run%s: %s\n", poison ? " with poison" : "", s->broken);
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 100, first = 1, seconds = 0;
    bool trace = false, help = false;
    k2_error err = {0};
    const k2_option options[] = {{.name = "--seeds", .u64 = &seeds},
                                 {.name = "--first", .u64 = &first},
                                 {.name = "--seconds", .u64 = &seconds},
                                 {.name = "--trace", .flag = &trace}};
    if (k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), NULL, &help, &err) != K2_OK) {
        fprintf(stderr, "k2_sim: %s\n", err.text);
        return 2;
    }
    if (help) {
        puts("k2_sim [--seeds N] [--first SEED] [--seconds S: begin no more seeds after so long] [--trace: the master's log]");
        return 0;
    }
    sim *calm = calm_run(false), *ill = calm_run(true);
    if (!calm || !ill) return 1;
    totals t = {0};
    uint64_t from = k2_now_ns();
    bool ok = true;
    for (uint64_t i = 0; i < seeds && ok; i++) {
        if (seconds && k2_now_ns() - from > seconds * K2_NS_PER_S) break;
        ok = one(first + i, (first + i) % POISON_EVERY ? &calm->seen : &ill->seen, trace, &t);
    }
    printf("%llu seeds in %.1f s: %llu deaths of processes, %llu of the master, %llu messages lost, %llu fenced, %llu stale; "
           "the undisturbed run takes %.2f s, the longest after the last fault %.2f s\n",
           (unsigned long long)t.runs, (double)(k2_now_ns() - from) / 1e9, (unsigned long long)t.deaths,
           (unsigned long long)t.masters, (unsigned long long)t.dropped, (unsigned long long)t.fenced,
           (unsigned long long)t.stale, (double)calm->seen.end_ns / 1e9, (double)t.longest_ns / 1e9);
    sim_fini(ill);
    k2_free(ill);
    sim_fini(calm);
    k2_free(calm);
    return ok ? 0 : 1;
}
