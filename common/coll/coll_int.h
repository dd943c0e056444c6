/* What the files of common/coll share: a rank's segment, and the rounds in it.
 *
 *      0  u64 round   last round published here; UINT64_MAX: this rank has left, the reason stands in `parting`
 *      8  u64 done    last round in which this rank has read from everybody
 *     64  parting     why it left
 *   4096  slot 0      of rounds 0, 2, 4 ...:  64 bytes of k2i_round_head, then bytes_max of data
 *    ...  slot 1      of rounds 1, 3, 5 ...
 *
 * One round: write the slot, publish its number, wait until every peer has published that number, read from them. Two
 * slots are enough without any acknowledgement: whoever publishes round n+1 has read everything of round n, and nobody
 * writes round n+2 before all others have published n+1.
 */
#ifndef K2_COMMON_COLL_INT_H
#define K2_COMMON_COLL_INT_H

#include "common/coll/coll.h"
#include "common/flight/flight.h"

#define K2I_WORD_ROUND   0u
#define K2I_WORD_DONE    8u
#define K2I_PARTING_AT   64u
#define K2I_SLOTS_AT     4096u
#define K2I_HEAD_BYTES   64u
#define K2I_ROUND_LEFT   UINT64_MAX

typedef k2_flight_collective k2i_kind; /* the flight recorder names them */

/* What every rank must agree on. `shape` is a hash of what else matters: ranges, lanes, root. */
typedef struct k2i_op {
    uint64_t group, seq, bytes, shape;
    uint32_t kind;
} k2i_op;

typedef struct k2i_round_head {
    k2i_op op;
    uint32_t rank, ranks;
    uint64_t round;
} k2i_round_head;
_Static_assert(sizeof(k2i_round_head) <= K2I_HEAD_BYTES, "the head of a slot has its place");

typedef struct k2i_parting {
    uint32_t code;
    char text[K2_ERROR_TEXT_MAX];
} k2i_parting;
_Static_assert(K2I_PARTING_AT + sizeof(k2i_parting) <= K2I_SLOTS_AT, "the reason has its place before the slots");

struct k2_coll {
    k2_xfer *xfer;
    uint32_t rank, ranks;
    uint64_t group, bytes_max, deadline_ns;
    uint64_t round, seq;
    uint64_t label; /* of the group in the flight recorder: unlike its number no other group of the run has it */
    uint32_t span;  /* there, of the operation under way */
    k2_xfer_segment *segment;
    unsigned char *memory;
    unsigned char *scratch; /* bytes_max, where peers' bytes are not mapped; made when first needed */
    k2_xfer_remote *peers[K2_COLL_RANKS_MAX]; /* own place is NULL */
    const unsigned char *maps[K2_COLL_RANKS_MAX];
    bool joined;
    k2_error broken; /* code OK = sound */
};

/* All that an operation of one rank waits for: nothing. Gives the error that broke the group, if one did. */
k2_code k2i_alone(const k2_coll *c, k2_error *err);
/* Begin the next operation. Gives the error that broke the group, if one did. */
k2_code k2i_op_begin(k2_coll *c, k2i_kind kind, uint64_t bytes, uint64_t shape, k2i_op *op, k2_error *err);
/* The end of what k2i_op_begin began, well or not. Gives the code. */
k2_code k2i_op_end(k2_coll *c, k2_code code);
/* Data area of the slot that the next round will publish. */
unsigned char *k2i_round_data(k2_coll *c);
/* Publish it, and wait until every peer has published the same round of the same operation. */
k2_code k2i_round_meet(k2_coll *c, const k2i_op *op, k2_error *err);
/* Bytes of a peer's data area in the round that was met: in place, or read into `to` (then *at = to). */
k2_code k2i_round_view(k2_coll *c, const k2i_op *op, uint32_t peer, uint64_t offset, uint64_t bytes, void *to, const void **at,
                       k2_error *err);
/* The same, always into `to`. */
k2_code k2i_round_fetch(k2_coll *c, const k2i_op *op, uint32_t peer, uint64_t offset, uint64_t bytes, void *to, k2_error *err);
/* Everything of the round is read. */
void k2i_round_end(k2_coll *c);

#endif
