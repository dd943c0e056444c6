/* TensorBoard event files against bytes that TensorFlow's protocol fixes. */
#include "common/metrics/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void crc_known_answers(void **state)
{
    (void)state;
    /* RFC 3720, appendix B.4. */
    unsigned char b[32] = {0};
    assert_int_equal(k2_tb_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(k2_tb_crc32c(b, 32), 0x8a9136aau);
    memset(b, 0xff, 32);
    assert_int_equal(k2_tb_crc32c(b, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)i;
    assert_int_equal(k2_tb_crc32c(b, 32), 0x46dd794eu);
}

static size_t hex(const char *text, unsigned char *out)
{
    size_t n = strlen(text) / 2;
    for (size_t i = 0; i < n; i++) {
        char two[3] = {text[2 * i], text[2 * i + 1], 0};
        out[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return n;
}

static void file_bytes(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2tb.XXXXXX";
    assert_non_null(mkdtemp(dir));
    k2_tb *tb = NULL;
    k2_error err = {0};
    assert_int_equal(k2_tb_open(dir, &tb, &err), K2_OK);
    assert_non_null(strstr(k2_tb_path(tb), "/events.out.tfevents."));
    k2_tb_scalar(tb, "reward/mean", 7, 0.25, 1.5);
    assert_int_equal(k2_tb_flush(tb, &err), K2_OK);
    char *path = k2_strdup(k2_tb_path(tb)), *data;
    k2_tb_close(tb);
    size_t len;
    assert_int_equal(k2_file_read(path, 1 << 20, &data, &len, &err), K2_OK);
    /* First the version, at a wall time that we do not know: 9 bytes of time, 15 of text. */
    size_t first = 12 + 9 + 15 + 4;
    assert_int_equal(k2_load_u64le(data), 24);
    assert_memory_equal(data + 12 + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    assert_int_equal(k2_load_u32le(data + 12 + 24), k2_tb_crc32c_masked(data + 12, 24));
    /* Then the scalar, as TensorFlow's own writer makes it. */
    unsigned char want[128];
    size_t n = hex("2100000000000000017becf609000000000000f83f10072a140a120a0b7265776172642f6d65616e150000803e255037ee", want);
    assert_int_equal(len, first + n);
    assert_memory_equal(data + first, want, n);
    k2_free(data);
    k2_free(path);
    k2_dir_remove(dir, NULL);
}

static void many_records(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2tb.XXXXXX";
    assert_non_null(mkdtemp(dir));
    k2_tb *tb = NULL;
    k2_error err = {0};
    assert_int_equal(k2_tb_open(dir, &tb, &err), K2_OK);
    for (int i = 0; i < 5000; i++) k2_tb_scalar(tb, "loss", i, 1.0 / (i + 1), 1e9 + i);
    k2_tb_text(tb, "config", 0, "{}", 1e9);
    char *path = k2_strdup(k2_tb_path(tb)), *data;
    k2_tb_close(tb);
    size_t len, at = 0, records = 0;
    assert_int_equal(k2_file_read(path, 1 << 20, &data, &len, &err), K2_OK);
    while (at < len) {
        uint64_t n = k2_load_u64le(data + at);
        assert_int_equal(k2_load_u32le(data + at + 8), k2_tb_crc32c_masked(data + at, 8));
        assert_int_equal(k2_load_u32le(data + at + 12 + n), k2_tb_crc32c_masked(data + at + 12, n));
        at += 12 + n + 4;
        records++;
    }
    assert_int_equal(at, len);
    assert_int_equal(records, 5002);
    k2_free(data);
    k2_free(path);
    k2_dir_remove(dir, NULL);
}

static void bad_place(void **state)
{
    (void)state;
    k2_tb *tb = NULL;
    k2_error err = {0};
    assert_int_not_equal(k2_tb_open("/proc/none/here", &tb, &err), K2_OK);
    assert_null(tb);
    assert_non_null(strstr(err.text, "/proc/none"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(crc_known_answers), cmocka_unit_test(file_bytes),
                                       cmocka_unit_test(many_records), cmocka_unit_test(bad_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
