/* try - seeds run in a child process, so that an assertion of a core that fails is a result like any other: the child leaves
 * what it did in memory that both share. */
#ifndef K2_TESTS_SIM_TRY_INT_H
#define K2_TESTS_SIM_TRY_INT_H

#include "check_int.h"
#include "faults_int.h"

struct sim_outcome;

typedef struct sim_totals {
    uint64_t seeds, events, deaths, masters, dropped, fenced, stale, after_ns_max, calm_ns, wall_ns;
    uint64_t fired[SIM_FAULT_KINDS], fired_in[SIM_FAULT_KINDS]; /* fired_in: seeds in which it did */
} sim_totals;

typedef struct sim_job {
    uint64_t first, seeds;
    uint64_t seconds;        /* begin no more seeds after so long; 0 = no limit */
    const sim_hit *script;   /* not NULL: the faults of each seed */
    size_t script_count;
    bool trace;              /* the master's log on stdout */
    bool every_step;         /* instead: one run for each step of the master's core, in which it dies there */
} sim_job;

/* What both processes see. */
typedef struct sim_shared sim_shared;
sim_shared *sim_shared_new(void);
void sim_shared_free(sim_shared *x);
const struct sim_outcome *sim_shared_outcome(const sim_shared *x); /* of the last seed that was run */
const sim_totals *sim_shared_totals(const sim_shared *x);

/* Runs the job's seeds until one fails. True: none did. */
bool sim_try(sim_shared *x, const sim_job *job);

/* shrink.c: the shortest list of faults that makes the seed of `found` fail in the same check. hits has room for all of it.
 * Gives their number; *runs says how many runs it took. */
size_t sim_shrink(sim_shared *x, const struct sim_outcome *found, sim_hit *hits, uint32_t *runs);

#endif
