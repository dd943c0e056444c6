/* engine - the engine core on its own thread, with a model under it.
 *
 * A *job* is a request with what the loop knows of it. The loop submits jobs and is told of news; the engine thread draws
 * tokens. Both touch a job's token array at the same time, never the same element: the loop reads only below `len`, which
 * it learns under the lock. All news of one step come in one wake-up of the loop.
 *
 * Lifetime: a job is its submitter's memory; it must stay until on_news has shown it finished. `k2i_engine_end` only asks
 * for the end: it shows as any other. All functions are for the loop's thread. The end comes in two steps: `stop` joins the
 * engine thread and forgets what is unfinished, no callback comes after it; `free` is for after k2_loop_free, because a
 * wake-up may still be in the loop's inbox.
 */
#ifndef K2_ROLLOUT_ENGINE_INT_H
#define K2_ROLLOUT_ENGINE_INT_H

#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/model/model.h"
#include "rollout/engine_core_int.h"

typedef struct k2i_job {
    k2i_request req; /* filled by the submitter, then the engine thread's */
    void (*on_news)(void *arg, struct k2i_job *job);
    void *arg;

    /* the loop's: what is true for it */
    uint32_t len;          /* tokens there are, prompt included */
    k2i_finish finish;
    uint32_t cached;       /* positions of the prompt that had been computed for others */
    uint64_t version;      /* of the weights that drew the last tokens */
    k2_digest digest;

    /* under the engine's lock */
    uint32_t new_len, new_cached;
    k2i_finish new_finish, end_as;
    uint64_t new_version;
    k2_digest new_digest;
    bool has_news, wants_end;
    struct k2i_job *next_in, *next_end, *next_news;
    struct k2i_job *next_told; /* the loop's */
} k2i_job;

/* Sizes and rules of one engine, from the configuration. */
typedef struct k2i_engine_plan {
    k2i_core_config core;
    uint32_t threads;
    k2_compute compute; /* of the models that it is given */
} k2i_engine_plan;

/* One set of weights; the engine owns the model that it holds. */
typedef struct k2i_weights {
    k2_model *model;
    uint64_t version;
    k2_digest digest;
} k2i_weights;

typedef struct k2i_engine k2i_engine;

#define K2I_JOBS_BYTES_MAX (256u << 20) /* tokens and what is told of them, of all unfinished jobs; more is "overloaded" */
#define K2I_TOPS_MAX       20u          /* likeliest tokens told of one position: K2_OPENAI_TOPS_MAX */

/* Bytes that an engine takes besides its models: cache pages, step scratch, logits, books, jobs. */
uint64_t k2i_engine_bytes(const k2i_engine_plan *plan, const k2_dims *dims);

/* weights->model may be NULL: nothing is let in until the first switch. */
k2i_engine *k2i_engine_new(k2_loop *loop, const k2i_engine_plan *plan, const k2_dims *dims, const k2i_weights *weights);
void k2i_engine_stop(k2i_engine *e); /* after the step in hand; idempotent; NULL is fine */
void k2i_engine_free(k2i_engine *e); /* its models too; NULL is fine */

/* FULL when core.requests_max jobs are unfinished, or they and this one take more than was planned for (at most K2I_JOBS_BYTES_MAX). */
k2_code k2i_engine_submit(k2i_engine *e, k2i_job *job);
void k2i_engine_end(k2i_engine *e, k2i_job *job, k2i_finish as);

/* k2i_engine_switch - decode with other weights from a step boundary on; see engine_core_int.h. A model of NULL keeps the one
 * in use: the same weights under another version.
 *
 * keeps    on_done(arg, old) comes once, on the loop, with the model that was in use (NULL for none), now the caller's. One
 *          switch at a time (asserted)
 */
void k2i_engine_switch(k2i_engine *e, const k2i_weights *weights, uint64_t deadline_ns,
                       void (*on_done)(void *arg, k2_model *old), void *arg);
bool k2i_engine_switching(const k2i_engine *e);

/* As of the last step, and the weights in use as of the last on_done (a digest of zero: none). */
void k2i_engine_stats_get(k2i_engine *e, k2i_core_stats *out);
void k2i_engine_weights_get(const k2i_engine *e, uint64_t *version, k2_digest *digest);
/* Time that the engine thread has spent in the model and in all, since its start. */
void k2i_engine_times_get(k2i_engine *e, uint64_t *model_ns, uint64_t *busy_ns);

#endif
