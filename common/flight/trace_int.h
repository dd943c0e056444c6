/* What the files that read rings share: the table of names, and how an event's numbers are written. */
#ifndef K2_COMMON_FLIGHT_TRACE_INT_H
#define K2_COMMON_FLIGHT_TRACE_INT_H

#include "common/flight/trace.h"

typedef struct k2i_flight_row {
    const char *category, *text, *args[K2_FLIGHT_ARGS];
} k2i_flight_row;

const k2i_flight_row *k2i_flight_row_of(k2_flight_name name);
/* "seq": 41, "bytes": 1234 without braces; nothing where there are none. Gives their number. */
uint32_t k2i_flight_args_json(const k2_flight_event *e, k2_buf *out);
/* " seq=41 bytes=1234" */
void k2i_flight_args_text(const k2_flight_event *e, k2_buf *out);
/* A number as JSON; above 2^53, where readers of JSON lose digits, as a string. */
void k2i_flight_u64_json(uint64_t v, k2_buf *out);
/* What a process did last, NULL for nothing. What is open is no such thing, nor are polls and counters, which come by the
 * clock. */
const k2_flight_event *k2i_flight_last(const k2_flight_ring *ring);

/* Start and finish that belong together; one of them is NULL where it has not come yet, or was overwritten. In order of start,
 * which the caller k2_frees. */
typedef struct k2i_flight_request {
    const k2_flight_event *start, *finish;
} k2i_flight_request;
k2i_flight_request *k2i_flight_requests_of(const k2_flight_ring *ring, size_t *count);

static inline uint32_t k2i_coll_op(uint64_t packed)
{
    return (uint32_t)(packed & 0xff);
}
static inline uint32_t k2i_coll_rank(uint64_t packed)
{
    return (uint32_t)(packed >> 8) & 0xffffff;
}
static inline uint32_t k2i_coll_ranks(uint64_t packed)
{
    return (uint32_t)(packed >> 32);
}

#endif
