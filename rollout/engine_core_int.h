/* engine_core - the engine as a state machine: requests in, rows to compute out, logits in, tokens out. No I/O, no clock.
 *
 * One step: `plan` admits what fits and says which positions the model shall compute; the caller runs the model; `absorb`
 * takes the logits, draws tokens and ends what has ended. A request is the submitter's memory: the core writes tokens and
 * log-probabilities into it and gives it back, finished, through `touched`.
 *
 *        submit ─► waiting ── admit ──► running ── stop, length, repetition ──► finished
 *                    ▲  └─ stale, cancel ─► finished  │ └── cancel, failed ──► finished
 *                    └── preempt (pages ran out) ◄────┘
 *
 * Waiting and running requests stand in the order in which they came; the youngest running one is preempted first and stands
 * at the head of the waiting ones afterwards. What a preempted request has drawn it keeps; only its cache is computed anew,
 * and gives the same bits: no result depends on who else is there.
 *
 * Prefixes: full pages are sealed under their tokens (page_int.h). A request walks the sealed pages first; where an older
 * request is just computing the page that it needs next, it waits for it instead of computing the same.
 *
 * The weights change between two steps: `switch_begin` keeps new requests out and `plan` says SWITCH when none runs. Past the
 * deadline those still running go back to the waiting ones and are computed anew with the new weights, except training ones,
 * whose tokens must come from one version each: they end as stale.
 */
#ifndef K2_ROLLOUT_ENGINE_CORE_INT_H
#define K2_ROLLOUT_ENGINE_CORE_INT_H

#include "rollout/page_int.h"
#include "rollout/sample_int.h"

#define K2I_STOP_IDS_MAX 16u /* of one request: 8 given by the client and those of the tokenizer */
#define K2I_PROMPT_ROWS  32u /* prompt positions of one step whose logits are wanted, all requests together: 20 MB with the
                              * largest vocabulary, and few ask */

typedef enum k2i_finish {
    K2I_RUNNING,    /* not finished */
    K2I_STOP,       /* a stop id was drawn, or the submitter ended it there */
    K2I_LENGTH,
    K2I_REPETITION,
    K2I_CANCELED,
    K2I_STALE,      /* it asks for weights that are not the active ones */
    K2I_FAILED      /* the model gave a value that is not finite */
} k2i_finish;

/* One of the likeliest tokens at a position. */
typedef struct k2i_top {
    int32_t id;
    float logp;
} k2i_top;

/* Written by the submitter before submit; the core's until it is finished. */
typedef struct k2i_request {
    uint64_t seed, trajectory;
    uint64_t position;      /* index, among the trajectory's generated tokens, of the first one to draw */
    k2i_sampling sampling;
    int32_t stop_ids[K2I_STOP_IDS_MAX];
    uint32_t stop_count;
    uint64_t new_min;       /* before so many generated tokens, those before `position` too, no stop id is drawn */
    bool repetition;        /* end it when its generated tokens repeat themselves */
    bool training;          /* never crosses a change of weights */
    bool has_digest;
    k2_digest digest;       /* only these weights will do */
    uint32_t prompt_len;    /* >= 1 */
    uint32_t new_max;       /* tokens to draw at most; 0: the request ends when its prompt is computed */
    int32_t *tokens;        /* [prompt_len + new_max]: the prompt, then what is drawn */
    float *logps;           /* [new_max] */
    uint32_t top_count, prompt_top_count;
    k2i_top *tops;          /* [new_max, top_count]: the likeliest ones, of equals the lowest id first */
    float *prompt_logps;    /* [prompt_len], but the first: of each token of the prompt; NULL: not wanted */
    uint32_t *prompt_ranks; /* [prompt_len]: 1 and how many ids are likelier; there with prompt_logps */
    k2i_top *prompt_tops;   /* [prompt_len, prompt_top_count] */
    void *user;

    /* the core's */
    uint32_t len;           /* tokens there are */
    uint32_t computed;      /* positions whose cache is there */
    uint32_t *pages;        /* [pages of the longest context], of its slot */
    uint32_t page_count, sealed; /* pages held; of these, sealed ones */
    uint32_t slot, planned; /* rows of this step */
    uint32_t scored;        /* positions of the prompt that need no logits any more: their next token has its score */
    uint32_t want_first, want_row, want_count; /* of this step: position and index of its first wanted row; how many */
    uint32_t cached;        /* positions that came from sealed pages before it was first preempted; none of a prompt that is scored */
    bool running, listed;   /* listed: among the touched ones */
    k2i_finish finish;
    uint32_t preempted;     /* times */
    struct k2i_request *prev, *next;
} k2i_request;

/* One position to compute. */
typedef struct k2i_row {
    int32_t token;
    uint32_t position;
    const uint32_t *pages; /* of its sequence: entry i holds positions [i * page_tokens, (i + 1) * page_tokens) */
    uint32_t slot;         /* of its sequence: rows of one slot stand together, in order of position */
    bool want;             /* its logits are wanted */
} k2i_row;

typedef struct k2i_core_config {
    uint32_t batch_max;     /* requests that run at once */
    uint32_t prefill_chunk; /* prompt positions of one step, all requests together */
    uint32_t requests_max;  /* running and waiting */
    uint32_t pages, page_tokens;
    uint32_t context_max;   /* tokens of one sequence, prompt and generated */
    uint32_t vocab;
    uint32_t prompt_rows;   /* K2I_PROMPT_ROWS, or fewer; >= 1 where prompts are scored */
    k2i_repetition repetition;
} k2i_core_config;

/* What the step wants done. */
typedef enum k2i_todo {
    K2I_IDLE,   /* nothing runs and nothing waits */
    K2I_STEP,   /* compute the rows, then absorb */
    K2I_SWITCH  /* change the weights, then switch_done */
} k2i_todo;

typedef struct k2i_core_stats {
    uint32_t running, waiting;
    uint32_t pages_held, pages_total;
    uint64_t waiting_tokens; /* tokens that requests in work may still draw: what a router balances by */
    uint64_t steps, prefill_rows, decode_rows, cached_tokens, generated, finished, preemptions, evictions, stale, canceled;
    uint64_t prefix_hits; /* shared pages that requests have found */
} k2i_core_stats;

typedef struct k2i_core k2i_core;

/* memory   new allocates all that is ever needed */
k2i_core *k2i_core_new(const k2i_core_config *config);
void k2i_core_free(k2i_core *c);
/* The digest of the weights that the model holds now; zero where it holds none (then nothing is admitted). */
void k2i_core_weights(k2i_core *c, k2_digest digest);

/* k2i_core_submit - take a request.
 *
 * errors   FULL when requests_max are there. Sizes out of range (prompt_len + new_max > context_max, ids outside the
 *          vocabulary) are asserted: the server has answered 400 for them
 */
k2_code k2i_core_submit(k2i_core *c, k2i_request *r);
/* End a request now: its pages are free at once. It comes among the touched ones with this finish (CANCELED or STOP). One that
 * has finished is left alone. */
void k2i_core_end(k2i_core *c, k2i_request *r, k2i_finish finish);

/* k2i_core_plan - begin a step.
 *
 * shapes   *rows: the rows to compute, *count of them, *wanted (up to batch_max + prompt_rows) of these with `want`; valid until
 *          absorb
 */
k2i_todo k2i_core_plan(k2i_core *c, uint64_t now_ns, const k2i_row **rows, uint32_t *count, uint32_t *wanted);
/* The model's log-softmax of the i-th wanted row at one token: the very number that the trainer computes. */
typedef float k2i_logprob(const void *arg, uint32_t i, uint32_t token);
/* k2i_core_absorb - end a step.
 *
 * shapes   logits [wanted, vocab] f32, in the order of the wanted rows
 */
void k2i_core_absorb(k2i_core *c, const float *logits, k2i_logprob *logprob, const void *arg);

/* The next request that got tokens or finished since it was last given out; NULL when there is none. */
k2i_request *k2i_core_touched(k2i_core *c);

void k2i_core_switch_begin(k2i_core *c, uint64_t deadline_ns);
/* The weights have changed: sealed pages are forgotten and requests let in again. */
void k2i_core_switch_done(k2i_core *c, k2_digest digest);

void k2i_core_stats_get(const k2i_core *c, k2i_core_stats *out);
/* Panics when the books do not agree with themselves; for tests, between two steps. */
void k2i_core_check(const k2i_core *c);

#endif
