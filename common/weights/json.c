/* Strict access to parsed JSON. */
#include "json_int.h"
#include "common/weights/weights.h"

#include <string.h>

#define NESTING_MAX 32u         /* of any file that this folder reads: a config of others may nest a little */
#define VALUES_MAX  (10u << 20) /* in one file: K2_WEIGHTS_TENSORS_MAX tensors of a header, 8 each with their lists */
_Static_assert(VALUES_MAX >= 8 * K2_WEIGHTS_TENSORS_MAX, "the largest header must be readable");

/* Each value takes the parser some hundred bytes, and a short one one byte of text: what a file may cost is found out before
 * it is parsed. Commas and brackets inside strings count, too: no file of use comes near. */
static bool too_many_values(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return count > VALUES_MAX;
}

k2_code k2i_json_parse(const char *name, const char *text, size_t n, cJSON **out, k2_error *err)
{
    const char *fault = k2_json_fault(text, n, NESTING_MAX), *end = NULL;
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "%s: the JSON %s", name, fault);
    if (too_many_values(text, n)) return k2_error_set(err, K2_LIMIT, "%s: more than %u values of JSON", name, VALUES_MAX);
    cJSON *object = n ? cJSON_ParseWithLengthOpts(text, n, &end, 0) : NULL;
    if (!object)
        return k2_error_set(err, K2_BAD_INPUT, "%s: is not JSON: stops making sense at byte %zu", name,
                            end ? (size_t)(end - text) : 0);
    k2_code code = K2_OK;
    while (end < text + n && memchr(" \t\r\n", *end, 4)) end++;
    if (end < text + n)
        code = k2_error_set(err, K2_BAD_INPUT, "%s: text behind the JSON value at byte %zu", name, (size_t)(end - text));
    else if (!cJSON_IsObject(object))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: is %s, expected an object", name, k2i_json_type(object));
    if (code != K2_OK) {
        cJSON_Delete(object);
        return code;
    }
    *out = object;
    return K2_OK;
}

const char *k2i_json_type(const cJSON *item)
{
    if (cJSON_IsString(item)) return "a string";
    if (cJSON_IsNumber(item)) return "a number";
    if (cJSON_IsBool(item)) return "true or false";
    if (cJSON_IsNull(item)) return "null";
    return cJSON_IsArray(item) ? "a list" : "an object";
}

k2_code k2i_json_keys(const char *name, const cJSON *object, const char *const *known, size_t count, k2_error *err)
{
    uint64_t seen = 0;
    K2_ASSERT(count <= 64);
    for (const cJSON *item = object->child; item; item = item->next) {
        size_t i = 0;
        while (i < count && strcmp(item->string, known[i]) != 0) i++;
        if (i == count) return k2_error_set(err, K2_BAD_INPUT, "%s: unknown key \"%.64s\"", name, item->string);
        if (seen >> i & 1) return k2_error_set(err, K2_BAD_INPUT, "%s: \"%s\" is there twice", name, known[i]);
        seen |= 1ull << i;
    }
    return K2_OK;
}

static k2_code wrong(const char *name, const char *key, const cJSON *item, const char *expected, k2_error *err)
{
    if (!item) return k2_error_set(err, K2_BAD_INPUT, "%s: \"%s\" is missing", name, key);
    return k2_error_set(err, K2_BAD_INPUT, "%s: \"%s\" is %s, expected %s", name, key, k2i_json_type(item), expected);
}

k2_code k2i_json_string(const char *name, const cJSON *object, const char *key, const char **out, k2_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsString(item)) return wrong(name, key, item, "a string", err);
    *out = item->valuestring;
    return K2_OK;
}

k2_code k2i_json_list(const char *name, const cJSON *object, const char *key, const cJSON **out, k2_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsArray(item)) return wrong(name, key, item, "a list", err);
    *out = item;
    return K2_OK;
}

bool k2i_json_whole(const cJSON *item, uint64_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= (double)K2I_JSON_EXACT_MAX)) return false;
    const uint64_t value = (uint64_t)item->valuedouble;
    if ((double)value != item->valuedouble) return false;
    *out = value;
    return true;
}

k2_code k2i_json_u64(const char *name, const cJSON *object, const char *key, uint64_t max, uint64_t *out, k2_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    uint64_t value = 0;
    if (!cJSON_IsNumber(item)) return wrong(name, key, item, "a number", err);
    if (!k2i_json_whole(item, &value) || value > max)
        return k2_error_set(err, K2_BAD_INPUT, "%s: \"%s\" is %.17g, expected a whole number from 0 to %llu", name, key,
                            item->valuedouble, (unsigned long long)max);
    *out = value;
    return K2_OK;
}
