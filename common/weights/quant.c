/* quantization_config: block-quantised fp8, as DeepSeek-V3 and Kimi-K2 are published. Everything else is refused by name. */
#include "quant_int.h"
#include "json_int.h"

#include <string.h>

#define KEY "quantization_config"

static const char *const keys[] = {"quant_method",           "fmt",      "activation_scheme", "weight_block_size",
                                   "modules_to_not_convert", "scale_fmt"};

static k2_code refuse(const char *name, const char *key, const cJSON *item, const char *expected, k2_error *err)
{
    char *text = item ? cJSON_PrintUnformatted(item) : NULL;
    k2_error_set(err, item ? K2_UNSUPPORTED : K2_BAD_INPUT, "%s: " KEY ".%s: %.60s%s, expected %s", name, key,
                 text ? text : "is missing", text && strlen(text) > 60 ? "..." : "", expected);
    cJSON_free(text);
    return item ? K2_UNSUPPORTED : K2_BAD_INPUT;
}

/* Words that must be these. activation_scheme tells an engine how to quantise its activations; ours stay as they are, which
 * needs no scales from the file. scale_fmt tells how the scales were rounded; they are f32 all the same. modules_to_not_convert
 * is said again by the types of the tensors. */
static k2_code words_check(const char *name, const cJSON *object, k2_error *err)
{
    static const struct {
        const char *key, *value;
        bool needed;
    } rows[] = {{"quant_method", "fp8", true},
                {"fmt", "e4m3", false},
                {"activation_scheme", "dynamic", false},
                {"scale_fmt", "ue8m0", false}};
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, rows[i].key);
        if (!rows[i].needed && (!item || cJSON_IsNull(item))) continue;
        if (!cJSON_IsString(item) || strcmp(item->valuestring, rows[i].value) != 0)
            return refuse(name, rows[i].key, item, rows[i].value, err);
    }
    return K2_OK;
}

static k2_code block_parse(const char *name, const cJSON *object, k2_weights_quant *out, k2_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "weight_block_size");
    uint64_t side[2] = {0};
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL, *second = first ? first->next : NULL;
    if (!second || second->next || !k2i_json_whole(first, &side[0]) || !k2i_json_whole(second, &side[1]) || side[0] < 1 ||
        side[1] < 1 || side[0] > K2_DIM_WIDTH_MAX || side[1] > K2_DIM_WIDTH_MAX)
        return refuse(name, "weight_block_size", item, "two whole numbers from 1 to 1048576", err);
    *out = (k2_weights_quant){.block_rows = (uint32_t)side[0], .block_columns = (uint32_t)side[1]};
    return K2_OK;
}

k2_code k2i_quant_parse(const char *name, const cJSON *item, k2_weights_quant *out, k2_error *err)
{
    if (!item || cJSON_IsNull(item)) {
        *out = (k2_weights_quant){0};
        return K2_OK;
    }
    if (!cJSON_IsObject(item))
        return k2_error_set(err, K2_BAD_INPUT, "%s: " KEY ": is %s, expected an object or null", name, k2i_json_type(item));
    k2_code code = words_check(name, item, err); /* another method is named before its keys are */
    if (code == K2_OK && (code = k2i_json_keys(KEY, item, keys, K2_COUNT(keys), err)) != K2_OK)
        k2_error_prefix(err, "%.200s", name);
    return code == K2_OK ? block_parse(name, item, out, err) : code;
}

k2_code k2_weights_quant_parse(const char *name, const char *text, size_t n, k2_weights_quant *out, k2_error *err)
{
    cJSON *root = NULL;
    if (n > K2_WEIGHTS_CONFIG_BYTES_MAX)
        return k2_error_set(err, K2_LIMIT, "%s: %zu bytes, at most %u are accepted", name, n, K2_WEIGHTS_CONFIG_BYTES_MAX);
    k2_code code = k2i_json_parse(name, text, n, &root, err);
    if (code == K2_OK) code = k2i_quant_parse(name, cJSON_GetObjectItemCaseSensitive(root, KEY), out, err);
    cJSON_Delete(root);
    return code;
}
