/* Texts into ids, and ids into text as they are generated.
 *
 * Where the input stands for ids, each byte is one: the values 248 to 255, which no UTF-8 has, are the special ids.
 */
#include <string.h>

#include "common/token/token.h"
#include "tests/fuzz/harness/parser.h"

#define TOKENS_MAX (1u << 20)

static k2_tokenizer *tokenizer(void)
{
    k2_tokenizer *t = NULL;
    const k2_code code = k2_tokenizer_open("byte", NULL, &t, NULL);
    K2_ASSERT(code == K2_OK);
    return t;
}

static void push_all(k2_tokens *ids, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int32_t id = bytes[i] < 248 ? bytes[i] : K2_TOKEN_BYTE_BOS + bytes[i] - 248;
        k2_tokens_push(ids, &id, 1);
    }
}

static bool generated(k2_parser_pieces *in, k2_buf *seen)
{
    k2_tokenizer *t = tokenizer();
    k2_token_stream s = {0};
    const uint8_t *bytes;
    size_t n;
    bool ok = true;
    while (ok && k2_parser_piece(in, &bytes, &n)) {
        k2_tokens ids;
        k2_tokens_init(&ids, TOKENS_MAX);
        push_all(&ids, bytes, n);
        ok = k2_token_stream_feed(t, &s, ids.ids, ids.count, seen, NULL) == K2_OK;
        K2_ASSERT(k2_utf8_valid(seen->data ? seen->data : "", seen->len)); /* no piece ends within a character */
        k2_tokens_fini(&ids);
    }
    k2_token_stream_end(&s, seen);
    k2_tokenizer_close(t);
    return ok;
}

/* A chat with this content says what an encoding of it says, and nothing in it can forge a turn. */
static void check_chat(const k2_tokenizer *t, const k2_tokens *ids, const char *text, size_t n)
{
    const k2_token_message message = {.role = "user", .content = text, .content_bytes = n};
    k2_tokens chat;
    k2_tokens_init(&chat, TOKENS_MAX);
    const k2_code code = k2_tokenizer_chat(t, &message, 1, true, &chat, NULL);
    K2_ASSERT(code == K2_OK && chat.count == ids->count + 3 && chat.ids[0] == K2_TOKEN_BYTE_IM_USER);
    K2_ASSERT(ids->count == 0 || memcmp(chat.ids + 1, ids->ids, ids->count * sizeof *ids->ids) == 0);
    k2_tokens_fini(&chat);
}

static bool text(const uint8_t *bytes, size_t n)
{
    k2_tokenizer *t = tokenizer();
    k2_tokens ids;
    k2_buf back;
    k2_tokens_init(&ids, TOKENS_MAX);
    k2_buf_init(&back, 3 * TOKENS_MAX);
    k2_code code = k2_tokenizer_encode(t, (const char *)bytes, n, &ids, NULL);
    K2_ASSERT(code == K2_OK);
    for (size_t i = 0; i < ids.count; i++) K2_ASSERT(!k2_tokenizer_special_name(t, ids.ids[i]));
    code = k2_tokenizer_decode(t, ids.ids, ids.count, &back, NULL);
    K2_ASSERT(code == K2_OK && k2_utf8_valid(back.data ? back.data : "", back.len));
    const bool is_text = k2_utf8_valid((const char *)bytes, n) && !memchr(bytes, 0, n);
    if (is_text && n) K2_ASSERT(back.len == n && memcmp(back.data, bytes, n) == 0);
    check_chat(t, &ids, (const char *)bytes, n);
    k2_tokens_fini(&ids);
    k2_buf_fini(&back);
    k2_tokenizer_close(t);
    return is_text;
}

const k2_parser k2_parsers[] = {
    {.name = "generated ids", .stream = generated},
    {.name = "text", .take = text},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
