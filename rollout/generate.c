/* generate - one completion from its body to its last byte: check, submit, stream or collect.
 *
 * Text lags behind tokens: a character may be half there, and the end of the text is held back while it could be the beginning
 * of a stop string. Token ids are sent as they come. What a slow client has not taken stays in the job's token array, so
 * nothing piles up for it but its connection's write queue, which is bounded. */
#include "common/flight/flight.h"
#include "rollout/server_int.h"

#include <stdio.h>
#include <string.h>

#define TEXT_MAX (64u << 20) /* bytes of one answer's text: a token is a few bytes, a context some hundred thousand tokens */

struct k2i_generation {
    k2i_server *s;
    k2_http_req *req; /* NULL: the answer has ended, or its client has gone; the job's end is all that is awaited */
    k2i_job job;
    bool chat, stream, logprobs, usage;
    bool head, begun; /* head: the answer's status line has left; begun: so has its first event */
    char id[40];
    uint64_t created, begin_ns;
    uint64_t flight, trajectory; /* in the flight recorder: id, 0 before it is admitted; what the proxy knows it by */
    char *stops[K2_OPENAI_STOPS_MAX];
    size_t stop_count, stop_longest;
    bool include_stop;
    k2i_bias *bias;
    k2_token_stream decoder;
    k2_buf text;      /* decoded and not sent; of a whole answer everything */
    size_t tail;      /* bytes at the beginning of `text` that were there before this request: they only serve to find stops */
    uint32_t decoded; /* tokens that `text` accounts for, prompt included */
    uint32_t sent;    /* tokens that were sent, prompt included */
    bool stopped;     /* a stop string was found: the answer ends with token number `decoded` */
    k2i_generation *prev, *next;
};

/* ---- life ------------------------------------------------------------------------------------------------------------ */

static k2i_generation *generation_new(k2i_server *s, uint32_t prompt_len, uint32_t new_max)
{
    k2i_generation *g = k2_alloc(sizeof *g);
    g->s = s;
    g->job.req.prompt_len = prompt_len;
    g->job.req.new_max = new_max;
    g->job.req.tokens = k2_alloc_array((size_t)prompt_len + new_max, sizeof(int32_t));
    g->job.req.logps = k2_alloc_array(new_max, sizeof(float));
    k2_buf_init(&g->text, TEXT_MAX);
    g->next = s->first;
    if (s->first) s->first->prev = g;
    s->first = g;
    s->generations++;
    return g;
}

static void generation_free(k2i_generation *g)
{
    if (g->prev)
        g->prev->next = g->next;
    else
        g->s->first = g->next;
    if (g->next) g->next->prev = g->prev;
    g->s->generations--;
    if (g->flight != 0)
        k2_flight_finish(K2_FLIGHT_REQUEST, g->flight, g->trajectory, g->job.req.position, g->job.req.new_max,
                         g->job.len - g->job.req.prompt_len);
    for (size_t i = 0; i < g->stop_count; i++) k2_free(g->stops[i]);
    k2_buf_fini(&g->text);
    k2_free(g->bias);
    k2_free(g->job.req.tokens);
    k2_free(g->job.req.logps);
    k2_free(g);
}

/* The client is done with: free at once, or when the engine has let go of the job. */
static void detach(k2i_generation *g)
{
    g->req = NULL;
    if (g->job.finish != K2I_RUNNING)
        generation_free(g);
    else
        k2i_engine_end(g->s->served.engine, &g->job, g->stopped ? K2I_STOP : K2I_CANCELED);
}

static void on_abort(void *arg)
{
    k2i_generation *g = arg;
    detach(g);
}

void k2i_generations_drop(k2i_server *s)
{
    k2_openai_error e;
    k2_openai_error_set(&e, 503, "shutting_down", NULL, "the engine is shutting down");
    while (s->first) {
        k2i_generation *g = s->first;
        if (g->req && g->head)
            k2_http_stream_abort(g->req);
        else if (g->req)
            k2i_respond_error(s, g->req, &e);
        generation_free(g);
    }
}

/* ---- text ------------------------------------------------------------------------------------------------------------ */

/* A model may have more ids than its tokenizer (a padded vocabulary): those are no text. */
static void decode_one(k2i_generation *g, int32_t token)
{
    if ((uint32_t)token >= k2_tokenizer_vocab(g->s->served.tokenizer)) return;
    k2_code code = k2_token_stream_feed(g->s->served.tokenizer, &g->decoder, &token, 1, &g->text, NULL);
    K2_ASSERT(code == K2_OK || code == K2_LIMIT);
}

/* The first stop string that ends at or behind `from`; cuts the text there, the stop string included where it is wanted. */
static bool cut_at_stop(k2i_generation *g, size_t from)
{
    size_t best = SIZE_MAX, bytes = 0;
    for (size_t i = 0; i < g->stop_count; i++) {
        size_t n = strlen(g->stops[i]);
        size_t begin = from + 1 > n ? from + 1 - n : 0;
        if (g->text.len < n) continue;
        const char *hit = memmem(g->text.data + begin, g->text.len - begin, g->stops[i], n);
        if (!hit || (size_t)(hit - g->text.data) >= best) continue;
        best = (size_t)(hit - g->text.data);
        bytes = n;
    }
    if (best == SIZE_MAX) return false;
    g->text.len = K2_MAX(best + (g->include_stop ? bytes : 0), g->tail);
    g->text.data[g->text.len] = 0;
    return true;
}

/* Whether token number i ends the answer as a stop id; its text, if it has one, is then no part of the answer. */
static bool is_stop_token(const k2i_generation *g, uint32_t i)
{
    return !g->include_stop && g->job.finish == K2I_STOP && i + 1 == g->job.len;
}

/* Token by token where there are stop strings, for the answer ends with the very token that completes one. */
static void decode_new(k2i_generation *g)
{
    const k2i_request *r = &g->job.req;
    while (g->decoded < g->job.len && !g->stopped) {
        size_t from = g->text.len;
        uint32_t i = g->decoded++;
        if (!is_stop_token(g, i)) decode_one(g, r->tokens[i]);
        bool early = r->position + (g->decoded - r->prompt_len) <= r->new_min;
        if (g->stop_count > 0 && g->text.len > from && !early) g->stopped = cut_at_stop(g, from);
    }
    bool last = g->job.finish != K2I_RUNNING || g->stopped;
    if (last && !g->stopped) {
        size_t from = g->text.len;
        k2_token_stream_end(&g->decoder, &g->text);
        if (g->stop_count > 0 && g->text.len > from) g->stopped = cut_at_stop(g, from);
    }
}

/* Bytes at the end of the text that may become a stop string. */
static size_t held_back(const k2i_generation *g)
{
    size_t held = 0;
    for (size_t i = 0; i < g->stop_count; i++) {
        size_t n = K2_MIN(strlen(g->stops[i]) - 1, g->text.len);
        while (n > held && memcmp(g->text.data + g->text.len - n, g->stops[i], n) != 0) n--;
        held = K2_MAX(held, n);
    }
    return held;
}

/* A continued request: the character and the stop string that earlier tokens have begun. */
static void prime_text(k2i_generation *g, uint64_t position)
{
    uint32_t from = g->job.req.prompt_len - (uint32_t)K2_MIN(position, g->job.req.prompt_len);
    for (uint32_t i = from; i < g->job.req.prompt_len; i++) decode_one(g, g->job.req.tokens[i]);
    size_t keep = g->stop_count > 0 ? K2_MIN(g->stop_longest - 1, g->text.len) : 0;
    k2_buf_consume(&g->text, g->text.len - keep);
    g->tail = keep;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------- */

static const char *reason(const k2i_generation *g)
{
    if (g->stopped) return "stop";
    switch (g->job.finish) {
    case K2I_STOP: return "stop";
    case K2I_LENGTH: return "length";
    case K2I_REPETITION: return "repetition";
    default: return NULL;
    }
}

/* What stands in place of an answer when the engine could not give one. */
static bool failure(const k2i_generation *g, k2_openai_error *e)
{
    if (g->stopped) return false;
    switch (g->job.finish) {
    case K2I_STALE: k2_openai_error_set(e, 409, "weights_mismatch", "k2.digest", "the weights have changed"); return true;
    case K2I_FAILED: k2_openai_error_set(e, 500, "not_finite", NULL, "the model gave a value that is not finite"); return true;
    case K2I_CANCELED: k2_openai_error_set(e, 503, "canceled", NULL, "the engine ended the request"); return true;
    default: return false;
    }
}

static void fill_answer(const k2i_generation *g, k2_openai_answer *a, uint32_t upto, size_t text_bytes)
{
    const k2i_request *r = &g->job.req;
    uint32_t drawn_before = g->sent - r->prompt_len;
    *a = (k2_openai_answer){
        .chat = g->chat,
        .id = g->id,
        .model = g->s->model_name,
        .created = g->created,
        .text = g->text.data ? g->text.data + g->tail : "",
        .text_bytes = text_bytes,
        .ids = (const uint32_t *)r->tokens + g->sent,
        .logprobs = g->logprobs ? r->logps + drawn_before : NULL,
        .count = upto - g->sent,
        .first = !g->begun,
        .prompt_ids = g->begun ? NULL : (const uint32_t *)r->tokens,
        .prompt_ids_count = g->begun ? 0 : r->prompt_len,
        .prompt_tokens = r->prompt_len,
        .completion_tokens = upto - r->prompt_len,
        .has_k2 = true,
        .version = g->job.version,
        .digest = g->job.digest,
    };
}

static void note_end(k2i_generation *g)
{
    double seconds = (double)(k2_loop_now_ns(g->s->loop) - g->begin_ns) / 1e9;
    k2_metric_observe(g->s->m_seconds, seconds);
}

static void respond_whole(k2i_generation *g)
{
    k2_openai_answer a;
    fill_answer(g, &a, g->decoded, g->text.len - g->tail);
    a.finish_reason = reason(g);
    a.has_usage = true;
    k2_buf *out = &g->s->out;
    k2_buf_clear(out);
    k2_openai_write_answer(out, &a);
    note_end(g);
    k2_http_respond(g->req, 200, "application/json", out->data, out->len);
    detach(g);
}

/* The last chunk, then usage if wanted, then the end: they leave in one write. */
static void write_tail(k2i_generation *g, uint32_t upto)
{
    k2_buf *body = &g->s->body;
    if (g->usage) {
        k2_openai_answer a;
        fill_answer(g, &a, upto, 0);
        a.ids = NULL;
        a.logprobs = NULL;
        a.prompt_ids = NULL;
        a.count = a.prompt_ids_count = 0;
        a.first = false;
        a.has_usage = true;
        k2_buf_clear(body);
        k2_openai_write_chunk(body, &a);
        k2_sse_write(&g->s->out, body->data, body->len);
    }
    k2_sse_write(&g->s->out, "[DONE]", 6);
}

/* One event with all that is new since the last one. FULL: the client takes nothing now; on_drain comes. */
static void pump(k2i_generation *g)
{
    bool last = g->stopped || g->job.finish != K2I_RUNNING;
    uint32_t upto = g->decoded;
    if (!last && upto == g->sent) return;
    size_t text = g->text.len - g->tail - (last ? 0 : K2_MIN(held_back(g), g->text.len - g->tail));
    if (!g->head) {
        g->head = true;
        k2_http_header_add(g->req, "Cache-Control", "no-cache");
        k2_http_stream_begin(g->req, 200, "text/event-stream");
        k2_flight_mark(K2_FLIGHT_FIRST_TOKEN, g->trajectory, g->job.req.position, 0, 0);
        k2_metric_observe(g->s->m_first_token, (double)(k2_loop_now_ns(g->s->loop) - g->begin_ns) / 1e9);
    }
    k2_openai_answer a;
    fill_answer(g, &a, upto, text);
    a.finish_reason = last ? reason(g) : NULL;
    k2_buf *out = &g->s->out, *body = &g->s->body;
    k2_buf_clear(out);
    k2_buf_clear(body);
    k2_openai_write_chunk(body, &a);
    k2_sse_write(out, body->data, body->len);
    if (last) write_tail(g, upto);
    if (k2_http_stream_write(g->req, out->data, out->len) != K2_OK) return;
    g->begun = true;
    g->sent = upto;
    k2_buf_consume(&g->text, g->tail + text);
    g->tail = 0;
    if (!last) return;
    note_end(g);
    k2_http_stream_end(g->req);
    detach(g);
}

static void on_drain(void *arg)
{
    pump(arg);
}

/* In mid-stream the error is an event, as other engines have it. No [DONE] follows. */
static void fail(k2i_generation *g, const k2_openai_error *e)
{
    k2_http_req *req = g->req;
    if (g->head) {
        k2_buf *out = &g->s->out, *body = &g->s->body;
        k2_buf_clear(out);
        k2_buf_clear(body);
        k2_openai_write_error(body, e);
        k2_sse_write(out, body->data, body->len);
        (void)k2_http_stream_write(req, out->data, out->len);
        k2_http_stream_end(req);
    } else {
        k2i_respond_error(g->s, req, e);
    }
    detach(g);
}

static void on_news(void *arg, k2i_job *job)
{
    k2i_generation *g = arg;
    (void)job;
    if (!g->req) {
        if (g->job.finish != K2I_RUNNING) generation_free(g);
        return;
    }
    decode_new(g);
    k2_openai_error e;
    if (failure(g, &e))
        fail(g, &e);
    else if (g->stream)
        pump(g);
    else if (g->stopped || g->job.finish != K2I_RUNNING)
        respond_whole(g);
}

/* ---- checks ----------------------------------------------------------------------------------------------------------- */

static bool check_state(const k2i_server *s, const k2_openai_request *r, k2_openai_error *e)
{
    uint64_t version;
    k2_digest active;
    char want[K2_DIGEST_HEX], have[K2_DIGEST_HEX];
    k2i_engine_weights_get(s->served.engine, &version, &active);
    if (k2i_engine_switching(s->served.engine)) return true; /* the engine knows which weights it will have */
    if (k2_digest_zero(active)) {
        k2_openai_error_set(e, 503, "no_weights", NULL, "the engine has no weights yet");
        return false;
    }
    if (!r->k2.has_digest || k2_digest_equal(active, r->k2.digest)) return true;
    k2_digest_hex(r->k2.digest, want);
    k2_digest_hex(active, have);
    k2_openai_error_set(e, 409, "weights_mismatch", "k2.digest", "found %s, the active weights are %s", want, have);
    return false;
}

static bool take_prompt(const k2i_server *s, const k2_openai_request *r, k2_tokens *out, k2_openai_error *e)
{
    const k2_tokenizer *t = s->served.tokenizer;
    const char *param = r->chat ? "messages" : "prompt";
    k2_error err = {0};
    bool ok = true;
    if (r->chat) {
        k2_token_message *m = k2_alloc_array(r->message_count, sizeof *m);
        for (size_t i = 0; i < r->message_count; i++)
            m[i] = (k2_token_message){.role = r->messages[i].role,
                                      .content = r->messages[i].content,
                                      .content_bytes = r->messages[i].content_bytes};
        k2_code code = k2_tokenizer_chat(t, m, r->message_count, true, out, &err);
        k2_free(m);
        if (code == K2_BAD_INPUT || code == K2_UNSUPPORTED) {
            k2_openai_error_set(e, 400, NULL, param, "%s", err.text);
            return false;
        }
        ok = code == K2_OK;
    } else if (r->prompt_text) {
        ok = k2_tokenizer_encode(t, r->prompt_text, r->prompt_bytes, out, NULL) == K2_OK;
    } else {
        for (size_t i = 0; i < r->prompt_ids_count; i++) {
            if (r->prompt_ids[i] < s->served.vocab) continue;
            k2_openai_error_set(e, 400, NULL, param, "prompt[%zu]: token id %u is outside of the vocabulary of %u", i,
                                r->prompt_ids[i], s->served.vocab);
            return false;
        }
        ok = k2_tokens_push(out, (const int32_t *)r->prompt_ids, r->prompt_ids_count);
    }
    if (!ok || out->count >= s->served.context_max) {
        k2_openai_error_set(e, 400, "context_length_exceeded", param,
                            "the prompt has %s%zu tokens; prompt and answer together have room for %u", ok ? "" : "more than ",
                            ok ? out->count : (size_t)s->served.context_max, s->served.context_max);
        return false;
    }
    if (out->count == 0) k2_openai_error_set(e, 400, NULL, param, "the prompt is empty");
    return out->count > 0;
}

static bool take_length(const k2i_server *s, const k2_openai_request *r, size_t prompt, uint32_t *new_max, k2_openai_error *e)
{
    uint32_t room = s->served.context_max - (uint32_t)prompt;
    if (r->k2.position > prompt) {
        k2_openai_error_set(e, 400, NULL, "k2.position", "found %llu, but the prompt with all generated tokens has %zu",
                            (unsigned long long)r->k2.position, prompt);
        return false;
    }
    if (!r->has_max_tokens) {
        *new_max = K2_MIN(room, r->chat ? s->served.answer_max : 16u); /* 16 is the interface's own default */
        return true;
    }
    if (r->max_tokens > room) {
        k2_openai_error_set(e, 400, "context_length_exceeded", "max_tokens",
                            "the prompt has %zu tokens and max_tokens is %u; together there is room for %u", prompt,
                            r->max_tokens, s->served.context_max);
        return false;
    }
    if (r->max_tokens == 0) k2_openai_error_set(e, 400, NULL, "max_tokens", "found 0, expected at least 1");
    *new_max = r->max_tokens;
    return r->max_tokens > 0;
}

static bool check_ids(const k2i_server *s, const k2_openai_request *r, k2_openai_error *e)
{
    for (size_t i = 0; i < r->bias_count; i++) {
        if (r->bias[i].id < s->served.vocab) continue;
        k2_openai_error_set(e, 400, NULL, "logit_bias", "logit_bias: token id %u is outside of the vocabulary of %u",
                            r->bias[i].id, s->served.vocab);
        return false;
    }
    return true;
}

static bool check_model(const k2i_server *s, const k2_openai_request *r, k2_openai_error *e)
{
    if (!r->model || strcmp(r->model, s->model_name) == 0) return true;
    k2_openai_error_set(e, 404, "model_not_found", "model", "the model \"%.100s\" does not exist; this one is \"%s\"", r->model,
                        s->model_name);
    return false;
}

/* ---- a new one --------------------------------------------------------------------------------------------------------- */

static void fill_request(k2i_generation *g, const k2_openai_request *r)
{
    k2i_server *s = g->s;
    k2i_request *q = &g->job.req;
    s->count++;
    /* With a seed of its own and no trajectory, a request asked twice is answered the same twice. */
    bool seeded = r->k2.has_seed || r->has_seed;
    q->seed = r->k2.has_seed ? r->k2.seed : r->has_seed ? r->seed : s->seed;
    q->trajectory = r->k2.has_trajectory ? r->k2.trajectory : seeded ? 0 : s->count;
    q->position = r->k2.position;
    g->bias = k2_alloc_array(K2_MAX(r->bias_count, (size_t)1), sizeof *g->bias);
    for (size_t i = 0; i < r->bias_count; i++) g->bias[i] = (k2i_bias){(int32_t)r->bias[i].id, (float)r->bias[i].add};
    q->sampling = (k2i_sampling){.temperature = r->temperature,
                                 .top_p = r->top_p,
                                 .top_k = (uint32_t)r->top_k,
                                 .min_p = (float)r->min_p,
                                 .repetition = (float)r->repetition_penalty,
                                 .frequency = (float)r->frequency_penalty,
                                 .presence = (float)r->presence_penalty,
                                 .bias = g->bias,
                                 .bias_count = (uint32_t)r->bias_count};
    q->new_min = r->min_tokens;
    q->training = r->k2.train;
    q->has_digest = r->k2.has_digest;
    q->digest = r->k2.digest;
    q->repetition = r->k2.repetition && s->served.repetition;
    /* The ids that end a turn end a plain completion too: a chat that goes on elsewhere comes as a completion. */
    size_t count = 0;
    const int32_t *ids = r->ignore_eos ? NULL : k2_tokenizer_stops(s->served.tokenizer, true, &count);
    for (size_t i = 0; i < count && q->stop_count < K2I_STOP_IDS_MAX; i++) q->stop_ids[q->stop_count++] = ids[i];
    for (size_t i = 0; i < r->stop_id_count && q->stop_count < K2I_STOP_IDS_MAX; i++)
        q->stop_ids[q->stop_count++] = (int32_t)r->stop_ids[i];
    g->trajectory = r->k2.has_trajectory ? r->k2.trajectory : K2_FLIGHT_NONE;
    g->chat = r->chat;
    g->stream = r->stream;
    g->usage = r->include_usage;
    g->logprobs = r->logprobs;
    g->include_stop = r->include_stop;
    g->created = k2_wall_us() / 1000000;
    g->begin_ns = k2_loop_now_ns(s->loop);
    snprintf(g->id, sizeof g->id, "%s-%016llx", r->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)k2_hash64(&s->count, sizeof s->count, s->seed));
    for (size_t i = 0; i < r->stop_count; i++) {
        g->stops[g->stop_count++] = k2_strdup(r->stops[i]);
        g->stop_longest = K2_MAX(g->stop_longest, strlen(r->stops[i]));
    }
    g->decoded = g->sent = q->prompt_len;
    prime_text(g, r->k2.position);
}

static void start(k2i_generation *g, k2_http_req *req)
{
    k2i_server *s = g->s;
    g->req = req;
    g->job.on_news = on_news;
    g->job.arg = g;
    if (k2i_engine_submit(s->served.engine, &g->job) != K2_OK) {
        k2_openai_error e;
        k2_openai_error_set(&e, 429, "overloaded", NULL, "the engine's queue is full");
        k2_http_header_add(req, "Retry-After", "1");
        k2i_respond_error(s, req, &e);
        generation_free(g);
        return;
    }
    const k2i_request *q = &g->job.req;
    g->flight = k2_flight_id();
    k2_flight_mark(K2_FLIGHT_ADMITTED, g->trajectory, q->position, q->prompt_len, q->new_max);
    k2_flight_start(K2_FLIGHT_REQUEST, g->flight, g->trajectory, q->position, q->new_max, K2_FLIGHT_NONE);
    k2_http_req_on_abort(req, on_abort, g);
    k2_http_req_on_drain(req, on_drain, g);
}

void k2i_generate(k2i_server *s, k2_http_req *req, bool chat)
{
    size_t n;
    const char *body = k2_http_req_body(req, &n);
    k2_openai_request r;
    k2_openai_error e;
    if (!k2_openai_parse_request(body, n, chat, &r, &e)) {
        k2i_respond_error(s, req, &e);
        return;
    }
    k2_tokens prompt;
    k2_tokens_init(&prompt, s->served.context_max);
    uint32_t new_max = 0;
    bool ok = check_model(s, &r, &e) && k2_openai_refuse_extra(&r, &e) && check_ids(s, &r, &e) &&
              take_prompt(s, &r, &prompt, &e) && take_length(s, &r, prompt.count, &new_max, &e) && check_state(s, &r, &e);
    if (ok) {
        k2i_generation *g = generation_new(s, (uint32_t)prompt.count, new_max);
        memcpy(g->job.req.tokens, prompt.ids, prompt.count * sizeof *prompt.ids);
        fill_request(g, &r);
        start(g, req);
    } else {
        k2i_respond_error(s, req, &e);
    }
    k2_tokens_fini(&prompt);
    k2_openai_request_fini(&r);
}
