/* shrink: delta debugging over the list of faults of a failing seed (Zeller and Hildebrandt 2002, "Simplifying and Isolating
 * Failure-Inducing Input"). Whole kinds are left out first, then ever smaller pieces, down to single faults. */
#include <stdlib.h>
#include <string.h>

#include "sim_int.h"
#include "try_int.h"

#define RUNS_MAX 3000u

typedef struct shrink {
    sim_shared *x;
    uint64_t seed;
    sim_check_kind check;
    char text[512];
    uint32_t runs;
    sim_hit *best, *trial;
    size_t count;
} shrink;

/* Whether the run still fails, and in the same way. */
static bool fails(shrink *k, size_t n)
{
    if (k->runs == RUNS_MAX) return false;
    k->runs++;
    const sim_job job = {.first = k->seed, .seeds = 1, .script = k->trial, .script_count = n};
    if (sim_try(k->x, &job)) return false;
    const sim_outcome *o = sim_shared_outcome(k->x);
    return o->check == k->check && (o->check != SIM_CHECK_CRASH || strcmp(o->text, k->text) == 0);
}

static bool take(shrink *k, size_t n)
{
    if (!fails(k, n)) return false;
    memcpy(k->best, k->trial, n * sizeof *k->best);
    k->count = n;
    return true;
}

static void without_kinds(shrink *k)
{
    for (uint32_t kind = 0; kind < SIM_FAULT_KINDS; kind++) {
        size_t n = 0;
        for (size_t i = 0; i < k->count; i++)
            if (k->best[i].kind != kind) k->trial[n++] = k->best[i];
        if (n < k->count) (void)take(k, n);
    }
}

/* Leave out one piece of so many. */
static bool without_piece(shrink *k, size_t pieces)
{
    for (size_t i = 0; i < pieces; i++) {
        size_t from = k->count * i / pieces, to = k->count * (i + 1) / pieces, n = from;
        memcpy(k->trial, k->best, from * sizeof *k->best);
        for (size_t at = to; at < k->count; at++) k->trial[n++] = k->best[at];
        if (to > from && take(k, n)) return true;
    }
    return false;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = sim_hit_key(a), y = sim_hit_key(b);
    return x < y ? -1 : x > y;
}

size_t sim_shrink(sim_shared *x, const sim_outcome *found, sim_hit *hits, uint32_t *runs)
{
    shrink k = {.x = x, .seed = found->seed, .check = found->check, .best = hits, .count = found->hit_count};
    memcpy(k.text, found->text, sizeof k.text);
    memcpy(hits, found->hits, k.count * sizeof *hits);
    qsort(hits, k.count, sizeof *hits, by_key);
    k.trial = k2_alloc_array(k.count + 1, sizeof *k.trial);
    without_kinds(&k);
    for (size_t pieces = 2; k.count > 0 && pieces <= k.count;) {
        if (without_piece(&k, pieces))
            pieces = K2_MAX(pieces - 1, 2u);
        else if (pieces == k.count)
            break;
        else
            pieces = K2_MIN(pieces * 2, k.count);
    }
    if (k.count == 1) (void)take(&k, 0);
    k2_free(k.trial);
    *runs = k.runs;
    return k.count;
}
