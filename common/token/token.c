/* Tokenizers: lists of ids, the kind "byte", and its chat layout.
 *
 * There is one kind, so there is no ops table yet: the second kind brings it, and callers will not notice.
 */
#include "common/token/token.h"
#include "common/token/utf8_int.h"

#include <string.h>

struct k2_tokenizer {
    const char *kind;
};

static const char *const kinds[] = {"byte"};

static const int32_t chat_stops[] = {K2_TOKEN_BYTE_IM_END, K2_TOKEN_BYTE_EOS};
static const int32_t plain_stops[] = {K2_TOKEN_BYTE_EOS};

static const struct {
    const char *role;
    int32_t id;
} roles[] = {
    {"system", K2_TOKEN_BYTE_IM_SYSTEM},
    {"user", K2_TOKEN_BYTE_IM_USER},
    {"assistant", K2_TOKEN_BYTE_IM_ASSISTANT},
};

k2_code k2_tokenizer_open(const char *kind, const char *path, k2_tokenizer **out, k2_error *err)
{
    if (strcmp(kind, kinds[0]) != 0)
        return k2_error_set(err, K2_UNSUPPORTED, "tokenizer kind \"%.64s\" is not supported; supported: \"%s\"", kind,
                            kinds[0]);
    if (path && *path)
        return k2_error_set(err, K2_BAD_INPUT, "tokenizer kind \"byte\" reads no file, but \"%.200s\" is given", path);
    k2_tokenizer *t = k2_alloc(sizeof *t);
    t->kind = kinds[0];
    *out = t;
    return K2_OK;
}

void k2_tokenizer_close(k2_tokenizer *t)
{
    k2_free(t);
}

const char *k2_tokenizer_kind(const k2_tokenizer *t)
{
    return t->kind;
}

uint32_t k2_tokenizer_vocab(const k2_tokenizer *t)
{
    (void)t;
    return K2_TOKEN_BYTE_VOCAB;
}

int32_t k2_tokenizer_bos(const k2_tokenizer *t)
{
    (void)t;
    return K2_TOKEN_BYTE_BOS;
}

int32_t k2_tokenizer_eos(const k2_tokenizer *t)
{
    (void)t;
    return K2_TOKEN_BYTE_EOS;
}

int32_t k2_tokenizer_pad(const k2_tokenizer *t)
{
    (void)t;
    return K2_TOKEN_BYTE_PAD;
}

const int32_t *k2_tokenizer_stops(const k2_tokenizer *t, bool chat, size_t *count)
{
    (void)t;
    *count = chat ? K2_COUNT(chat_stops) : K2_COUNT(plain_stops);
    return chat ? chat_stops : plain_stops;
}

const char *k2_tokenizer_special_name(const k2_tokenizer *t, int32_t id)
{
    (void)t;
    switch (id) {
#define K2_X(name, value)                                                                                                      \
    case value: return #name;
        K2_TOKEN_BYTE_SPECIALS(K2_X)
#undef K2_X
    default: return NULL;
    }
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

void k2_tokens_init(k2_tokens *list, size_t count_max)
{
    *list = (k2_tokens){.count_max = count_max};
}

void k2_tokens_fini(k2_tokens *list)
{
    k2_free(list->ids);
    *list = (k2_tokens){.count_max = list->count_max};
}

void k2_tokens_clear(k2_tokens *list)
{
    list->count = 0;
    list->overflow = false;
}

/* Room for `count` more ids, or NULL (and `overflow`) past the cap. */
static int32_t *tokens_reserve(k2_tokens *list, size_t count)
{
    if (count > list->count_max || list->count > list->count_max - count) {
        list->overflow = true;
        return NULL;
    }
    size_t need = list->count + count;
    if (need > list->capacity || !list->ids) {
        size_t grown = K2_MAX(need, K2_MIN(K2_MAX(list->capacity * 2, (size_t)64), list->count_max));
        list->ids = k2_realloc_array(list->ids, grown, sizeof *list->ids);
        list->capacity = grown;
    }
    return list->ids + list->count;
}

bool k2_tokens_push(k2_tokens *list, const int32_t *ids, size_t count)
{
    int32_t *room = tokens_reserve(list, count);
    if (!room) return false;
    if (count) memcpy(room, ids, count * sizeof *ids);
    list->count += count;
    return true;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

bool k2_tokenizer_encode(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out)
{
    (void)t;
    int32_t *room = tokens_reserve(out, n);
    if (!room) return false;
    for (size_t i = 0; i < n; i++) room[i] = (unsigned char)text[i];
    out->count += n;
    return true;
}

k2_code k2_token_stream_feed(const k2_tokenizer *t, k2_token_stream *s, const int32_t *ids, size_t count, k2_buf *out,
                             k2_error *err)
{
    const size_t mark = out->len;
    const k2_token_stream before = *s;
    k2_code code = K2_OK;
    for (size_t i = 0; i < count && code == K2_OK; i++) {
        bool fits = true;
        if (ids[i] < 0 || (uint32_t)ids[i] >= k2_tokenizer_vocab(t))
            code = k2_error_set(err, K2_BAD_INPUT, "token %zu: id %d is not in 0..%u", i, ids[i], k2_tokenizer_vocab(t) - 1);
        else if (ids[i] <= 0xff)
            fits = k2i_utf8_byte(s, (unsigned char)ids[i], out);
        else
            fits = k2i_utf8_flush(s, out); /* a special id ends whatever was begun */
        if (!fits) code = k2_error_set(err, K2_LIMIT, "token %zu: the text is longer than %zu bytes", i, out->cap_max);
    }
    if (code != K2_OK) {
        *s = before;
        out->len = mark;
        if (out->data) out->data[mark] = 0;
    }
    return code;
}

bool k2_token_stream_end(k2_token_stream *s, k2_buf *out)
{
    return k2i_utf8_flush(s, out);
}

k2_code k2_tokenizer_decode(const k2_tokenizer *t, const int32_t *ids, size_t count, k2_buf *out, k2_error *err)
{
    const size_t mark = out->len;
    k2_token_stream s = {0};
    k2_code code = k2_token_stream_feed(t, &s, ids, count, out, err);
    if (code != K2_OK) return code;
    if (k2_token_stream_end(&s, out)) return K2_OK;
    out->len = mark;
    if (out->data) out->data[mark] = 0;
    return k2_error_set(err, K2_LIMIT, "the text of %zu tokens is longer than %zu bytes", count, out->cap_max);
}

/* ---- chat -------------------------------------------------------------------------------------------------------- */

static int32_t role_id(const char *role)
{
    for (size_t i = 0; i < K2_COUNT(roles); i++)
        if (strcmp(role, roles[i].role) == 0) return roles[i].id;
    return -1;
}

k2_code k2_tokenizer_chat(const k2_tokenizer *t, const k2_token_message *messages, size_t count, bool generate, k2_tokens *out,
                          k2_error *err)
{
    static const int32_t turn_end = K2_TOKEN_BYTE_IM_END, prompt = K2_TOKEN_BYTE_IM_ASSISTANT;
    const size_t mark = out->count;
    if (count == 0) return k2_error_set(err, K2_BAD_INPUT, "messages: is empty, expected at least one");
    for (size_t i = 0; i < count; i++)
        if (role_id(messages[i].role) < 0)
            return k2_error_set(err, K2_BAD_INPUT,
                                "messages[%zu].role: \"%.64s\" is not known, expected \"system\", \"user\" or \"assistant\"", i,
                                messages[i].role);
    bool fits = true;
    for (size_t i = 0; fits && i < count; i++) {
        const int32_t turn_begin = role_id(messages[i].role);
        fits = k2_tokens_push(out, &turn_begin, 1) &&
               k2_tokenizer_encode(t, messages[i].content, messages[i].content_bytes, out) && k2_tokens_push(out, &turn_end, 1);
    }
    if (fits && generate) fits = k2_tokens_push(out, &prompt, 1);
    if (fits) return K2_OK;
    out->count = mark;
    return k2_error_set(err, K2_LIMIT, "messages: more than %zu tokens", out->count_max);
}
