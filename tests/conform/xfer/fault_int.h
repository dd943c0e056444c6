/* Faults between the engine and a transport: an ops table that wraps another one and spoils chosen reads. */
#ifndef K2_TESTS_XFER_FAULT_INT_H
#define K2_TESTS_XFER_FAULT_INT_H

#include "common/xfer/xfer.h"

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_DROP,    /* nothing comes: TIMEOUT, at once instead of after the deadline */
    FAULT_CORRUPT, /* one bit is wrong; a transport that verifies notices it itself */
    FAULT_CUT,     /* half of the bytes, then the connection is gone */
    FAULT_DELAY,   /* comes too late: TIMEOUT after a while */
    FAULT_REFUSE,  /* the peer says no */
    FAULT_COUNT,
    FAULT_HANG /* nothing comes until the deadline or a cancel; not counted among the others, because it takes its time */
} fault_kind;

/* From the read number `first` (0 = the next one) on, `count` reads fail this way. */
void fault_plan(fault_kind kind, unsigned first, unsigned count);
unsigned fault_hits(void); /* since the last plan */

/* The built-in transports, each wrapped; same names. NULL-terminated. */
const k2_xfer_ops *const *fault_ops(void);

#endif
