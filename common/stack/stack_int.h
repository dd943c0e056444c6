/* What the files of this folder share. */
#ifndef K2_COMMON_STACK_INT_H
#define K2_COMMON_STACK_INT_H

#include "common/stack/stack.h"

#define K2I_CRASH_FRAME "stack_on_crash" /* the handler: what is further in is the report's own doing */

/* hold.c: a process held still. */
typedef struct k2i_held {
    pid_t tid;
    int signum; /* it was about to get this: to be handed on */
    bool still; /* stopped under our hand */
} k2i_held;

typedef struct k2i_hold {
    pid_t pid;
    k2i_held *threads;
    uint32_t count, capacity;
} k2i_hold;

/* Seize and stop every thread. PEER_REFUSED where the kernel does not allow it. `missing`: threads that would not stop. */
k2_code k2i_hold_begin(k2i_hold *h, pid_t pid, uint64_t deadline_ns, uint32_t *missing, k2_error *err);
void k2i_hold_end(k2i_hold *h);

#endif
