/* calls: what the master asks the proxy over HTTP: answers to prompts, and rewards for answers. */
#include "master/io_int.h"

#include <stdio.h>
#include <string.h>

#include "common/flight/flight.h"
#include "common/http/openai.h"
#include "master/scores_int.h"

/* What is asked of one proxy; all of them are known, because a proxy that has been replaced may be alive and silent: nothing
 * would come over its connections for as long as a call may take, nor may anything that does come count any more. */
struct k2m_call {
    k2m_io *io;
    k2_http_call *http;
    k2m_call *next, *prev;
    bool scores, alone;            /* alone: a suspect's, which is to come back as soon as its engine is lost */
    uint64_t ids[K2M_SCORE_ITEMS]; /* scores: of which; else the first: of what */
    uint32_t count, position;
    uint64_t flight;             /* id in the flight recorder */
    k2m_lost lost[K2M_LOST_MAX]; /* when it failed */
    uint32_t lost_count;
};

static k2m_call *call_new(k2m_io *io, bool scores)
{
    k2m_call *c = k2_alloc(sizeof *c);
    *c = (k2m_call){.io = io, .scores = scores, .next = io->calls};
    if (io->calls) io->calls->prev = c;
    io->calls = c;
    return c;
}

static void flight_begin(k2m_call *c, uint64_t max_tokens)
{
    c->flight = k2_flight_id();
    if (c->scores)
        k2_flight_start(K2_FLIGHT_SCORES, c->flight, c->ids[0], c->count, 0, 0);
    else
        k2_flight_start(K2_FLIGHT_REQUEST, c->flight, c->ids[0], c->position, max_tokens, K2_FLIGHT_NONE);
}

static void call_free(k2m_call *c)
{
    if (c->scores)
        k2_flight_finish(K2_FLIGHT_SCORES, c->flight, c->ids[0], c->count, 0, 0);
    else
        k2_flight_finish(K2_FLIGHT_REQUEST, c->flight, c->ids[0], c->position, K2_FLIGHT_NONE, K2_FLIGHT_NONE);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->io->calls = c->next;
    if (c->next) c->next->prev = c->prev;
    k2_free(c);
}

static k2_code call_send(k2m_call *call, const char *path, const k2_buf *body,
                         void (*on_done)(void *arg, k2_code code, int status, const char *body, size_t n), k2_error *err)
{
    k2m_io *io = call->io;
    char lost_max[8];
    snprintf(lost_max, sizeof lost_max, "%u", call->alone ? 1u : K2M_COMPANY_MAX);
    const k2_http_header headers[] = {{"Content-Type", "application/json"}, {"K2-Broke-Max", lost_max}};
    const k2_config *c = &io->run->config;
    char url[K2M_ENDPOINT_MAX + 32];
    snprintf(url, sizeof url, "%s%s", io->core->workers[io->core->proxy].endpoint, path);
    uint64_t patience = c->master_step_timeout_ms * K2_NS_PER_MS;
    k2_http_call_spec spec = {.method = "POST",
                              .url = url,
                              .headers = headers,
                              .header_count = K2_COUNT(headers),
                              .body = body->data,
                              .body_bytes = body->len,
                              .connect_ns = patience,
                              .first_byte_ns = patience,
                              .idle_ns = patience};
    call->http = k2_http_fetch(io->http, &spec, K2M_ANSWER_BYTES_MAX, on_done, call, err);
    return call->http ? K2_OK : err->code;
}

static void tell_failure(k2m_io *io, const k2m_call *c, k2_code code, const char *text)
{
    k2m_event ev = {.type = K2M_EV_ANSWER_FAILED, .id = c->ids[0], .position = c->position, .code = code, .text = text};
    if (c->scores) ev = (k2m_event){.type = K2M_EV_SCORE_FAILED, .ids = c->ids, .count = c->count, .code = code, .text = text};
    ev.lost = c->lost;
    ev.lost_count = c->lost_count;
    k2m_io_event(io, &ev);
}

void k2m_calls_drop(k2m_io *io)
{
    while (io->calls) {
        k2m_call c = *io->calls;
        k2_http_cancel(c.http);
        call_free(io->calls);
        tell_failure(io, &c, K2_CANCELED, "the proxy has been replaced");
    }
}

/* An event from inside an action's call must come in a later turn of the loop. */
typedef struct failed {
    k2m_call call;
    char text[K2M_TEXT_MAX];
} failed;

static void failed_later(void *arg)
{
    failed *f = arg;
    if (!k2_loop_ending(f->call.io->loop)) tell_failure(f->call.io, &f->call, K2_PEER_REFUSED, f->text);
    k2_free(f);
}

/* It could not even be sent. */
static void call_failed(k2m_call *c, const char *text)
{
    failed *f = k2_alloc(sizeof *f);
    *f = (failed){.call = *c};
    snprintf(f->text, sizeof f->text, "%s", text);
    call_free(c);
    if (k2_loop_post(f->call.io->loop, failed_later, f) != K2_OK) failed_later(f);
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------
 */

static k2_replay_finish finish_of(const char *reason)
{
    if (!reason) return K2_REPLAY_FINISH_NONE;
    if (strcmp(reason, "stop") == 0) return K2_REPLAY_FINISH_STOP;
    if (strcmp(reason, "length") == 0) return K2_REPLAY_FINISH_LENGTH;
    return strcmp(reason, "repetition") == 0 ? K2_REPLAY_FINISH_REPETITION : K2_REPLAY_FINISH_NONE;
}

static void keep_eval(k2m_io *io, uint64_t id, const k2_openai_answer *a)
{
    uint64_t i = id & ~K2M_EVAL_BIT;
    if (i >= K2M_EVAL_MAX) return;
    if (i >= io->eval_count) io->eval_count = (uint32_t)i + 1;
    k2_free(io->eval[i].ids);
    io->eval[i].ids = k2_alloc_array(a->count, sizeof *io->eval[i].ids);
    io->eval[i].count = (uint32_t)a->count;
    for (size_t k = 0; k < a->count; k++) io->eval[i].ids[k] = (int32_t)a->ids[k];
}

static k2_code take_answer(k2m_io *io, uint64_t id, uint32_t position, const char *body, size_t n, k2_error *err)
{
    k2_openai_parsed p;
    k2_openai_parsed_init(&p);
    k2_code code = k2_openai_parse_answer(body, n, &p, err);
    const k2_openai_answer *a = &p.a;
    k2_replay_finish finish = finish_of(a->finish_reason);
    if (code == K2_OK && (!a->has_k2 || finish == K2_REPLAY_FINISH_NONE || a->count > K2_REPLAY_CHUNK_MAX ||
                          (a->count && (!a->ids || !a->logprobs))))
        code = k2_error_set(err, K2_PEER_PROTOCOL, "the answer has no token ids, log-probabilities, finish reason or digest");
    if (code == K2_OK) {
        k2_replay_token *tokens = k2_alloc_array(a->count, sizeof *tokens);
        /* A batch that was skipped leaves the weights as they were under a new number, and an engine may still hold them under
         * the old one: the digest counts, which the core checks, and their number is the one in force. */
        uint32_t version = (uint32_t)io->core->force_version;
        for (size_t i = 0; i < a->count; i++)
            tokens[i] = (k2_replay_token){.id = (int32_t)a->ids[i], .logp = a->logprobs[i], .version = version};
        if (id & K2M_EVAL_BIT) keep_eval(io, id, a);
        k2m_io_event(io, &(k2m_event){.type = K2M_EV_ANSWER,
                                      .id = id,
                                      .position = position,
                                      .tokens = tokens,
                                      .count = (uint32_t)a->count,
                                      .finish = finish,
                                      .digest = a->digest});
        k2_free(tokens);
    }
    k2_openai_parsed_fini(&p);
    return code;
}

/* Ours, or the proxy's own: it gives up what finds no engine in proxy.wait_ms with 503. */
static bool passed_deadline(k2_code code, int status)
{
    return code == K2_TIMEOUT || (code == K2_OK && status == 503);
}

static void answered(void *arg, k2_code code, int status, const char *body, size_t n)
{
    k2m_call c = *(k2m_call *)arg;
    call_free(arg);
    k2_error err = {0};
    bool refused = false, late = passed_deadline(code, status);
    if (k2_loop_ending(c.io->loop)) return;
    if (code != K2_OK) {
        k2_error_set(&err, code, "the proxy: %.*s", (int)K2_MIN(n, 200u), body);
    } else if (status != 200) {
        k2_openai_error e;
        k2_openai_read_error(body, n, status, &e);
        c.lost_count = k2m_lost_parse(body, n, c.lost);
        refused = status == 400 || status == 413 || status == 422; /* the request itself is at fault */
        code = k2_error_set(&err, K2_PEER_REFUSED, "the proxy answers %d: %.200s", status, e.message);
    } else {
        code = take_answer(c.io, c.ids[0], c.position, body, n, &err);
    }
    if (code != K2_OK) tell_failure(c.io, &c, refused ? K2_BAD_INPUT : late ? K2_TIMEOUT : K2_PEER_REFUSED, err.text);
}

/* Prompt and what is generated so far, as ids. */
static uint32_t *prompt_ids(const k2m_io *io, const k2m_action *a, size_t *count)
{
    const k2m_run *run = io->run;
    if (a->id & K2M_EVAL_BIT) {
        uint64_t i = a->id & ~K2M_EVAL_BIT;
        uint32_t *ids = k2_alloc_array(run->heldout.lengths[i], sizeof *ids);
        for (uint32_t k = 0; k < run->heldout.lengths[i]; k++) ids[k] = (uint32_t)run->heldout.ids[i][k];
        *count = run->heldout.lengths[i];
        return ids;
    }
    k2_replay_info info;
    (void)k2_replay_find(io->core->replay, a->id, &info);
    uint32_t *ids = k2_alloc_array((size_t)info.prompt_tokens + a->position, sizeof *ids);
    int32_t *prompt = k2_alloc_array(info.prompt_tokens, sizeof *prompt);
    k2_replay_token *tokens = k2_alloc_array(a->position, sizeof *tokens);
    (void)k2_replay_prompt_tokens(io->core->replay, info.group, 0, prompt, info.prompt_tokens);
    uint32_t n = k2_replay_tokens(io->core->replay, a->id, 0, tokens, a->position);
    for (uint32_t i = 0; i < info.prompt_tokens; i++) ids[i] = (uint32_t)prompt[i];
    for (uint32_t i = 0; i < n; i++) ids[info.prompt_tokens + i] = (uint32_t)tokens[i].id;
    *count = (size_t)info.prompt_tokens + n;
    k2_free(prompt);
    k2_free(tokens);
    return ids;
}

void k2m_call_body(const k2m_io *io, const k2m_action *a, k2_buf *out)
{
    const k2_config *c = &io->run->config;
    bool eval = (a->id & K2M_EVAL_BIT) != 0;
    k2_openai_request r = {.logprobs = true,
                           .return_token_ids = true,
                           .has_max_tokens = true,
                           .max_tokens = a->max_tokens,
                           .has_temperature = true,
                           .temperature = eval ? 0 : c->rollout_temperature,
                           .has_top_p = true,
                           .top_p = eval ? 1 : c->rollout_top_p,
                           .has_top_k = true,
                           .top_k = eval ? 0 : (int32_t)c->rollout_top_k,
                           .repetition_penalty = 1}; /* none */
    size_t stops;
    const int32_t *stop_ids = k2_tokenizer_stops(io->run->tokenizer, true, &stops);
    for (size_t i = 0; i < stops && i < K2_OPENAI_STOPS_MAX; i++) r.stop_ids[r.stop_id_count++] = (uint32_t)stop_ids[i];
    r.k2 = (k2_openai_ext){.present = true,
                           .has_trajectory = true,
                           .trajectory = a->id,
                           .has_group = true,
                           .group = eval ? a->id : k2_replay_group_of(a->id),
                           .has_digest = true,
                           .digest = io->core->force_digest,
                           .has_seed = true,
                           .seed = c->seed,
                           .train = true,
                           .position = a->position,
                           .repetition = c->rollout_repetition_count > 0};
    r.prompt_ids = prompt_ids(io, a, &r.prompt_ids_count);
    k2_openai_write_request(out, &r, NULL);
    k2_free(r.prompt_ids);
}

void k2m_call_request(k2m_io *io, const k2m_action *a)
{
    k2_buf body;
    k2_buf_init(&body, K2M_ANSWER_BYTES_MAX);
    k2m_call_body(io, a, &body);
    k2m_call *call = call_new(io, false);
    call->ids[0] = a->id;
    call->position = a->position;
    flight_begin(call, a->max_tokens);
    call->alone = a->alone;
    k2_error err = {0};
    if (call_send(call, "/v1/completions", &body, answered, &err) != K2_OK) call_failed(call, err.text);
    k2_buf_fini(&body);
}

/* ---- rewards
 * ----------------------------------------------------------------------------------------------------------------- */

/* Move the ids that the tokenizer has to the front: a model may have more (a padded vocabulary), and those are no text. */
static uint32_t known(const k2_tokenizer *t, int32_t *ids, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)ids[i] < k2_tokenizer_vocab(t)) ids[kept++] = ids[i];
    return kept;
}

void k2m_call_item(const k2m_io *io, uint64_t id, k2_buf *body)
{
    const k2m_run *run = io->run;
    const k2_prompt *prompt;
    k2_buf text;
    k2_error err;
    int32_t *ids = NULL;
    uint32_t n = 0;
    if (id & K2M_EVAL_BIT) {
        uint64_t i = id & ~K2M_EVAL_BIT;
        prompt = k2_prompts_at(run->heldout.list, i);
        n = io->eval[i].count;
        ids = k2_alloc_array(n, sizeof *ids);
        memcpy(ids, io->eval[i].ids, n * sizeof *ids);
    } else {
        k2_replay_info info;
        (void)k2_replay_find(io->core->replay, id, &info);
        prompt = k2_prompts_at(run->train.list, info.prompt);
        k2_replay_token *tokens = k2_alloc_array(info.generated, sizeof *tokens);
        n = k2_replay_tokens(io->core->replay, id, 0, tokens, info.generated);
        ids = k2_alloc_array(n, sizeof *ids);
        for (uint32_t i = 0; i < n; i++) ids[i] = tokens[i].id;
        k2_free(tokens);
    }
    k2_buf_init(&text, K2M_ANSWER_BYTES_MAX);
    (void)k2_tokenizer_decode(run->tokenizer, ids, known(run->tokenizer, ids, n), &text, &err);
    k2_free(ids);
    const char *question = prompt->messages[prompt->message_count - 1].content, *answer = prompt->answer ? prompt->answer : "";
    k2_buf_puts(body, "{\"trajectory\":");
    k2_openai_write_u64(body, id);
    k2_buf_puts(body, ",\"prompt\":");
    k2_buf_json_string(body, question, strlen(question));
    k2_buf_puts(body, ",\"text\":");
    k2_buf_json_string(body, text.data ? text.data : "", text.len);
    k2_buf_puts(body, ",\"answer\":");
    k2_buf_json_string(body, answer, strlen(answer));
    k2_buf_puts(body, ",\"meta\":");
    k2_buf_append(body, prompt->json, prompt->json_bytes);
    k2_buf_puts(body, "}");
    k2_buf_fini(&text);
}

static void scored(void *arg, k2_code code, int status, const char *body, size_t n)
{
    k2m_call s = *(k2m_call *)arg;
    call_free(arg);
    if (k2_loop_ending(s.io->loop)) return;
    k2m_score scores[K2M_SCORE_ITEMS];
    if (code == K2_OK && status == 200 && k2m_scores_parse(body, n, s.ids, s.count, scores)) {
        for (uint32_t i = 0; i < s.count; i++)
            k2m_io_event(s.io, &(k2m_event){.type = K2M_EV_SCORED,
                                            .id = s.ids[i],
                                            .has_reward = scores[i].has_reward,
                                            .reward = scores[i].reward,
                                            .text = scores[i].detail,
                                            .ids = i + 1 == s.count ? s.ids : NULL});
        return;
    }
    char text[K2M_TEXT_MAX];
    snprintf(text, sizeof text, "status %d: %.*s", status, (int)K2_MIN(n, 200u), body);
    if (code == K2_OK) s.lost_count = k2m_lost_parse(body, n, s.lost);
    tell_failure(s.io, &s, passed_deadline(code, status) ? K2_TIMEOUT : K2_PEER_REFUSED, text);
}

void k2m_call_score(k2m_io *io, const k2m_action *a)
{
    k2m_call *call = call_new(io, true);
    call->count = a->count;
    call->alone = a->alone;
    memcpy(call->ids, a->ids, sizeof call->ids);
    flight_begin(call, 0);
    k2_buf body;
    k2_buf_init(&body, K2M_ANSWER_BYTES_MAX);
    k2_buf_puts(&body, "{\"items\":[");
    for (uint32_t i = 0; i < a->count; i++) {
        if (i > 0) k2_buf_puts(&body, ",");
        k2m_call_item(io, a->ids[i], &body);
    }
    k2_buf_puts(&body, "]}");
    k2_error err = {0};
    if (call_send(call, "/k2/score", &body, scored, &err) != K2_OK) call_failed(call, err.text);
    k2_buf_fini(&body);
}
