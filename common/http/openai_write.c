/* openai_write.c - writing requests, whole answers and chunks. */
#include "openai_int.h"

#include <stdio.h>
#include <string.h>

static void put(k2_buf *out, const char *s)
{
    k2_buf_append(out, s, strlen(s));
}

static void put_string(k2_buf *out, const char *key, const char *value, size_t n)
{
    put(out, key);
    k2_buf_json_string(out, value, n);
}

/* JSON has neither infinity nor NaN: the first becomes the largest f32, the second null. */
static void put_float(k2_buf *out, float v)
{
    char text[32];
    if (v != v) {
        put(out, "null");
        return;
    }
    if (v > 3.4028235e38f) v = 3.4028235e38f;
    if (v < -3.4028235e38f) v = -3.4028235e38f;
    int n = snprintf(text, sizeof text, "%.9g", (double)v);
    k2_buf_append(out, text, (size_t)n);
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

static void write_prompt(k2_buf *out, const k2_openai_request *r, const k2_openai_resume *resume)
{
    if (resume) {
        bool own = !resume->prompt_ids;
        const uint32_t *ids = own ? r->prompt_ids : resume->prompt_ids;
        size_t count = own ? r->prompt_ids_count : resume->prompt_ids_count;
        K2_ASSERT(ids && count > 0);
        put(out, "\"prompt\":");
        k2i_openai_put_ids(out, ids, count);
        if (resume->ids_count > 0) {
            out->data[out->len - 1] = ','; /* instead of the closing bracket: the list goes on */
            for (size_t i = 0; i < resume->ids_count; i++) {
                if (i) put(out, ",");
                k2i_openai_put_u64(out, resume->ids[i]);
            }
            put(out, "]");
        }
    } else if (r->chat) {
        k2i_chat_write(out, r);
    } else if (r->prompt_ids) {
        put(out, "\"prompt\":");
        k2i_openai_put_ids(out, r->prompt_ids, r->prompt_ids_count);
    } else {
        put_string(out, "\"prompt\":", r->prompt_text, r->prompt_bytes);
    }
}

static void write_ext(k2_buf *out, const k2_openai_ext *k, uint64_t advanced)
{
    put(out, ",\"k2\":{\"position\":");
    k2_openai_write_u64(out, k->position + advanced);
    if (k->has_trajectory) put(out, ",\"trajectory\":"), k2_openai_write_u64(out, k->trajectory);
    if (k->has_group) put(out, ",\"group\":"), k2_openai_write_u64(out, k->group);
    if (k->has_seed) put(out, ",\"seed\":"), k2_openai_write_u64(out, k->seed);
    if (k->has_digest) {
        char hex[K2_DIGEST_HEX];
        k2_digest_hex(k->digest, hex);
        put_string(out, ",\"digest\":", hex, strlen(hex));
    }
    if (k->train) put(out, ",\"train\":true");
    if (k->repetition) put(out, ",\"repetition\":true");
    if (k->resumed) put(out, ",\"resumed\":true");
    if (k->calls) put(out, ",\"calls\":true");
    put(out, "}");
}

void k2_openai_write_request(k2_buf *out, const k2_openai_request *r, const k2_openai_resume *resume)
{
    size_t so_far = resume ? resume->ids_count : 0;
    put(out, "{");
    write_prompt(out, r, resume);
    if (r->model) put_string(out, ",\"model\":", r->model, strlen(r->model));
    if (r->has_max_tokens) {
        K2_ASSERT(so_far < r->max_tokens || so_far == 0);
        put(out, ",\"max_tokens\":");
        k2i_openai_put_u64(out, r->max_tokens - so_far);
    }
    k2i_sampling_write(out, r, so_far);
    if (r->stream) put(out, ",\"stream\":true");
    if (r->stream && r->include_usage) put(out, ",\"stream_options\":{\"include_usage\":true}");
    bool chat = r->chat && !resume;
    if (r->logprobs) put(out, chat ? ",\"logprobs\":true,\"top_logprobs\":" : ",\"logprobs\":");
    if (r->logprobs) k2i_openai_put_u64(out, r->top_logprobs);
    if (r->return_token_ids) put(out, ",\"return_token_ids\":true");
    if (r->k2.present) write_ext(out, &r->k2, so_far);
    if (r->extra) put(out, ","), put(out, r->extra);
    put(out, "}");
}

/* ---- answers ------------------------------------------------------------------------------------------------------- */

/* Where there are but numbers: a name for each token, and no places in the text. */
static void write_bare_logprobs(k2_buf *out, const k2_openai_answer *a)
{
    put(out, a->chat ? ",\"logprobs\":{\"content\":[" : ",\"logprobs\":{\"tokens\":[");
    for (size_t i = 0; i < a->count; i++) {
        if (i) put(out, ",");
        put(out, a->chat ? "{\"token\":\"token_id:" : "\"token_id:");
        k2i_openai_put_u64(out, a->ids ? a->ids[i] : 0);
        put(out, "\"");
        if (!a->chat) continue;
        put(out, ",\"logprob\":");
        put_float(out, a->logprobs[i]);
        put(out, ",\"bytes\":null,\"top_logprobs\":[]}");
    }
    if (a->chat) {
        put(out, "]}");
        return;
    }
    put(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < a->count; i++) {
        if (i) put(out, ",");
        put_float(out, a->logprobs[i]);
    }
    put(out, "],\"top_logprobs\":null,\"text_offset\":[]}");
}

/* The likeliest tokens by their text, and the token itself where it is none of them. A text that stands there is not given
 * twice: JSON names must differ. */
static void write_tops(k2_buf *out, const k2_openai_token *t)
{
    bool own = false;
    put(out, t->top_count == 0 ? "null" : "{");
    for (size_t i = 0; i < t->top_count; i++) {
        const k2_openai_top *top = &t->tops[i];
        bool again = false;
        for (size_t k = 0; k < i; k++) again |= strcmp(top->text, t->tops[k].text) == 0;
        own |= strcmp(top->text, t->text) == 0;
        if (again) continue;
        put_string(out, i ? "," : "", top->text, strlen(top->text));
        put(out, ":");
        put_float(out, top->logprob);
    }
    if (t->top_count == 0) return;
    if (!own) {
        put_string(out, ",", t->text, strlen(t->text));
        put(out, ":");
        put_float(out, t->logprob);
    }
    put(out, "}");
}

static void write_completion_logprobs(k2_buf *out, const k2_openai_answer *a)
{
    const k2_openai_token *tokens = a->tokens;
    bool tops = false;
    put(out, ",\"logprobs\":{\"tokens\":[");
    for (size_t i = 0; i < a->token_count; i++) {
        put_string(out, i ? "," : "", tokens[i].text, strlen(tokens[i].text));
        tops |= tokens[i].top_count > 0;
    }
    put(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < a->token_count; i++) put(out, i ? "," : ""), put_float(out, tokens[i].logprob);
    put(out, tops ? "],\"top_logprobs\":[" : "],\"top_logprobs\":null");
    for (size_t i = 0; tops && i < a->token_count; i++) put(out, i ? "," : ""), write_tops(out, &tokens[i]);
    put(out, tops ? "],\"text_offset\":[" : ",\"text_offset\":[");
    for (size_t i = 0; i < a->token_count; i++) put(out, i ? "," : ""), k2i_openai_put_u64(out, tokens[i].offset);
    put(out, "]}");
}

static void write_chat_token(k2_buf *out, const char *text, float logprob)
{
    put_string(out, "{\"token\":", text, strlen(text));
    put(out, ",\"logprob\":");
    put_float(out, logprob);
    if (strncmp(text, "token_id:", 9) == 0) {
        put(out, ",\"bytes\":null");
        return;
    }
    put(out, ",\"bytes\":[");
    for (const char *c = text; *c; c++) put(out, c > text ? "," : ""), k2i_openai_put_u64(out, (unsigned char)*c);
    put(out, "]");
}

static void write_chat_logprobs(k2_buf *out, const k2_openai_answer *a)
{
    put(out, ",\"logprobs\":{\"content\":[");
    for (size_t i = 0; i < a->token_count; i++) {
        const k2_openai_token *t = &a->tokens[i];
        if (i) put(out, ",");
        write_chat_token(out, t->text, t->logprob);
        put(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < t->top_count; k++) {
            if (k) put(out, ",");
            write_chat_token(out, t->tops[k].text, t->tops[k].logprob);
            put(out, "}");
        }
        put(out, "]}");
    }
    put(out, "]}");
}

static void write_logprobs(k2_buf *out, const k2_openai_answer *a)
{
    size_t count = a->tokens ? a->token_count : a->logprobs ? a->count : 0;
    if ((!a->logprobs && !a->tokens) || (count == 0 && !a->finish_reason))
        put(out, ",\"logprobs\":null");
    else if (!a->tokens)
        write_bare_logprobs(out, a);
    else if (a->chat)
        write_chat_logprobs(out, a);
    else
        write_completion_logprobs(out, a);
}

/* Who only calls says nothing: content is null then, and not there in a chunk. */
static void write_message(k2_buf *out, const k2_openai_answer *a, bool chunk)
{
    const bool silent = a->call_count > 0 && a->text_bytes == 0;
    put(out, chunk ? "\"delta\":{" : "\"message\":{");
    if (!chunk || a->first) put(out, "\"role\":\"assistant\",");
    if (!silent)
        put_string(out, "\"content\":", a->text, a->text_bytes);
    else if (!chunk)
        put(out, "\"content\":null");
    if (a->call_count > 0) {
        if (!silent || !chunk) put(out, ",");
        k2i_calls_write(out, a->calls, a->call_count, chunk);
    }
    put(out, "}");
}

static void write_finish(k2_buf *out, const k2_openai_answer *a)
{
    if (!a->finish_reason) {
        put(out, ",\"finish_reason\":null");
        return;
    }
    put_string(out, ",\"finish_reason\":", a->finish_reason, strlen(a->finish_reason));
    if (a->stop_text)
        put_string(out, ",\"stop_reason\":", a->stop_text, strlen(a->stop_text));
    else if (a->has_stop_id)
        put(out, ",\"stop_reason\":"), k2i_openai_put_u64(out, a->stop_id);
    else
        put(out, ",\"stop_reason\":null");
}

static void write_choice(k2_buf *out, const k2_openai_answer *a, bool chunk)
{
    put(out, "{\"index\":");
    k2i_openai_put_u64(out, a->index);
    put(out, ",");
    if (a->chat)
        write_message(out, a, chunk);
    else
        put_string(out, "\"text\":", a->text, a->text_bytes);
    write_logprobs(out, a);
    write_finish(out, a);
    if (a->ids) put(out, ",\"token_ids\":"), k2i_openai_put_ids(out, a->ids, a->count);
    if (a->prompt_ids) put(out, ",\"prompt_token_ids\":"), k2i_openai_put_ids(out, a->prompt_ids, a->prompt_ids_count);
    if (a->prompt_logprobs && !a->chat) put(out, ",\"prompt_logprobs\":"), put(out, a->prompt_logprobs);
    put(out, "}");
}

static void write_usage(k2_buf *out, const k2_openai_answer *a)
{
    put(out, ",\"usage\":{\"prompt_tokens\":");
    k2i_openai_put_u64(out, a->prompt_tokens);
    put(out, ",\"completion_tokens\":");
    k2i_openai_put_u64(out, a->completion_tokens);
    put(out, ",\"total_tokens\":");
    k2i_openai_put_u64(out, a->prompt_tokens + a->completion_tokens);
    if (a->has_cached) {
        put(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
        k2i_openai_put_u64(out, a->cached_tokens);
        put(out, "}");
    }
    put(out, "}");
}

static void write_object(k2_buf *out, const k2_openai_answer *a, size_t count, bool chunk)
{
    put_string(out, "{\"id\":", a->id, strlen(a->id));
    put(out, !a->chat ? ",\"object\":\"text_completion\""
             : chunk  ? ",\"object\":\"chat.completion.chunk\""
                      : ",\"object\":\"chat.completion\"");
    put(out, ",\"created\":");
    k2i_openai_put_u64(out, a->created);
    put_string(out, ",\"model\":", a->model, strlen(a->model));
    put(out, ",\"choices\":[");
    bool usage_only = chunk && a->has_usage && !a->finish_reason && a->text_bytes == 0 && a->count == 0 && a->call_count == 0;
    for (size_t i = 0; !usage_only && i < count; i++) {
        if (i) put(out, ",");
        write_choice(out, &a[i], chunk);
    }
    put(out, "]");
    if (a->prompt_logprobs && a->chat) put(out, ",\"prompt_logprobs\":"), put(out, a->prompt_logprobs);
    if (a->has_usage) write_usage(out, a);
    if (a->has_k2) {
        char hex[K2_DIGEST_HEX];
        k2_digest_hex(a->digest, hex);
        put(out, ",\"k2\":{\"version\":");
        k2_openai_write_u64(out, a->version);
        put_string(out, ",\"digest\":", hex, strlen(hex));
        if (chunk && a->first && a->has_cached) put(out, ",\"cached_tokens\":"), k2i_openai_put_u64(out, a->cached_tokens);
        put(out, "}");
    }
    put(out, "}");
}

void k2_openai_write_answer(k2_buf *out, const k2_openai_answer *a)
{
    write_object(out, a, 1, false);
}

void k2_openai_write_choices(k2_buf *out, const k2_openai_answer *choices, size_t count)
{
    K2_ASSERT(count > 0);
    write_object(out, choices, count, false);
}

void k2_openai_write_chunk(k2_buf *out, const k2_openai_answer *a)
{
    write_object(out, a, 1, true);
}
