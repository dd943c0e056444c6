/* hold - actions that wait for the journal: none is carried out before every record that was written up to its step is durable,
 * and all are carried out in the order in which they were decided. Pure: executable and simulator keep their actions in it.
 */
#ifndef K2_MASTER_HOLD_INT_H
#define K2_MASTER_HOLD_INT_H

#include "master/core_int.h"

typedef struct k2m_held {
    uint64_t needs; /* last journal record that must be durable */
    k2m_action action; /* the message of a command is owned */
    void *call;        /* the caller's: what an answer goes to */
} k2m_held;

/* Zero-initialise. */
typedef struct k2m_hold {
    k2m_held *list;
    size_t first, count, capacity;
} k2m_hold;

/* memory   the action is copied, its message too; `call` is kept as it is */
void k2m_hold_put(k2m_hold *h, const k2m_action *a, uint64_t needs, void *call);
/* The oldest action, if its records are durable. It is then the caller's, who ends with k2m_held_free. */
bool k2m_hold_take(k2m_hold *h, uint64_t durable, k2m_held *out);
void k2m_held_free(k2m_held *held);
/* Drops all of them: they have never been. */
void k2m_hold_fini(k2m_hold *h);

#endif
