/* server - the worker's HTTP side: the OpenAI endpoints in front of the engine, health, metrics and scores.
 *
 *   POST /v1/completions  /v1/chat/completions   plain and as Server-Sent Events
 *   GET  /v1/models  /v1/models/NAME  /health  /metrics
 *   POST /k2/score
 *
 * The server listens from the start, because a worker must tell its address before it knows its configuration; until an
 * engine is attached everything but /health is 503. Generations are generate_int.h's files; the rest is server.c.
 */
#ifndef K2_ROLLOUT_SERVER_INT_H
#define K2_ROLLOUT_SERVER_INT_H

#include "common/http/http.h"
#include "common/http/openai.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/token/token.h"
#include "rollout/engine_int.h"
#include "rollout/reward_int.h"

#define K2I_MODEL_NAME_MAX 128u /* bytes of the served model's name with its terminator */

/* What is behind the endpoints; all of it stays the caller's and must outlive the server. */
typedef struct k2i_served {
    k2i_engine *engine;
    const k2_tokenizer *tokenizer;
    k2i_rewarder *rewarder; /* NULL: /k2/score is 404 */
    uint32_t context_max;   /* tokens of prompt and answer together */
    uint32_t vocab;         /* of the model; at least the tokenizer's */
    uint32_t answer_max;    /* tokens of an answer when a chat names no number */
    bool repetition;        /* the engine's rule is on */
} k2i_served;

typedef struct k2i_server k2i_server;

/* errors   those of k2_http_serve */
k2i_server *k2i_server_new(k2_loop *loop, const char *host, uint16_t port, const char *model_name, k2_log *log, k2_error *err);
uint16_t k2i_server_port(const k2i_server *s);
void k2i_server_attach(k2i_server *s, const k2i_served *served);
/* Refuse what is new, let what runs end. */
void k2i_server_drain(k2i_server *s);
uint32_t k2i_server_open(const k2i_server *s); /* generations that run */
/* Ends everything at once. The engine must have been stopped before (it holds jobs of this server); the rewarder must still be
 * there. */
void k2i_server_free(k2i_server *s);

/* ---- for generate_int.h ------------------------------------------------------------------------------ */

typedef struct k2i_generation k2i_generation;

struct k2i_server {
    k2_loop *loop;
    k2_http_server *http;
    k2_log *log;
    char model_name[K2I_MODEL_NAME_MAX];
    k2i_served served;
    bool attached, draining;
    uint64_t created;     /* seconds since 1970: of the model in lists */
    uint64_t seed, count; /* for requests that bring none; requests so far */
    k2i_generation *first;
    uint32_t generations;
    struct score_call *scores;
    k2_buf out, body;     /* scratch: what is sent, and one JSON object */
    k2_buf name;          /* one token's text */
    k2_openai_list list;  /* tokens of one event */
    k2_metrics *metrics;
    k2_metric *m_seconds, *m_first_token;
    k2i_core_stats shown; /* what the counters have been raised to */
};

/* Answer with an error; the request is gone then. */
void k2i_respond_error(k2i_server *s, k2_http_req *req, const k2_openai_error *e);
/* One POST to a completions endpoint. */
void k2i_generate(k2i_server *s, k2_http_req *req, bool chat);
/* Forget all generations; their clients are cut off. */
void k2i_generations_drop(k2i_server *s);

#endif
