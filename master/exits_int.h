/* exits - how the processes of a run ended, and which end came first. A small ring, filled by the pure core, and read
 * again by `k2rl why` from the file that the I/O side writes.
 *
 * Nouns: an *exit* is the end of one process, or the master's decision to end it; an *incident* is exits that follow one another
 * closely, most often because the first one caused the others.
 */
#ifndef K2_MASTER_EXITS_INT_H
#define K2_MASTER_EXITS_INT_H

#include "common/base/base.h"
#include "common/wire/wire.h"

#define K2M_EXITS_KEPT     32u                     /* an incident of a whole small fleet; of a larger one the last */
#define K2M_EXIT_GAP_NS    (10 * K2_NS_PER_S)      /* within an incident: peers notice by deadlines of some seconds */
#define K2M_EXIT_TIE_NS    (500 * K2_NS_PER_MS)    /* a crash ends its process only after its report, and peers may be quicker */
#define K2M_EXIT_TEXT_MAX  512u

typedef struct k2m_exit {
    char name[K2_WIRE_NAME_MAX]; /* "trainer-0" */
    uint64_t incarnation, pid;   /* pid 0: not known */
    uint64_t at_ns;              /* when it was noticed, or decided */
    uint64_t start_ns, lived_ns;
    int exit_code, signal;       /* valid with `over` */
    bool over;                   /* the process has ended; false: the master has decided it and waits for that */
    bool expected;               /* it was told to stop and did */
    uint64_t oom_kills;          /* that its cgroup counted while it lived: of it, or of a neighbour in there */
    char killed[160];            /* why the master ended it; "" = it did not */
    char last[200];              /* what it wrote last */
} k2m_exit;

typedef struct k2m_exits {
    k2m_exit ring[K2M_EXITS_KEPT];
    uint64_t count; /* ever; slot = number % K2M_EXITS_KEPT */
} k2m_exits;

typedef struct k2m_incident {
    const k2m_exit *list[K2M_EXITS_KEPT]; /* the first cause, then the others as they came */
    uint32_t count;
} k2m_incident;

/* A new one at the end of the ring, zeroed but for these; valid until K2M_EXITS_KEPT more have come. */
k2m_exit *k2m_exits_add(k2m_exits *x, const char *name, uint64_t incarnation, uint64_t at_ns);
/* NULL: never seen, or forgotten. */
k2m_exit *k2m_exits_find(k2m_exits *x, uint64_t incarnation);

/* k2m_exits_incident - the last incident: back from the youngest unexpected exit while the gaps are short.
 *
 *   The first cause is the earliest; of those within K2M_EXIT_TIE_NS of it the one that others can be blamed for least: a crash, then
 *   another signal, then an end by the master, then an exit status.
 *
 * memory   points into x; count 0 where there was none
 * threads  pure
 * tests    tests/unit/master/exits_test.c
 */
void k2m_exits_incident(const k2m_exits *x, k2m_incident *out);

/* "was ended by SIGSEGV", "exited with 1", "was ended by the master: said nothing for 2000 ms (its lease)" */
void k2m_exit_how(const k2m_exit *e, char *out, size_t n);
/* All that is known, one line. */
void k2m_exit_text(const k2m_exit *e, char *out, size_t n);
/* It ended by a signal that tells of a fault in it. */
bool k2m_exit_crashed(const k2m_exit *e);

/* One line of JSON; at_ns is nanoseconds since 1970 there. Parse: false where the line is not one of these. */
void k2m_exit_json(const k2m_exit *e, k2_buf *out);
bool k2m_exit_parse(const char *line, size_t n, k2m_exit *out);
/* The same as a file, RUN_DIR/logs/exits.jsonl: for the master, and for `k2rl why`. Nothing where it cannot be read. */
void k2m_exits_append(const char *run_dir, const k2m_exit *e);
void k2m_exits_load(const char *run_dir, k2m_exits *out);
/* What is left of a dead run: the last incident, and the master's own crash. Lines of text, or members of a JSON object. */
void k2m_exits_show(const char *run_dir, bool json, k2_buf *out);

#endif
