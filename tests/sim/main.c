/* k2_sim - run seeds. Each must end like the undisturbed run; one that does not is shrunk to the fewest faults that still make
 * it fail, and named with the command that repeats it. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "planted_int.h"
#include "sim_int.h"
#include "try_int.h"

typedef unsigned long long ull;

#define LINE_BYTES 65536u

typedef struct options {
    uint64_t seeds, first, seconds, fires;
    bool trace, stats, every_step, checks, no_shrink;
    const char *faults, *planted, *list;
} options;

static const char help_text[] =
    "k2_sim [options]: whole runs of the cores under a virtual clock, one for each seed\n"
    "  --seeds N         so many (100)\n"
    "  --first S         beginning with this one (1)\n"
    "  --seconds S       begin no more seeds after so long\n"
    "  --faults LIST     exactly these faults, not drawn ones: KIND:WORKER:N,... or @FILE or none\n"
    "  --every-step      instead: one run for each step of the master's core, in which the master dies there\n"
    "  --list FILE       seeds with their faults, one a line: SEED LIST\n"
    "  --trace           the master's log\n"
    "  --stats           how often each kind of fault happened\n"
    "  --fires N         fail unless each kind happened N times in 1000 seeds\n"
    "  --checks          what is checked\n"
    "  --no-shrink       print the faults of a failing seed as they were drawn\n"
    "  --planted NAME    with a mistake planted in the cores, which must be found; list: the names; all: a table of all";

static void print_table(const sim_totals *t)
{
    printf("%-14s %10s %8s\n", "fault", "happened", "in seeds");
    for (uint32_t k = 0; k < SIM_FAULT_KINDS; k++)
        printf("%-14s %10llu %8llu  %s\n", sim_fault_name((sim_fault_kind)k), (ull)t->fired[k], (ull)t->fired_in[k],
               sim_fault_text((sim_fault_kind)k));
}

static void print_totals(const sim_totals *t)
{
    printf("%llu seeds in %.1f s, %.0f events each: %llu deaths of processes, %llu of the master, %llu messages lost, %llu "
           "fenced, "
           "%llu stale; the undisturbed run takes %.2f s, the longest after the last fault %.2f s\n",
           (ull)t->seeds, (double)t->wall_ns / 1e9, (double)t->events / (double)K2_MAX(t->seeds, 1), (ull)t->deaths,
           (ull)t->masters, (ull)t->dropped, (ull)t->fenced, (ull)t->stale, (double)t->calm_ns / 1e9,
           (double)t->after_ns_max / 1e9);
}

static bool fires_enough(const sim_totals *t, uint64_t least)
{
    bool ok = true;
    for (uint32_t k = 0; k < SIM_FAULT_KINDS; k++) {
        if (t->fired[k] * 1000 >= least * t->seeds) continue;
        fprintf(stderr, "k2_sim: %s happened %llu times in %llu seeds, expected %llu in 1000\n",
                sim_fault_name((sim_fault_kind)k), (ull)t->fired[k], (ull)t->seeds, (ull)least);
        ok = false;
    }
    return ok;
}

/* ---- a failure */

static int by_time(const void *a, const void *b)
{
    const sim_hit *x = a, *y = b;
    return x->at_ms != y->at_ms ? (x->at_ms < y->at_ms ? -1 : 1) : 0;
}

static void print_faults(const sim_hit *hits, size_t count)
{
    sim_hit *sorted = k2_alloc_array(count + 1, sizeof *sorted);
    memcpy(sorted, hits, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_time);
    for (size_t i = 0; i < count; i++) {
        k2_buf one;
        k2_buf_init(&one, 256);
        sim_hits_print(&sorted[i], 1, &one);
        fprintf(stderr, "  %8.3f s  %-24s %s\n", sorted[i].at_ms / 1e3, one.data,
                sim_fault_text((sim_fault_kind)sorted[i].kind));
        k2_buf_fini(&one);
    }
    k2_free(sorted);
}

static void print_repeat(uint64_t seed, const sim_hit *hits, size_t count, const char *planted)
{
    k2_buf list;
    k2_buf_init(&list, 1u << 24);
    sim_hits_print(hits, count, &list);
    fprintf(stderr, "repeat: ./run sim --first %llu --seeds 1 --faults %s%s%s\n", (ull)seed, list.data,
            planted ? " --planted " : "", planted ? planted : "");
    k2_buf_fini(&list);
}

static void explain(sim_shared *x, const options *o)
{
    sim_outcome *found = k2_alloc(sizeof *found);
    sim_hit *hits = k2_alloc_array(SIM_HITS_MAX, sizeof *hits);
    uint32_t runs = 0;
    *found = *sim_shared_outcome(x);
    fprintf(stderr, "seed %llu at %.3f s: %s: %s\n", (ull)found->seed, (double)found->end_ns / 1e9,
            sim_check_name(found->check), found->text);
    size_t count = found->hit_count;
    memcpy(hits, found->hits, count * sizeof *hits);
    if (!o->no_shrink && !o->every_step) count = sim_shrink(x, found, hits, &runs);
    fprintf(stderr, "faults: %zu of %u are enough (%u runs)\n", count, found->hit_count, runs);
    print_faults(hits, count);
    print_repeat(found->seed, hits, count, o->planted);
    k2_free(hits);
    k2_free(found);
}

/* ---- planted mistakes: only in the second binary */

#ifdef K2_PLANTED_BUILD
static void row(sim_shared *x, const options *o, k2_planted p, bool *ok)
{
    const sim_job job = {.first = o->first, .seeds = o->seeds};
    uint64_t from = k2_now_ns();
    k2_planted_now = p;
    if (sim_try(x, &job)) {
        printf("%-22s not found in %llu seeds: %s\n", sim_planted_name(p), (ull)o->seeds, sim_planted_text(p));
        *ok = false;
        return;
    }
    sim_outcome *found = k2_alloc(sizeof *found);
    sim_hit *hits = k2_alloc_array(SIM_HITS_MAX, sizeof *hits);
    uint32_t runs;
    *found = *sim_shared_outcome(x);
    size_t count = sim_shrink(x, found, hits, &runs);
    const sim_job again = {.first = found->seed, .seeds = 1, .script = hits, .script_count = count};
    bool same = !sim_try(x, &again) && sim_shared_outcome(x)->check == found->check;
    k2_buf list;
    k2_buf_init(&list, 1u << 24);
    sim_hits_print(hits, count, &list);
    printf("%-22s seed %4llu  %-10s %4u faults -> %2zu (%s)  %.1f s%s\n", sim_planted_name(p), (ull)found->seed,
           sim_check_name(found->check), found->hit_count, count, list.data, (double)(k2_now_ns() - from) / 1e9,
           same ? "" : "  DOES NOT REPEAT");
    fflush(stdout);
    *ok &= same;
    k2_buf_fini(&list);
    k2_free(hits);
    k2_free(found);
}

static int planted_all(sim_shared *x, const options *o)
{
    bool ok = true;
    for (uint32_t p = 1; p < K2_PLANTED_COUNT; p++) row(x, o, (k2_planted)p, &ok);
    return ok ? 0 : 1;
}
#else
static int run_planted(char **argv)
{
    char self[4096], next[4200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    K2_ASSERT(n > 0);
    self[n] = 0;
    snprintf(next, sizeof next, "%s/k2_sim_planted", dirname(self));
    execv(next, argv);
    fprintf(stderr, "k2_sim: %s is missing: build the target k2_sim_planted\n", next);
    return 2;
}

static int planted_all(sim_shared *x, const options *o)
{
    (void)x, (void)o;
    return 2;
}
#endif

static int planted_choose(const options *o, bool *all)
{
    k2_planted p = K2_PLANTED_NONE;
    if (strcmp(o->planted, "list") == 0) {
        for (uint32_t i = 1; i < K2_PLANTED_COUNT; i++) printf("%-22s %s\n", sim_planted_name(i), sim_planted_text(i));
        exit(0);
    }
    *all = strcmp(o->planted, "all") == 0;
    if (*all || sim_planted_find(o->planted, &p)) {
#ifdef K2_PLANTED_BUILD
        k2_planted_now = p;
#endif
        return 0;
    }
    fprintf(stderr, "k2_sim: --planted: no mistake is called '%s'; --planted list names them\n", o->planted);
    return 2;
}

/* ---- lists of seeds */

/* "SEED LIST", or "SEED drawn" for the seed's own faults. */
static k2_code parse_line(const char *line, sim_hit *hits, sim_job *job, k2_error *err)
{
    static char faults[LINE_BYTES];
    ull seed;
    if (sscanf(line, "%llu %65535s", &seed, faults) != 2) return k2_error_set(err, K2_BAD_INPUT, "expected SEED LIST");
    *job = (sim_job){.first = seed, .seeds = 1};
    if (strcmp(faults, "drawn") == 0) return K2_OK;
    job->script = hits;
    return sim_hits_parse(faults, hits, SIM_HITS_MAX, &job->script_count, err);
}

static int run_list(sim_shared *x, const options *o)
{
    char *text, *rest;
    size_t len;
    k2_error err;
    sim_job job;
    int status = 0;
    uint64_t count = 0;
    if (k2_file_read(o->list, 1u << 24, &text, &len, &err) != K2_OK) {
        fprintf(stderr, "k2_sim: --list: %s\n", err.text);
        return 2;
    }
    sim_hit *hits = k2_alloc_array(SIM_HITS_MAX, sizeof *hits);
    rest = text;
    for (char *line; status == 0 && (line = strsep(&rest, "\n"));) {
        if (line[0] == '#' || !line[0]) continue;
        if (parse_line(line, hits, &job, &err) != K2_OK) {
            fprintf(stderr, "k2_sim: %s: line '%.200s': %s\n", o->list, line, err.text);
            status = 2;
        } else if (!sim_try(x, &job)) {
            explain(x, o);
            status = 1;
        }
        count++;
    }
    k2_free(text);
    k2_free(hits);
    if (status == 0) printf("%llu runs of %s went well\n", (ull)count, o->list);
    return status;
}

static int run_seeds(sim_shared *x, const options *o)
{
    sim_job job = {.first = o->first, .seeds = o->seeds, .seconds = o->seconds, .trace = o->trace, .every_step = o->every_step};
    sim_hit *hits = k2_alloc_array(SIM_HITS_MAX, sizeof *hits);
    k2_error err;
    if (o->faults && sim_hits_parse(o->faults, hits, SIM_HITS_MAX, &job.script_count, &err) != K2_OK) {
        fprintf(stderr, "k2_sim: %s\n", err.text);
        k2_free(hits);
        return 2;
    }
    if (o->faults) job.script = hits;
    bool ok = sim_try(x, &job);
    const sim_totals t = *sim_shared_totals(x);
    if (!ok) explain(x, o);
    print_totals(&t);
    if (o->stats) print_table(&t);
    if (ok && o->fires) ok = fires_enough(&t, o->fires);
    k2_free(hits);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    options o = {.seeds = 100, .first = 1};
    bool help = false, all = false;
    k2_error err = {0};
    const k2_option list[] = {{.name = "--seeds", .u64 = &o.seeds},
                              {.name = "--first", .u64 = &o.first},
                              {.name = "--seconds", .u64 = &o.seconds},
                              {.name = "--fires", .u64 = &o.fires},
                              {.name = "--faults", .text = &o.faults},
                              {.name = "--planted", .text = &o.planted},
                              {.name = "--list", .text = &o.list},
                              {.name = "--trace", .flag = &o.trace},
                              {.name = "--stats", .flag = &o.stats},
                              {.name = "--checks", .flag = &o.checks},
                              {.name = "--every-step", .flag = &o.every_step},
                              {.name = "--no-shrink", .flag = &o.no_shrink}};
    if (k2_args_parse(argv + 1, argc - 1, list, K2_COUNT(list), NULL, &help, &err) != K2_OK) {
        fprintf(stderr, "k2_sim: %s\n", err.text);
        return 2;
    }
    if (help) puts(help_text);
    for (uint32_t c = 0; c < SIM_CHECK_KINDS && o.checks; c++) printf("%-10s  %s\n", sim_check_name(c), sim_check_text(c));
    if (help || o.checks) return 0;
    int status = o.planted ? planted_choose(&o, &all) : 0;
    if (status != 0) return status;
#ifndef K2_PLANTED_BUILD
    if (o.planted) return run_planted(argv);
#endif
    sim_shared *x = sim_shared_new();
    status = all ? planted_all(x, &o) : o.list ? run_list(x, &o) : run_seeds(x, &o);
    sim_shared_free(x);
    return status;
}
