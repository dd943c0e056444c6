/* Server-Sent Events: every stream is fed whole, cut at every point, and byte by byte; the events must be the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/http/http.h"

typedef struct seen {
    k2_buf text;
    int count, stop_at;
} seen;

static bool on_event(void *arg, const char *type, const char *data, size_t n)
{
    seen *s = arg;
    assert_int_equal(strlen(data), n);
    k2_buf_printf(&s->text, "[%s|%s]", type, data);
    s->count++;
    return s->count != s->stop_at;
}

static void expect(const char *stream, const char *events)
{
    size_t n = strlen(stream);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        seen s = {.stop_at = -1};
        k2_sse sse;
        k2_buf_init(&s.text, 65536);
        k2_sse_init(&sse, 1024);
        if (cut > n) {
            for (size_t i = 0; i < n; i++) assert_int_equal(k2_sse_feed(&sse, stream + i, 1, on_event, &s), K2_OK);
        } else {
            assert_int_equal(k2_sse_feed(&sse, stream, cut, on_event, &s), K2_OK);
            assert_int_equal(k2_sse_feed(&sse, stream + cut, n - cut, on_event, &s), K2_OK);
        }
        assert_string_equal(s.text.data ? s.text.data : "", events);
        k2_buf_fini(&s.text);
        k2_sse_fini(&sse);
    }
}

static void streams(void **state)
{
    (void)state;
    expect("data: hello\n\n", "[message|hello]");
    expect("data:hello\r\n\r\ndata: two\r\rdata: three\n\n", "[message|hello][message|two][message|three]");
    expect("\xef\xbb\xbf"
           "data: bom\n\n",
           "[message|bom]");
    expect(": comment\ndata: a\ndata: b\nevent: tick\nid: 7\nretry: 10\n\n", "[tick|a\nb]");
    expect("event: only\n\ndata: x\n\n", "[message|x]");
    expect("data\n\n", "[message|]");
    expect("data:\ndata:\n\n", "[message|\n]");
    expect("data:  two spaces\n\n", "[message| two spaces]");
    expect("other: x\n\n\n\n", "");
    expect("data: unfinished\n", "");
    expect("data: {\"a\":1}\n\ndata: [DONE]\n\n", "[message|{\"a\":1}][message|[DONE]]");
    expect("event: a_very_long_name_that_is_longer_than_sixty_three_bytes_and_is_therefore_cut\ndata: x\n\n",
           "[a_very_long_name_that_is_longer_than_sixty_three_bytes_and_is_t|x]");
}

static void writer_is_read(void **state)
{
    (void)state;
    k2_buf out;
    k2_buf_init(&out, 4096);
    k2_sse_write(&out, "one", 3);
    k2_sse_write(&out, "two\nlines\n", 10);
    k2_sse_write(&out, "", 0);
    expect(out.data, "[message|one][message|two\nlines\n][message|]");
    k2_buf_fini(&out);
}

static void stops_and_limits(void **state)
{
    (void)state;
    seen s = {.stop_at = 1};
    k2_sse sse;
    k2_buf_init(&s.text, 65536);
    k2_sse_init(&sse, 16);
    assert_int_equal(k2_sse_feed(&sse, "data: a\n\ndata: b\n\n", 18, on_event, &s), K2_CANCELED);
    assert_string_equal(s.text.data, "[message|a]");
    k2_sse_fini(&sse);
    k2_sse_init(&sse, 16);
    assert_int_equal(k2_sse_feed(&sse, "data: 0123456789abcdef", 22, on_event, &s), K2_LIMIT);
    k2_sse_fini(&sse);
    k2_sse_init(&sse, 16);
    assert_int_equal(k2_sse_feed(&sse, "data: 01234567\ndata: 89012345\n", 30, on_event, &s), K2_LIMIT);
    k2_sse_fini(&sse);
    k2_buf_fini(&s.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams), cmocka_unit_test(writer_is_read),
                                       cmocka_unit_test(stops_and_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
