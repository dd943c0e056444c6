/* io - the proxy's I/O half: what turns HTTP into the core's events and the core's actions into HTTP.
 *
 *   proxy_io.c  events and actions, time, health probes
 *   job.c       one client's request: from its body to its last byte
 *   upstream.c  its engine's side: the stream that comes, and what becomes of it when the engine fails
 *   pages.c     which path is what; /health, /metrics, /k2/engines
 *   requests.c  /k2/requests: who waits for which engine
 *
 * Nouns: a *job* is one client's request that takes an engine; it is in the core from its beginning until the answer is whole,
 * and lives a little longer where a slow client has not taken the answer yet.
 */
#ifndef K2_PROXY_IO_INT_H
#define K2_PROXY_IO_INT_H

#include "common/flight/flight.h"
#include "common/http/http.h"
#include "common/http/openai.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/metrics/metrics.h"
#include "proxy/proxy_core_int.h"

#define K2I_PX_SERVERS_MAX   2u            /* the address for workers, and the one of the configuration */
#define K2I_PX_BODY_MAX      (16u << 20)   /* a client's body: a million token ids in decimal, with commas */
#define K2I_PX_ANSWER_MAX    (64u << 20)   /* of what is passed on whole, and of one answer's text */
#define K2I_PX_ERROR_MAX     65536u        /* of an engine's error body */
#define K2I_PX_EVENT_MAX     (16u << 20)   /* one event of an engine: its first may carry all prompt ids */
#define K2I_PX_TICK_NS       (20 * K2_NS_PER_MS)
#define K2I_PX_SCORE_NS      (600 * K2_NS_PER_S) /* an engine that scores: the user's program has its own limit */

typedef struct k2i_px_io k2i_px_io;
typedef struct k2i_px_job k2i_px_job;

typedef struct k2i_px_io_config {
    uint32_t engines_max, queue_max, retries;
    uint64_t health_ms, connect_ms, stall_ms, wait_ms;
} k2i_px_io_config;

struct k2i_px_io {
    k2_loop *loop;
    k2_log *log;
    k2i_px *core;
    k2i_px_io_config config;
    k2_http_server *servers[K2I_PX_SERVERS_MAX];
    k2_http_client *client; /* to engines */
    k2_timer *tick;
    k2i_px_outbox out;
    bool ready; /* configured */
    bool stepping, draining;
    k2i_px_job *jobs;   /* all */
    k2i_px_job *broken; /* could not be sent; told to the core at the end of the step */
    uint32_t job_count;
    uint64_t answers;   /* counts, for their ids */
    k2_buf body, event; /* scratch: a body that goes out; events for a client */
    k2_openai_parsed parsed;
    struct k2i_px_probe *probes; /* one a slot of the core */
    k2_metrics *metrics;
    k2_metric *m_requests[3], *m_tokens, *m_first_token, *m_seconds;
};

/* What the I/O half knows of the engine in a slot of the core. */
typedef struct k2i_px_probe {
    k2i_px_io *io;
    uint32_t slot;
    k2_http_call *call;
    uint64_t counted; /* key of an engine that gives ids of prompt and answer: it need not count them for us; 0: none */
} k2i_px_probe;

typedef enum k2i_px_kind { K2I_PX_COMPLETION, K2I_PX_CHAT, K2I_PX_FORWARD } k2i_px_kind;

struct k2i_px_job {
    k2i_px_io *io;
    k2i_px_job *prev, *next, *broken_next;
    k2_http_req *client;
    k2i_px_kind kind;
    uint32_t id; /* in the core; K2I_PX_NONE before and after */
    uint32_t slot;
    bool broken;
    bool *gone; /* set when the job is freed, for who may not know */
    uint64_t flight; /* id in the flight recorder; 0 before it is admitted */
    uint64_t begin_ns;
    uint64_t sent_ns, last_ns, deadline_ns; /* of the attempt: when it went out, the engine's last byte (0: none yet), when it
                                             * counts as stalled */

    /* FORWARD: passed on as it is. */
    const char *path, *method;
    k2_buf forward;

    /* COMPLETION and CHAT. */
    k2_openai_request request;
    bool verbatim; /* more is asked for than one answer that another engine could go on with: the engine's words are passed on as
                    * they are, and a lost engine means to begin anew, or the end where the client has seen something */
    char answer_id[40];
    uint64_t created;

    /* The engine's side of the present attempt. */
    k2_http_call *call;
    bool upstream_paused;
    int status;
    bool sse, sse_open, resumed;
    char content_type[64];
    k2_sse events;
    k2_buf reply; /* a body that is no stream: an error, or what is forwarded */

    /* What has come of the answer, over all attempts. */
    uint32_t *ids, *prompt_ids;
    float *logprobs;
    size_t count, cap, prompt_count;
    k2_openai_calls calls;          /* of tools */
    k2_openai_list tokens;          /* as "logprobs" tells of them, of an engine that gives their places in the text */
    bool ids_whole, logprobs_whole, tokens_whole; /* every token so far had one */
    k2_buf text;
    char model[128];
    char finish[24]; /* "" until the answer is whole */
    bool has_k2, has_usage, has_cached;
    char *stop_text; /* as of k2_openai_answer; */
    bool has_stop_id;
    uint32_t stop_id;
    bool anything;        /* a token or text has come */
    bool looked, foreign; /* foreign: an engine that gives neither ids nor k2; its words are passed on as they are */
    uint64_t version, prompt_tokens, completion_tokens, cached_tokens; /* cached: at the first engine that answered */
    k2_digest digest;
    char failure[160]; /* what the last engine that failed said, or what was seen of it */
    uint32_t attempts;

    /* The client's side of a stream. */
    bool begun;     /* the head is out */
    bool delivered; /* some of the answer is out */
    bool ended;     /* nothing more will be added; what is in `pending` still has to leave */
    k2_buf pending; /* what the client's connection did not take */
};

/* ---- proxy_io.c ---- */
k2i_px_io *k2i_px_io_new(k2_loop *loop, k2_log *log);
/* Once; until then requests are answered with 503 and no event may be given. A worker tells its address before it knows its
 * configuration, so it listens before it is configured. */
void k2i_px_io_configure(k2i_px_io *io, const k2i_px_io_config *config);
/* Listen at one more address. errors: those of k2_http_serve */
k2_code k2i_px_io_listen(k2i_px_io *io, const char *host, uint16_t port, uint16_t *got, k2_error *err);
/* Everything ends at once; the memory goes with k2i_px_io_free, after k2_loop_free. */
void k2i_px_io_close(k2i_px_io *io);
void k2i_px_io_free(k2i_px_io *io);
/* No new requests; what runs ends. k2i_px_io_open counts it. */
void k2i_px_io_drain(k2i_px_io *io);
uint32_t k2i_px_io_open(const k2i_px_io *io);
/* An event of the core, its time filled in, and all actions that follow. Gives the number of a new request. */
uint32_t k2i_px_io_step(k2i_px_io *io, k2i_px_event *ev);

/* ---- job.c ---- */
void k2i_px_completion(k2i_px_io *io, k2_http_req *req, bool chat);
/* path and method are literals. */
void k2i_px_forward(k2i_px_io *io, k2_http_req *req, const char *method, const char *path);
void k2i_px_job_fail(k2i_px_job *job, const k2i_px_action *a);
/* The engine's own refusal goes to the client as it is. */
void k2i_px_job_relay(k2i_px_job *job);
/* New tokens or text for a client that streams: the fields of a say what is new. */
void k2i_px_job_deliver(k2i_px_job *job, const k2_openai_answer *a);
void k2i_px_job_deliver_raw(k2i_px_job *job, const char *data, size_t n);
/* The answer is whole. */
void k2i_px_job_complete(k2i_px_job *job);
void k2i_px_job_free(k2i_px_job *job);
/* What the flight recorder knows a request by: its trajectory, K2_FLIGHT_NONE without one. */
static inline uint64_t k2i_px_trajectory(const k2i_px_job *job)
{
    return job->request.k2.has_trajectory ? job->request.k2.trajectory : K2_FLIGHT_NONE;
}
/* Position, within the trajectory, of the next token to come. */
static inline uint64_t k2i_px_position(const k2i_px_job *job)
{
    return job->kind == K2I_PX_FORWARD ? K2_FLIGHT_NONE : job->request.k2.position + job->count;
}
void k2i_px_respond_error(k2i_px_io *io, k2_http_req *req, const k2_openai_error *e);

/* ---- upstream.c ---- */
void k2i_px_upstream_send(k2i_px_job *job, uint32_t slot);
void k2i_px_upstream_cancel(k2i_px_job *job);
void k2i_px_upstream_failed(k2i_px_job *job, k2i_px_why why, const char *text);

/* ---- requests.c ---- */
#define K2I_PX_REQUESTS_SHOWN 64u /* of /k2/requests: those that have been without a sign of life longest */
void k2i_px_serve_requests(k2i_px_io *io, k2_http_req *req);
/* The same facts of one job as words for the log; out holds a line. */
void k2i_px_job_describe(const k2i_px_job *job, char *out, size_t n);

/* ---- pages.c ---- */
void k2i_px_route(void *io, k2_http_req *req);

#endif
