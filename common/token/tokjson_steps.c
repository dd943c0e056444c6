/* The steps of a tokenizer.json before the model: normalizer and pre-tokenizers. */
#include "common/token/tokjson_int.h"

#include <string.h>

#define PATTERN_BYTES_MAX 65536u

k2_code k2i_tokjson_normalizer(k2_tokenizer *t, const cJSON *part, const char *path, k2_error *err)
{
    static const char *const keys[] = {"type", "normalizers"};
    const cJSON *item;
    char inner[64];
    unsigned i = 0;
    if (!part || cJSON_IsNull(part)) return K2_OK;
    k2_code code = k2i_tokjson_known(part, path, keys, K2_COUNT(keys), err);
    if (code != K2_OK) return code;
    if (strcmp(k2i_tokjson_type(part), "NFC") == 0) {
        t->nfc = true;
        return K2_OK;
    }
    if (strcmp(k2i_tokjson_type(part), "Sequence") != 0 || strchr(path, '[')) return k2i_tokjson_unknown(part, path, err);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, "normalizers");
    if (!cJSON_IsArray(list)) return k2_error_set(err, K2_BAD_INPUT, "%s.normalizers: expected an array", path);
    cJSON_ArrayForEach(item, list)
    {
        snprintf(inner, sizeof inner, "%s.normalizers[%u]", path, i++);
        if (code == K2_OK) code = k2i_tokjson_normalizer(t, item, inner, err);
    }
    return code;
}

/* ---- pre-tokenizers --------------------------------------------------------------------------------------------------------
 */

static k2_code add_step(k2_tokenizer *t, const char *pattern, const char *path, k2_error *err)
{
    k2_code code = k2i_split_add(&t->split, pattern, err);
    return code == K2_OK ? K2_OK : k2_error_prefix(err, "%s", path);
}

/* {"Regex": "..."}, or {"String": "..."}, which stands for itself. */
static k2_code take_split(k2_tokenizer *t, const cJSON *part, const char *path, k2_error *err)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert"};
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(part, "pattern"),
                *behavior = cJSON_GetObjectItemCaseSensitive(part, "behavior");
    const cJSON *regex = cJSON_GetObjectItemCaseSensitive(pattern, "Regex"),
                *string = cJSON_GetObjectItemCaseSensitive(pattern, "String");
    k2_code code = k2i_tokjson_known(part, path, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_tokjson_refuse(part, path, "invert", err);
    if (code != K2_OK) return code;
    if (!cJSON_IsString(behavior) || strcmp(behavior->valuestring, "Isolated") != 0)
        return k2_error_set(err, K2_UNSUPPORTED, "%s.behavior: only \"Isolated\" is supported", path);
    if (cJSON_IsString(regex) == cJSON_IsString(string))
        return k2_error_set(err, K2_BAD_INPUT, "%s.pattern: expected {\"Regex\": \"...\"} or {\"String\": \"...\"}", path);
    k2_buf out;
    k2_buf_init(&out, PATTERN_BYTES_MAX);
    if (cJSON_IsString(regex)) {
        code = k2i_pattern_translate(regex->valuestring, &out, err);
        if (code != K2_OK) k2_error_prefix(err, "%s.pattern", path);
    } else {
        for (const char *s = string->valuestring; *s; s++)
            k2_buf_printf(&out, "%s%c",
                          (unsigned char)*s < 0x80 && !strchr("\n\r\t", *s) && strchr("\\^$.[]|()?*+{}#-", *s) ? "\\" : "", *s);
        if (out.overflow) code = k2_error_set(err, K2_LIMIT, "%s.pattern: longer than %u bytes", path, PATTERN_BYTES_MAX);
    }
    if (code == K2_OK) code = add_step(t, out.data ? out.data : "", path, err);
    k2_buf_fini(&out);
    return code;
}

static k2_code take_digits(k2_tokenizer *t, const cJSON *part, const char *path, k2_error *err)
{
    static const char *const keys[] = {"type", "individual_digits"};
    bool each = false;
    k2_code code = k2i_tokjson_known(part, path, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_tokjson_flag(part, path, "individual_digits", &each, err);
    return code == K2_OK ? add_step(t, each ? "\\p{N}" : "\\p{N}+", path, err) : code;
}

static k2_code take_byte_level(k2_tokenizer *t, const cJSON *part, const char *path, k2_error *err)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex"};
    bool prefix = true, regex = true; /* what the library takes where nothing is said */
    k2_code code = k2i_tokjson_known(part, path, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_tokjson_flag(part, path, "add_prefix_space", &prefix, err);
    if (code == K2_OK) code = k2i_tokjson_flag(part, path, "use_regex", &regex, err);
    if (code != K2_OK) return code;
    if (prefix) return k2_error_set(err, K2_UNSUPPORTED, "%s.add_prefix_space: true is not supported", path);
    return regex ? add_step(t, k2i_pattern_named("gpt2"), path, err) : K2_OK;
}

static k2_code take_step(k2_tokenizer *t, const cJSON *part, const char *path, bool *byte_level, k2_error *err)
{
    const char *type = k2i_tokjson_type(part);
    if (*byte_level) return k2_error_set(err, K2_UNSUPPORTED, "%s: behind ByteLevel, which must be the last", path);
    if (strcmp(type, "Split") == 0) return take_split(t, part, path, err);
    if (strcmp(type, "Digits") == 0) return take_digits(t, part, path, err);
    if (strcmp(type, "ByteLevel") != 0) return k2i_tokjson_unknown(part, path, err);
    *byte_level = true;
    return take_byte_level(t, part, path, err);
}

k2_code k2i_tokjson_pre_tokenizer(k2_tokenizer *t, const cJSON *part, k2_error *err)
{
    static const char *const keys[] = {"type", "pretokenizers"};
    const cJSON *item, *list = cJSON_GetObjectItemCaseSensitive(part, "pretokenizers");
    bool byte_level = false;
    unsigned i = 0;
    k2_code code = K2_OK;
    if (strcmp(k2i_tokjson_type(part), "Sequence") != 0) {
        code = take_step(t, part, "pre_tokenizer", &byte_level, err);
    } else {
        code = k2i_tokjson_known(part, "pre_tokenizer", keys, K2_COUNT(keys), err);
        if (code == K2_OK && !cJSON_IsArray(list))
            code = k2_error_set(err, K2_BAD_INPUT, "pre_tokenizer.pretokenizers: expected an array");
        cJSON_ArrayForEach(item, list)
        {
            char path[64];
            snprintf(path, sizeof path, "pre_tokenizer.pretokenizers[%u]", i++);
            if (code == K2_OK) code = take_step(t, item, path, &byte_level, err);
        }
    }
    if (code == K2_OK && !byte_level)
        code = k2_error_set(err, K2_UNSUPPORTED, "pre_tokenizer: has no ByteLevel, only byte-level BPE is supported");
    return code;
}

k2_code k2i_tokjson_outer(const cJSON *part, const char *path, k2_error *err)
{
    static const char *const plain[] = {"ByteLevel", "TemplateProcessing"};
    const char *type = k2i_tokjson_type(part);
    if (!part || cJSON_IsNull(part)) return K2_OK;
    for (size_t i = 0; i < K2_COUNT(plain); i++)
        if (strcmp(type, plain[i]) == 0) return K2_OK;
    if (strcmp(type, "Sequence") != 0 || strchr(path, '[')) return k2i_tokjson_unknown(part, path, err);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, strcmp(path, "decoder") == 0 ? "decoders" : "processors"), *item;
    k2_code code = cJSON_IsArray(list) ? K2_OK : k2_error_set(err, K2_BAD_INPUT, "%s: a Sequence without its list", path);
    unsigned i = 0;
    cJSON_ArrayForEach(item, list)
    {
        char inner[64];
        snprintf(inner, sizeof inner, "%s[%u]", path, i++);
        if (code == K2_OK) code = k2i_tokjson_outer(item, inner, err);
    }
    return code;
}
