/* safetensors: the bytes we write, the values we read, and every way that a header can lie. */
#include "common/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Header (its length put in front) and data bytes as a file in memory of exactly that size. */
static unsigned char *make(const char *header, size_t data_bytes, size_t *n)
{
    const size_t len = strlen(header);
    unsigned char *file = k2_alloc(8 + len + data_bytes);
    k2_store_u64le(file, len);
    memcpy(file + 8, header, len);
    for (size_t i = 0; i < data_bytes; i++) file[8 + len + i] = (unsigned char)i;
    *n = 8 + len + data_bytes;
    return file;
}

static void the_writer_writes_the_format(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2_st_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/x.safetensors", dir), *data = NULL;
    float a[6] = {0, 1, -2, 0.5f, 3e38f, 1e-45f}, b[1] = {7};
    const k2_weights_slot slots[] = {{.name = "b.weight", .shape = {.rank = 2, .size = {2, 3}}, .data = a},
                                     {.name = "a", .shape = {.rank = 0}, .data = b}};
    char header[512], hex[K2_DIGEST_HEX];
    float all[7];
    memcpy(all, a, sizeof a);
    memcpy(all + 6, b, sizeof b);
    k2_digest_hex(k2_digest_of(all, sizeof all), hex);
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"format\":\"pt\",\"k2rl_digest\":\"%s\"},\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],"
             "\"data_offsets\":[0,24]},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}}",
             hex);
    k2_error err;
    size_t n = 0;
    assert_int_equal(k2_weights_file_write(path, slots, 2, &err), K2_OK);
    assert_int_equal(k2_file_read(path, 1u << 20, &data, &n, &err), K2_OK);
    const size_t padded = (strlen(header) + 7) / 8 * 8;
    assert_int_equal(n, 8 + padded + 28);
    assert_int_equal(k2_load_u64le(data), padded);
    assert_memory_equal(data + 8, header, strlen(header));
    for (size_t i = strlen(header); i < padded; i++) assert_int_equal(data[8 + i], ' ');
    assert_memory_equal(data + 8 + padded, a, sizeof a);
    assert_memory_equal(data + 8 + padded + 24, b, sizeof b);
    k2_free(data);

    k2_weights_file *f = NULL;
    float back[6];
    assert_int_equal(k2_weights_file_open(path, &f, &err), K2_OK);
    assert_int_equal(k2_weights_file_count(f), 2);
    assert_string_equal(k2_weights_file_at(f, 0)->name, "b.weight");
    assert_int_equal(k2_weights_tensor_f32(k2_weights_file_at(f, 0), back, &err), K2_OK);
    assert_memory_equal(back, a, sizeof a);
    assert_ptr_equal(k2_weights_file_find(f, "a"), k2_weights_file_at(f, 1));
    assert_int_equal(k2_weights_file_find(f, "a")->shape.rank, 0);
    assert_null(k2_weights_file_find(f, "c"));
    k2_digest recorded;
    assert_true(k2_weights_file_digest(f, &recorded) && k2_digest_equal(recorded, k2_digest_of(all, sizeof all)));
    assert_int_equal(k2_weights_file_verify(f, &err), K2_OK);
    k2_weights_file_close(f);
    k2_weights_file_close(NULL);
    /* One bit of the data. */
    assert_int_equal(k2_file_read(path, 1u << 20, &data, &n, &err), K2_OK);
    data[n - 3] ^= 1;
    assert_int_equal(k2_weights_file_parse("x", data, n, &f, &err), K2_OK);
    assert_int_equal(k2_weights_file_verify(f, &err), K2_CORRUPT);
    k2_weights_file_close(f);
    k2_free(data);
    /* Nothing but the file stays behind, also where writing was impossible. */
    assert_int_equal(k2_weights_file_write("/nonexistent/x", slots, 2, &err), K2_NOT_FOUND);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    k2_free(path);
}

static void every_half_is_right(void **state)
{
    (void)state;
    size_t n = 0;
    unsigned char *file = make("{\"h\":{\"dtype\":\"F16\",\"shape\":[65536],\"data_offsets\":[0,131072]}}", 131072, &n);
    unsigned char *data = file + n - 131072;
    float *values = k2_alloc_array(65536, sizeof *values);
    for (uint32_t i = 0; i < 65536; i++) {
        const bool finite = (i >> 10 & 31) != 31;
        const uint32_t bits = finite ? i : 0;
        data[2 * i] = (unsigned char)bits;
        data[2 * i + 1] = (unsigned char)(bits >> 8);
    }
    k2_weights_file *f = NULL;
    k2_error err;
    assert_int_equal(k2_weights_file_parse("h", file, n, &f, &err), K2_OK);
    assert_int_equal(k2_weights_tensor_f32(k2_weights_file_at(f, 0), values, &err), K2_OK);
    for (uint32_t i = 0; i < 65536; i++) {
        const int exponent = (int)(i >> 10 & 31);
        if (exponent == 31) continue;
        const double fraction = (double)(i & 1023) / 1024;
        const double want = (i >> 15 ? -1 : 1) * (exponent ? ldexp(1 + fraction, exponent - 15) : ldexp(fraction, -14));
        assert_true((double)values[i] == want);
    }
    k2_weights_file_close(f);
    k2_free(values);
    k2_free(file);
}

static void values_of_other_types(void **state)
{
    (void)state;
    static const char header[] = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                                 "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[4,12]},"
                                 "\"n\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
                                 "\"inf\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[20,22]}}";
    size_t n = 0;
    unsigned char *file = make(header, 22, &n);
    static const unsigned char data[22] = {0x80, 0x3f, 0x49, 0xc0, 0,    0, 0, 0,    0,    0,    0,
                                           0,    0,    0,    0x80, 0x3f, 1, 0, 0xc0, 0x7f, 0x80, 0xff};
    memcpy(file + n - 22, data, 22);
    k2_weights_file *f = NULL;
    k2_error err;
    float out[2];
    assert_int_equal(k2_weights_file_parse("x", file, n, &f, &err), K2_OK);
    assert_int_equal(k2_weights_tensor_f32(k2_weights_file_find(f, "b"), out, &err), K2_OK);
    assert_true(out[0] == 1.0f && out[1] == -3.140625f);
    assert_int_equal(k2_weights_tensor_f32(k2_weights_file_find(f, "i"), out, &err), K2_UNSUPPORTED);
    assert_string_equal(err.text, "tensor i: dtype I64 cannot be loaded, expected F32, BF16 or F16");
    assert_int_equal(k2_weights_tensor_f32(k2_weights_file_find(f, "n"), out, &err), K2_NOT_FINITE);
    assert_string_equal(err.text, "tensor n: element 1 is NaN or infinite");
    assert_int_equal(k2_weights_tensor_f32(k2_weights_file_find(f, "inf"), out, &err), K2_NOT_FINITE);
    k2_weights_file_close(f);
    k2_free(file);
}

#define T(name, dtype, shape, begin, end)                                                                                      \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void right_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data, count;
    } cases[] = {
        {"{}", 0, 0},
        {"{}       ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 8, 1},
        {"{" T("a", "F32", "[0]", "0", "0") "}", 0, 1},
        {"{" T("b", "U8", "[3]", "8", "11") "," T("a", "F32", "[2,1]", "0", "8") "}", 11, 2},
        {"{" T("z", "F32", "[4,0]", "8", "8") "," T("a", "F32", "[2]", "0", "8") "," T("b", "BF16", "[1,1,1,1]", "8", "10") "}",
         10, 3},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        size_t n = 0;
        unsigned char *file = make(cases[i].header, cases[i].data, &n);
        k2_weights_file *f = NULL;
        k2_error err = {0};
        if (k2_weights_file_parse("x", file, n, &f, &err) != K2_OK) fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(k2_weights_file_count(f), cases[i].count);
        k2_weights_file_close(f);
        k2_free(file);
    }
}

static void hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        k2_code code;
        const char *text;
    } cases[] = {
        {"", 0, K2_BAD_INPUT, "x: is not JSON"},
        {"[]", 0, K2_BAD_INPUT, "x: is a list, expected an object"},
        {"{", 0, K2_BAD_INPUT, "x: is not JSON"},
        {"{} x", 0, K2_BAD_INPUT, "x: text behind the JSON value at byte 3"},
        {"{}", 1, K2_BAD_INPUT, "x: 1 bytes of data, but the tensors take 0"},
        {"{\"a\":1}", 0, K2_BAD_INPUT, "x: tensor a: is a number, expected an object"},
        {"{\"a\":{}}", 0, K2_BAD_INPUT, "x: tensor a: \"dtype\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, K2_BAD_INPUT, "x: tensor a: \"shape\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, K2_BAD_INPUT, "x: tensor a: \"data_offsets\" is missing"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, K2_BAD_INPUT,
         "\"dtype\" is a number, expected a string"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, K2_BAD_INPUT,
         "\"shape\" is a number, expected a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, K2_BAD_INPUT, "unknown key \"x\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, K2_BAD_INPUT,
         "\"shape\" is there twice"},
        {"{" T("a", "F33", "[1]", "0", "4") "}", 4, K2_UNSUPPORTED, "dtype \"F33\" is not supported"},
        {"{" T("a", "F32", "[-1]", "0", "4") "}", 4, K2_BAD_INPUT, "shape[0] is no whole number"},
        {"{" T("a", "F32", "[1.5]", "0", "4") "}", 4, K2_BAD_INPUT, "shape[0] is no whole number"},
        {"{" T("a", "F32", "[1,\"1\"]", "0", "4") "}", 4, K2_BAD_INPUT, "shape[1] is no whole number"},
        {"{" T("a", "F32", "[1,1,1,1,1]", "0", "4") "}", 4, K2_LIMIT, "more than 4 dimensions"},
        {"{" T("a", "F32", "[2]", "0", "4") "}", 4, K2_BAD_INPUT, "4 bytes of data do not fit its dtype F32 and its shape"},
        {"{" T("a", "F32", "[]", "0", "8") "}", 8, K2_BAD_INPUT, "8 bytes of data do not fit"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, K2_BAD_INPUT, "do not fit"},
        {"{" T("a", "F32", "[4611686018427387904]", "0", "0") "}", 0, K2_BAD_INPUT, "shape[0] is no whole number"},
        {"{" T("a", "F64", "[2305843009213693952]", "0", "0") "}", 0, K2_BAD_INPUT, "a"},
        {"{" T("a", "F32", "[1]", "0", "5") "}", 4, K2_BAD_INPUT, "data_offsets 0 to 5, but the file has 4 bytes of data"},
        {"{" T("a", "F32", "[1]", "4", "0") "}", 4, K2_BAD_INPUT, "data_offsets 4 to 0"},
        {"{" T("a", "F32", "[1]", "0", "4.5") "}", 4, K2_BAD_INPUT, "data_offsets is not a list of two whole numbers"},
        {"{" T("a", "F32", "[1]", "0", "1e99") "}", 4, K2_BAD_INPUT, "data_offsets is not a list of two whole numbers"},
        {"{" T("a", "F32", "[1]", "0", "4,8") "}", 4, K2_BAD_INPUT, "data_offsets is not a list of two whole numbers"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", 8, K2_BAD_INPUT, "begins at byte 4 of the data, expected 0 (a gap)"},
        {"{" T("a", "F32", "[1]", "0", "4") "}", 8, K2_BAD_INPUT, "8 bytes of data, but the tensors take 4"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "0", "4") "}", 4, K2_BAD_INPUT, "(it overlaps)"},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[1]", "4", "8") "}", 8, K2_BAD_INPUT,
         "tensor b begins at byte 4 of the data, expected 8 (it overlaps)"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8, K2_BAD_INPUT,
         "x: tensor a is there twice"},
        {"{\"__metadata__\":[]}", 0, K2_BAD_INPUT, "__metadata__ is a list, expected an object"},
        {"{\"__metadata__\":{\"k2rl_digest\":\"12\"}}", 0, K2_BAD_INPUT, "\"k2rl_digest\" is not 32 hex digits, once"},
        {"{\"__metadata__\":{\"k2rl_digest\":\"0123456789abcdef0123456789abcdef\",\"k2rl_digest\":"
         "\"0123456789abcdef0123456789abcdef\"}}",
         0, K2_BAD_INPUT, "\"k2rl_digest\" is not 32 hex digits, once"},
        {"{\"__metadata__\":{\"format\":1}}", 0, K2_BAD_INPUT, "__metadata__: \"format\" is a number, expected a string"},
        {"{" T("a\\u0000b", "F32", "[1]", "0", "4") "}", 4, K2_BAD_INPUT, "holds the character U+0000"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", 0, K2_BAD_INPUT, "nested too deep"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        size_t n = 0;
        unsigned char *file = make(cases[i].header, cases[i].data, &n);
        k2_weights_file *f = NULL;
        k2_error err = {0};
        k2_code code = k2_weights_file_parse("x", file, n, &f, &err);
        if (code != cases[i].code || !strstr(err.text, cases[i].text))
            fail_msg("case %zu: %s \"%s\"", i, k2_code_name(code), err.text);
        assert_null(f);
        k2_free(file);
    }
}

static void lengths_that_lie(void **state)
{
    (void)state;
    size_t n = 0;
    unsigned char *file = make("{" T("a", "F32", "[2]", "0", "8") "}", 8, &n);
    static const uint64_t lengths[] = {0, 1, 1u << 20, 100000000, 100000001, 1ull << 40, UINT64_MAX};
    k2_weights_file *f = NULL;
    k2_error err;
    for (size_t i = 0; i < K2_COUNT(lengths); i++) {
        k2_store_u64le(file, lengths[i]);
        assert_int_equal(k2_weights_file_parse("x", file, n, &f, &err), lengths[i] > 100000000 ? K2_LIMIT : K2_BAD_INPUT);
    }
    k2_store_u64le(file, n - 8 - 8);
    for (size_t cut = 0; cut < n; cut++) { /* truncated anywhere */
        unsigned char *part = memcpy(k2_alloc(cut), file, cut);
        assert_int_equal(k2_weights_file_parse("x", part, cut, &f, &err), K2_BAD_INPUT);
        k2_free(part);
    }
    assert_int_equal(k2_weights_file_parse("x", file, n, &f, &err), K2_OK);
    k2_weights_file_close(f);
    k2_free(file);
    k2_buf b;
    k2_buf_init(&b, 4096);
    k2_buf_puts(&b, "{\"");
    for (int i = 0; i < 513; i++) k2_buf_puts(&b, "n");
    k2_buf_puts(&b, "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    file = make(b.data, 4, &n);
    f = NULL;
    assert_int_equal(k2_weights_file_parse("x", file, n, &f, &err), K2_LIMIT);
    assert_string_equal(err.text, "x: a tensor's name has 513 bytes, at most 512 are accepted");
    k2_free(file);
    k2_buf_fini(&b);
}

static void files(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2_st_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/x", dir);
    k2_weights_file *f = NULL;
    k2_error err;
    assert_int_equal(k2_weights_file_open(path, &f, &err), K2_NOT_FOUND);
    assert_int_equal(k2_weights_file_open(dir, &f, &err), K2_BAD_INPUT);
    assert_int_equal(k2_file_write_atomic(path, "", 0, &err), K2_OK);
    assert_int_equal(k2_weights_file_open(path, &f, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "is empty"));
    assert_int_equal(k2_file_write_atomic(path, "no safetensors file", 19, &err), K2_OK);
    assert_int_equal(k2_weights_file_open(path, &f, &err), K2_LIMIT);
    assert_null(f);
    k2_free(path);
    assert_int_equal(k2_dir_remove(dir, &err), K2_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_writer_writes_the_format),
        cmocka_unit_test(every_half_is_right),
        cmocka_unit_test(values_of_other_types),
        cmocka_unit_test(right_headers),
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(lengths_that_lie),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
