/* tokenizer_config.json: which tokens begin, end and pad a text, and for tiktoken.model the names of the special ones. */
#include "common/token/token_int.h"

#include <cjson/cJSON.h>
#include <string.h>

static const char *const mark_keys[K2I_MARKS] = {"bos_token", "eos_token", "pad_token"};

/* "text", or {"content": "text", ...} */
static k2_code take_mark(k2_tokenizer *t, int mark, const cJSON *value, k2_error *err)
{
    const cJSON *content = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "content") : value;
    if (!value || cJSON_IsNull(value)) return K2_OK;
    if (!cJSON_IsString(content))
        return k2_error_set(err, K2_BAD_INPUT, "%s: expected a string or an object with \"content\"", mark_keys[mark]);
    k2_free(t->mark_names[mark]);
    t->mark_names[mark] = k2_strdup(content->valuestring);
    return K2_OK;
}

static k2_code take_added(k2_tokenizer *t, const cJSON *entry, k2_error *err)
{
    uint64_t id;
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(entry, "content");
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(entry, "special");
    if (!k2_str_u64(entry->string, &id) || id >= K2_TOKEN_VOCAB_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "added_tokens_decoder: \"%.64s\" is not an id below %u", entry->string,
                            K2_TOKEN_VOCAB_MAX);
    if (!cJSON_IsString(content) || !*content->valuestring)
        return k2_error_set(err, K2_BAD_INPUT, "added_tokens_decoder.%u.content: expected a string that is not empty",
                            (unsigned)id);
    if (special && !cJSON_IsBool(special))
        return k2_error_set(err, K2_BAD_INPUT, "added_tokens_decoder.%u.special: expected true or false", (unsigned)id);
    const uint8_t hidden = special && cJSON_IsFalse(special) ? 0 : K2I_ADDED_HIDDEN;
    k2i_added_put(&t->added, (uint32_t)id, content->valuestring, strlen(content->valuestring), K2I_ADDED_CONTROL | hidden);
    return K2_OK;
}

k2_code k2i_config_parse(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err)
{
    const char *fault = k2_json_fault(bytes, n, 64);
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "%s", fault);
    cJSON *root = cJSON_ParseWithLength(bytes, n);
    k2_code code = cJSON_IsObject(root) ? K2_OK : k2_error_set(err, K2_BAD_INPUT, "expected a JSON object");
    for (int i = 0; i < K2I_MARKS && code == K2_OK; i++)
        code = take_mark(t, i, cJSON_GetObjectItemCaseSensitive(root, mark_keys[i]), err);
    /* tokenizer.json lists its added tokens itself. */
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens_decoder"), *entry;
    if (code == K2_OK && strcmp(t->kind, "tiktoken") == 0 && added && !cJSON_IsNull(added)) {
        if (!cJSON_IsObject(added)) code = k2_error_set(err, K2_BAD_INPUT, "added_tokens_decoder: expected an object");
        cJSON_ArrayForEach(entry, added) if (code == K2_OK) code = take_added(t, entry, err);
    }
    cJSON_Delete(root);
    return code;
}
