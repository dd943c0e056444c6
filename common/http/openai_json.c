/* openai_json.c - small strict helpers over cJSON, and errors of the OpenAI interface. */
#include "openai_int.h"

#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 64u /* arrays and objects inside one another: metadata and tools of real clients stay under 20 */

cJSON *k2i_openai_json(const char *body, size_t n, const char **why)
{
    *why = k2_json_fault(body, n, DEPTH_MAX);
    if (*why) return NULL;
    *why = "is not JSON";
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(body, n, &end, false);
    if (!root) return NULL;
    while (end < body + n && (*end == ' ' || *end == '\n' || *end == '\r' || *end == '\t')) end++;
    if (end == body + n) return root;
    *why = "has something behind its end";
    cJSON_Delete(root);
    return NULL;
}

bool k2i_openai_read_int(const cJSON *v, int64_t lo, int64_t hi, int64_t *out)
{
    if (!cJSON_IsNumber(v)) return false;
    double d = v->valuedouble;
    if (!(d >= -K2I_JSON_EXACT_MAX && d <= K2I_JSON_EXACT_MAX)) return false;
    int64_t i = (int64_t)d;
    if ((double)i != d || i < lo || i > hi) return false;
    *out = i;
    return true;
}

bool k2i_openai_read_u64(const cJSON *v, uint64_t *out)
{
    int64_t i;
    if (cJSON_IsString(v)) return k2_str_u64(v->valuestring, out);
    if (!k2i_openai_read_int(v, 0, (int64_t)K2I_JSON_EXACT_MAX, &i)) return false;
    *out = (uint64_t)i;
    return true;
}

void k2i_openai_put_u64(k2_buf *out, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    k2_buf_append(out, digits + at, sizeof digits - at);
}

void k2i_openai_put_ids(k2_buf *out, const uint32_t *ids, size_t count)
{
    k2_buf_append(out, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i) k2_buf_append(out, ",", 1);
        k2i_openai_put_u64(out, ids[i]);
    }
    k2_buf_append(out, "]", 1);
}

void k2_openai_write_u64(k2_buf *out, uint64_t v)
{
    bool exact = v <= (uint64_t)K2I_JSON_EXACT_MAX;
    if (!exact) k2_buf_puts(out, "\"");
    k2i_openai_put_u64(out, v);
    if (!exact) k2_buf_puts(out, "\"");
}

/* ---- reading members of a request ------------------------------------------------------------------------------ */

bool k2i_reader_bad(k2i_reader *x, const char *at, const char *fmt, ...)
{
    char text[K2_ERROR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    k2_openai_error_set(x->err, 400, NULL, at, "%s: %s", at, text);
    return false;
}

static const char *kind_of(const cJSON *v)
{
    if (cJSON_IsNull(v)) return "null";
    if (cJSON_IsBool(v)) return "a boolean";
    if (cJSON_IsNumber(v)) return "a number";
    if (cJSON_IsString(v)) return "a string";
    return cJSON_IsArray(v) ? "an array" : "an object";
}

bool k2i_reader_expected(k2i_reader *x, const char *at, const char *what, const cJSON *v)
{
    if (cJSON_IsNumber(v)) return k2i_reader_bad(x, at, "expected %s, found %.15g", what, v->valuedouble);
    return k2i_reader_bad(x, at, "expected %s, found %s", what, kind_of(v));
}

bool k2i_reader_bool(k2i_reader *x, const cJSON *v, bool *out)
{
    if (!cJSON_IsBool(v)) return k2i_reader_expected(x, x->name, "true or false", v);
    *out = cJSON_IsTrue(v);
    return true;
}

bool k2i_reader_int(k2i_reader *x, const cJSON *v, int64_t lo, int64_t hi, int64_t *out)
{
    char what[80];
    if (k2i_openai_read_int(v, lo, hi, out)) return true;
    snprintf(what, sizeof what, "an integer from %lld to %lld", (long long)lo, (long long)hi);
    return k2i_reader_expected(x, x->name, what, v);
}

bool k2i_reader_double(k2i_reader *x, const cJSON *v, double lo, double hi, double *out)
{
    char what[80];
    if (cJSON_IsNumber(v) && v->valuedouble >= lo && v->valuedouble <= hi) {
        *out = v->valuedouble;
        return true;
    }
    snprintf(what, sizeof what, "a number from %g to %g", lo, hi);
    return k2i_reader_expected(x, x->name, what, v);
}

bool k2i_reader_ids(k2i_reader *x, const cJSON *array, uint32_t *out, size_t count)
{
    size_t i = 0;
    for (const cJSON *e = array->child; e; e = e->next, i++) {
        int64_t id;
        char at[64];
        K2_ASSERT(i < count);
        if (!k2i_openai_read_int(e, 0, INT32_MAX, &id)) {
            snprintf(at, sizeof at, "%s[%zu]", x->name, i);
            return k2i_reader_expected(x, at, "a token id", e);
        }
        out[i] = (uint32_t)id;
    }
    return true;
}

/* ---- errors ------------------------------------------------------------------------------------------------------- */

void k2_openai_error_set(k2_openai_error *e, int status, const char *code, const char *param, const char *fmt, ...)
{
    memset(e, 0, sizeof *e);
    e->status = status;
    e->type = status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
    e->code = code;
    if (param) snprintf(e->param, sizeof e->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
}

void k2_openai_write_error(k2_buf *out, const k2_openai_error *e)
{
    k2_buf_puts(out, "{\"error\":{\"message\":");
    k2_buf_json_string(out, e->message, strlen(e->message));
    k2_buf_puts(out, ",\"type\":");
    k2_buf_json_string(out, e->type, strlen(e->type));
    k2_buf_puts(out, ",\"param\":");
    if (e->param[0])
        k2_buf_json_string(out, e->param, strlen(e->param));
    else
        k2_buf_puts(out, "null");
    k2_buf_puts(out, ",\"code\":");
    if (e->code)
        k2_buf_json_string(out, e->code, strlen(e->code));
    else
        k2_buf_puts(out, "null");
    k2_buf_puts(out, "}}");
}

void k2_openai_read_error(const char *body, size_t n, int status, k2_openai_error *out)
{
    const char *why;
    cJSON *root = k2i_openai_json(body, n, &why);
    /* OpenAI and vLLM: {"error": {...}}; older vLLM and others put message and param at the top. */
    const cJSON *e = cJSON_GetObjectItemCaseSensitive(root, "error");
    if (!cJSON_IsObject(e)) e = root;
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(e, "message");
    const cJSON *param = cJSON_GetObjectItemCaseSensitive(e, "param");
    if (cJSON_IsString(message))
        k2_openai_error_set(out, status, NULL, cJSON_IsString(param) ? param->valuestring : NULL, "%s", message->valuestring);
    else
        k2_openai_error_set(out, status, NULL, NULL, "%.*s", (int)K2_MIN(n, (size_t)400), body);
    cJSON_Delete(root);
}

void k2_openai_write_models(k2_buf *out, const char *const *models, size_t count, uint64_t created)
{
    k2_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < count; i++) {
        k2_buf_puts(out, i ? ",{\"id\":" : "{\"id\":");
        k2_buf_json_string(out, models[i], strlen(models[i]));
        k2_buf_puts(out, ",\"object\":\"model\",\"created\":");
        k2i_openai_put_u64(out, created);
        k2_buf_puts(out, ",\"owned_by\":\"k2rl\"}");
    }
    k2_buf_puts(out, "]}");
}

void k2_openai_write_health(k2_buf *out, bool has_k2, uint64_t version, k2_digest digest)
{
    k2_buf_puts(out, "{\"status\":\"ok\"");
    if (has_k2) {
        char hex[K2_DIGEST_HEX];
        k2_digest_hex(digest, hex);
        k2_buf_puts(out, ",\"k2\":{\"version\":");
        k2_openai_write_u64(out, version);
        k2_buf_printf(out, ",\"digest\":\"%s\"}", hex);
    }
    k2_buf_puts(out, "}");
}

bool k2_openai_read_health(const char *body, size_t n, uint64_t *version, k2_digest *digest)
{
    const char *why;
    cJSON *root = k2i_openai_json(body, n, &why);
    const cJSON *k = cJSON_GetObjectItemCaseSensitive(root, "k2");
    if (!cJSON_IsObject(k)) k = root;
    const cJSON *hex = cJSON_GetObjectItemCaseSensitive(k, "digest");
    uint64_t v = 0;
    k2_digest d;
    bool ok = cJSON_IsString(hex) && k2_digest_parse(hex->valuestring, &d) &&
              k2i_openai_read_u64(cJSON_GetObjectItemCaseSensitive(k, "version"), &v);
    if (ok) {
        *version = v;
        *digest = d;
    }
    cJSON_Delete(root);
    return ok;
}
