/* find - a run as somebody outside sees it: by its directory or its master's address. For `k2rl why` and `k2rl top`. */
#ifndef K2_MASTER_FIND_INT_H
#define K2_MASTER_FIND_INT_H

#include "common/config/config.h"
#include "common/journal/journal.h"
#include "common/net/net.h"

typedef struct k2m_found {
    k2_config config;
    char url[K2_NET_URL_MAX]; /* where its master listens */
    bool held;                /* a master holds the run's lock */
    uint64_t pid;             /* of that master; 0 where it cannot be told */
    k2_journal *journal;      /* open where the run is not held: close it */
} k2m_found;

/* k2m_find - read a run directory and see whether a master holds it.
 *
 * errors   BAD_INPUT or CORRUPT: no run is here, or its papers are torn; IO as the system says
 */
k2_code k2m_find(const char *dir, k2m_found *out, k2_error *err);

/* The kernel's letter for a process of this machine ('T' = stopped), 0 when there is none. */
char k2m_process_state(uint64_t pid);

/* dead.c: print where a run stood that no master runs, from its journal and its logs. */
k2_code k2m_dead_print(const char *dir, const k2m_found *run, bool json, k2_error *err);

#endif
