/* openai_answer.c - reading whole answers and chunks, of our engines and of others'. Their documents differ in what they leave
 * out, so absent and null are the same here; a wrong type is not. */
#include "openai_int.h"

#include <math.h>
#include <string.h>

#define TEXT_MAX ((size_t)1 << 30) /* strings of one answer: bounded by the body already */

void k2_openai_parsed_init(k2_openai_parsed *p)
{
    memset(p, 0, sizeof *p);
    k2_buf_init(&p->text, TEXT_MAX);
    k2_openai_list_init(&p->list);
}

void k2_openai_parsed_fini(k2_openai_parsed *p)
{
    k2_buf_fini(&p->text);
    k2_openai_list_fini(&p->list);
    k2_openai_calls_clear(&p->calls);
    k2_free(p->ids);
    k2_free(p->prompt_ids);
    k2_free(p->logprobs);
    memset(p, 0, sizeof *p);
}

/* The member, or NULL where it is absent or null. */
static const cJSON *get(const cJSON *object, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(v) ? NULL : v;
}

/* A string of the answer is kept by its offset until all are there, as the buffer moves while it grows. */
static bool keep(k2_openai_parsed *p, const cJSON *v, size_t *offset, size_t *bytes)
{
    *offset = p->text.len;
    *bytes = 0;
    if (v && !cJSON_IsString(v)) return false;
    size_t n = v ? strlen(v->valuestring) : 0;
    k2_buf_append(&p->text, v ? v->valuestring : "", n);
    k2_buf_append(&p->text, "", 1);
    *bytes = n;
    return true;
}

static bool read_ids(const cJSON *v, uint32_t **ids, size_t *cap, size_t *count)
{
    *count = 0;
    if (!v) return true;
    if (!cJSON_IsArray(v)) return false;
    size_t n = 0;
    for (const cJSON *e = v->child; e; e = e->next) {
        int64_t id;
        if (!k2i_openai_read_int(e, 0, INT32_MAX, &id)) return false;
        if (n == *cap) {
            *cap = K2_MAX(*cap * 2, (size_t)16);
            *ids = k2_realloc_array(*ids, *cap, sizeof **ids);
        }
        (*ids)[n++] = (uint32_t)id;
    }
    if (!*ids) { /* an empty list is a list all the same */
        *cap = 16;
        *ids = k2_alloc_array(*cap, sizeof **ids);
    }
    *count = n;
    return true;
}

/* NaN: no number. */
static float to_float(const cJSON *v)
{
    return cJSON_IsNumber(v) ? (float)fmin(fmax(v->valuedouble, -3.4028234e38), 3.4028234e38) : NAN;
}

static bool read_logprobs(k2_openai_parsed *p, const cJSON *v, size_t *count)
{
    *count = 0;
    if (!v) return true;
    const cJSON *list = get(v, "token_logprobs"), *content = get(v, "content");
    if (!list && !content) return true;
    if (!cJSON_IsArray(list ? list : content)) return false;
    for (const cJSON *e = (list ? list : content)->child; e; e = e->next) {
        const cJSON *value = list ? e : cJSON_GetObjectItemCaseSensitive(e, "logprob");
        if (!cJSON_IsNumber(value) && !cJSON_IsNull(value)) return false;
        if (*count == p->logprobs_cap) {
            p->logprobs_cap = K2_MAX(p->logprobs_cap * 2, (size_t)16);
            p->logprobs = k2_realloc_array(p->logprobs, p->logprobs_cap, sizeof *p->logprobs);
        }
        float *out = &p->logprobs[(*count)++];
        *out = to_float(value);
    }
    return true;
}

static bool add_top(k2_openai_list *l, const char *text, const cJSON *value)
{
    if (!text || !cJSON_IsNumber(value)) return false;
    k2_openai_list_top(l, text, to_float(value));
    return true;
}

static bool add_token(k2_openai_list *l, const cJSON *text, const cJSON *value, const cJSON *offset)
{
    uint64_t at = 0;
    if (!cJSON_IsString(text) || (offset && !k2i_openai_read_u64(offset, &at))) return false;
    k2_openai_list_token(l, text->valuestring, to_float(value), at);
    return true;
}

static bool read_content(k2_openai_list *l, const cJSON *content)
{
    for (const cJSON *e = content->child; e; e = e->next) {
        const cJSON *tops = get(e, "top_logprobs");
        if (!add_token(l, get(e, "token"), get(e, "logprob"), NULL)) return false;
        for (const cJSON *t = tops ? tops->child : NULL; t; t = t->next) {
            const cJSON *text = get(t, "token");
            if (!add_top(l, cJSON_IsString(text) ? text->valuestring : NULL, get(t, "logprob"))) return false;
        }
    }
    return true;
}

/* The tokens themselves, where all that "logprobs" can say of them is there: an engine that gives no places in the text gives
 * nothing that its ids do not tell. False: a wrong type. */
static bool read_tokens(k2_openai_parsed *p, const cJSON *v, size_t count)
{
    const cJSON *content = get(v, "content"), *text = get(v, "tokens"), *offset = get(v, "text_offset");
    const cJSON *value = get(v, "token_logprobs"), *tops = get(v, "top_logprobs");
    if (content) return read_content(&p->list, content);
    if (!cJSON_IsArray(text) || !cJSON_IsArray(offset) || count == 0) return true;
    if (cJSON_GetArraySize(text) != (int)count || cJSON_GetArraySize(offset) != (int)count) return true;
    if (tops && (!cJSON_IsArray(tops) || cJSON_GetArraySize(tops) != (int)count)) return false;
    text = text->child, offset = offset->child, value = value->child, tops = tops ? tops->child : NULL;
    for (size_t i = 0; i < count; i++) {
        if (!add_token(&p->list, text, value, offset)) return false;
        for (const cJSON *t = tops ? tops->child : NULL; t; t = t->next)
            if (!add_top(&p->list, t->string, t)) return false;
        text = text->next, offset = offset->next, value = value->next, tops = tops ? tops->next : NULL;
    }
    return true;
}

/* Calls of a message, or what a chunk brings of some. */
static bool read_calls(k2_openai_parsed *p, const cJSON *list)
{
    uint64_t index = 0;
    if (!list) return true;
    if (!cJSON_IsArray(list)) return false;
    for (const cJSON *e = list->child; e; e = e->next, index++) {
        const cJSON *given = get(e, "index"), *id = get(e, "id"), *function = get(e, "function");
        const cJSON *name = get(function, "name"), *arguments = get(function, "arguments");
        if (!cJSON_IsObject(e) || (function && !cJSON_IsObject(function))) return false;
        if (given && (!k2i_openai_read_u64(given, &index) || index > UINT32_MAX)) return false;
        if ((id && !cJSON_IsString(id)) || (name && !cJSON_IsString(name)) || (arguments && !cJSON_IsString(arguments)))
            return false;
        const char *text = arguments ? arguments->valuestring : "";
        if (!k2_openai_calls_add(&p->calls, (uint32_t)index, id ? id->valuestring : NULL, name ? name->valuestring : NULL, text,
                                 strlen(text)))
            return false;
    }
    return true;
}

static bool read_cached(const cJSON *v, k2_openai_answer *a)
{
    if (!v) return true;
    return a->has_cached = k2i_openai_read_u64(v, &a->cached_tokens);
}

static bool read_ext(const cJSON *root, k2_openai_answer *a)
{
    const cJSON *k = get(root, "k2");
    if (!k) return true;
    const cJSON *digest = get(k, "digest");
    if (!k2i_openai_read_u64(cJSON_GetObjectItemCaseSensitive(k, "version"), &a->version)) return false;
    if (!cJSON_IsString(digest) || !k2_digest_parse(digest->valuestring, &a->digest)) return false;
    if (!read_cached(get(k, "cached_tokens"), a)) return false;
    return a->has_k2 = true;
}

static bool read_usage(const cJSON *root, k2_openai_answer *a)
{
    const cJSON *u = get(root, "usage");
    if (!u) return true;
    const cJSON *prompt = get(u, "prompt_tokens"), *completion = get(u, "completion_tokens");
    if (prompt && !k2i_openai_read_u64(prompt, &a->prompt_tokens)) return false;
    if (completion && !k2i_openai_read_u64(completion, &a->completion_tokens)) return false;
    if (!read_cached(get(get(u, "prompt_tokens_details"), "cached_tokens"), a)) return false;
    return a->has_usage = true;
}

/* Where the strings that say why it ended are kept. */
typedef struct ends {
    const cJSON *reason;
    size_t finish, stop;
    bool text; /* a stop string */
} ends;

static const char *read_ends(k2_openai_parsed *p, const cJSON *choice, ends *out)
{
    k2_openai_answer *a = &p->a;
    const cJSON *stop = get(choice, "stop_reason");
    uint64_t id = 0;
    size_t n;
    out->reason = get(choice, "finish_reason");
    out->text = cJSON_IsString(stop);
    a->has_stop_id = stop && !out->text;
    if (!keep(p, out->reason, &out->finish, &n)) return "finish_reason";
    if (a->has_stop_id && (!k2i_openai_read_u64(stop, &id) || id > INT32_MAX)) return "stop_reason";
    a->stop_id = (uint32_t)id;
    return keep(p, out->text ? stop : NULL, &out->stop, &n) ? NULL : "stop_reason";
}

/* Answers the name of the member that is wrong, NULL when all is well. */
static const char *read_all(k2_openai_parsed *p, const cJSON *root)
{
    k2_openai_answer *a = &p->a;
    size_t id, model, text, n, lp_count;
    ends end;
    const cJSON *created = get(root, "created"), *choices = get(root, "choices");
    if (choices && !cJSON_IsArray(choices)) return "choices";
    const cJSON *choice = choices ? choices->child : NULL;
    const cJSON *message = get(choice, "message"), *delta = get(choice, "delta");
    a->chat = message || delta;
    if (message == NULL) message = delta;
    if (message && !a->first) a->first = get(message, "role") != NULL;
    if (!keep(p, get(root, "id"), &id, &n)) return "id";
    if (!keep(p, get(root, "model"), &model, &n)) return "model";
    if (!keep(p, message ? get(message, "content") : get(choice, "text"), &text, &a->text_bytes)) return "text";
    const char *wrong = read_ends(p, choice, &end);
    if (wrong) return wrong;
    if (!read_calls(p, get(message, "tool_calls"))) return "tool_calls";
    if (created && !k2i_openai_read_u64(created, &a->created)) a->created = 0; /* some send fractions of a second */
    const cJSON *ids = get(choice, "token_ids"), *prompt_ids = get(choice, "prompt_token_ids");
    if (!prompt_ids) prompt_ids = get(root, "prompt_token_ids");
    if (!read_ids(ids, &p->ids, &p->ids_cap, &a->count)) return "token_ids";
    if (!read_ids(prompt_ids, &p->prompt_ids, &p->prompt_ids_cap, &a->prompt_ids_count)) return "prompt_token_ids";
    const cJSON *logprobs = get(choice, "logprobs");
    if (!read_logprobs(p, logprobs, &lp_count)) return "logprobs";
    if (logprobs && ids && lp_count < a->count) return "logprobs: not as many as token_ids";
    if (!ids) a->count = lp_count;
    if (logprobs && !read_tokens(p, logprobs, lp_count)) return "logprobs";
    if (!read_usage(root, a)) return "usage";
    if (!read_ext(root, a)) return "k2";
    a->id = p->text.data + id;
    a->model = p->text.data + model;
    a->text = p->text.data + text;
    a->finish_reason = end.reason ? p->text.data + end.finish : NULL;
    a->stop_text = end.text ? p->text.data + end.stop : NULL;
    a->calls = p->calls.list;
    a->call_count = p->calls.count;
    a->ids = ids ? p->ids : NULL;
    a->prompt_ids = prompt_ids ? p->prompt_ids : NULL;
    a->tokens = p->list.count > 0 ? k2_openai_list_tokens(&p->list) : NULL;
    a->token_count = p->list.count;
    size_t echoed = ids && logprobs ? lp_count - a->count : 0; /* the prompt's stand in front, and have no ids here */
    a->logprobs = lp_count > 0 ? p->logprobs + echoed : NULL;
    return NULL;
}

k2_code k2_openai_parse_answer(const char *body, size_t n, k2_openai_parsed *out, k2_error *err)
{
    const char *why;
    cJSON *root = k2i_openai_json(body, n, &why);
    if (!root || !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return k2_error_set(err, K2_PEER_PROTOCOL, "the answer %s", root ? "is no JSON object" : why);
    }
    k2_code code = K2_OK;
    if (get(root, "error")) {
        k2_openai_error e;
        k2_openai_read_error(body, n, 500, &e);
        code = k2_error_set(err, K2_PEER_REFUSED, "%.400s", e.message);
    } else {
        memset(&out->a, 0, sizeof out->a);
        k2_buf_clear(&out->text);
        k2_openai_list_clear(&out->list);
        k2_openai_calls_clear(&out->calls);
        const char *bad = read_all(out, root);
        if (bad) code = k2_error_set(err, K2_PEER_PROTOCOL, "the answer has a bad %s", bad);
    }
    cJSON_Delete(root);
    return code;
}
