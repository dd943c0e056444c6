/* trace - reads rings that flight has left, brings those of many processes together, and says what they tell.
 *
 * Pure but for k2_flight_trace_load. Nouns: a `k2_flight_ring` is one process's ring as it was read: whose it is, its events in
 * order of time, and what was open; a `k2_flight_trace` is a list of them on one line of time (nanoseconds since 1970).
 * The bytes of a ring may be anything: nothing in them is trusted.
 *
 * tests    tests/unit/flight, tests/fuzz/flight
 */
#ifndef K2_COMMON_FLIGHT_TRACE_H
#define K2_COMMON_FLIGHT_TRACE_H

#include "common/flight/flight.h"

#define K2_FLIGHT_RINGS_MAX 4096u /* that one trace takes; more are left out, and told */

typedef enum k2_flight_kind {
    K2_FLIGHT_IS_SPAN,   /* from begin_ns to end_ns */
    K2_FLIGHT_IS_OPEN,   /* a span that has not ended: end_ns is that of the ring */
    K2_FLIGHT_IS_START,  /* of `id` */
    K2_FLIGHT_IS_FINISH, /* of `id` */
    K2_FLIGHT_IS_MARK,
    K2_FLIGHT_IS_COUNT
} k2_flight_kind;

typedef struct k2_flight_event {
    uint64_t begin_ns, end_ns; /* equal for all but spans */
    uint64_t id, number;       /* number: order in which they were recorded; UINT64_MAX for what is open */
    uint64_t args[K2_FLIGHT_ARGS];
    k2_flight_name name;
    k2_flight_kind kind;
    uint32_t track; /* 0: state of the process; else a thread */
} k2_flight_event;

typedef enum k2_flight_life {
    K2_FLIGHT_UNKNOWN, /* of another machine, or of before a restart of this one */
    K2_FLIGHT_ENDED,   /* closed its ring in order */
    K2_FLIGHT_DEAD,    /* is gone and did not */
    K2_FLIGHT_ALIVE,
    K2_FLIGHT_STOPPED /* SIGSTOP or a debugger */
} k2_flight_life;

typedef struct k2_flight_ring {
    char role[16], host[64], boot[40], run_id[64];
    uint32_t index;
    uint64_t pid, ticks, incarnation;
    uint64_t start_ns, end_ns; /* end: the last event; for one that lives, when it was read */
    bool closed;
    k2_flight_life life;
    uint64_t recorded, lost, torn, left_out; /* events: ever; overwritten since; unreadable; without a place */
    char tracks[K2_FLIGHT_THREADS_MAX + 1][20];
    k2_flight_event *events; /* ascending begin_ns */
    size_t count;
} k2_flight_ring;

/* k2_flight_ring_parse - bytes of a file as a ring.
 *
 * memory   *out is the caller's, k2_flight_ring_free; at most 80 bytes an event
 * errors   BAD_INPUT (not a ring, or its numbers contradict its size), UNSUPPORTED (another version or build of k2rl wrote it);
 *          single events that make no sense are left out and counted in `torn`
 */
k2_code k2_flight_ring_parse(const void *bytes, size_t n, k2_flight_ring **out, k2_error *err);
void k2_flight_ring_free(k2_flight_ring *ring);
const char *k2_flight_life_text(k2_flight_life life);

typedef struct k2_flight_trace {
    k2_flight_ring *rings[K2_FLIGHT_RINGS_MAX]; /* by role, index, start */
    uint32_t count;
    uint64_t zero_ns;          /* the first ring's start: where the line of time begins */
    uint64_t begin_ns, end_ns; /* what is shown of it */
} k2_flight_trace;

/* k2_flight_trace_load - all rings of a run's directory, with the state of those processes that can be asked here.
 *
 * memory   *out is the caller's, k2_flight_trace_free; a third more than the files have
 * errors   NOT_FOUND (no ring is there); a file that is no ring is told to `skipped`, which may be NULL
 */
k2_code k2_flight_trace_load(const char *run_dir, void (*skipped)(void *arg, const char *text), void *arg,
                             k2_flight_trace **out, k2_error *err);
/* Rings of other origins, in any order; those are then the trace's. Sorts them and finds begin and end. */
k2_flight_trace *k2_flight_trace_of(k2_flight_ring **rings, uint32_t count);
void k2_flight_trace_free(k2_flight_trace *trace);
/* Show only the last part. */
void k2_flight_trace_last(k2_flight_trace *trace, double seconds);

/* k2_flight_chrome_write - the trace as Chrome's JSON (object format), which Perfetto and chrome://tracing open.
 *
 *   Each ring is a process, each track a thread; spans are complete events ("X"), requests asynchronous ones ("b", "e"), a
 * request's way from the proxy to an engine a flow ("s", "f"), queues counters ("C"). What did not end has the argument
 * "unfinished".
 *
 * memory   `put` gets pieces of up to 128 KiB; false ends it
 * errors   false where `put` said so
 * source   "Trace Event Format", the Chromium project, 2016
 */
bool k2_flight_chrome_write(const k2_flight_trace *trace, bool (*put)(void *arg, const void *bytes, size_t n), void *arg);
/* One event's name and numbers as a line for people: "collective seq=41 bytes=1234 op=reduce_scatter_lanes". */
void k2_flight_event_text(const k2_flight_event *e, k2_buf *out);

/* ---- which rank did not enter which collective --------------------------------------------------------------------- */

#define K2_FLIGHT_RANKS_MAX 64u /* as many as a group of common/coll has */

typedef struct k2_flight_member {
    const k2_flight_ring *ring;  /* NULL: none of this rank has recorded anything of the group */
    bool has;                    /* the ring holds at least one collective of the group */
    bool inside;                 /* the last one was entered and not left */
    const k2_flight_event *last; /* last collective entered */
} k2_flight_member;

/* A group of ranks and the last collective that any of them entered. */
typedef struct k2_flight_group {
    uint64_t group, seq, bytes;
    uint32_t op, ranks, behind; /* behind: ranks that did not enter it */
    uint64_t first_ns;          /* when the first rank entered it */
    k2_flight_member members[K2_FLIGHT_RANKS_MAX];
} k2_flight_group;

/* Two ranks that did different things under one number. */
typedef struct k2_flight_mismatch {
    uint64_t group, seq;
    struct {
        uint32_t rank, op;
        uint64_t bytes;
    } a, b;
} k2_flight_mismatch;

#define K2_FLIGHT_GROUPS_MAX     64u /* a group lives until one of its ranks dies; four rings a rank hold few */
#define K2_FLIGHT_MISMATCHES_MAX 16u /* the first ones: one is enough to break a group */

typedef struct k2_flight_collectives {
    k2_flight_group *groups; /* in order of their last collective; the last K2_FLIGHT_GROUPS_MAX */
    uint32_t group_count;
    k2_flight_mismatch mismatches[K2_FLIGHT_MISMATCHES_MAX];
    uint32_t mismatch_count;
} k2_flight_collectives;

/* k2_flight_collectives_find - compare what the ranks of every group have entered.
 *
 * memory   *out points into the trace; k2_flight_collectives_fini
 */
void k2_flight_collectives_find(const k2_flight_trace *trace, k2_flight_collectives *out);
void k2_flight_collectives_fini(k2_flight_collectives *c);

/* What a person reads, and the same for programs (one JSON object). */
void k2_flight_summary_text(const k2_flight_trace *trace, const k2_flight_collectives *c, k2_buf *out);
void k2_flight_summary_json(const k2_flight_trace *trace, const k2_flight_collectives *c, k2_buf *out);

#endif
