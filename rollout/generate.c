/* generate - the life of a completion from its jobs' submission to its last byte: streamed or collected. What a slow client has
 * not taken stays in the jobs' token arrays, so nothing piles up for it but its connection's write queue, which is bounded. */
#include "common/flight/flight.h"
#include "rollout/generate_int.h"

#include <string.h>

/* ---- life ------------------------------------------------------------------------------------------------------------ */

/* Log-probabilities without their tokens' texts: those who give a trajectory read ids. */
static bool is_bare(const k2_openai_request *r)
{
    return r->k2.has_trajectory;
}

/* Whether it must find out what its prompt is worth: one of the choices for "prompt_logprobs", each where the answers begin
 * with the prompt. */
static bool scores_prompt(const k2i_choice *c, const k2_openai_request *r)
{
    return (r->has_prompt_logprobs && c->index == 0) || (r->echo && r->logprobs && !is_bare(r));
}

static void choice_init(k2i_choice *c, const k2_openai_request *r, const k2_tokens *prompt, uint32_t new_max)
{
    k2i_request *q = &c->job.req;
    size_t len = prompt->count;
    q->prompt_len = (uint32_t)len;
    q->new_max = new_max;
    q->tokens = k2_alloc_array(len + new_max, sizeof *q->tokens);
    memcpy(q->tokens, prompt->ids, len * sizeof *q->tokens);
    q->logps = k2_alloc_array(new_max + (size_t)1, sizeof *q->logps);
    q->top_count = is_bare(r) ? 0 : r->top_logprobs; /* what is not told is not looked for */
    q->tops = k2_alloc_array((size_t)new_max * q->top_count + 1, sizeof *q->tops);
    k2_buf_init(&c->text, K2I_TEXT_MAX);
    k2i_calls_init(&c->calls);
    if (!scores_prompt(c, r)) return;
    q->prompt_top_count = K2_MAX(r->has_prompt_logprobs ? r->prompt_logprobs : 0, r->echo ? q->top_count : 0);
    q->prompt_logps = k2_alloc_array(len, sizeof *q->prompt_logps);
    q->prompt_ranks = k2_alloc_array(len, sizeof *q->prompt_ranks);
    q->prompt_tops = k2_alloc_array(len * q->prompt_top_count + 1, sizeof *q->prompt_tops);
}

static void choice_fini(k2i_choice *c)
{
    k2i_request *q = &c->job.req;
    k2_buf_fini(&c->text);
    k2i_calls_fini(&c->calls);
    k2_free(c->marks);
    k2_free(q->tokens);
    k2_free(q->logps);
    k2_free(q->tops);
    k2_free(q->prompt_logps);
    k2_free(q->prompt_ranks);
    k2_free(q->prompt_tops);
}

k2i_generation *k2i_generation_new(k2i_server *s, const k2_openai_request *r, const k2_tokens *prompt, uint32_t new_max)
{
    k2i_generation *g = k2_alloc(sizeof *g);
    g->s = s;
    g->count = r->n;
    g->bare = is_bare(r);
    g->choices = k2_alloc_array(g->count, sizeof *g->choices);
    for (uint32_t i = 0; i < g->count; i++) {
        k2i_choice *c = &g->choices[i];
        c->g = g;
        c->index = i;
        choice_init(c, r, prompt, new_max);
    }
    g->next = s->first;
    if (s->first) s->first->prev = g;
    s->first = g;
    s->generations++;
    return g;
}

static uint32_t drawn(const k2i_generation *g)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < g->count; i++) sum += g->choices[i].job.len - g->choices[i].job.req.prompt_len;
    return sum;
}

static void generation_free(k2i_generation *g)
{
    const k2i_request *first = &g->choices[0].job.req;
    if (g->prev)
        g->prev->next = g->next;
    else
        g->s->first = g->next;
    if (g->next) g->next->prev = g->prev;
    g->s->generations--;
    if (g->flight != 0)
        k2_flight_finish(K2_FLIGHT_REQUEST, g->flight, g->trajectory, first->position, first->new_max, drawn(g));
    for (size_t i = 0; i < g->stop_count; i++) k2_free(g->stops[i]);
    for (uint32_t i = 0; i < g->count; i++) choice_fini(&g->choices[i]);
    k2_free(g->choices);
    k2_free(g->bias);
    k2_free(g);
}

/* The client is done with: free at once, or when the engine has let go of the jobs. */
static void detach(k2i_generation *g)
{
    g->req = NULL;
    if (g->running == 0) {
        generation_free(g);
        return;
    }
    for (uint32_t i = 0; i < g->count; i++) {
        k2i_choice *c = &g->choices[i];
        k2i_engine_end(g->s->served.engine, &c->job, c->stopped ? K2I_STOP : K2I_CANCELED);
    }
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

/* ---- answers ---------------------------------------------------------------------------------------------------------- */

static bool is_over(const k2i_choice *c)
{
    return c->stopped || c->over;
}

static const char *reason(const k2i_choice *c)
{
    const char *stop = c->calls.count > 0 ? "tool_calls" : "stop";
    if (c->stopped) return stop;
    switch (c->job.finish) {
    case K2I_STOP: return stop;
    case K2I_LENGTH: return "length";
    case K2I_REPETITION: return "repetition";
    default: return NULL;
    }
}

/* What stands in place of an answer when the engine could not give one. */
static bool failure(const k2i_choice *c, k2_openai_error *e)
{
    if (c->stopped) return false;
    switch (c->job.finish) {
    case K2I_STALE: k2_openai_error_set(e, 409, "weights_mismatch", "k2.digest", "the weights have changed"); return true;
    case K2I_FAILED: k2_openai_error_set(e, 500, "not_finite", NULL, "the model gave a value that is not finite"); return true;
    case K2I_CANCELED: k2_openai_error_set(e, 503, "canceled", NULL, "the engine ended the request"); return true;
    default: return false;
    }
}

/* Which of the request's own stop strings or ids it was. Those of the tokenizer are nobody's news. */
static void tell_stop(const k2i_choice *c, k2_openai_answer *a)
{
    const k2i_request *r = &c->job.req;
    size_t known = 0;
    if (c->stopped) a->stop_text = c->stop;
    if (c->stopped || c->job.finish != K2I_STOP) return;
    const int32_t last = r->tokens[c->job.len - 1], *ids = NULL;
    if (!c->g->ignore_eos) ids = k2_tokenizer_stops(c->g->s->served.tokenizer, true, &known);
    for (size_t i = 0; i < known; i++)
        if (ids[i] == last) return;
    a->has_stop_id = true;
    a->stop_id = (uint32_t)last;
}

/* The parts of an answer that are not its tokens. */
static k2_openai_answer answer_of(const k2i_choice *c)
{
    const k2i_generation *g = c->g;
    uint64_t completion = 0;
    for (uint32_t i = 0; i < g->count; i++) completion += g->choices[i].decoded - g->choices[i].job.req.prompt_len;
    return (k2_openai_answer){.chat = g->chat,
                              .index = c->index,
                              .id = g->id,
                              .model = g->s->model_name,
                              .created = g->created,
                              .text = "",
                              .prompt_tokens = c->job.req.prompt_len,
                              .completion_tokens = completion,
                              .has_cached = true,
                              .cached_tokens = g->choices[0].job.cached,
                              .has_k2 = true,
                              .version = c->job.version,
                              .digest = c->job.digest};
}

/* The text of an event, or text and calls. What was parsed for one that did not leave is there still. */
static void tell_text(k2i_choice *c, size_t text_bytes, k2_openai_answer *a)
{
    if (!c->g->calls) {
        a->text = c->text.data ? c->text.data + c->tail : "";
        a->text_bytes = text_bytes;
        return;
    }
    k2i_text_parse(c, text_bytes, is_over(c));
    a->text = c->calls.content.data ? c->calls.content.data : "";
    a->text_bytes = c->calls.content.len;
    a->calls = c->calls.news.list;
    a->call_count = c->calls.news.count;
}

/* What is new since the last event, up to the decoded tokens; its log-probabilities go into `list`. */
static k2_openai_answer news_of(k2i_choice *c, size_t text_bytes, k2_openai_list *list)
{
    const k2i_generation *g = c->g;
    const k2i_request *r = &c->job.req;
    k2_openai_answer a = answer_of(c);
    tell_text(c, text_bytes, &a);
    a.ids = (const uint32_t *)r->tokens + c->sent;
    a.count = c->decoded - c->sent;
    a.logprobs = g->logprobs ? r->logps + (c->sent - r->prompt_len) : NULL;
    a.first = !c->begun;
    if (!c->begun) {
        a.prompt_ids = (const uint32_t *)r->tokens;
        a.prompt_ids_count = r->prompt_len;
    }
    if (is_over(c)) {
        a.finish_reason = reason(c);
        tell_stop(c, &a);
    }
    if (!g->logprobs || g->bare) return a;
    k2_openai_list_clear(list);
    k2i_tell(c, g->echo && !c->begun ? 0 : c->sent, c->decoded, list);
    a.tokens = k2_openai_list_tokens(list);
    a.token_count = list->count;
    return a;
}

static void note_end(k2i_generation *g)
{
    double seconds = (double)(k2_loop_now_ns(g->s->loop) - g->begin_ns) / 1e9;
    k2_metric_observe(g->s->m_seconds, seconds);
}

static void respond_whole(k2i_generation *g)
{
    k2_buf *out = &g->s->out, *prompt = &g->s->body;
    k2_openai_answer *answers = k2_alloc_array(g->count, sizeof *answers);
    k2_openai_list *lists = k2_alloc_array(g->count, sizeof *lists);
    k2_buf_clear(out);
    k2_buf_clear(prompt);
    if (g->prompt_logprobs) k2i_tell_prompt(&g->choices[0], prompt);
    for (uint32_t i = 0; i < g->count; i++) {
        k2i_choice *c = &g->choices[i];
        k2_openai_list_init(&lists[i]);
        answers[i] = news_of(c, c->text.len - c->tail, &lists[i]);
        answers[i].has_usage = true;
        if (g->prompt_logprobs) answers[i].prompt_logprobs = prompt->data;
    }
    k2_openai_write_choices(out, answers, g->count);
    for (uint32_t i = 0; i < g->count; i++) k2_openai_list_fini(&lists[i]);
    k2_free(lists);
    k2_free(answers);
    note_end(g);
    k2_http_respond(g->req, 200, "application/json", out->data, out->len);
    detach(g);
}

/* Behind the last choice's last chunk: usage if wanted, then the end; they leave in one write. */
static void write_tail(k2i_choice *c)
{
    k2_buf *body = &c->g->s->body;
    if (c->g->usage) {
        k2_openai_answer a = answer_of(c);
        a.has_usage = true;
        k2_buf_clear(body);
        k2_openai_write_chunk(body, &a);
        k2_sse_write(&c->g->s->out, body->data, body->len);
    }
    k2_sse_write(&c->g->s->out, "[DONE]", 6);
}

static void begin_stream(k2i_generation *g)
{
    if (g->head) return;
    g->head = true;
    k2_http_header_add(g->req, "Cache-Control", "no-cache");
    k2_http_stream_begin(g->req, 200, "text/event-stream");
    k2_flight_mark(K2_FLIGHT_FIRST_TOKEN, g->trajectory, g->choices[0].job.req.position, 0, 0);
    k2_metric_observe(g->s->m_first_token, (double)(k2_loop_now_ns(g->s->loop) - g->begin_ns) / 1e9);
}

static bool others_ended(const k2i_choice *c)
{
    uint32_t ended = 0;
    for (uint32_t i = 0; i < c->g->count; i++) ended += c->g->choices[i].ended;
    return ended + 1 == c->g->count;
}

/* One event with all that is new since the choice's last one. A client that takes nothing now: on_drain comes. True: the answer
 * has ended, and with it the generation. */
static bool pump(k2i_choice *c)
{
    k2i_generation *g = c->g;
    bool last = is_over(c);
    if (c->ended || (!last && c->decoded == c->sent)) return false;
    size_t text = c->text.len - c->tail - (last ? 0 : K2_MIN(k2i_text_held(c), c->text.len - c->tail));
    k2_token_stream teller = c->teller;
    uint64_t told_chars = c->told_chars;
    begin_stream(g);
    k2_openai_answer a = news_of(c, text, &g->s->list);
    k2_buf *out = &g->s->out, *body = &g->s->body;
    k2_buf_clear(out);
    k2_buf_clear(body);
    if (g->prompt_logprobs && c->index == 0 && !c->begun) {
        k2i_tell_prompt(c, out);
        a.prompt_logprobs = out->data;
    }
    k2_openai_write_chunk(body, &a);
    k2_buf_clear(out);
    k2_sse_write(out, body->data, body->len);
    bool end = last && others_ended(c);
    if (end) write_tail(c);
    if (k2_http_stream_write(g->req, out->data, out->len) != K2_OK) {
        c->teller = teller; /* they will be told again */
        c->told_chars = told_chars;
        return false;
    }
    c->begun = true;
    c->ended = last;
    c->sent = c->decoded;
    if (g->calls)
        k2i_calls_told(&c->calls);
    else
        k2i_text_sent(c, text);
    if (!end) return false;
    note_end(g);
    k2_http_stream_end(g->req);
    detach(g);
    return true;
}

static void on_drain(void *arg)
{
    k2i_generation *g = arg;
    for (uint32_t i = 0; i < g->count; i++) {
        if (pump(&g->choices[i])) return;
    }
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

static bool all_over(const k2i_generation *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        if (!is_over(&g->choices[i])) return false;
    }
    return true;
}

static void on_news(void *arg, k2i_job *job)
{
    k2i_choice *c = arg;
    k2i_generation *g = c->g;
    c->over = job->finish != K2I_RUNNING;
    g->running -= c->over;
    if (!g->req) {
        if (g->running == 0) generation_free(g);
        return;
    }
    k2i_text_decode(c);
    k2_openai_error e;
    if (failure(c, &e)) {
        fail(g, &e);
        return;
    }
    if (c->stopped) k2i_engine_end(g->s->served.engine, &c->job, K2I_STOP);
    if (g->stream)
        pump(c);
    else if (all_over(g))
        respond_whole(g);
}

/* ---- a new one --------------------------------------------------------------------------------------------------------- */

/* All of its jobs or none: what was taken before the queue was full is ended again. */
static bool submit(k2i_generation *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        k2i_choice *c = &g->choices[i];
        c->job.on_news = on_news;
        c->job.arg = c;
        if (k2i_engine_submit(g->s->served.engine, &c->job) != K2_OK) {
            c->job.finish = K2I_CANCELED;
            while (++i < g->count) g->choices[i].job.finish = K2I_CANCELED;
            return false;
        }
        g->running++;
    }
    return true;
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
    k2i_generation *g = k2i_accept(s, &r, &e);
    k2_openai_request_fini(&r);
    if (!g) {
        k2i_respond_error(s, req, &e);
        return;
    }
    if (!submit(g)) {
        k2_openai_error_set(&e, 429, "overloaded", NULL, "the engine's queue is full");
        k2_http_header_add(req, "Retry-After", "1");
        k2i_respond_error(s, req, &e);
        detach(g);
        return;
    }
    const k2i_request *q = &g->choices[0].job.req;
    g->req = req;
    g->flight = k2_flight_id();
    k2_flight_mark(K2_FLIGHT_ADMITTED, g->trajectory, q->position, q->prompt_len, q->new_max);
    k2_flight_start(K2_FLIGHT_REQUEST, g->flight, g->trajectory, q->position, q->new_max, K2_FLIGHT_NONE);
    k2_http_req_on_abort(req, on_abort, g);
    k2_http_req_on_drain(req, on_drain, g);
}
