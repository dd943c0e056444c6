/* accept - from the body of a request to jobs that can be submitted, or to the error that says what is wrong with it. */
#include "common/flight/flight.h"
#include "rollout/generate_int.h"

#include <stdio.h>
#include <string.h>

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

k2_code k2i_chat_render(const k2_tokenizer *t, const k2_openai_request *r, k2_tokens *out, k2_error *err)
{
    size_t calls = 0, used = 0;
    k2_buf tools;
    k2_buf_init(&tools, SIZE_MAX / 4);
    const bool sorted = !r->tools || k2_json_sorted(r->tools, strlen(r->tools), &tools);
    K2_ASSERT(sorted);
    for (size_t i = 0; i < r->message_count; i++) calls += r->messages[i].calls.count;
    k2_token_message *messages = k2_alloc_array(r->message_count, sizeof *messages);
    k2_token_call *list = k2_alloc_array(K2_MAX(calls, (size_t)1), sizeof *list);
    for (size_t i = 0; i < r->message_count; i++) {
        const k2_openai_message *m = &r->messages[i];
        messages[i] = (k2_token_message){.role = m->role,
                                         .content = m->content,
                                         .content_bytes = m->content_bytes,
                                         .name = m->name,
                                         .tool_call_id = m->tool_call_id,
                                         .calls = list + used,
                                         .call_count = m->calls.count};
        for (size_t k = 0; k < m->calls.count; k++)
            list[used++] = (k2_token_call){.id = m->calls.list[k].id, .arguments = m->calls.list[k].arguments.data};
    }
    const k2_token_chat chat = {.messages = messages, .count = r->message_count, .tools = tools.data, .generate = true};
    const k2_code code = k2_tokenizer_render(t, &chat, out, err);
    k2_buf_fini(&tools);
    k2_free(messages);
    k2_free(list);
    return code;
}

/* The error begins with the place: "tools: ..." */
static void refuse_chat(const k2_error *err, k2_openai_error *e)
{
    char place[64];
    const size_t n = strcspn(err->text, ": ");
    snprintf(place, sizeof place, "%.*s", (int)K2_MIN(n, sizeof place - 1), err->text);
    k2_openai_error_set(e, 400, NULL, err->text[n] == ':' ? place : "messages", "%s", err->text);
}

static bool take_prompt(const k2i_server *s, const k2_openai_request *r, k2_tokens *out, k2_openai_error *e)
{
    const k2_tokenizer *t = s->served.tokenizer;
    const char *param = r->chat ? "messages" : "prompt";
    k2_error err = {0};
    bool ok = true;
    if (r->chat) {
        k2_code code = k2i_chat_render(t, r, out, &err);
        if (code == K2_BAD_INPUT || code == K2_UNSUPPORTED) {
            refuse_chat(&err, e);
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
    *new_max = r->max_tokens;
    return true;
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

/* ---- jobs ------------------------------------------------------------------------------------------------------------- */

static void fill_generation(k2i_generation *g, const k2_openai_request *r)
{
    k2i_server *s = g->s;
    g->trajectory = r->k2.has_trajectory ? r->k2.trajectory : K2_FLIGHT_NONE;
    g->calls = r->k2.calls || (r->tools && !r->tool_choice_none);
    g->chat = r->chat || r->k2.calls;
    g->ignore_eos = r->ignore_eos;
    g->stream = r->stream;
    g->usage = r->include_usage;
    g->logprobs = r->logprobs;
    g->tokens_as_ids = r->tokens_as_ids;
    g->echo = r->echo;
    g->include_stop = r->include_stop;
    g->prompt_logprobs = r->has_prompt_logprobs;
    g->prompt_tops = r->prompt_logprobs;
    g->created = k2_wall_us() / 1000000;
    g->begin_ns = k2_loop_now_ns(s->loop);
    snprintf(g->id, sizeof g->id, "%s-%016llx", r->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)k2_hash64(&s->count, sizeof s->count, s->seed));
    for (size_t i = 0; i < r->stop_count; i++) {
        g->stops[g->stop_count++] = k2_strdup(r->stops[i]);
        g->stop_longest = K2_MAX(g->stop_longest, strlen(r->stops[i]));
    }
    g->bias = k2_alloc_array(K2_MAX(r->bias_count, (size_t)1), sizeof *g->bias);
    for (size_t i = 0; i < r->bias_count; i++) g->bias[i] = (k2i_bias){(int32_t)r->bias[i].id, (float)r->bias[i].add};
}

static void fill_stops(k2i_request *q, const k2i_server *s, const k2_openai_request *r)
{
    /* The ids that end a turn end a plain completion too: a chat that goes on elsewhere comes as a completion. */
    size_t count = 0;
    const int32_t *ids = r->ignore_eos ? NULL : k2_tokenizer_stops(s->served.tokenizer, true, &count);
    for (size_t i = 0; i < count && q->stop_count < K2I_STOP_IDS_MAX; i++) q->stop_ids[q->stop_count++] = ids[i];
    for (size_t i = 0; i < r->stop_id_count && q->stop_count < K2I_STOP_IDS_MAX; i++)
        q->stop_ids[q->stop_count++] = (int32_t)r->stop_ids[i];
}

/* With a seed of its own and no trajectory, a request asked twice is answered the same twice. Choice i draws as the i-th
 * trajectory behind the request's. */
static void fill_choice(k2i_choice *c, const k2_openai_request *r)
{
    k2i_server *s = c->g->s;
    k2i_request *q = &c->job.req;
    s->count++;
    bool seeded = r->k2.has_seed || r->has_seed;
    q->seed = r->k2.has_seed ? r->k2.seed : r->has_seed ? r->seed : s->seed;
    q->trajectory = r->k2.has_trajectory ? r->k2.trajectory + c->index : seeded ? c->index : s->count;
    q->position = r->k2.position;
    q->sampling = (k2i_sampling){.temperature = r->temperature,
                                 .top_p = r->top_p,
                                 .top_k = (uint32_t)r->top_k,
                                 .min_p = (float)r->min_p,
                                 .repetition = (float)r->repetition_penalty,
                                 .frequency = (float)r->frequency_penalty,
                                 .presence = (float)r->presence_penalty,
                                 .bias = c->g->bias,
                                 .bias_count = (uint32_t)r->bias_count};
    q->new_min = r->min_tokens;
    q->training = r->k2.train;
    q->has_digest = r->k2.has_digest;
    q->digest = r->k2.digest;
    q->repetition = r->k2.repetition && s->served.repetition;
    fill_stops(q, s, r);
    c->decoded = c->sent = q->prompt_len;
    k2i_text_prime(c, r->k2.position, r->k2.resumed);
}

k2i_generation *k2i_accept(k2i_server *s, const k2_openai_request *r, k2_openai_error *e)
{
    k2_tokens prompt;
    k2i_generation *g = NULL;
    uint32_t new_max = 0;
    k2_tokens_init(&prompt, s->served.context_max);
    bool ok = check_model(s, r, e) && k2_openai_refuse_extra(r, e) && check_ids(s, r, e) && take_prompt(s, r, &prompt, e) &&
              take_length(s, r, prompt.count, &new_max, e) && check_state(s, r, e);
    if (ok) {
        g = k2i_generation_new(s, r, &prompt, new_max);
        fill_generation(g, r);
        for (uint32_t i = 0; i < g->count; i++) fill_choice(&g->choices[i], r);
    }
    k2_tokens_fini(&prompt);
    return g;
}
