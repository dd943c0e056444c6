/* base: known answers of Philox, bounds of buffers and arenas, error lines, files. */
#include "common/base/base.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void philox_known_answers(void **state)
{
    (void)state;
    /* The three vectors published with Random123 for philox4x32-10. */
    static const struct {
        uint32_t ctr[4], key[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < K2_COUNT(kat); i++) {
        uint32_t out[4];
        k2_philox4x32(kat[i].ctr, kat[i].key, out);
        assert_memory_equal(out, kat[i].want, sizeof out);
    }
}

static void draws_are_uniform_and_repeatable(void **state)
{
    (void)state;
    double sum = 0, square = 0;
    unsigned bins[10] = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        double u = k2_rand_unit(7, K2_STREAM_TEST, 3, i);
        assert_true(u >= 0 && u < 1);
        assert_true(k2_rand_unit(7, K2_STREAM_TEST, 3, i) == u);
        bins[k2_rand_below(7, K2_STREAM_TEST, 4, i, 10)]++;
        double n = k2_rand_normal(7, K2_STREAM_TEST, 5, i);
        sum += n;
        square += n * n;
    }
    for (int i = 0; i < 10; i++) assert_in_range(bins[i], 1800, 2200);
    assert_true(sum / 20000 > -0.03 && sum / 20000 < 0.03);
    assert_true(square / 20000 > 0.96 && square / 20000 < 1.04);
    assert_true(k2_rand_u64(7, K2_STREAM_TEST, 0, 0) != k2_rand_u64(7, K2_STREAM_SAMPLE, 0, 0));
    assert_true(k2_rand_u64(7, K2_STREAM_TEST, 0, 1) != k2_rand_u64(7, K2_STREAM_TEST, 1, 0));
}

static void buffers_stop_at_their_cap(void **state)
{
    (void)state;
    k2_buf b;
    k2_buf_init(&b, 8);
    assert_true(k2_buf_puts(&b, "12345678"));
    assert_false(k2_buf_puts(&b, "9"));
    assert_true(b.overflow);
    assert_string_equal(b.data, "12345678");
    k2_buf_consume(&b, 6);
    assert_string_equal(b.data, "78");
    k2_buf_fini(&b);
}

static void json_strings_are_always_valid(void **state)
{
    (void)state;
    k2_buf b;
    k2_buf_init(&b, 1024);
    k2_buf_json_string(&b, "a\"\\\n\xc3\xa9\xff\xed\xa0\x80", 10);
    assert_string_equal(b.data, "\"a\\\"\\\\\\n\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    assert_true(k2_utf8_valid(b.data, b.len));
    assert_false(k2_utf8_valid("\xc0\x80", 2));
    assert_false(k2_utf8_valid("\xe2\x82", 2));
    k2_buf_fini(&b);
}

static void errors_of_paths_are_of_the_input(void **state)
{
    (void)state;
    k2_error e;
    assert_int_equal(k2_error_errno(&e, ENOENT, "a"), K2_NOT_FOUND);
    assert_int_equal(k2_error_errno(&e, ENOTDIR, "a"), K2_NOT_FOUND);
    assert_int_equal(k2_error_errno(&e, ELOOP, "a"), K2_BAD_INPUT);
    assert_int_equal(k2_error_errno(&e, ENAMETOOLONG, "a"), K2_BAD_INPUT);
    assert_int_equal(k2_error_errno(&e, ENOSPC, "a"), K2_NO_SPACE);
    assert_int_equal(k2_error_errno(&e, EIO, "a"), K2_IO);
}

static void errors_are_one_line(void **state)
{
    (void)state;
    k2_error e;
    assert_int_equal(k2_error_set(&e, K2_BAD_INPUT, "a\nb%d", 3), K2_BAD_INPUT);
    assert_string_equal(e.text, "a?b3");
    k2_error_prefix(&e, "x.json");
    assert_string_equal(e.text, "x.json: a?b3");
    assert_int_equal(k2_code_exit(K2_BAD_INPUT), 2);
    assert_int_equal(k2_code_exit(K2_IO), 1);
    assert_int_equal(k2_code_exit(K2_OK), 0);
}

static void arenas_give_everything_back(void **state)
{
    (void)state;
    k2_arena a;
    k2_arena_init(&a, 256);
    size_t mark = k2_arena_mark(&a);
    assert_non_null(k2_arena_try(&a, 100));
    assert_non_null(k2_arena_try(&a, 128));
    assert_null(k2_arena_try(&a, 1));
    assert_null(k2_arena_try(&a, SIZE_MAX));
    k2_arena_reset(&a, mark);
    assert_non_null(k2_arena_try(&a, 256));
    k2_arena_fini(&a);
}

static void files_are_replaced_whole(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2_base_XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a/b", dir);
    k2_error e;
    assert_int_equal(k2_dir_make(path, &e), K2_OK);
    snprintf(path, sizeof path, "%s/a/b/f", dir);
    assert_int_equal(k2_file_write_atomic(path, "one", 3, &e), K2_OK);
    assert_int_equal(k2_file_write_atomic(path, "three", 5, &e), K2_OK);
    char *data;
    size_t len;
    assert_int_equal(k2_file_read(path, 100, &data, &len, &e), K2_OK);
    assert_int_equal(len, 5);
    assert_string_equal(data, "three");
    k2_free(data);
    assert_int_equal(k2_file_read(path, 4, &data, &len, &e), K2_LIMIT);
    assert_int_equal(k2_file_read(dir, 4, &data, &len, &e), K2_BAD_INPUT);
    assert_int_equal(k2_dir_remove(dir, &e), K2_OK);
    assert_int_equal(k2_file_read(path, 4, &data, &len, &e), K2_NOT_FOUND);
}

static void words_and_digests(void **state)
{
    (void)state;
    static const char *const words[] = {"trainer", "rollout", "seed"};
    assert_string_equal(k2_str_nearest("trianer", words, 3), "trainer");
    assert_null(k2_str_nearest("zzz", words, 3));
    char name[K2_SIGNAL_NAME_MAX];
    assert_string_equal(k2_signal_name(11, name), "SIGSEGV");
    assert_string_equal(k2_signal_name(9, name), "SIGKILL");
    assert_string_equal(k2_signal_name(63, name), "signal 63");
    uint64_t v;
    assert_true(k2_str_u64("18446744073709551615", &v));
    assert_false(k2_str_u64("18446744073709551616", &v));
    assert_false(k2_str_u64("", &v));
    assert_false(k2_str_u64("1a", &v));
    k2_digest d = k2_digest_of("abc", 3), e;
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(d, hex);
    assert_true(k2_digest_parse(hex, &e) && k2_digest_equal(d, e));
    k2_digest_stream *s = k2_digest_begin();
    k2_digest_update(s, "a", 1);
    k2_digest_update(s, "bc", 2);
    assert_true(k2_digest_equal(k2_digest_end(s), d));
    assert_false(k2_digest_parse("12", &e));

    unsigned char bytes[3000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 31 >> 3);
    for (size_t cut = 0; cut <= sizeof bytes; cut += 100) {
        k2_hash64_stream *h = k2_hash64_begin();
        k2_hash64_update(h, bytes, cut);
        k2_hash64_update(h, bytes + cut, sizeof bytes - cut);
        assert_true(k2_hash64_end(h) == k2_hash64(bytes, sizeof bytes, 0));
    }
    /* XXH3_64bits of nothing with seed 0, from the reference implementation's own self-test. */
    assert_true(k2_hash64(NULL, 0, 0) == 0x2D06800538D394C2ull);
}

/* Whatever stands behind the last line's end goes, however long it is; whole lines stay. */
static void half_lines_are_cut(void **state)
{
    (void)state;
    static char long_line[10000];
    memset(long_line, 'x', sizeof long_line - 1);
    const struct {
        const char *whole, *half;
    } cases[] = {{"", ""},        {"", "half"}, {"one\n", ""}, {"one\ntwo\n", "th"}, {"one\n", long_line},
                 {"", long_line}, {"\n", "x"}};
    char path[] = "/tmp/k2rl-lines.XXXXXX";
    int made = mkstemp(path), fd;
    k2_error e;
    assert_true(made >= 0);
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        assert_int_equal(ftruncate(made, 0), 0);
        char *before = k2_asprintf("%s%s", cases[i].whole, cases[i].half), *want = k2_asprintf("%slast\n", cases[i].whole),
             *after;
        size_t n;
        assert_true(pwrite(made, before, strlen(before), 0) == (ssize_t)strlen(before));
        assert_int_equal(k2_file_append_lines(path, &fd, &e), K2_OK);
        assert_int_equal(write(fd, "last\n", 5), 5);
        close(fd);
        assert_int_equal(k2_file_read(path, 100000, &after, &n, &e), K2_OK);
        assert_string_equal(after, want);
        k2_free(before);
        k2_free(want);
        k2_free(after);
    }
    close(made);
    unlink(path);
    assert_int_equal(k2_file_append_lines("/tmp/k2rl-not-there/lines", &fd, &e), K2_NOT_FOUND);
    assert_int_equal(k2_file_append_lines("/dev/full", &fd, &e), K2_OK); /* what is no file has no lines to lose */
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),        cmocka_unit_test(draws_are_uniform_and_repeatable),
        cmocka_unit_test(buffers_stop_at_their_cap),   cmocka_unit_test(json_strings_are_always_valid),
        cmocka_unit_test(errors_are_one_line),         cmocka_unit_test(errors_of_paths_are_of_the_input),
        cmocka_unit_test(arenas_give_everything_back), cmocka_unit_test(files_are_replaced_whole),
        cmocka_unit_test(half_lines_are_cut),          cmocka_unit_test(words_and_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
