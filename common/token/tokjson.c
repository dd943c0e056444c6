/* tokenizer.json of Hugging Face: byte-level BPE. Each part is read or refused by its path; nothing is passed over in silence.
 *
 * What does not concern ids of text is looked at only so far that it is of a kind that cannot: the post-processor (which adds a
 * token in front, if asked to) and the decoder, which must be the plain ByteLevel.
 */
#include "common/token/tokjson_int.h"

#include <string.h>

k2_code k2i_tokjson_known(const cJSON *object, const char *path, const char *const *keys, size_t count, k2_error *err)
{
    const cJSON *item;
    if (!cJSON_IsObject(object)) return k2_error_set(err, K2_BAD_INPUT, "%s: expected an object", path);
    cJSON_ArrayForEach(item, object)
    {
        size_t i = 0;
        while (i < count && strcmp(item->string, keys[i]) != 0) i++;
        if (i == count) return k2_error_set(err, K2_UNSUPPORTED, "%s.%.64s: is not supported", path, item->string);
    }
    return K2_OK;
}

k2_code k2i_tokjson_flag(const cJSON *object, const char *path, const char *key, bool *out, k2_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item)) return K2_OK;
    if (!cJSON_IsBool(item)) return k2_error_set(err, K2_BAD_INPUT, "%s.%s: expected true or false", path, key);
    *out = cJSON_IsTrue(item);
    return K2_OK;
}

k2_code k2i_tokjson_refuse(const cJSON *object, const char *path, const char *key, k2_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    const bool off = !item || cJSON_IsNull(item) || cJSON_IsFalse(item) || (cJSON_IsString(item) && !*item->valuestring) ||
                     (cJSON_IsNumber(item) && !(item->valuedouble < 0 || item->valuedouble > 0));
    return off ? K2_OK : k2_error_set(err, K2_UNSUPPORTED, "%s.%s: is set, which is not supported", path, key);
}

const char *k2i_tokjson_type(const cJSON *object)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(object, "type");
    return cJSON_IsString(type) ? type->valuestring : "";
}

k2_code k2i_tokjson_unknown(const cJSON *object, const char *path, k2_error *err)
{
    return k2_error_set(err, K2_UNSUPPORTED, "%s: type \"%.64s\" is not supported", path, k2i_tokjson_type(object));
}

/* ---- the alphabet of byte-level BPE: each byte is written as a character that can be seen
 * ------------------------------------ */

/* Bytes that Latin-1 can show stand for themselves; the others, in order, for U+0100 and on. */
static bool shows(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

typedef struct alphabet {
    int16_t byte_of[324]; /* by code point, -1: of no byte */
} alphabet;

static void alphabet_fill(alphabet *a)
{
    int16_t next = 256;
    memset(a->byte_of, 0xff, sizeof a->byte_of);
    for (unsigned b = 0; b < 256; b++) a->byte_of[shows(b) ? b : (unsigned)next++] = (int16_t)b;
}

/* The bytes of a token as it is written, 0: it has a character that stands for none, or is too long. */
static size_t token_bytes(const alphabet *a, const char *s, unsigned char out[K2I_TOKEN_BYTES_MAX])
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        unsigned c = *p;
        if (c >= 0xc0 && c < 0xe0) c = (c & 0x1f) << 6 | (*++p & 0x3f); /* valid UTF-8, checked for the whole file */
        if (c >= K2_COUNT(a->byte_of) || a->byte_of[c] < 0 || n == K2I_TOKEN_BYTES_MAX) return 0;
        out[n++] = (unsigned char)a->byte_of[c];
    }
    return n;
}

/* ---- model --------------------------------------------------------------------------------------------------------------- */

static k2_code take_vocab(k2_tokenizer *t, const alphabet *a, const cJSON *vocab, k2_error *err)
{
    const cJSON *item;
    if (!cJSON_IsObject(vocab)) return k2_error_set(err, K2_BAD_INPUT, "model.vocab: expected an object");
    cJSON_ArrayForEach(item, vocab)
    {
        unsigned char bytes[K2I_TOKEN_BYTES_MAX];
        const double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(id >= 0 && id < K2_TOKEN_VOCAB_MAX) || (double)(uint32_t)id != id)
            return k2_error_set(err, K2_BAD_INPUT, "model.vocab[\"%.64s\"]: expected an id below %u", item->string,
                                K2_TOKEN_VOCAB_MAX);
        const size_t n = token_bytes(a, item->string, bytes);
        /* What is not in the alphabet of bytes never comes from text: an added token that is listed here, too. */
        k2_code code = n ? k2i_vocab_put(&t->vocab, (uint32_t)id, bytes, n, true, err)
                         : k2i_vocab_put(&t->vocab, (uint32_t)id, item->string, strlen(item->string), false, err);
        if (code != K2_OK) return k2_error_prefix(err, "model.vocab[\"%.64s\"]", item->string);
    }
    return K2_OK;
}

/* "left right", or ["left", "right"] */
static k2_code merge_halves(const cJSON *item, const alphabet *a, unsigned char *bytes, size_t sizes[2])
{
    if (cJSON_IsString(item)) {
        char *space = strchr(item->valuestring, ' ');
        if (!space || strchr(space + 1, ' ')) return K2_BAD_INPUT;
        *space = 0; /* the document is ours, and read once */
        sizes[0] = token_bytes(a, item->valuestring, bytes);
        sizes[1] = token_bytes(a, space + 1, bytes + sizes[0]);
    } else {
        const cJSON *left = cJSON_IsArray(item) ? item->child : NULL, *right = left ? left->next : NULL;
        if (!cJSON_IsString(left) || !cJSON_IsString(right) || right->next) return K2_BAD_INPUT;
        sizes[0] = token_bytes(a, left->valuestring, bytes);
        sizes[1] = token_bytes(a, right->valuestring, bytes + sizes[0]);
    }
    return sizes[0] && sizes[1] ? K2_OK : K2_BAD_INPUT;
}

static k2_code take_merges(k2_tokenizer *t, const alphabet *a, const cJSON *merges, k2_error *err)
{
    const cJSON *item;
    uint32_t rank = 0;
    if (!cJSON_IsArray(merges)) return k2_error_set(err, K2_BAD_INPUT, "model.merges: expected an array");
    cJSON_ArrayForEach(item, merges)
    {
        unsigned char bytes[2 * K2I_TOKEN_BYTES_MAX];
        size_t sizes[2];
        if (merge_halves(item, a, bytes, sizes) != K2_OK)
            return k2_error_set(err, K2_BAD_INPUT, "model.merges[%u]: expected \"left right\" or [\"left\", \"right\"]", rank);
        const uint32_t left = k2i_vocab_find(&t->vocab, bytes, sizes[0]),
                       right = k2i_vocab_find(&t->vocab, bytes + sizes[0], sizes[1]);
        const uint32_t made = k2i_vocab_find(&t->vocab, bytes, sizes[0] + sizes[1]);
        if (left == UINT32_MAX || right == UINT32_MAX || made == UINT32_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "model.merges[%u]: %s is not in model.vocab", rank,
                                left == UINT32_MAX    ? "the left one"
                                : right == UINT32_MAX ? "the right one"
                                                      : "what they make");
        if (!k2i_vocab_merge(&t->vocab, left, right, rank, made))
            return k2_error_set(err, K2_BAD_INPUT, "model.merges[%u]: is there twice", rank);
        rank++;
    }
    return K2_OK;
}

static k2_code take_model(k2_tokenizer *t, const cJSON *model, k2_error *err)
{
    static const char *const keys[] = {
        "type",          "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
        "ignore_merges", "vocab",   "merges"};
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"};
    alphabet a;
    k2_code code = k2i_tokjson_known(model, "model", keys, K2_COUNT(keys), err);
    if (code == K2_OK && strcmp(k2i_tokjson_type(model), "BPE") != 0) code = k2i_tokjson_unknown(model, "model", err);
    for (size_t i = 0; i < K2_COUNT(off) && code == K2_OK; i++) code = k2i_tokjson_refuse(model, "model", off[i], err);
    if (code == K2_OK) code = k2i_tokjson_flag(model, "model", "ignore_merges", &t->vocab.whole, err);
    if (code != K2_OK) return code;
    /* unk_token and fuse_unk say what becomes of text without tokens; all bytes are tokens, else k2i_vocab_finish refuses. */
    alphabet_fill(&a);
    code = take_vocab(t, &a, cJSON_GetObjectItemCaseSensitive(model, "vocab"), err);
    return code == K2_OK ? take_merges(t, &a, cJSON_GetObjectItemCaseSensitive(model, "merges"), err) : code;
}

/* ---- added tokens ----------------------------------------------------------------------------------------------------------
 */

static k2_code take_added(k2_tokenizer *t, const cJSON *item, const char *path, k2_error *err)
{
    static const char *const keys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"};
    bool lstrip = false, rstrip = false, normalized = true, special = false;
    k2_code code = k2i_tokjson_known(item, path, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_tokjson_refuse(item, path, "single_word", err);
    if (code == K2_OK) code = k2i_tokjson_flag(item, path, "lstrip", &lstrip, err);
    if (code == K2_OK) code = k2i_tokjson_flag(item, path, "rstrip", &rstrip, err);
    if (code == K2_OK) code = k2i_tokjson_flag(item, path, "normalized", &normalized, err);
    if (code == K2_OK) code = k2i_tokjson_flag(item, path, "special", &special, err);
    if (code != K2_OK) return code;
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(item, "id"),
                *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    const double number = cJSON_IsNumber(id) ? id->valuedouble : -1;
    if (!(number >= 0 && number < K2_TOKEN_VOCAB_MAX) || (double)(uint32_t)number != number)
        return k2_error_set(err, K2_BAD_INPUT, "%s.id: expected an id below %u", path, K2_TOKEN_VOCAB_MAX);
    if (!cJSON_IsString(content) || !*content->valuestring)
        return k2_error_set(err, K2_BAD_INPUT, "%s.content: expected a string that is not empty", path);
    const unsigned flags = (special ? K2I_ADDED_CONTROL | K2I_ADDED_HIDDEN : 0) | (normalized ? K2I_ADDED_NORMALIZED : 0) |
                           (lstrip ? K2I_ADDED_LSTRIP : 0) | (rstrip ? K2I_ADDED_RSTRIP : 0);
    k2i_added_put(&t->added, (uint32_t)number, content->valuestring, strlen(content->valuestring), (uint8_t)flags);
    return K2_OK;
}

static k2_code take_all_added(k2_tokenizer *t, const cJSON *list, k2_error *err)
{
    const cJSON *item;
    unsigned i = 0;
    k2_code code = K2_OK;
    if (!list || cJSON_IsNull(list)) return K2_OK;
    if (!cJSON_IsArray(list)) return k2_error_set(err, K2_BAD_INPUT, "added_tokens: expected an array");
    cJSON_ArrayForEach(item, list)
    {
        char path[64];
        snprintf(path, sizeof path, "added_tokens[%u]", i++);
        if (code == K2_OK) code = take_added(t, item, path, err);
    }
    return code;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------------
 */

static k2_code take_root(k2_tokenizer *t, const cJSON *root, k2_error *err)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model"};
    k2_code code = k2i_tokjson_known(root, "tokenizer", keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_tokjson_refuse(root, "tokenizer", "truncation", err);
    if (code == K2_OK) code = k2i_tokjson_refuse(root, "tokenizer", "padding", err);
    if (code == K2_OK)
        code = k2i_tokjson_normalizer(t, cJSON_GetObjectItemCaseSensitive(root, "normalizer"), "normalizer", err);
    if (code == K2_OK) code = k2i_tokjson_pre_tokenizer(t, cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer"), err);
    if (code == K2_OK)
        code = k2i_tokjson_outer(cJSON_GetObjectItemCaseSensitive(root, "post_processor"), "post_processor", err);
    if (code == K2_OK) code = k2i_tokjson_outer(cJSON_GetObjectItemCaseSensitive(root, "decoder"), "decoder", err);
    if (code == K2_OK) code = take_all_added(t, cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), err);
    return code == K2_OK ? take_model(t, cJSON_GetObjectItemCaseSensitive(root, "model"), err) : code;
}

k2_code k2i_tokjson_parse(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err)
{
    const char *fault = k2_json_fault(bytes, n, 64);
    if (fault) return k2_error_set(err, K2_BAD_INPUT, "%s", fault);
    cJSON *root = cJSON_ParseWithLength(bytes, n);
    k2_code code = root ? take_root(t, root, err) : k2_error_set(err, K2_BAD_INPUT, "is not JSON");
    cJSON_Delete(root);
    return code;
}
