/* Kimi's cuts: a text's ids are those of its pieces, one behind the other, and in a chat they are counted over all of it. */
#include "common/token/token_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define KIMI K2_SOURCE_DIR "/tests/unit/token/vectors/kimi"

static void repeat(k2_buf *out, const char *what, size_t times)
{
    while (times-- > 0) k2_buf_puts(out, what);
}

/* Where the text is cut, by its own rule, one character at a time. */
static void places(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        size_t a_times, b_times, cuts[4]; /* in characters */
    } cases[] = {
        {"a", " ", 25000, 1, {0}},
        {"a", "b", 25000, 1, {25000}},
        {" ", "a", 25001, 25000, {25000}},
        {" ", "\x1c", 25000, 2, {25000}},
        {"a", "\xe1\xa0\x8e", 24999, 2, {25000}}, /* U+180E is a space no more */
        {"\xe3\x80\x80", "\xc2\x85", 50000, 1, {25000, 50000}},
        {"\xe6\xbc\xa2", "\xf0\x9f\x91\x8d", 75000, 1, {25000, 50000, 75000}},
        {"a ", "b", 200000, 1, {400000}},
        {"a ", "b", 199990, 50, {400000}},
        {"a ",
         "b",
         190000,
         50001,
         {400000, 425000}}, /* 20,000 of them before the cut at a fixed distance, which begins a new run */
    };
    k2_buf text;
    k2_buf_init(&text, 1u << 22);
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2_buf_clear(&text);
        repeat(&text, cases[i].a, cases[i].a_times);
        repeat(&text, cases[i].b, cases[i].b_times);
        k2i_cuts whole = {0};
        size_t at = 0, chars = 0, cut = 0;
        while (at < text.len) {
            const size_t len = k2i_cuts_next(&whole, (unsigned char *)text.data + at, text.len - at);
            for (size_t k = at; k < at + len; k++) chars += ((unsigned char)text.data[k] & 0xc0) != 0x80;
            at += len;
            if (at < text.len) assert_int_equal(chars, cases[i].cuts[cut++]);
        }
        assert_int_equal(cases[i].cuts[cut], 0);
    }
    k2_buf_fini(&text);
}

static void encode(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out)
{
    assert_int_equal(k2_tokenizer_encode(t, text, n, out, NULL), K2_OK);
}

static void ids_are_those_of_the_pieces(void **state)
{
    (void)state;
    k2_tokenizer *t;
    k2_tokens got, want;
    k2_buf text;
    k2_tokens_init(&got, 1u << 20);
    k2_tokens_init(&want, 1u << 20);
    k2_buf_init(&text, 1u << 20);
    assert_int_equal(k2_tokenizer_open("auto", KIMI, &t, NULL), K2_OK);
    k2_buf_puts(&text, "the ");
    repeat(&text, "he", 25001);
    encode(t, text.data, text.len, &got);
    encode(t, text.data, 4 + 25000, &want);
    encode(t, text.data + 4 + 25000, 25000, &want);
    encode(t, text.data + 4 + 50000, 2, &want);
    assert_int_equal(got.count, want.count);
    assert_memory_equal(got.ids, want.ids, got.count * sizeof *got.ids);
    /* In a chat what stands before counts as well: the names between the space and the text are no space. */
    k2_tokens_clear(&got);
    k2_tokens_clear(&want);
    const k2_token_message m[] = {{.role = "system", .content = "x ", .content_bytes = 2},
                                  {.role = "user", .content = text.data + 4, .content_bytes = 25000}};
    assert_int_equal(k2_tokenizer_chat(t, m, 2, false, &got, NULL), K2_OK);
    const size_t before = strlen("<|im_end|><|im_user|>user<|im_middle|>");
    assert_int_equal(k2_tokenizer_encode_trusted(t, "<|im_system|>system<|im_middle|>x <|im_end|><|im_user|>user<|im_middle|>",
                                                 72, &want, NULL),
                     K2_OK);
    encode(t, text.data + 4, 25000 - before, &want);
    encode(t, text.data + 4 + 25000 - before, before, &want);
    k2_tokens_push(&want, &(int32_t){k2_tokenizer_special_id(t, "<|im_end|>")}, 1);
    assert_int_equal(got.count, want.count);
    assert_memory_equal(got.ids, want.ids, got.count * sizeof *got.ids);
    k2_tokenizer_close(t);
    k2_tokens_fini(&got);
    k2_tokens_fini(&want);
    k2_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(places), cmocka_unit_test(ids_are_those_of_the_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
