/* A Hugging Face config.json to k2_dims. Whatever could change what the model computes is either understood or refused. */
#include "dims_int.h"
#include "json_int.h"
#include "quant_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *key;
    k2i_need need;
    size_t offset;
} sizes[] = {
#define K2_X(name, need) {#name, need, offsetof(k2_dims, name)},
    K2I_DIMS_SIZES(K2_X)
#undef K2_X
};

static const struct {
    const char *key, *value;
} fixed[] = {
#define K2_X(name, value) {#name, value},
    K2I_DIMS_FIXED(K2_X)
#undef K2_X
};

static const char *const all_keys[] = {
#define K2_X(name, ...) #name,
    K2I_DIMS_SIZES(K2_X) K2I_DIMS_FIXED(K2_X) K2I_DIMS_OTHER(K2_X) K2I_DIMS_IGNORED(K2_X)
#undef K2_X
};

static const char *const rope_keys[] = {"type",
                                        "rope_type",
                                        "rope_theta",
                                        "factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        "attention_factor",
                                        "partial_rotary_factor",
                                        "original_max_position_embeddings"};

typedef struct parser {
    const char *name; /* of the file */
    const cJSON *root;
    k2_dims *dims;
} parser;

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The value of a key for an error line, cut to a readable length. */
static k2_code refuse(const parser *p, k2_code code, const char *where, const cJSON *item, const char *expected, k2_error *err)
{
    if (!item) return k2_error_set(err, K2_BAD_INPUT, "%s: %s: is missing, expected %s", p->name, where, expected);
    char *text = cJSON_PrintUnformatted(item);
    k2_error_set(err, code, "%s: %s: %.60s%s, expected %s", p->name, where, text ? text : "?",
                 text && strlen(text) > 60 ? "..." : "", expected);
    cJSON_free(text);
    return code;
}

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool absent(const cJSON *item)
{
    return !item || cJSON_IsNull(item);
}

static k2_code keys_check(const parser *p, const cJSON *object, const char *prefix, const char *const *keys, size_t count,
                          k2_error *err)
{
    bool *seen = k2_alloc_array(count, sizeof *seen);
    k2_code code = K2_OK;
    for (const cJSON *item = object->child; item && code == K2_OK; item = item->next) {
        size_t i = 0;
        while (i < count && strcmp(item->string, keys[i]) != 0) i++;
        if (i == count) {
            const char *nearest = k2_str_nearest(item->string, keys, count);
            code = k2_error_set(err, K2_BAD_INPUT, "%s: %s%.64s: unknown key%s%s%s", p->name, prefix, item->string,
                                nearest ? ", did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
        } else if (seen[i]) {
            code = k2_error_set(err, K2_BAD_INPUT, "%s: %s%s: is there twice", p->name, prefix, keys[i]);
        } else {
            seen[i] = true;
        }
    }
    k2_free(seen);
    return code;
}

static k2_code real_get(const parser *p, const cJSON *object, const char *prefix, const char *key, double *out, k2_error *err)
{
    const cJSON *item = get(object, key);
    if (cJSON_IsNumber(item) && isfinite(item->valuedouble)) {
        *out = item->valuedouble;
        return K2_OK;
    }
    char *where = k2_asprintf("%s%s", prefix, key);
    k2_code code = refuse(p, K2_BAD_INPUT, where, item, "a number", err);
    k2_free(where);
    return code;
}

static k2_code truth_get(const parser *p, const char *key, bool *out, k2_error *err)
{
    const cJSON *item = get(p->root, key);
    if (!cJSON_IsBool(item)) return refuse(p, K2_BAD_INPUT, key, item, "true or false", err);
    *out = cJSON_IsTrue(item);
    return K2_OK;
}

static bool u32_of(const cJSON *item, uint32_t *out)
{
    uint64_t value = 0;
    if (!k2i_json_whole(item, &value) || value > UINT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

/* ---- groups of keys ---------------------------------------------------------------------------------------------- */

static k2_code sizes_parse(const parser *p, k2_error *err)
{
    for (size_t i = 0; i < K2_COUNT(sizes); i++) {
        uint32_t *place = (uint32_t *)(void *)((char *)p->dims + sizes[i].offset);
        const cJSON *item = get(p->root, sizes[i].key);
        const k2i_need need = sizes[i].need;
        if (u32_of(item, place)) continue;
        if ((need == K2I_NULLABLE || need == K2I_NULL) && cJSON_IsNull(item))
            *place = 0;
        else if (need == K2I_MOE && absent(item) && p->dims->n_routed_experts == 0)
            *place = 0;
        else if (need == K2I_ONE && absent(item))
            *place = 1;
        else
            return refuse(p, K2_BAD_INPUT, sizes[i].key, item, "a whole number from 0 to 2^32-1", err);
    }
    return K2_OK;
}

static k2_code fixed_check(const parser *p, k2_error *err)
{
    for (size_t i = 0; i < K2_COUNT(fixed); i++) {
        const cJSON *item = get(p->root, fixed[i].key);
        if (absent(item)) continue;
        cJSON *want = cJSON_Parse(fixed[i].value);
        const bool same = cJSON_Compare(item, want, 1);
        cJSON_Delete(want);
        if (!same) return refuse(p, K2_UNSUPPORTED, fixed[i].key, item, fixed[i].value, err);
    }
    return K2_OK;
}

/* Keys that repeat what other keys say. */
static k2_code derived_check(const parser *p, k2_error *err)
{
    const k2_dims *d = p->dims;
    const struct {
        const char *key;
        uint64_t value;
        const char *expected;
    } rows[] = {
        {"num_key_value_heads", d->num_attention_heads, "num_attention_heads (latent attention has no groups)"},
        {"head_dim", d->qk_rope_head_dim, "qk_rope_head_dim"},
        {"qk_head_dim", (uint64_t)d->qk_nope_head_dim + d->qk_rope_head_dim, "qk_nope_head_dim + qk_rope_head_dim"},
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        const cJSON *item = get(p->root, rows[i].key);
        uint64_t value = 0;
        if (absent(item)) continue;
        if (!k2i_json_whole(item, &value) || value != rows[i].value)
            return refuse(p, K2_UNSUPPORTED, rows[i].key, item, rows[i].expected, err);
    }
    return K2_OK;
}

static k2_code token_id_parse(const parser *p, const char *key, int32_t *out, k2_error *err)
{
    const cJSON *item = get(p->root, key);
    uint32_t value = 0;
    if (absent(item)) {
        *out = -1;
        return K2_OK;
    }
    if (!u32_of(item, &value) || value > INT32_MAX) return refuse(p, K2_BAD_INPUT, key, item, "a token id or null", err);
    *out = (int32_t)value;
    return K2_OK;
}

static k2_code others_parse(const parser *p, k2_error *err)
{
    static const char *const model_types[] = {"deepseek_v3", "kimi_k2"};
    k2_dims *d = p->dims;
    const cJSON *type = get(p->root, "model_type");
    k2_code code = K2_OK;
    if (!cJSON_IsString(type) ||
        (strcmp(type->valuestring, model_types[0]) != 0 && strcmp(type->valuestring, model_types[1]) != 0))
        return refuse(p, K2_UNSUPPORTED, "model_type", type, "\"deepseek_v3\" or \"kimi_k2\"", err);
    const bool moe = d->n_routed_experts > 0; /* then these two are needed; else they are kept where they are given */
    if (moe || !absent(get(p->root, "routed_scaling_factor")))
        code = real_get(p, p->root, "", "routed_scaling_factor", &d->routed_scaling_factor, err);
    if (code == K2_OK && (moe || !absent(get(p->root, "norm_topk_prob"))))
        code = truth_get(p, "norm_topk_prob", &d->norm_topk_prob, err);
    if (code == K2_OK && !absent(get(p->root, "tie_word_embeddings")))
        code = truth_get(p, "tie_word_embeddings", &d->tie_word_embeddings, err);
    if (code == K2_OK) code = real_get(p, p->root, "", "rms_norm_eps", &d->rms_norm_eps, err);
    d->initializer_range = 0.02;
    if (code == K2_OK && !absent(get(p->root, "initializer_range")))
        code = real_get(p, p->root, "", "initializer_range", &d->initializer_range, err);
    if (code == K2_OK) code = token_id_parse(p, "bos_token_id", &d->bos_token_id, err);
    if (code == K2_OK) code = token_id_parse(p, "eos_token_id", &d->eos_token_id, err);
    return code;
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

static k2_code yarn_parse(const parser *p, const cJSON *rope, const char *prefix, k2_error *err)
{
    k2_yarn *y = &p->dims->yarn;
    const cJSON *original = get(rope, "original_max_position_embeddings");
    k2_code code = real_get(p, rope, prefix, "factor", &y->factor, err);
    if (code == K2_OK) code = real_get(p, rope, prefix, "beta_fast", &y->beta_fast, err);
    if (code == K2_OK) code = real_get(p, rope, prefix, "beta_slow", &y->beta_slow, err);
    if (code == K2_OK) code = real_get(p, rope, prefix, "mscale", &y->mscale, err);
    if (code == K2_OK) code = real_get(p, rope, prefix, "mscale_all_dim", &y->mscale_all_dim, err);
    if (code == K2_OK && !u32_of(original, &y->original_max_position_embeddings)) {
        char *where = k2_asprintf("%soriginal_max_position_embeddings", prefix);
        code = refuse(p, K2_BAD_INPUT, where, original, "a whole number", err);
        k2_free(where);
    }
    return code;
}

/* The object of either key. Its type stands under "type", "rope_type" or both. */
static k2_code rope_object_parse(const parser *p, const cJSON *rope, const char *key, k2_error *err)
{
    char prefix[32];
    const cJSON *older = get(rope, "type"), *newer = get(rope, "rope_type"), *type = newer ? newer : older;
    const cJSON *truncate = get(rope, "truncate"), *attention = get(rope, "attention_factor");
    const cJSON *partial = get(rope, "partial_rotary_factor");
    snprintf(prefix, sizeof prefix, "%s.", key);
    if (!cJSON_IsObject(rope)) return refuse(p, K2_BAD_INPUT, key, rope, "an object or null", err);
    k2_code code = keys_check(p, rope, prefix, rope_keys, K2_COUNT(rope_keys), err);
    if (code != K2_OK) return code;
    if (!cJSON_IsString(type) || (older && newer && !cJSON_Compare(older, newer, 1)))
        return k2_error_set(err, K2_BAD_INPUT, "%s: %s: needs one rope_type, \"default\" or \"yarn\"", p->name, key);
    if (!absent(truncate) && !cJSON_IsTrue(truncate)) return refuse(p, K2_UNSUPPORTED, "rope truncate", truncate, "true", err);
    if (!absent(attention)) return refuse(p, K2_UNSUPPORTED, "rope attention_factor", attention, "null", err);
    if (!absent(partial) && !(cJSON_IsNumber(partial) && partial->valuedouble == 1.0))
        return refuse(p, K2_UNSUPPORTED, "rope partial_rotary_factor", partial, "1", err);
    if (strcmp(type->valuestring, "default") == 0) return K2_OK;
    if (strcmp(type->valuestring, "yarn") != 0)
        return refuse(p, K2_UNSUPPORTED, "rope_type", type, "\"default\" or \"yarn\"", err);
    return yarn_parse(p, rope, prefix, err);
}

static k2_code rope_parse(const parser *p, k2_error *err)
{
    const cJSON *older = get(p->root, "rope_scaling"), *newer = get(p->root, "rope_parameters");
    const cJSON *rope = absent(newer) ? older : newer, *outer = get(p->root, "rope_theta");
    const char *key = absent(newer) ? "rope_scaling" : "rope_parameters";
    if (!absent(newer) && !absent(older) && !cJSON_Compare(older, newer, 1))
        return k2_error_set(err, K2_BAD_INPUT, "%s: rope_scaling and rope_parameters are both there and differ", p->name);
    if (!absent(rope)) {
        k2_code code = rope_object_parse(p, rope, key, err);
        if (code != K2_OK) return code;
    }
    const cJSON *inner = absent(rope) ? NULL : get(rope, "rope_theta");
    if (!absent(inner) && !absent(outer) && !cJSON_Compare(inner, outer, 1))
        return refuse(p, K2_BAD_INPUT, "rope_theta", outer, "the same as in rope_parameters", err);
    return absent(inner) ? real_get(p, p->root, "", "rope_theta", &p->dims->rope_theta, err)
                         : real_get(p, rope, "rope_parameters.", "rope_theta", &p->dims->rope_theta, err);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

k2_code k2_weights_dims_parse(const char *name, const char *text, size_t n, k2_dims *out, k2_error *err)
{
    cJSON *root = NULL;
    k2_dims dims = {0};
    k2_weights_quant quant; /* how the weights lie in their files: nothing to the sizes, but it must be a way that we read */
    if (n > K2_WEIGHTS_CONFIG_BYTES_MAX)
        return k2_error_set(err, K2_LIMIT, "%s: %zu bytes, at most %u are accepted", name, n, K2_WEIGHTS_CONFIG_BYTES_MAX);
    k2_code code = k2i_json_parse(name, text, n, &root, err);
    if (code != K2_OK) return code;
    const parser p = {.name = name, .root = root, .dims = &dims};
    code = keys_check(&p, root, "", all_keys, K2_COUNT(all_keys), err);
    if (code == K2_OK) code = fixed_check(&p, err);
    if (code == K2_OK) code = sizes_parse(&p, err);
    if (code == K2_OK) code = others_parse(&p, err);
    if (code == K2_OK) code = derived_check(&p, err);
    if (code == K2_OK) code = rope_parse(&p, err);
    if (code == K2_OK) code = k2i_quant_parse(name, get(root, "quantization_config"), &quant, err);
    if (code == K2_OK && (code = k2_dims_check(&dims, err)) != K2_OK) k2_error_prefix(err, "%s", name);
    cJSON_Delete(root);
    if (code == K2_OK) *out = dims;
    return code;
}

k2_code k2_weights_dims_load(const char *path, k2_dims *out, k2_error *err)
{
    char *text = NULL;
    size_t n = 0;
    k2_code code = k2_file_read(path, K2_WEIGHTS_CONFIG_BYTES_MAX, &text, &n, err);
    if (code == K2_OK) code = k2_weights_dims_parse(path, text, n, out, err);
    k2_free(text);
    return code;
}
