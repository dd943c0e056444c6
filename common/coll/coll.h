/* coll - what trainer ranks do together: sums, gathers, broadcasts and barriers, in a fixed order, over xfer's one-sided reads.
 *
 * Noun: a `k2_coll` is one rank's place in a group. Every rank offers one segment, publishes rounds in it and reads the
 * others'; nobody writes into another's memory. All ranks call the same operations in the same order with the same sizes;
 * each operation carries (group, sequence number, kind, bytes), so that a rank which does another thing is found and named
 * instead of giving wrong numbers.
 *
 * Results do not depend on the number of ranks: sums run over lanes in lane order, wherever a lane lives. One rank alone
 * takes a local path with the same arithmetic and needs no engine.
 *
 * Lifetime: open, exchange locators, join, operations, close. After an error the group is broken: every later operation
 * gives the same error, the peers are told at once, and a new group (with another number) must be formed.
 *
 * Errors of every operation: TIMEOUT names operation, sequence number and the rank that did not come; PEER_CLOSED a rank
 * that died or left; PEER_PROTOCOL a rank that does another operation, size or group; CANCELED a rank that called
 * k2_coll_abort.
 */
#ifndef K2_COMMON_COLL_H
#define K2_COMMON_COLL_H

#include "common/base/base.h"
#include "common/xfer/xfer.h"

#define K2_COLL_RANKS_MAX 64u        /* every rank reads every other: the full mesh is for one machine or a rack */
#define K2_COLL_LANES_MAX 64u        /* gradient lanes over all ranks */
#define K2_COLL_BYTES_MIN 4096ull    /* smallest staging area */
#define K2_COLL_BYTES_MAX K2_XFER_CHUNK_MAX /* a round is one read of each peer */

typedef struct k2_coll k2_coll;

typedef struct k2_coll_config {
    k2_xfer *xfer;        /* engine of any transport (self: the ranks are threads of one process); may be NULL for one rank */
    uint32_t rank, ranks; /* rank < ranks <= K2_COLL_RANKS_MAX */
    uint64_t group;       /* the same for all ranks; a new one whenever the group is formed anew */
    uint64_t bytes_max;   /* staging area, there are two of them: larger operations go through in several rounds; 0 = 8 MiB */
    uint64_t deadline_ns; /* how long one operation may wait for any one rank; 0 = 60 s */
} k2_coll_config;

/* Elements [begin, end) of a vector that one rank owns. May be empty. */
typedef struct k2_coll_range {
    uint64_t begin, end;
} k2_coll_range;

/* The usual split of `count` elements: equal parts whose inner borders are multiples of `align`; earlier ranks get the
 * larger ones. */
k2_coll_range k2_coll_split(uint64_t count, uint32_t ranks, uint32_t rank, uint64_t align);

/* k2_coll_open - make this rank's segment. Nothing is waited for.
 *
 * memory   2 * bytes_max of segment, and bytes_max of scratch where the transport does not map
 * errors   BAD_INPUT (numbers out of range, no engine for two ranks or more), those of k2_xfer_segment_create
 */
k2_code k2_coll_open(const k2_coll_config *config, k2_coll **out, k2_error *err);
/* Locator of this rank's segment, for the others ("" for one rank). Lives as long as the coll. */
const char *k2_coll_locator(const k2_coll *c);
/* k2_coll_join - open the segments of all ranks and meet them in a first barrier.
 *
 * memory   locators[ranks], in rank order; own entry is not used; nothing is kept
 * errors   those of k2_xfer_remote_open and of every operation
 */
k2_code k2_coll_join(k2_coll *c, const char *const *locators, uint32_t count, k2_error *err);
/* Wait (at most the deadline) until no peer still reads the last operation from us, then leave. NULL is fine. */
void k2_coll_close(k2_coll *c);
/* Break the group on purpose: the peers' current or next operation fails with CANCELED and this text. Later operations
 * here fail too. */
void k2_coll_abort(k2_coll *c, const char *text);

uint32_t k2_coll_rank(const k2_coll *c);
uint32_t k2_coll_ranks(const k2_coll *c);

/* k2_coll_reduce_scatter_lanes - add up the lanes of all ranks, strictly in lane order, and give each rank its range of
 * the sum.
 *
 *   out[i - range.begin] = ((lane_0[i] + lane_1[i]) + lane_2[i]) + ...   for i in ranges[rank]
 *
 * shapes   lanes [lanes_local] pointers to f32 [count]; rank r passes lanes r*lanes_local ... r*lanes_local +
 *          lanes_local-1; ranges [ranks], ascending, without overlap, inside count; out f32 [range of this rank]
 * memory   the caller owns all; out must not overlap a lane
 * keeps    lanes are read only
 * errors   BAD_INPUT (ranges), LIMIT (lanes), and those of every operation; out is undefined after an error
 */
k2_code k2_coll_reduce_scatter_lanes(k2_coll *c, const float *const *lanes, uint32_t lanes_local, uint64_t count,
                                     const k2_coll_range *ranges, float *out, k2_error *err);

/* k2_coll_all_gather - every rank ends with the whole vector: each gives its own range of it, in place.
 *
 * shapes   buf [count elements of `elem_bytes`]; ranges [ranks], ascending, without overlap; elements in no range are left
 *          alone
 * errors   BAD_INPUT (ranges), and those of every operation; ranges of others are undefined after an error
 */
k2_code k2_coll_all_gather(k2_coll *c, void *buf, uint32_t elem_bytes, uint64_t count, const k2_coll_range *ranges,
                           k2_error *err);

/* k2_coll_all_gather_f64 - `all` [ranks, n] gets mine[n] of every rank, in rank order. mine may be its place in all. */
k2_code k2_coll_all_gather_f64(k2_coll *c, const double *mine, uint32_t n, double *all, k2_error *err);
/* The same for bytes; every rank gives the same number of them. */
k2_code k2_coll_all_gather_bytes(k2_coll *c, const void *mine, uint64_t bytes, void *all, k2_error *err);

/* buf of rank `root` to all ranks. */
k2_code k2_coll_broadcast(k2_coll *c, uint32_t root, void *buf, uint64_t bytes, k2_error *err);
/* Nobody leaves before all have come. */
k2_code k2_coll_barrier(k2_coll *c, k2_error *err);

#endif
