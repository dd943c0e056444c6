/* reward_json - score requests and the lines of the reward command; see reward_int.h. Pure. */
#include "rollout/reward_int.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 64u                /* of nested JSON: meta is the user's */
#define EXACT_MAX 9007199254740992.0 /* 2^53: a JSON number above it may have lost digits on its way */

static bool read_u64(const cJSON *v, uint64_t *out)
{
    if (cJSON_IsString(v)) return k2_str_u64(v->valuestring, out);
    if (!cJSON_IsNumber(v) || v->valuedouble < 0 || v->valuedouble > EXACT_MAX || floor(v->valuedouble) != v->valuedouble)
        return false;
    *out = (uint64_t)v->valuedouble;
    return true;
}

/* ---- a batch ------------------------------------------------------------------------------------------------------- */

void k2i_score_batch_fini(k2i_score_batch *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        k2_free(b->items[i].prompt);
        k2_free(b->items[i].text);
        k2_free(b->items[i].answer);
        k2_free(b->items[i].meta);
    }
    k2_free(b->items);
    k2_free(b->scores);
    memset(b, 0, sizeof *b);
}

/* A string member, or "" where it may be absent or null. */
static bool take_string(const cJSON *item, const char *name, bool must, uint32_t i, char **out, k2_openai_error *err)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(item, name);
    char param[64];
    if (cJSON_IsString(v)) {
        *out = k2_strdup(v->valuestring);
        return true;
    }
    if (!must && (!v || cJSON_IsNull(v))) {
        *out = k2_strdup("");
        return true;
    }
    snprintf(param, sizeof param, "items[%u].%s", i, name);
    k2_openai_error_set(err, 400, NULL, param, "%s: found %s, expected a string", param, v ? "another type" : "nothing");
    return false;
}

static bool take_item(const cJSON *v, uint32_t i, k2i_score_item *out, k2_openai_error *err)
{
    char param[64];
    snprintf(param, sizeof param, "items[%u].trajectory", i);
    if (!cJSON_IsObject(v) || !read_u64(cJSON_GetObjectItemCaseSensitive(v, "trajectory"), &out->trajectory)) {
        k2_openai_error_set(err, 400, NULL, param, "%s: expected a whole number up to 2^53 or a decimal string", param);
        return false;
    }
    if (!take_string(v, "prompt", false, i, &out->prompt, err) || !take_string(v, "text", true, i, &out->text, err) ||
        !take_string(v, "answer", false, i, &out->answer, err))
        return false;
    for (const cJSON *m = v->child; m; m = m->next) {
        static const char *const known[] = {"trajectory", "prompt", "text", "answer", "meta"};
        bool is_known = false;
        for (size_t k = 0; k < K2_COUNT(known); k++) is_known = is_known || strcmp(m->string, known[k]) == 0;
        if (is_known) continue;
        snprintf(param, sizeof param, "items[%u].%.40s", i, m->string);
        k2_openai_error_set(err, 400, NULL, param, "%s: unknown member", param);
        return false;
    }
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(v, "meta");
    char *text = meta ? cJSON_PrintUnformatted(meta) : NULL;
    out->meta = k2_strdup(text ? text : "null");
    cJSON_free(text);
    return true;
}

bool k2i_score_parse(const char *body, size_t n, k2i_score_batch *out, k2_openai_error *err)
{
    k2i_score_batch b = {0};
    bool ok = false;
    const char *fault = k2_json_fault(body, n, DEPTH_MAX);
    cJSON *root = fault ? NULL : cJSON_ParseWithLengthOpts(body, n + 1, NULL, true);
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(root, "items");
    int count = cJSON_GetArraySize(items);
    if (!root) {
        k2_openai_error_set(err, 400, NULL, NULL, "the body %s", fault ? fault : "is not JSON");
    } else if (!cJSON_IsArray(items) || count > (int)K2I_SCORE_ITEMS_MAX) {
        k2_openai_error_set(err, 400, NULL, "items", "items: expected a list of at most %u objects", K2I_SCORE_ITEMS_MAX);
    } else {
        b.items = k2_alloc_array((size_t)count, sizeof *b.items);
        b.scores = k2_alloc_array((size_t)count, sizeof *b.scores);
        b.count = (uint32_t)count;
        ok = true;
        uint32_t i = 0;
        for (const cJSON *v = items->child; v && ok; v = v->next, i++) {
            ok = take_item(v, i, &b.items[i], err);
            b.scores[i].trajectory = b.items[i].trajectory;
        }
    }
    cJSON_Delete(root);
    if (ok)
        *out = b;
    else
        k2i_score_batch_fini(&b);
    return ok;
}

void k2i_score_write(const k2i_score_batch *b, k2_buf *out)
{
    k2_buf_puts(out, "{\"scores\":[");
    for (uint32_t i = 0; i < b->count; i++) {
        const k2i_score *s = &b->scores[i];
        k2_buf_puts(out, i ? ",{\"trajectory\":" : "{\"trajectory\":");
        k2_openai_write_u64(out, s->trajectory);
        if (s->ok)
            k2_buf_printf(out, ",\"reward\":%.17g,\"detail\":", s->reward);
        else
            k2_buf_puts(out, ",\"reward\":null,\"detail\":");
        k2_buf_json_string(out, s->detail, strlen(s->detail));
        k2_buf_puts(out, "}");
    }
    k2_buf_puts(out, "]}");
}

/* ---- lines of the command ------------------------------------------------------------------------------------------- */

void k2i_score_write_item(const k2i_score_item *item, k2_buf *out)
{
    k2_buf_puts(out, "{\"trajectory\":");
    k2_openai_write_u64(out, item->trajectory);
    k2_buf_puts(out, ",\"prompt\":");
    k2_buf_json_string(out, item->prompt, strlen(item->prompt));
    k2_buf_puts(out, ",\"text\":");
    k2_buf_json_string(out, item->text, strlen(item->text));
    k2_buf_puts(out, ",\"answer\":");
    k2_buf_json_string(out, item->answer, strlen(item->answer));
    k2_buf_printf(out, ",\"meta\":%s}\n", item->meta);
}

k2_code k2i_score_line(k2_buf *line, const char **data, size_t *n)
{
    const char *end = *n ? memchr(*data, '\n', *n) : NULL;
    const size_t take = end ? (size_t)(end - *data) : *n;
    if (!k2_buf_append(line, *data, take)) return K2_LIMIT;
    *data += take + (end != NULL);
    *n -= take + (end != NULL);
    return end ? K2_OK : K2_INCOMPLETE;
}

k2_code k2i_score_parse_line(const char *line, size_t n, uint64_t trajectory, double *reward, k2_error *err)
{
    char begin[64];
    snprintf(begin, sizeof begin, "%.*s", (int)K2_MIN(n, sizeof begin - 1), line);
    const char *fault = k2_json_fault(line, n, DEPTH_MAX);
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "found a line that %s, expected JSON", fault);
    char *copy = k2_strndup(line, n);
    cJSON *root = cJSON_ParseWithLengthOpts(copy, n + 1, NULL, true);
    k2_free(copy);
    uint64_t which;
    k2_code code = K2_OK;
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(root, "reward");
    if (!cJSON_IsObject(root))
        code = k2_error_set(err, K2_BAD_INPUT, "found \"%s\", expected one JSON object a line", begin);
    else if (!read_u64(cJSON_GetObjectItemCaseSensitive(root, "trajectory"), &which))
        code = k2_error_set(err, K2_BAD_INPUT, "found \"%s\", expected \"trajectory\" with a whole number", begin);
    else if (which != trajectory)
        code = k2_error_set(err, K2_BAD_INPUT, "found the trajectory %llu, expected %llu", (unsigned long long)which,
                            (unsigned long long)trajectory);
    else if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        code = k2_error_set(err, K2_BAD_INPUT, "found \"%s\", expected \"reward\" with a finite number", begin);
    else
        *reward = value->valuedouble;
    cJSON_Delete(root);
    return code;
}
