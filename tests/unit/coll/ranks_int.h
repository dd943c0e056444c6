/* Runs one function on every rank of a group: as threads of this process (self), or as processes (shm, tcp). */
#ifndef K2_TESTS_COLL_RANKS_INT_H
#define K2_TESTS_COLL_RANKS_INT_H

#include "common/coll/coll.h"

/* What a rank leaves behind, in memory that all ranks and the test share. */
typedef struct rank_result {
    bool finished; /* the function came to its end */
    k2_error error;
    k2_digest digest;
} rank_result;

typedef struct ranks_spec {
    const char *transport;
    uint32_t ranks;
    uint64_t bytes_max, deadline_ns;
    /* Runs with a coll that has not joined yet; fills result->error and digest. `locators` are in rank order. */
    void (*run)(k2_coll *c, const char *const *locators, const void *arg, rank_result *result);
    const void *arg;
    /* May change one rank's configuration; NULL = nobody's. */
    void (*twist)(k2_coll_config *config, const void *arg);
} ranks_spec;

/* Waits for all ranks to end. results[ranks]. */
void ranks_run(const ranks_spec *spec, rank_result *results);
/* Inside `run`: until all ranks are here; no part of what is tested. */
void ranks_meet(void);

#endif
