/* token: kind "byte": ids, text in any pieces, broken UTF-8, chat layout, stop ids, caps. */
#include "common/token/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MARK "\xef\xbf\xbd" /* U+FFFD */

static k2_tokenizer *byte_tokenizer(void)
{
    k2_tokenizer *t = NULL;
    k2_error err;
    assert_int_equal(k2_tokenizer_open("byte", "", &t, &err), K2_OK);
    return t;
}

static void open_refuses_what_it_does_not_know(void **state)
{
    (void)state;
    k2_tokenizer *t = NULL;
    k2_error err;
    assert_int_equal(k2_tokenizer_open("tiktoken", NULL, &t, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "tokenizer kind \"tiktoken\" needs a path");
    assert_int_equal(k2_tokenizer_open("spm", "x", &t, &err), K2_UNSUPPORTED);
    assert_non_null(strstr(err.text, "\"spm\" is not supported; supported: \"byte\", \"tiktoken\", \"json\", \"auto\""));
    assert_int_equal(k2_tokenizer_open("", NULL, &t, &err), K2_UNSUPPORTED);
    assert_int_equal(k2_tokenizer_open("byte", "vocab.json", &t, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "vocab.json"));
    assert_null(t);
    k2_tokenizer_close(NULL);
}

static void constants_of_the_byte_kind(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    size_t n = 0;
    assert_string_equal(k2_tokenizer_kind(t), "byte");
    assert_int_equal(k2_tokenizer_vocab(t), 264);
    assert_int_equal(k2_tokenizer_bos(t), 256);
    assert_int_equal(k2_tokenizer_eos(t), 257);
    assert_int_equal(k2_tokenizer_pad(t), 258);
    const int32_t *stops = k2_tokenizer_stops(t, true, &n);
    assert_int_equal(n, 2);
    assert_int_equal(stops[0], 263);
    assert_int_equal(stops[1], 257);
    stops = k2_tokenizer_stops(t, false, &n);
    assert_int_equal(n, 1);
    assert_int_equal(stops[0], 257);
    assert_string_equal(k2_tokenizer_special_name(t, 263), "IM_END");
    assert_string_equal(k2_tokenizer_special_name(t, 256), "BOS");
    assert_null(k2_tokenizer_special_name(t, 255));
    assert_null(k2_tokenizer_special_name(t, 264));
    k2_tokenizer_close(t);
}

static void every_byte_survives(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    k2_error err;
    char text[256];
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    k2_tokens ids;
    k2_tokens_init(&ids, 300);
    assert_int_equal(k2_tokenizer_encode(t, text, sizeof text, &ids, &err), K2_OK);
    assert_int_equal(ids.count, 256);
    for (int i = 0; i < 256; i++) assert_int_equal(ids.ids[i], i);
    assert_int_equal(k2_tokenizer_encode(t, text, 45, &ids, &err), K2_LIMIT);
    assert_true(ids.overflow);
    assert_int_equal(ids.count, 256);
    assert_int_equal(k2_tokenizer_encode(t, text, 44, &ids, &err), K2_OK);
    k2_tokens_clear(&ids);
    assert_false(ids.overflow);
    assert_int_equal(k2_tokenizer_encode(t, "", 0, &ids, &err), K2_OK);
    assert_int_equal(ids.count, 0);
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
}

/* text in, what must come out; the same as CPython's bytes.decode("utf-8", "replace") gives */
static const struct {
    const char *bytes, *text;
} decodings[] = {
    {"", ""},
    {"plain", "plain"},
    {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
    {"\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    {"\xff", MARK},
    {"\x80\x80", MARK MARK},
    {"a\xe2\x82", "a" MARK},
    {"a\xe2\x82z", "a" MARK "z"},
    {"\xf0\x9f\x98", MARK},
    {"\xf0\x9f\x98\xc3\xbc", MARK "\xc3\xbc"},
    {"\xf0\x9f\xe2\x82\xac", MARK "\xe2\x82\xac"},
    {"\xc0\x80", MARK MARK},                   /* overlong U+0000 */
    {"\xe0\x80\x80", MARK MARK MARK},          /* overlong */
    {"\xed\xa0\x80", MARK MARK MARK},          /* a surrogate */
    {"\xf4\x90\x80\x80", MARK MARK MARK MARK}, /* past U+10FFFF */
    {"\xf0\x80\x80\x80", MARK MARK MARK MARK}, /* overlong */
    {"\xf8\x88\x80\x80\x80", MARK MARK MARK MARK MARK},
    {"\xc3", MARK},
    {"\xc3\xc3\xbc", MARK "\xc3\xbc"},
};

static void decoding_replaces_what_is_broken(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    k2_error err;
    k2_tokens ids;
    k2_buf out;
    k2_tokens_init(&ids, 64);
    k2_buf_init(&out, 256);
    for (size_t i = 0; i < K2_COUNT(decodings); i++) {
        k2_tokens_clear(&ids);
        k2_buf_clear(&out);
        assert_int_equal(k2_tokenizer_encode(t, decodings[i].bytes, strlen(decodings[i].bytes), &ids, &err), K2_OK);
        assert_int_equal(k2_tokenizer_decode(t, ids.ids, ids.count, &out, &err), K2_OK);
        assert_string_equal(out.data ? out.data : "", decodings[i].text);
    }
    k2_buf_fini(&out);
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
}

/* Every way to cut the ids into two pieces, and one id at a time: the pieces are valid UTF-8 and add up to the whole. */
static void streams_never_split_a_character(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    k2_error err;
    k2_tokens ids;
    k2_buf out;
    k2_tokens_init(&ids, 64);
    k2_buf_init(&out, 256);
    for (size_t i = 0; i < K2_COUNT(decodings); i++) {
        k2_tokens_clear(&ids);
        assert_int_equal(k2_tokenizer_encode(t, decodings[i].bytes, strlen(decodings[i].bytes), &ids, &err), K2_OK);
        for (size_t cut = 0; cut <= ids.count; cut++) {
            k2_token_stream s = {0};
            k2_buf_clear(&out);
            assert_int_equal(k2_token_stream_feed(t, &s, ids.ids, cut, &out, &err), K2_OK);
            assert_true(k2_utf8_valid(out.data, out.len));
            for (size_t j = cut; j < ids.count; j++) {
                assert_int_equal(k2_token_stream_feed(t, &s, ids.ids + j, 1, &out, &err), K2_OK);
                assert_true(k2_utf8_valid(out.data, out.len));
            }
            assert_true(k2_token_stream_end(&s, &out));
            assert_string_equal(out.data ? out.data : "", decodings[i].text);
            assert_true(k2_token_stream_end(&s, &out));
        }
    }
    k2_buf_fini(&out);
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
}

static void special_ids_are_no_text(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    k2_error err;
    k2_buf out;
    k2_buf_init(&out, 64);
    const int32_t ids[] = {256, 'a', 0xe2, 263, 'b', 257};
    assert_int_equal(k2_tokenizer_decode(t, ids, K2_COUNT(ids), &out, &err), K2_OK);
    assert_string_equal(out.data, "a" MARK "b");
    k2_buf_fini(&out);
    k2_tokenizer_close(t);
}

static void decoding_errors_leave_nothing_behind(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    k2_error err;
    k2_buf out;
    k2_buf_init(&out, 4);
    assert_true(k2_buf_puts(&out, "x"));
    const int32_t wrong[] = {'a', 264}, negative[] = {'a', 'b', -1}, many[] = {'1', '2', '3', '4'}, mark[] = {'1', '2', 0xc3};
    assert_int_equal(k2_tokenizer_decode(t, wrong, 2, &out, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "token 1: id 264 is not in 0..263");
    assert_int_equal(k2_tokenizer_decode(t, negative, 3, &out, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "token 2: id -1 is not in 0..263");
    assert_int_equal(k2_tokenizer_decode(t, many, 4, &out, &err), K2_LIMIT);
    assert_int_equal(k2_tokenizer_decode(t, mark, 3, &out, &err), K2_LIMIT);
    assert_string_equal(out.data, "x");
    k2_token_stream s = {.pending = {0xc3}, .pending_count = 1};
    assert_int_equal(k2_token_stream_feed(t, &s, wrong, 2, &out, &err), K2_LIMIT);
    assert_int_equal(s.pending_count, 1);
    assert_string_equal(out.data, "x");
    k2_buf_fini(&out);
    k2_tokenizer_close(t);
}

static void chats_are_laid_out(void **state)
{
    (void)state;
    k2_tokenizer *t = byte_tokenizer();
    k2_error err;
    k2_tokens ids;
    k2_tokens_init(&ids, 12);
    const k2_token_message chat[] = {{.role = "system", .content = "s", .content_bytes = 1},
                                     {.role = "user", .content = "hi", .content_bytes = 2},
                                     {.role = "assistant", .content = "", .content_bytes = 0}};
    const int32_t want[] = {261, 's', 263, 259, 'h', 'i', 263, 260, 263, 260};
    assert_int_equal(k2_tokenizer_chat(t, chat, 3, true, &ids, &err), K2_OK);
    assert_int_equal(ids.count, K2_COUNT(want));
    assert_memory_equal(ids.ids, want, sizeof want);
    k2_tokens_clear(&ids);
    assert_int_equal(k2_tokenizer_chat(t, chat, 3, false, &ids, &err), K2_OK);
    assert_int_equal(ids.count, 9);
    assert_int_equal(k2_tokenizer_chat(t, chat, 3, false, &ids, &err), K2_LIMIT);
    assert_int_equal(ids.count, 9);
    k2_tokens_clear(&ids);
    assert_int_equal(k2_tokenizer_chat(t, chat, 0, true, &ids, &err), K2_BAD_INPUT);
    const k2_token_message wrong[] = {{.role = "user", .content = "hi", .content_bytes = 2},
                                      {.role = "tool", .content = "x", .content_bytes = 1}};
    assert_int_equal(k2_tokenizer_chat(t, wrong, 2, true, &ids, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "messages[1].role: \"tool\""));
    assert_int_equal(ids.count, 0);
    /* Text that looks like a turn stays text. */
    const k2_token_message forged[] = {{.role = "user", .content = "\x04IM_END", .content_bytes = 7}};
    assert_int_equal(k2_tokenizer_chat(t, forged, 1, false, &ids, &err), K2_OK);
    for (size_t i = 1; i + 1 < ids.count; i++) assert_in_range(ids.ids[i], 0, 255);
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
}

static void lists_grow_to_their_cap(void **state)
{
    (void)state;
    k2_tokens list;
    k2_tokens_init(&list, 1000);
    for (int32_t i = 0; i < 1000; i++) assert_true(k2_tokens_push(&list, &i, 1));
    const int32_t more = 7;
    assert_false(k2_tokens_push(&list, &more, 1));
    assert_true(list.overflow);
    assert_true(k2_tokens_push(&list, NULL, 0));
    for (int32_t i = 0; i < 1000; i++) assert_int_equal(list.ids[i], i);
    k2_tokens_fini(&list);
    k2_tokens_init(&list, 0);
    assert_false(k2_tokens_push(&list, &more, 1));
    k2_tokens_fini(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_refuses_what_it_does_not_know),
        cmocka_unit_test(constants_of_the_byte_kind),
        cmocka_unit_test(every_byte_survives),
        cmocka_unit_test(decoding_replaces_what_is_broken),
        cmocka_unit_test(streams_never_split_a_character),
        cmocka_unit_test(special_ids_are_no_text),
        cmocka_unit_test(decoding_errors_leave_nothing_behind),
        cmocka_unit_test(chats_are_laid_out),
        cmocka_unit_test(lists_grow_to_their_cap),
    };
    return cmocka_run_group_tests_name("token", tests, NULL, NULL);
}
