/* replay - the replay buffer: which trajectories exist, what of each is generated, and what happens to it exactly once.
 *
 * Nouns: a *group* is the trajectories sampled for one prompt; a *trajectory* is one list of token records {id, log-prob,
 * weights version} and a state:
 *
 *      add_group        start           finish         score          consume
 *     ──────────> queued ────> running ───────> finished ─────> scored ───────> consumed ──> (released)
 *                    ^  cut      │                  │              │
 *                    └───────────┴────── drop ──────┴──────────────┴──────────> dropped(reason)
 *
 * A *segment* is one start..cut/finish: its end position (`until`) is fixed when it starts, so that a crash in mid-segment goes
 * on to the very same position. A *step* takes whole groups (every member scored or dropped) in the order of their ids.
 *
 * Write-ahead: the buffer does no I/O. Every function that changes it checks, applies the change and gives one record to the
 * sink (k2_replay_sink_set); the caller makes the record durable before it acknowledges or acts on the change. Recovery is
 * k2_replay_apply of every durable record in order: both ways run the same code.
 *
 * Lifetime: all memory is allocated by k2_replay_new, whose size k2_replay_bytes tells beforehand. Pure: no clock, threads or
 * I/O.
 */
#ifndef K2_REPLAY_H
#define K2_REPLAY_H

#include "common/base/base.h"

#define K2_REPLAY_GROUP_MEMBERS_MAX 1024u /* trajectory id = group * 1024 + index */
#define K2_REPLAY_GROUP_ID_MAX (1ull << 52)  /* groups ever: trajectory ids stay below 2^62, the top bits are the caller's */
#define K2_REPLAY_GROUPS_MAX 65536u       /* groups held at once */
#define K2_REPLAY_CHUNK_MAX 65536u        /* token records of one chunk report */
#define K2_REPLAY_REASON_MAX 96u          /* bytes of a drop's reason, with terminator */

#define K2_REPLAY_TYPE_FIRST 1u  /* record types of this folder in the journal; the caller's own start at 64 */
#define K2_REPLAY_TYPE_LAST 31u

static inline uint64_t k2_replay_id(uint64_t group, uint32_t index) { return group * K2_REPLAY_GROUP_MEMBERS_MAX + index; }
static inline uint64_t k2_replay_group_of(uint64_t id) { return id / K2_REPLAY_GROUP_MEMBERS_MAX; }
static inline uint32_t k2_replay_index_of(uint64_t id) { return (uint32_t)(id % K2_REPLAY_GROUP_MEMBERS_MAX); }

/* One generated token: three facts in one record, so that they cannot drift apart. */
typedef struct k2_replay_token {
    int32_t id;
    float logp;
    uint32_t version;
} k2_replay_token;
_Static_assert(sizeof(k2_replay_token) == 12, "journal and memory estimate count on 12 bytes a token");

typedef enum k2_replay_state {
    K2_REPLAY_QUEUED,
    K2_REPLAY_RUNNING,
    K2_REPLAY_FINISHED,
    K2_REPLAY_SCORED,
    K2_REPLAY_CONSUMED,
    K2_REPLAY_DROPPED
} k2_replay_state;
const char *k2_replay_state_name(k2_replay_state s);

typedef enum k2_replay_finish {
    K2_REPLAY_FINISH_NONE,
    K2_REPLAY_FINISH_STOP,
    K2_REPLAY_FINISH_LENGTH,
    K2_REPLAY_FINISH_REPETITION
} k2_replay_finish;

typedef struct k2_replay_config {
    uint32_t groups_max;            /* groups held at once, consumed but not released ones included */
    uint32_t group_size_max;        /* members of a group */
    uint32_t trajectory_tokens_max; /* generated tokens of one trajectory */
    uint32_t prompt_tokens_max;
    uint64_t tokens_max;            /* token records held at once, prompts included. add_group answers FULL when a whole group
                                       might not fit any more, so that a started trajectory can always be finished */
} k2_replay_config;

typedef struct k2_replay k2_replay;

/* Bytes that k2_replay_new will allocate. */
uint64_t k2_replay_bytes(const k2_replay_config *config);
/* errors   LIMIT with the name of the member that is out of its range */
k2_code k2_replay_new(const k2_replay_config *config, k2_replay **out, k2_error *err);
void k2_replay_free(k2_replay *r);

/* ---- records ------------------------------------------------------------------------------------------------------ */

/* Where the changes' records go: the caller appends each to its journal. Called inside the changing function, at most once for
 * each (snapshot: many times). It must copy. */
typedef struct k2_replay_sink {
    void (*record)(void *arg, uint32_t type, const void *bytes, size_t len);
    void *arg;
} k2_replay_sink;
void k2_replay_sink_set(k2_replay *r, k2_replay_sink sink);

/* k2_replay_apply - one durable record, in order, while recovering.
 *
 * errors   CORRUPT where the record is malformed or impossible in the present state, with type and reason; BAD_INPUT for a type
 *          that is not ours. The state is then as before the record
 */
k2_code k2_replay_apply(k2_replay *r, uint32_t type, const void *bytes, size_t len, k2_error *err);

/* k2_replay_recover - after the last record: what was running is queued again, with its segment's end kept. One record. */
void k2_replay_recover(k2_replay *r);

/* k2_replay_snapshot - the whole state as records, of which the first resets: with them durable, all earlier records may be
 * truncated. */
void k2_replay_snapshot(k2_replay *r);

/* Digest of everything that records determine. Equal digests = equal state. */
k2_digest k2_replay_digest(k2_replay *r);

/* ---- changes -------------------------------------------------------------------------------------------------------
 * All of them: OK = applied and given to the sink. CANCELED = it was done before (a duplicate): nothing changed, nothing to do,
 * counted. BAD_INPUT = impossible in this state: nothing changed, counted, the error names the trajectory, its state and what
 * came. FULL = a cap. */

/* groups come with rising ids; size members, all queued. prompt is the caller's number for the prompt (position in the data).
 * */
k2_code k2_replay_add_group(k2_replay *r, uint64_t group, uint64_t prompt, uint32_t size, const int32_t *tokens, uint32_t count,
                            k2_error *err);

/* What to run next in `iteration`: interrupted and cut ones first by id, then new ones by id; those that had their segment in
 * this iteration already are left out. NOT_FOUND when there is none (no error text). Changes nothing but where the next scan
 * begins. */
typedef struct k2_replay_work {
    uint64_t id, group, prompt;
    uint32_t generated;   /* position of the next token */
    uint32_t until;       /* end of the interrupted segment, 0 = a fresh one: the caller chooses */
    bool resumed;         /* has been cut before */
} k2_replay_work;
k2_code k2_replay_next(k2_replay *r, uint64_t iteration, k2_replay_work *out);

/* queued -> running until position `until` (> generated). Where work.until is not 0 it must be that one; then it may equal
 * generated: all tokens of the interrupted segment are there, and it is to be cut or finished. A caller whose engines end
 * answers by a token must make the last chunk and finish_as durable together. */
k2_code k2_replay_start(k2_replay *r, uint64_t id, uint64_t iteration, uint32_t until, k2_error *err);

/* Tokens from `position` on. All of it known already = CANCELED; a part known = only the rest is taken; a gap, a version below
 * the last one, tokens past the segment's end = BAD_INPUT; known tokens that differ = CORRUPT (an engine broke determinism). */
k2_code k2_replay_chunk(k2_replay *r, uint64_t id, uint32_t position, const k2_replay_token *tokens, uint32_t count,
                        k2_error *err);

k2_code k2_replay_cut(k2_replay *r, uint64_t id, k2_error *err);       /* running -> queued; the segment is over */
k2_code k2_replay_requeue(k2_replay *r, uint64_t id, k2_error *err);   /* running -> queued; the segment goes on later */
k2_code k2_replay_finish_as(k2_replay *r, uint64_t id, k2_replay_finish why, k2_error *err); /* running -> finished */
k2_code k2_replay_score(k2_replay *r, uint64_t id, double reward, k2_error *err);            /* finished -> scored; finite */
k2_code k2_replay_drop(k2_replay *r, uint64_t id, const char *reason, k2_error *err);        /* any but consumed -> dropped */

/* Take whole groups by id for `step` (last taken + 1, all earlier ones consumed), at most `groups_max` of them. An empty batch
 * is OK. */
k2_code k2_replay_take(k2_replay *r, uint64_t step, uint32_t groups_max, uint32_t *groups_taken, k2_error *err);
/* The step was applied: its groups are consumed. Exactly once, in order. */
k2_code k2_replay_consume(k2_replay *r, uint64_t step, k2_error *err);
/* Forget consumed groups of steps <= step: a checkpoint covers them. */
k2_code k2_replay_release(k2_replay *r, uint64_t step, k2_error *err);

/* ---- looking ------------------------------------------------------------------------------------------------------- */

typedef struct k2_replay_info {
    uint64_t id, group, prompt;
    uint64_t iteration; /* of its last start */
    uint64_t step;      /* that took its group, 0 = none */
    k2_replay_state state;
    k2_replay_finish finish;
    uint32_t prompt_tokens, generated, until, cuts, group_size;
    double reward;
    const char *reason; /* of a drop, "" otherwise; valid until the next change */
} k2_replay_info;
k2_code k2_replay_find(const k2_replay *r, uint64_t id, k2_replay_info *out); /* NOT_FOUND */

/* Copy up to `count` items from `from`; returns how many were copied. */
uint32_t k2_replay_prompt_tokens(const k2_replay *r, uint64_t group, uint32_t from, int32_t *out, uint32_t count);
uint32_t k2_replay_tokens(const k2_replay *r, uint64_t id, uint32_t from, k2_replay_token *out, uint32_t count);

/* Version spans, derived from the tokens: maximal runs of one version. Returns how many there are, writes at most `count`. */
typedef struct k2_replay_span {
    uint32_t version, start, end;
} k2_replay_span;
uint32_t k2_replay_spans(const k2_replay *r, uint64_t id, k2_replay_span *out, uint32_t count);

/* Groups held, by id; with step != 0 only those of that step. *cursor starts at 0; false past the last. */
bool k2_replay_group_next(const k2_replay *r, uint64_t step, uint32_t *cursor, uint64_t *group, uint32_t *size);
/* Groups that no step has taken: what counts against rollout.groups. */
uint32_t k2_replay_groups_open(const k2_replay *r);
/* Whole groups ready to be taken. */
uint32_t k2_replay_groups_ready(const k2_replay *r);
/* True where nothing can be learnt from a group: every member has a reward or is dropped, and no two of those that have one, and a
 * token, differ in it (as floats, which is what trainers are given). False for a group that is not held. */
bool k2_replay_group_flat(const k2_replay *r, uint64_t group);
/* Such groups among those that no step has taken. */
uint32_t k2_replay_groups_flat(const k2_replay *r);

typedef struct k2_replay_counts {
    /* present */
    uint32_t groups, queued, queued_resumed, running, finished, scored, consumed, dropped;
    uint64_t tokens;                  /* generated tokens held */
    uint64_t next_group;              /* id that the next add_group will have at least */
    uint64_t step_taken, step_consumed, step_released;
    /* over the run, from records: they survive restarts */
    uint64_t groups_total, trajectories_total, generated_total, cut_total, resumed_total, finished_total, consumed_total,
        dropped_total, repetition_total;
    /* since this process started: not part of the state */
    uint64_t duplicates, refused;
} k2_replay_counts;
k2_replay_counts k2_replay_count(const k2_replay *r);

#endif
