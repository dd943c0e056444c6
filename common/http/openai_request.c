/* openai_request.c - reading the body of a completion request. Two tables name every parameter that is known: the one here,
 * whose rows say how it is read, or at which value it changes nothing and may be dropped; and that of openai_sampling.c. */
#include "openai_int.h"

#include <stdio.h>
#include <string.h>

#define PARAMS_MAX 96u /* of both tables together */

typedef enum neutral { N_NONE, N_ANY, N_ONE, N_EMPTY, N_TEXT, N_AUTO } neutral;

typedef struct param {
    const char *name;
    bool (*read)(k2i_reader *x, const cJSON *v); /* NULL: see neutral */
    neutral neutral;
    bool in_completion, in_chat;
} param;

/* ---- one function a parameter ------------------------------------------------------------------------------------- */

static bool p_model(k2i_reader *x, const cJSON *v)
{
    if (!cJSON_IsString(v)) return k2i_reader_expected(x, "model", "a string", v);
    x->r->model = k2_strdup(v->valuestring);
    return true;
}

static bool p_prompt(k2i_reader *x, const cJSON *v)
{
    k2_openai_request *r = x->r;
    /* Clients may send a list of prompts; a list of one is the same as the one. */
    if (cJSON_IsArray(v) && cJSON_GetArraySize(v) == 1 && (cJSON_IsString(v->child) || cJSON_IsArray(v->child))) v = v->child;
    if (cJSON_IsString(v)) {
        r->prompt_text = k2_strdup(v->valuestring);
        r->prompt_bytes = strlen(v->valuestring);
        return true;
    }
    if (!cJSON_IsArray(v)) return k2i_reader_expected(x, "prompt", "a string or a list of token ids", v);
    int n = cJSON_GetArraySize(v);
    if (n == 0) return k2i_reader_bad(x, "prompt", "expected at least one token id, found an empty list");
    if ((uint32_t)n > K2_OPENAI_PROMPT_MAX) return k2i_reader_bad(x, "prompt", "more than %u token ids", K2_OPENAI_PROMPT_MAX);
    if (cJSON_IsString(v->child) || cJSON_IsArray(v->child))
        return k2i_reader_bad(x, "prompt", "one prompt a request, found %d", n);
    r->prompt_ids_count = (size_t)n;
    r->prompt_ids = k2_alloc_array((size_t)n, sizeof *r->prompt_ids);
    return k2i_reader_ids(x, v, r->prompt_ids, r->prompt_ids_count);
}

static bool p_max_tokens(k2i_reader *x, const cJSON *v)
{
    int64_t n;
    if (!k2i_reader_int(x, v, 0, K2_OPENAI_TOKENS_MAX, &n)) return false;
    if (x->r->has_max_tokens && x->r->max_tokens != (uint32_t)n)
        return k2i_reader_bad(x, x->name, "max_tokens and max_completion_tokens differ: %u and %u", x->r->max_tokens,
                              (uint32_t)n);
    x->r->max_tokens = (uint32_t)n;
    x->r->has_max_tokens = true;
    return true;
}

static bool p_stream(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_bool(x, v, &x->r->stream);
}
static bool p_return_ids(k2i_reader *x, const cJSON *v)
{
    return k2i_reader_bool(x, v, &x->r->return_token_ids);
}

/* Whether it matters is only known when all has been read. */
static bool p_parallel_calls(k2i_reader *x, const cJSON *v)
{
    bool parallel = true;
    if (!k2i_reader_bool(x, v, &parallel)) return false;
    x->r->one_call = !parallel;
    return true;
}

static bool p_stream_options(k2i_reader *x, const cJSON *v)
{
    if (!cJSON_IsObject(v)) return k2i_reader_expected(x, x->name, "an object", v);
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(v, "include_usage");
    x->name = "stream_options.include_usage";
    return !usage || cJSON_IsNull(usage) || k2i_reader_bool(x, usage, &x->r->include_usage);
}

static bool *ext_flag(k2_openai_ext *k, const char *name)
{
    return strcmp(name, "train") == 0        ? &k->train
           : strcmp(name, "repetition") == 0 ? &k->repetition
           : strcmp(name, "resumed") == 0    ? &k->resumed
           : strcmp(name, "calls") == 0      ? &k->calls
                                             : NULL;
}

static bool p_k2(k2i_reader *x, const cJSON *v)
{
    static const char *const names[] = {"trajectory", "group", "position",   "digest", "seed",
                                        "train",      "calls", "repetition", "resumed"};
    k2_openai_ext *k = &x->r->k2;
    if (!cJSON_IsObject(v)) return k2i_reader_expected(x, "k2", "an object", v);
    k->present = true;
    for (const cJSON *e = v->child; e; e = e->next) {
        const char *name = e->string;
        char at[64];
        snprintf(at, sizeof at, "k2.%s", name);
        bool *flag = ext_flag(k, name);
        bool *has = strcmp(name, "trajectory") == 0 ? &k->has_trajectory
                    : strcmp(name, "group") == 0    ? &k->has_group
                    : strcmp(name, "seed") == 0     ? &k->has_seed
                                                    : NULL;
        uint64_t *number = has == &k->has_trajectory ? &k->trajectory : has == &k->has_group ? &k->group : &k->seed;
        bool position = strcmp(name, "position") == 0;
        if (flag) {
            if (!cJSON_IsBool(e)) return k2i_reader_expected(x, at, "true or false", e);
            *flag = cJSON_IsTrue(e);
        } else if (has || position) {
            if (!k2i_openai_read_u64(e, position ? &k->position : number))
                return k2i_reader_expected(x, at, "a number from 0 to 2^64-1", e);
            if (has) *has = true;
        } else if (strcmp(name, "digest") == 0) {
            if (!cJSON_IsString(e) || !k2_digest_parse(e->valuestring, &k->digest))
                return k2i_reader_bad(x, at, "expected 32 hex digits");
            k->has_digest = true;
        } else {
            const char *near = k2_str_nearest(name, names, K2_COUNT(names));
            return k2i_reader_bad(
                x, at,
                "unknown; expected one of trajectory, group, position, digest, seed, train, repetition, resumed, "
                "calls%s%s%s",
                near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "");
        }
    }
    if (k->calls && x->r->chat) return k2i_reader_bad(x, "k2.calls", "only where a chat is resumed, in /v1/completions");
    if (k->position > K2_OPENAI_PROMPT_MAX) return k2i_reader_bad(x, "k2.position", "above %u", K2_OPENAI_PROMPT_MAX);
    return true;
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

static const param params[] = {
    {"model", p_model, N_NONE, true, true},
    {"prompt", p_prompt, N_NONE, true, false},
    {"messages", k2i_chat_messages, N_NONE, false, true},
    {"tools", k2i_chat_tools, N_NONE, false, true},
    {"tool_choice", k2i_chat_tool_choice, N_NONE, false, true},
    {"parallel_tool_calls", p_parallel_calls, N_NONE, false, true},
    {"max_tokens", p_max_tokens, N_NONE, true, true},
    {"max_completion_tokens", p_max_tokens, N_NONE, false, true},
    {"stream", p_stream, N_NONE, true, true},
    {"stream_options", p_stream_options, N_NONE, true, true},
    {"return_token_ids", p_return_ids, N_NONE, true, true},
    {"k2", p_k2, N_NONE, true, true},
    /* Known, without a say in the tokens. */
    {"user", NULL, N_ANY, true, true},
    {"metadata", NULL, N_ANY, true, true},
    {"store", NULL, N_ANY, false, true},
    {"service_tier", NULL, N_ANY, true, true},
    {"safety_identifier", NULL, N_ANY, true, true},
    {"prompt_cache_key", NULL, N_ANY, true, true},
    {"prompt_cache_retention", NULL, N_ANY, true, true},
    /* Known, at the value that changes nothing. */
    {"best_of", NULL, N_ONE, true, false},
    {"suffix", NULL, N_EMPTY, true, false},
    {"response_format", NULL, N_TEXT, true, true},
    {"functions", NULL, N_EMPTY, false, true},
    {"function_call", NULL, N_AUTO, false, true},
};

static bool is_neutral(neutral n, const cJSON *v)
{
    const cJSON *type;
    switch (n) {
    case N_NONE: return false;
    case N_ANY: return true;
    case N_ONE: return cJSON_IsNumber(v) && v->valuedouble == 1;
    case N_EMPTY: return cJSON_IsString(v) ? v->valuestring[0] == 0 : (cJSON_IsObject(v) || cJSON_IsArray(v)) && !v->child;
    case N_TEXT:
        type = cJSON_GetObjectItemCaseSensitive(v, "type");
        return cJSON_IsString(type) && strcmp(type->valuestring, "text") == 0;
    case N_AUTO: return cJSON_IsString(v) && (strcmp(v->valuestring, "none") == 0 || strcmp(v->valuestring, "auto") == 0);
    }
    return false;
}

static const char *neutral_text(neutral n)
{
    static const char *const texts[] = {"", "", "1", "nothing in it", "{\"type\":\"text\"}", "\"none\" or \"auto\""};
    return texts[n];
}

const char *k2i_openai_nearest(const char *name)
{
    const char *names[PARAMS_MAX];
    size_t count = 0;
    K2_ASSERT(K2_COUNT(params) + k2i_sampling_param_count <= PARAMS_MAX);
    for (size_t i = 0; i < K2_COUNT(params); i++) names[count++] = params[i].name;
    for (size_t i = 0; i < k2i_sampling_param_count; i++) names[count++] = k2i_sampling_params[i].name;
    return k2_str_nearest(name, names, count);
}

static bool is_name(const char *known, const char *name)
{
    return known[0] == name[0] && strcmp(known, name) == 0;
}

static bool misplaced(k2i_reader *x, const char *name)
{
    return k2i_reader_bad(x, name, "not a parameter of %s", x->r->chat ? "/v1/chat/completions" : "/v1/completions");
}

static bool read_param(k2i_reader *x, const cJSON *v)
{
    for (const cJSON *e = v->next; e; e = e->next)
        if (strcmp(e->string, v->string) == 0) return k2i_reader_bad(x, v->string, "given twice");
    const char *name = v->string;
    for (size_t i = 0; i < K2_COUNT(params); i++) {
        const param *p = &params[i];
        if (!is_name(p->name, name)) continue;
        if (!(x->r->chat ? p->in_chat : p->in_completion)) return misplaced(x, name);
        if (cJSON_IsNull(v)) return true; /* clients send null for "not given" */
        x->name = p->name;
        if (p->read) return p->read(x, v);
        if (is_neutral(p->neutral, v)) return true;
        return k2i_reader_bad(x, p->name, "not supported; the only value understood is %s", neutral_text(p->neutral));
    }
    for (size_t i = 0; i < k2i_sampling_param_count; i++) {
        const k2i_sampling_param *p = &k2i_sampling_params[i];
        if (!is_name(p->name, name)) continue;
        if (!(x->r->chat ? p->in_chat : p->in_completion)) return misplaced(x, name);
        x->name = p->name;
        return cJSON_IsNull(v) || p->read(x, v);
    }
    k2i_extra_keep(x->r, v);
    return true;
}

static bool read_all(k2i_reader *x, const cJSON *root)
{
    k2_openai_request *r = x->r;
    for (const cJSON *v = root->child; v; v = v->next)
        if (!read_param(x, v)) return false;
    if (r->chat && !r->messages) return k2i_reader_bad(x, "messages", "missing");
    if (!r->chat && !r->prompt_text && !r->prompt_ids) return k2i_reader_bad(x, "prompt", "missing");
    if (r->k2.present) r->return_token_ids = true;
    if (r->one_call && r->tools && !r->tool_choice_none)
        return k2i_reader_bad(x, "parallel_tool_calls", "false is not supported: the model may call as many tools as it likes");
    if (r->k2.calls && r->echo) return k2i_reader_bad(x, "echo", "not with k2.calls");
    return k2i_sampling_check(x);
}

bool k2_openai_parse_request(const char *body, size_t n, bool chat, k2_openai_request *out, k2_openai_error *err)
{
    const char *why;
    cJSON *root = k2i_openai_json(body, n, &why);
    if (!root || !cJSON_IsObject(root)) {
        k2_openai_error_set(err, 400, "invalid_json", NULL, "the body is no JSON object: %s",
                            root ? "another kind of value" : why);
        cJSON_Delete(root);
        return false;
    }
    k2_openai_request r;
    memset(&r, 0, sizeof r);
    r.chat = chat;
    r.temperature = r.top_p = r.repetition_penalty = 1;
    r.n = 1;
    k2i_reader x = {.r = &r, .err = err, .body = body, .body_bytes = n};
    bool ok = read_all(&x, root);
    cJSON_Delete(root);
    if (ok)
        *out = r;
    else
        k2_openai_request_fini(&r);
    return ok;
}

void k2_openai_request_fini(k2_openai_request *r)
{
    k2_free(r->model);
    k2_free(r->prompt_text);
    k2_free(r->prompt_ids);
    for (size_t i = 0; i < r->message_count; i++) k2i_message_fini(&r->messages[i]);
    k2_free(r->messages);
    k2_free(r->tools);
    for (size_t i = 0; i < r->stop_count; i++) k2_free(r->stops[i]);
    k2_free(r->bias);
    k2_free(r->extra);
    memset(r, 0, sizeof *r);
}
