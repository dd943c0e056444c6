/* engine - see engine_int.h. The lock guards lists and small copies only; it is never held while the model runs. */
#include "common/flight/flight.h"
#include "rollout/engine_int.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define RETRY_POST_NS (2 * K2_NS_PER_MS) /* the loop's inbox was full: look again this much later */

typedef struct job_list {
    k2i_job *head, *tail;
} job_list;

struct k2i_engine {
    k2_loop *loop;
    k2i_engine_plan plan;
    uint32_t vocab;
    uint32_t open;       /* the loop's count of unfinished jobs */
    uint64_t open_bytes; /* of their tokens and log-probabilities */
    uint64_t version;
    k2_digest digest;
    bool switching, stopped; /* the loop's */
    void (*on_switched)(void *arg, k2_model *old);
    void *switched_arg;

    /* the engine thread's */
    k2i_core *core;
    k2i_weights active;
    k2_model_kv kv;
    k2_arena arena;
    k2_model_row *rows;
    float *logits;
    k2_softmax *softmax;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* under the lock */
    job_list in, ends, news;
    bool stop, posted, want_switch, switched;
    k2i_weights next; /* to switch to; after the switch: what was in use before */
    uint64_t switch_deadline_ns;
    k2i_core_stats stats;
    uint64_t model_ns, busy_ns;
};

static size_t rows_max(const k2i_core_config *c)
{
    return (size_t)c->batch_max + c->prefill_chunk;
}

static size_t logits_rows(const k2i_core_config *c)
{
    return (size_t)c->batch_max + c->prompt_rows;
}

/* Room for as many plain jobs as there may be, and for one that wants to be told everything of each token. */
static uint64_t jobs_bytes_max(const k2i_core_config *c)
{
    uint64_t plain = sizeof(int32_t) + sizeof(float), told = plain + sizeof(uint32_t) + K2I_TOPS_MAX * sizeof(k2i_top);
    return K2_MIN(c->context_max * (plain * c->requests_max + told), (uint64_t)K2I_JOBS_BYTES_MAX);
}

static size_t arena_bytes(const k2i_engine_plan *plan, const k2_dims *dims)
{
    return k2_model_decode_bytes(dims, plan->threads, rows_max(&plan->core), plan->core.context_max) + 4096;
}

uint64_t k2i_engine_bytes(const k2i_engine_plan *plan, const k2_dims *dims)
{
    const k2i_core_config *c = &plan->core;
    uint64_t pages = (uint64_t)c->pages * k2_model_page_floats(dims, c->page_tokens) * sizeof(float);
    uint64_t keys = (uint64_t)c->pages * (c->page_tokens * sizeof(int32_t) + sizeof(k2i_page) + 4 * sizeof(uint32_t));
    uint64_t tables = (uint64_t)c->batch_max * (c->context_max / c->page_tokens + 1) * sizeof(uint32_t);
    uint64_t logits =
        logits_rows(c) * (sizeof(float) * dims->vocab_size + sizeof(k2_softmax)) + k2i_sampler_bytes(dims->vocab_size);
    uint64_t rows = rows_max(c) * (sizeof(k2_model_row) + sizeof(k2i_row));
    uint64_t jobs = jobs_bytes_max(c) + (uint64_t)c->requests_max * (sizeof(k2i_job) + sizeof(k2i_request *));
    return pages + keys + tables + logits + rows + jobs + arena_bytes(plan, dims);
}

/* ---- the engine thread ---------------------------------------------------------------------------------------------- */

static void job_push(job_list *l, k2i_job *job, k2i_job **link)
{
    *link = NULL;
    if (l->tail) {
        if (link == &job->next_in)
            l->tail->next_in = job;
        else if (link == &job->next_end)
            l->tail->next_end = job;
        else
            l->tail->next_news = job;
    } else {
        l->head = job;
    }
    l->tail = job;
}

static void deliver(void *arg);

/* Locked. Whether the loop knows that there is something. */
static bool notify(k2i_engine *e)
{
    if (e->posted || (!e->news.head && !e->switched)) return true;
    e->posted = k2_loop_post(e->loop, deliver, e) == K2_OK;
    return e->posted;
}

/* Locked. Everything the core has touched becomes news. */
static void publish(k2i_engine *e)
{
    k2i_request *r;
    while ((r = k2i_core_touched(e->core)) != NULL) {
        k2i_job *job = r->user;
        job->new_len = r->len;
        job->new_cached = r->cached;
        job->new_finish = r->finish;
        job->new_version = e->active.version;
        job->new_digest = e->active.digest;
        if (!job->has_news) {
            job->has_news = true;
            job_push(&e->news, job, &job->next_news);
        }
    }
    k2i_core_stats_get(e->core, &e->stats);
    notify(e);
}

/* Locked. */
static void take_orders(k2i_engine *e)
{
    for (k2i_job *job = e->in.head, *next; job; job = next) {
        next = job->next_in;
        k2_code code = k2i_core_submit(e->core, &job->req);
        K2_ASSERT(code == K2_OK); /* the loop counts what is open */
    }
    e->in = (job_list){0};
    for (k2i_job *job = e->ends.head, *next; job; job = next) {
        next = job->next_end;
        job->wants_end = false;
        k2i_core_end(e->core, &job->req, job->end_as);
    }
    e->ends = (job_list){0};
    if (e->want_switch) {
        e->want_switch = false;
        k2i_core_switch_begin(e->core, e->switch_deadline_ns);
    }
}

static void wait_for_orders(k2i_engine *e, bool told)
{
    if (told) {
        pthread_cond_wait(&e->wake, &e->lock);
        return;
    }
    struct timespec until;
    uint64_t at = k2_now_ns() + RETRY_POST_NS;
    until.tv_sec = (time_t)(at / K2_NS_PER_S);
    until.tv_nsec = (long)(at % K2_NS_PER_S);
    pthread_cond_timedwait(&e->wake, &e->lock, &until);
}

static float row_logprob(const void *arg, uint32_t i, uint32_t token)
{
    const k2i_engine *e = arg;
    return k2_kern_logp(e->logits + (size_t)i * e->vocab, &e->softmax[i], token);
}

static void compute(k2i_engine *e, const k2i_row *rows, uint32_t count)
{
    uint32_t wanted = 0;
    for (uint32_t i = 0; i < count; i++) {
        e->rows[i] = (k2_model_row){.token = rows[i].token, .position = rows[i].position, .page_table = rows[i].pages};
        if (rows[i].want) {
            e->rows[i].logits = e->logits + (size_t)wanted * e->vocab;
            e->rows[i].softmax = &e->softmax[wanted++];
        }
    }
    k2_model_decode(e->active.model, &e->kv, e->rows, count, &e->arena);
}

/* Locked. */
static void swap_weights(k2i_engine *e)
{
    k2i_weights old = e->active;
    e->active = e->next;
    if (!e->active.model) { /* the same weights under another version */
        e->active.model = old.model;
        old.model = NULL;
    }
    e->next = old;
    e->switched = true;
    notify(e);
}

/* Helpers of the model that steps run on are kept awake from step to step. */
static void keep_awake(k2_model **awake, k2_model *model)
{
    if (*awake == model) return;
    if (*awake) k2_model_calls_end(*awake);
    if (model) k2_model_calls_begin(model);
    *awake = model;
}

static void *engine_thread(void *arg)
{
    k2_thread_begin();
    k2i_engine *e = arg;
    bool idle = false;
    k2_model *awake = NULL;
    k2_flight_thread("engine");
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (idle && !e->stop && !e->in.head && !e->ends.head && !e->want_switch) wait_for_orders(e, notify(e));
        bool stop = e->stop;
        uint32_t running = e->stats.running, waiting = e->stats.waiting;
        take_orders(e);
        pthread_mutex_unlock(&e->lock);
        if (stop) break;

        k2_hot_begin(); /* from here to the end of the step nothing is allocated */
        uint64_t begin = k2_now_ns(), model_ns = 0;
        const k2i_row *rows;
        uint32_t count, wanted;
        k2i_todo todo = k2i_core_plan(e->core, begin, &rows, &count, &wanted);
        keep_awake(&awake, todo == K2I_STEP ? e->active.model : NULL);
        if (todo == K2I_STEP) {
            uint64_t from = k2_now_ns();
            uint32_t span = k2_flight_begin(K2_FLIGHT_STEP, count, wanted, running, waiting);
            compute(e, rows, count);
            k2_flight_end(span);
            model_ns = k2_now_ns() - from;
            k2i_core_absorb(e->core, e->logits, row_logprob, e);
        }
        k2_hot_end();
        idle = todo == K2I_IDLE;

        pthread_mutex_lock(&e->lock);
        e->model_ns += model_ns;
        e->busy_ns += idle ? 0 : k2_now_ns() - begin;
        publish(e); /* what the old weights drew, under their name */
        if (todo == K2I_SWITCH) swap_weights(e);
        pthread_mutex_unlock(&e->lock);
        if (todo == K2I_SWITCH) {
            k2i_core_switch_done(e->core, e->active.digest);
            k2_flight_mark(K2_FLIGHT_SWITCH, e->active.version, 0, 0, 0);
        }
    }
    keep_awake(&awake, NULL);
    return NULL;
}

/* ---- the loop's side ------------------------------------------------------------------------------------------------- */

static uint64_t job_bytes(const k2i_job *job)
{
    const k2i_request *r = &job->req;
    uint64_t drawn = sizeof(int32_t) + sizeof(float) + r->top_count * sizeof(k2i_top), prompt = sizeof(int32_t);
    if (r->prompt_logps) prompt += sizeof(float) + sizeof(uint32_t) + r->prompt_top_count * sizeof(k2i_top);
    return r->prompt_len * prompt + r->new_max * drawn;
}

/* Locked. The job has finished by itself while its end was being asked for: the order must not outlive the job. */
static void drop_end(k2i_engine *e, k2i_job *job)
{
    k2i_job *before = NULL, *at = e->ends.head;
    while (at != job) {
        before = at;
        at = at->next_end;
    }
    if (before)
        before->next_end = job->next_end;
    else
        e->ends.head = job->next_end;
    if (e->ends.tail == job) e->ends.tail = before;
    job->wants_end = false;
}

/* News of before a switch come before its on_done: nobody sees tokens of one version under the name of another. Both are
 * taken under one lock, or a switch could overtake them. */
static void deliver(void *arg)
{
    k2i_engine *e = arg;
    if (e->stopped) return;
    pthread_mutex_lock(&e->lock);
    k2i_job *list = e->news.head;
    e->news = (job_list){0};
    e->posted = false;
    for (k2i_job *job = list; job; job = job->next_news) {
        job->next_told = job->next_news; /* next_news is used again as soon as the lock is free */
        job->len = job->new_len;
        job->cached = job->new_cached;
        job->finish = job->new_finish;
        job->version = job->new_version;
        job->digest = job->new_digest;
        job->has_news = false;
        if (job->finish != K2I_RUNNING && job->wants_end) drop_end(e, job);
    }
    bool switched = e->switched;
    k2i_weights active = {0};
    k2_model *old = NULL;
    if (switched) {
        active = e->active;
        old = e->next.model;
        e->next.model = NULL;
        e->switched = false;
    }
    pthread_mutex_unlock(&e->lock);
    while (list) {
        k2i_job *job = list;
        list = job->next_told; /* its owner may free it in on_news */
        if (job->finish != K2I_RUNNING) {
            e->open--;
            e->open_bytes -= job_bytes(job);
        }
        job->on_news(job->arg, job);
    }
    if (!switched) return;
    e->version = active.version;
    e->digest = active.digest;
    e->switching = false;
    e->on_switched(e->switched_arg, old);
}

k2i_engine *k2i_engine_new(k2_loop *loop, const k2i_engine_plan *plan, const k2_dims *dims, const k2i_weights *weights)
{
    k2i_engine *e = k2_alloc(sizeof *e);
    e->loop = loop;
    e->plan = *plan;
    e->plan.core.vocab = e->vocab = dims->vocab_size;
    e->active = *weights;
    e->version = weights->version;
    e->digest = weights->digest;
    e->core = k2i_core_new(&e->plan.core);
    if (weights->model) k2i_core_weights(e->core, weights->digest);
    e->kv = (k2_model_kv){.page_tokens = plan->core.page_tokens, .pages_count = plan->core.pages};
    e->kv.pages =
        k2_alloc_aligned(64, (size_t)plan->core.pages * k2_model_page_floats(dims, plan->core.page_tokens) * sizeof(float));
    k2_arena_init(&e->arena, arena_bytes(plan, dims));
    e->rows = k2_alloc_array(rows_max(&plan->core), sizeof *e->rows);
    e->logits = k2_alloc_aligned(64, logits_rows(&plan->core) * e->vocab * sizeof(float));
    e->softmax = k2_alloc_array(logits_rows(&plan->core), sizeof *e->softmax);
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    int rc = pthread_create(&e->thread, NULL, engine_thread, e);
    K2_ASSERT(rc == 0);
    return e;
}

void k2i_engine_stop(k2i_engine *e)
{
    if (!e || e->stopped) return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->stopped = true;
}

void k2i_engine_free(k2i_engine *e)
{
    if (!e) return;
    k2i_engine_stop(e);
    k2_model_free(e->active.model);
    k2_model_free(e->next.model);
    k2i_core_free(e->core);
    k2_free(e->kv.pages);
    k2_arena_fini(&e->arena);
    k2_free(e->rows);
    k2_free(e->logits);
    k2_free(e->softmax);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    k2_free(e);
}

k2_code k2i_engine_submit(k2i_engine *e, k2i_job *job)
{
    if (e->open >= e->plan.core.requests_max || e->open_bytes + job_bytes(job) > jobs_bytes_max(&e->plan.core)) return K2_FULL;
    e->open++;
    e->open_bytes += job_bytes(job);
    job->req.user = job;
    job->len = job->req.prompt_len;
    job->finish = K2I_RUNNING;
    job->has_news = job->wants_end = false;
    pthread_mutex_lock(&e->lock);
    job_push(&e->in, job, &job->next_in);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return K2_OK;
}

void k2i_engine_end(k2i_engine *e, k2i_job *job, k2i_finish as)
{
    if (job->finish != K2I_RUNNING) return;
    pthread_mutex_lock(&e->lock);
    if (!job->wants_end && !(job->has_news && job->new_finish != K2I_RUNNING)) {
        job->wants_end = true;
        job->end_as = as;
        job_push(&e->ends, job, &job->next_end);
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
}

void k2i_engine_switch(k2i_engine *e, const k2i_weights *weights, uint64_t deadline_ns,
                       void (*on_done)(void *arg, k2_model *old), void *arg)
{
    K2_ASSERT(!e->switching);
    e->switching = true;
    e->on_switched = on_done;
    e->switched_arg = arg;
    pthread_mutex_lock(&e->lock);
    e->next = *weights;
    e->switch_deadline_ns = deadline_ns;
    e->want_switch = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

bool k2i_engine_switching(const k2i_engine *e)
{
    return e->switching;
}

void k2i_engine_stats_get(k2i_engine *e, k2i_core_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}

void k2i_engine_weights_get(const k2i_engine *e, uint64_t *version, k2_digest *digest)
{
    *version = e->version;
    *digest = e->digest;
}

void k2i_engine_times_get(k2i_engine *e, uint64_t *model_ns, uint64_t *busy_ns)
{
    pthread_mutex_lock(&e->lock);
    *model_ns = e->model_ns;
    *busy_ns = e->busy_ns;
    pthread_mutex_unlock(&e->lock);
}
