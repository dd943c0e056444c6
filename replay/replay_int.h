/* replay, inside: the memory of the buffer, and its records' forms. */
#ifndef K2_REPLAY_INT_H
#define K2_REPLAY_INT_H

#include "replay/replay.h"

#define K2I_BLOCK_TOKENS 64u /* tokens live in chained blocks: half a block is lost per trajectory, no copy as it grows */
#define K2I_NO_BLOCK UINT32_MAX

typedef struct k2i_block {
    k2_replay_token token[K2I_BLOCK_TOKENS];
} k2i_block;

typedef struct k2i_trajectory {
    uint64_t iteration; /* of the last start */
    double reward;
    uint32_t generated, until, cuts, head, tail; /* until: end of the open segment, 0 = none is open */
    uint8_t state, finish;
    char reason[K2_REPLAY_REASON_MAX];
} k2i_trajectory;

typedef struct k2i_group {
    uint64_t id, prompt, step;
    uint32_t size, prompt_tokens, head, tail; /* the prompt's ids, in blocks like any tokens */
    uint32_t slot;                            /* members are trajectories[slot * group_size_max ...] */
} k2i_group;

/* Where the scan for queued work has come to in one order; everything before it has nothing for this iteration. */
typedef struct k2i_scan {
    uint32_t group, member;
} k2i_scan;

struct k2_replay {
    k2_replay_config config;
    k2i_trajectory *trajectories;
    k2i_group *groups;      /* by slot */
    uint32_t *order;        /* slots by rising group id */
    uint32_t *free_slots, free_count;
    k2i_block *blocks;
    uint32_t *next_block;   /* chain, and list of free ones */
    uint32_t block_count, free_block, blocks_reserved; /* reserved: what open trajectories may still take, used ones included */
    uint64_t *take_list;    /* scratch of take */
    uint64_t scan_iteration;
    k2i_scan scan_resumed, scan_new;
    k2_replay_counts counts;
    uint64_t snapshot_next_group;
    bool snapshot_open;     /* between the first and the last record of a snapshot that is being applied */
    k2_replay_sink sink;
    k2_buf scratch;         /* a record under construction; reserved at its largest */
};

/* ---- records (little-endian, no padding) --------------------------------------------------------------------------- */

enum {
    K2I_GROUP = 1,
    K2I_START,
    K2I_CHUNK,
    K2I_CUT,
    K2I_REQUEUE,
    K2I_FINISH,
    K2I_SCORE,
    K2I_DROP,
    K2I_TAKE,
    K2I_CONSUME,
    K2I_RELEASE,
    K2I_RECOVER,
    K2I_SNAPSHOT_BEGIN,
    K2I_SNAPSHOT_GROUP,
    K2I_SNAPSHOT_TRAJECTORY,
    K2I_SNAPSHOT_END
};

typedef struct k2i_rec_group {
    uint64_t group, prompt;
    uint32_t size, count; /* count i32 token ids follow */
} k2i_rec_group;
typedef struct k2i_rec_start {
    uint64_t id, iteration;
    uint32_t until, zero;
} k2i_rec_start;
typedef struct k2i_rec_chunk {
    uint64_t id;
    uint32_t position, count; /* count tokens follow */
} k2i_rec_chunk;
typedef struct k2i_rec_id {
    uint64_t id;
} k2i_rec_id;
typedef struct k2i_rec_finish {
    uint64_t id, why;
} k2i_rec_finish;
typedef struct k2i_rec_score {
    uint64_t id;
    double reward;
} k2i_rec_score;
typedef struct k2i_rec_drop {
    uint64_t id;
    char reason[K2_REPLAY_REASON_MAX];
} k2i_rec_drop;
typedef struct k2i_rec_take {
    uint64_t step, count; /* count u64 group ids follow */
} k2i_rec_take;
typedef struct k2i_rec_step {
    uint64_t step;
} k2i_rec_step;
typedef struct k2i_rec_snapshot {
    uint64_t groups, next_group, step_taken, step_consumed, step_released;
    uint64_t groups_total, trajectories_total, generated_total, cut_total, resumed_total, finished_total, consumed_total,
        dropped_total, repetition_total;
} k2i_rec_snapshot;
typedef struct k2i_rec_snapshot_group {
    uint64_t group, prompt, step;
    uint32_t size, count; /* count i32 token ids follow, then `size` trajectory records */
} k2i_rec_snapshot_group;
typedef struct k2i_rec_snapshot_trajectory {
    uint64_t id, iteration;
    double reward;
    uint32_t generated, until, cuts, state, finish, zero;
    char reason[K2_REPLAY_REASON_MAX]; /* `generated` tokens follow */
} k2i_rec_snapshot_trajectory;

/* ---- functions shared by the files ---------------------------------------------------------------------------------- */

uint32_t k2i_blocks_for(uint64_t tokens);
k2i_group *k2i_group_find(const k2_replay *r, uint64_t id);
k2i_trajectory *k2i_trajectory_find(const k2_replay *r, uint64_t id, k2i_group **group);
static inline k2i_trajectory *k2i_member(const k2_replay *r, const k2i_group *g, uint32_t index)
{
    return &r->trajectories[(size_t)g->slot * r->config.group_size_max + index];
}
static inline bool k2i_open(const k2i_trajectory *t) { return t->state == K2_REPLAY_QUEUED || t->state == K2_REPLAY_RUNNING; }
/* Blocks that a trajectory counts for: all it might need while it is open, what it has afterwards. */
uint32_t k2i_blocks_of(const k2_replay *r, const k2i_trajectory *t);
bool k2i_group_whole(const k2_replay *r, const k2i_group *g);

void k2i_chain_append(k2_replay *r, uint32_t *head, uint32_t *tail, uint32_t used, const k2_replay_token *tokens,
                      uint32_t count);
void k2i_chain_free(k2_replay *r, uint32_t head);
uint32_t k2i_chain_copy(const k2_replay *r, uint32_t head, uint32_t len, uint32_t from, k2_replay_token *out, uint32_t count);

/* Take a slot for a group whose members are all as after add_group; blocks of the prompt are filled, those of members reserved.
 * */
k2i_group *k2i_group_put(k2_replay *r, uint64_t id, uint64_t prompt, uint32_t size, const int32_t *tokens, uint32_t count);
void k2i_group_remove(k2_replay *r, k2i_group *g); /* not from `order`: the caller compacts it */
void k2i_reset(k2_replay *r);
void k2i_scan_reset(k2_replay *r);
void k2i_count_state(k2_replay *r, const k2i_trajectory *t, int sign);

/* Check one change and apply it. CANCELED, BAD_INPUT, CORRUPT and FULL as the public functions say. */
k2_code k2i_on_group(k2_replay *r, const k2i_rec_group *x, const int32_t *tokens, k2_error *err);
k2_code k2i_on_start(k2_replay *r, const k2i_rec_start *x, k2_error *err);
k2_code k2i_on_chunk(k2_replay *r, const k2i_rec_chunk *x, const k2_replay_token *tokens, k2_error *err);
k2_code k2i_on_cut(k2_replay *r, const k2i_rec_id *x, k2_error *err);
k2_code k2i_on_requeue(k2_replay *r, const k2i_rec_id *x, k2_error *err);
k2_code k2i_on_finish(k2_replay *r, const k2i_rec_finish *x, k2_error *err);
k2_code k2i_on_score(k2_replay *r, const k2i_rec_score *x, k2_error *err);
k2_code k2i_on_drop(k2_replay *r, const k2i_rec_drop *x, k2_error *err);
k2_code k2i_on_take(k2_replay *r, const k2i_rec_take *x, const uint64_t *groups, k2_error *err);
k2_code k2i_on_consume(k2_replay *r, const k2i_rec_step *x, k2_error *err);
k2_code k2i_on_release(k2_replay *r, const k2i_rec_step *x, k2_error *err);
void k2i_on_recover(k2_replay *r);

#endif
