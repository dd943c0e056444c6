/* Tokenizer files: ranks, tokenizer.json, tokenizer_config.json, and the patterns inside. What is accepted must encode any text
 * to ids of its vocabulary, never to a control token, and decode them to valid text. */
#include <string.h>

#include "common/token/token_int.h"
#include "tests/fuzz/harness/parser.h"

#define TOKENS_MAX (1u << 20)
#define SOME_TEXT  "It's  a\xcc\x81 1234 \xe4\xbd\xa0\xe5\xa5\xbd\n\n \xff<|im_end|><tool> x"

static void check_text(const k2_tokenizer *t, const void *text, size_t n)
{
    k2_tokens ids;
    k2_buf back;
    k2_tokens_init(&ids, TOKENS_MAX);
    k2_buf_init(&back, 1u << 28);
    const k2_code code = k2_tokenizer_encode(t, text, n, &ids, NULL);
    K2_ASSERT(code == K2_OK || code == K2_LIMIT);
    for (size_t i = 0; i < ids.count; i++) {
        K2_ASSERT(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < k2_tokenizer_vocab(t));
        K2_ASSERT(!k2_tokenizer_special_name(t, ids.ids[i]));
    }
    const k2_code decoded = k2_tokenizer_decode(t, ids.ids, ids.count, &back, NULL);
    K2_ASSERT(decoded == K2_OK && k2_utf8_valid(back.data ? back.data : "", back.len));
    k2_tokens_fini(&ids);
    k2_buf_fini(&back);
}

static void check_chat(const k2_tokenizer *t)
{
    const k2_token_message m = {.role = "user", .content = SOME_TEXT, .content_bytes = sizeof SOME_TEXT - 1};
    k2_tokens ids;
    k2_tokens_init(&ids, TOKENS_MAX);
    const k2_code code = k2_tokenizer_chat(t, &m, 1, true, &ids, NULL);
    K2_ASSERT(code == K2_OK || code == K2_LIMIT || (code == K2_UNSUPPORTED && !k2_tokenizer_chat_layout(t)));
    k2_tokens_fini(&ids);
}

/* The end of every row: whether it was taken, after what must hold of it. */
static bool done(k2_tokenizer *t, k2_code code, const uint8_t *bytes, size_t n)
{
    k2_error err = {0};
    if (code == K2_OK) code = k2i_tokenizer_finish(t, &err);
    if (code == K2_OK) {
        check_text(t, SOME_TEXT, sizeof SOME_TEXT - 1);
        check_text(t, bytes, n);
        check_chat(t);
    }
    k2_tokenizer_close(t);
    return code == K2_OK;
}

static bool ranks(const uint8_t *bytes, size_t n)
{
    k2_error err = {0};
    k2_tokenizer *t = k2i_tokenizer_new("tiktoken");
    k2_code code = k2i_tiktoken_parse(t, (const char *)bytes, n, &err);
    K2_ASSERT(code == K2_OK || err.text[0]);
    if (code == K2_OK) code = k2i_tiktoken_pattern(t, "kimi", &err);
    return done(t, code, bytes, n);
}

static bool json(const uint8_t *bytes, size_t n)
{
    k2_error err = {0};
    k2_tokenizer *t = k2i_tokenizer_new("json");
    const k2_code code = k2i_tokjson_parse(t, (const char *)bytes, n, &err);
    K2_ASSERT(code == K2_OK || err.text[0]);
    return done(t, code, bytes, n);
}

static bool config(const uint8_t *bytes, size_t n)
{
    k2_error err = {0};
    k2_tokenizer *t = k2i_tokenizer_new("tiktoken");
    for (unsigned b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;
        k2i_vocab_put(&t->vocab, b, &byte, 1, true, NULL);
    }
    k2_code code = k2i_config_parse(t, (const char *)bytes, n, &err);
    K2_ASSERT(code == K2_OK || err.text[0]);
    if (code == K2_OK) code = k2i_tiktoken_pattern(t, "kimi", &err);
    return done(t, code, bytes, n);
}

static k2_code add_piece(void *arg, const unsigned char *bytes, size_t n, k2_error *err)
{
    (void)err;
    K2_ASSERT(n > 0);
    k2_buf_append(arg, bytes, n);
    return K2_OK;
}

/* A pattern cuts a text, and loses nothing of it. */
static bool pattern(const uint8_t *bytes, size_t n)
{
    static const char text[] = "It's  a\xcc\x81 1234 \xe4\xbd\xa0\xe5\xa5\xbd\n\n x";
    k2_buf translated, seen;
    k2i_split s = {0};
    k2_error err = {0};
    if (n > 200 || !k2_utf8_valid((const char *)bytes, n)) return false;
    k2_buf_init(&translated, 65536);
    k2_buf_init(&seen, sizeof text);
    k2_code code = k2i_pattern_translate((const char *)bytes, &translated, &err);
    if (code == K2_OK) code = k2i_split_add(&s, translated.data ? translated.data : "", &err);
    K2_ASSERT(code == K2_OK || err.text[0]);
    const bool taken = code == K2_OK;
    if (taken && k2i_split_run(&s, (const unsigned char *)text, sizeof text - 1, add_piece, &seen, &err) == K2_OK)
        K2_ASSERT(seen.len == sizeof text - 1 && memcmp(seen.data, text, seen.len) == 0);
    k2i_split_fini(&s);
    k2_buf_fini(&translated);
    k2_buf_fini(&seen);
    return taken;
}

const k2_parser k2_parsers[] = {
    {.name = "ranks", .take = ranks},
    {.name = "tokenizer.json", .take = json, .prefixes_refused = true},
    {.name = "tokenizer_config.json", .take = config, .prefixes_refused = true},
    {.name = "pattern", .take = pattern, .text = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
