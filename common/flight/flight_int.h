/* The ring's file.
 *
 *        0  k2i_flight_header: who wrote it and when; the number of the next event
 *     4096  32 tracks of 512 bytes: track 0 is the process's state, the others are threads, each with what is open on it
 *    20480  slots of 64 bytes: event n stands in slot n % slots
 *
 * Writers share nothing but the counter `next`: each takes a number, marks its slot as being written, writes, and publishes the
 * number. A reader copies the file and takes a slot only if its number belongs there and its check fits all of its words: one
 * that was torn by the copy, by the writer's death or by a writer that was overtaken by a whole turn of the ring is left out.
 */
#ifndef K2_COMMON_FLIGHT_INT_H
#define K2_COMMON_FLIGHT_INT_H

#include <stdatomic.h>

#include "common/flight/flight.h"

#define K2I_FLIGHT_MAGIC        0x31474e495232664bull /* "Kf2RING1" in memory order of a little-endian machine */
#define K2I_FLIGHT_VERSION      1u
#define K2I_FLIGHT_TRACKS_AT    4096u
#define K2I_FLIGHT_TRACKS       (K2_FLIGHT_THREADS_MAX + 1)
#define K2I_FLIGHT_SLOTS_AT     (K2I_FLIGHT_TRACKS_AT + K2I_FLIGHT_TRACKS * sizeof(k2i_flight_track))
#define K2I_FLIGHT_WORDS        8u
#define K2I_FLIGHT_ROLE_LETTERS "abcdefghijklmnopqrstuvwxyz_"

typedef enum k2i_flight_kind {
    K2I_FLIGHT_SPAN = 1, /* ended; extra = when it began */
    K2I_FLIGHT_START,    /* extra = id */
    K2I_FLIGHT_FINISH,   /* extra = id */
    K2I_FLIGHT_MARK,
    K2I_FLIGHT_COUNT,
    K2I_FLIGHT_KINDS
} k2i_flight_kind;

/* words: number + 1 (0: being written); time; name | kind << 16 | track << 24 | check << 32; extra; four arguments */
typedef struct k2i_flight_slot {
    _Atomic uint64_t word[K2I_FLIGHT_WORDS];
} k2i_flight_slot;
_Static_assert(sizeof(k2i_flight_slot) == 64, "one cache line an event");

/* words: check << 32 | name; when it began; four arguments */
typedef struct k2i_flight_open {
    _Atomic uint64_t word[6];
} k2i_flight_open;

typedef struct k2i_flight_track {
    _Atomic uint32_t tid; /* 0: nobody's */
    _Atomic uint32_t depth;
    _Atomic uint64_t name[2]; /* text */
    _Alignas(64) k2i_flight_open open[K2_FLIGHT_DEPTH_MAX];
    uint64_t spare[8];
} k2i_flight_track;
_Static_assert(sizeof(k2i_flight_track) == 512, "tracks have their place");

typedef struct k2i_flight_header {
    uint64_t magic;
    uint32_t version, index;
    uint64_t names;      /* hash of the table of names: another build's numbers mean something else */
    uint64_t bytes;      /* of the file */
    uint64_t pid, ticks; /* process, and when it started as /proc tells it: a recycled pid is not it */
    uint64_t incarnation;
    uint64_t mono_ns, wall_ns; /* both clocks at the same moment: what brings several machines' rings onto one line of time */
    char role[16], host[64], boot[40], run_id[64];
    _Alignas(64) _Atomic uint64_t next; /* events ever recorded */
    _Alignas(64) _Atomic uint64_t closed_ns, left_out;
    _Atomic uint32_t threads; /* tracks in use, without track 0 */
} k2i_flight_header;
_Static_assert(sizeof(k2i_flight_header) <= K2I_FLIGHT_TRACKS_AT, "the header has its place before the tracks");

uint64_t k2i_flight_names_hash(void);

/* Over all words of an event but its check: a few multiplications that do not wait for one another. It finds words that do not
 * belong together (one time in 2^32 it does not), not malice. */
static inline uint32_t k2i_flight_check(const uint64_t *w, uint32_t count)
{
    static const uint64_t odd[K2I_FLIGHT_WORDS] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu,
                                                   0xd6e8feb86659fd93u, 0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu,
                                                   0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u};
    uint64_t sum = 0x2545f4914f6cdd1du;
    for (uint32_t i = 0; i < count; i++) sum += (w[i] ^ (w[i] >> 29)) * odd[i];
    return (uint32_t)((sum ^ (sum << 17)) >> 32);
}

#endif
