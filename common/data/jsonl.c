/* Lines of JSON, strictly. */
#include "jsonl_int.h"

#include <string.h>

#define NESTING_MAX 64u /* of one line: cJSON recurses, and no prompt is deeper */

k2_code k2i_jsonl_next(k2i_jsonl *j, const char **line, size_t *n, k2_error *err)
{
    while (j->at < j->n) {
        const char *begin = j->bytes + j->at, *newline = memchr(begin, '\n', j->n - j->at);
        size_t len = newline ? (size_t)(newline - begin) : j->n - j->at;
        j->at += newline ? len + 1 : len;
        j->line++;
        while (len > 0 && memchr(" \t\r", begin[len - 1], 3)) len--;
        if (len > j->line_bytes_max)
            return k2_error_set(err, K2_LIMIT, "%s:%u: a line of %zu bytes, at most %u are accepted", j->name, j->line, len,
                                j->line_bytes_max);
        if (len == 0) continue;
        *line = begin;
        *n = len;
        return K2_OK;
    }
    return K2_NOT_FOUND;
}

k2_code k2i_jsonl_object(k2i_place at, const char *line, size_t n, cJSON **out, k2_error *err)
{
    const char *fault = k2_json_fault(line, n, NESTING_MAX), *end = NULL;
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "%s:%u: the line %s", at.name, at.line, fault);
    cJSON *object = cJSON_ParseWithLengthOpts(line, n, &end, 0);
    if (!object)
        return k2_error_set(err, K2_BAD_INPUT, "%s:%u: is not JSON: stops making sense at column %zu", at.name, at.line,
                            end ? (size_t)(end - line) + 1 : 1);
    for (; end < line + n; end++)
        if (*end != ' ' && *end != '\t' && *end != '\r') break;
    k2_code code = K2_OK;
    if (end < line + n)
        code = k2_error_set(err, K2_BAD_INPUT, "%s:%u: text behind the JSON value at column %zu", at.name, at.line,
                            (size_t)(end - line) + 1);
    else if (!cJSON_IsObject(object))
        code = k2_error_set(err, K2_BAD_INPUT, "%s:%u: is %s, expected an object", at.name, at.line, k2i_jsonl_type(object));
    if (code != K2_OK) {
        cJSON_Delete(object);
        return code;
    }
    *out = object;
    return K2_OK;
}

k2_code k2i_jsonl_field(k2i_place at, const cJSON *object, const char *key, const cJSON **out, k2_error *err)
{
    const cJSON *found = NULL;
    for (const cJSON *item = object->child; item; item = item->next) {
        if (strcmp(item->string, key) != 0) continue;
        if (found) return k2_error_set(err, K2_BAD_INPUT, "%s:%u: \"%s\" is there twice", at.name, at.line, key);
        found = item;
    }
    *out = found;
    return K2_OK;
}

const char *k2i_jsonl_type(const cJSON *item)
{
    if (cJSON_IsString(item)) return "a string";
    if (cJSON_IsNumber(item)) return "a number";
    if (cJSON_IsBool(item)) return "true or false";
    if (cJSON_IsNull(item)) return "null";
    return cJSON_IsArray(item) ? "a list" : "an object";
}
