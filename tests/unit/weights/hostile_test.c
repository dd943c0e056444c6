/* Directories that lie: each row spoils a sound one in one way, and everybody who reads it says what is wrong, and where. */
#include "common/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define INDEX "model.safetensors.index.json"
#define A     "model-00001-of-00002.safetensors"
#define B     "model-00002-of-00002.safetensors"

static char top[32];
static float first[4], second[3];
static const k2_weights_slot slots[] = {{.name = "model.norm.weight", .shape = {.rank = 1, .size = {4}}, .data = first},
                                        {.name = "lm_head.weight", .shape = {.rank = 1, .size = {3}}, .data = second}};

static int setup(void **state)
{
    (void)state;
    strcpy(top, "/tmp/k2_hostile_XXXXXX");
    return mkdtemp(top) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(top, NULL) == K2_OK ? 0 : -1;
}

static char *at(const char *name)
{
    return k2_asprintf("%s/dir/%s", top, name);
}

static void sound_make(void)
{
    const k2_dims dims = {.vocab_size = 3, .hidden_size = 4};
    char *dir = at("");
    assert_int_equal(k2_dir_remove(dir, NULL), K2_OK);
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    assert_int_equal(k2_weights_dir_save(dir, &dims, &(k2_weights_format){K2_DTYPE_F32, 16}, slots, 2, NULL), K2_OK);
    k2_free(dir);
}

/* ---- ways to spoil ----------------------------------------------------------------------------------------------- */

static void put(const char *name, const void *bytes, size_t n)
{
    char *path = at(name);
    assert_int_equal(k2_file_write_atomic(path, bytes, n, NULL), K2_OK);
    k2_free(path);
}

static void text(const char *name, const char *content)
{
    put(name, content, strlen(content));
}

/* The second shard: a header, and so many bytes of data (none of them written). */
static void shard(const char *header, uint64_t data_bytes)
{
    char *path = at(B), *bytes = k2_alloc(8 + strlen(header));
    k2_store_u64le(bytes, strlen(header));
    memcpy(bytes + 8, header, strlen(header));
    put(B, bytes, 8 + strlen(header));
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + data_bytes)), 0);
    k2_free(path);
    k2_free(bytes);
}

static void cut(const char *name, off_t bytes)
{
    char *path = at(name);
    assert_int_equal(truncate(path, bytes), 0);
    k2_free(path);
}

static void gone(const char *name)
{
    char *path = at(name);
    (void)unlink(path);
    k2_free(path);
}

static void linked(const char *name, const char *to)
{
    char *path = at(name);
    gone(name);
    assert_int_equal(symlink(to, path), 0);
    k2_free(path);
}

static void folder(const char *name)
{
    char *path = at(name);
    gone(name);
    assert_int_equal(mkdir(path, 0700), 0);
    k2_free(path);
}

static void pipe_at(const char *name)
{
    char *path = at(name);
    gone(name);
    assert_int_equal(mkfifo(path, 0600), 0);
    k2_free(path);
}

/* The index with another place for lm_head.weight. */
static void place(const char *where)
{
    char *index = k2_asprintf("{\"weight_map\":{\"model.norm.weight\":\"" A "\",\"lm_head.weight\":%s}}", where);
    text(INDEX, index);
    k2_free(index);
}

/* A text of `count` times the middle. */
static void repeated(const char *name, const char *begin, const char *middle, size_t count, const char *end)
{
    const size_t a = strlen(begin), m = strlen(middle), e = strlen(end);
    char *bytes = k2_alloc(a + count * m + e);
    memcpy(bytes, begin, a);
    for (size_t i = 0; i < count; i++) memcpy(bytes + a + i * m, middle, m);
    memcpy(bytes + a + count * m, end, e);
    put(name, bytes, a + count * m + e);
    k2_free(bytes);
}

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

#define HEAD(dtype, shape, begin, end)                                                                                         \
    "{\"lm_head.weight\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}}"

static void nothing(void) {}
static void shard_missing(void)
{
    gone(B);
}
static void shard_empty(void)
{
    cut(B, 0);
}
static void shard_seven_bytes(void)
{
    cut(B, 7);
}
static void shard_header_cut(void)
{
    cut(B, 40);
}
static void shard_data_cut(void)
{
    char *path = at(B);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    k2_free(path);
    cut(B, st.st_size - 1);
}
static void shard_header_largest(void)
{
    put(B, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
}
static void shard_header_sign(void)
{
    put(B, "\0\0\0\0\0\0\0\x80{}", 10);
}
static void shard_is_folder(void)
{
    folder(B);
}
static void shard_is_pipe(void)
{
    pipe_at(B);
}
static void shard_is_endless(void)
{
    linked(B, "/dev/zero");
}
static void shard_is_itself(void)
{
    linked(B, B);
}
static void shard_is_the_other(void)
{
    linked(B, A);
}
static void shard_elsewhere(void)
{
    char *path = at(B), *to = k2_asprintf("%s/blob", top);
    assert_int_equal(rename(path, to), 0);
    linked(B, "../blob");
    k2_free(path);
    k2_free(to);
}
static void shape_overflows(void)
{
    shard(HEAD("F32", "[4294967296,4294967296]", "0", "0"), 0);
}
static void bytes_overflow(void)
{
    shard(HEAD("F32", "[4503599627370496,1024]", "0", "0"), 0);
}
static void shape_negative(void)
{
    shard(HEAD("F32", "[-3]", "0", "12"), 12);
}
static void rank_nine(void)
{
    shard(HEAD("F32", "[3,1,1,1,1,1,1,1,1]", "0", "12"), 12);
}
static void sparse_giant(void)
{
    shard(HEAD("F32", "[274877906944]", "0", "1099511627776"), 1ull << 40);
}
static void giant_without_tensors(void)
{
    shard("{}", 1ull << 40);
}
static void claims_beyond_file(void)
{
    shard(HEAD("F32", "[274877906944]", "0", "1099511627776"), 12);
}
static void offsets_swapped(void)
{
    shard(HEAD("F32", "[3]", "12", "0"), 12);
}
static void integers(void)
{
    shard(HEAD("I32", "[3]", "0", "12"), 12);
}
static void unknown_type(void)
{
    shard(HEAD("F8_E5M2", "[3]", "0", "3"), 3);
}
static void fp8_without_config(void)
{
    shard(HEAD("F8_E4M3", "[3]", "0", "3"), 3);
}
static void overlapping(void)
{
    shard("{\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
          "\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}",
          16);
}
static void named_twice(void)
{
    shard("{\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
          "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]}}",
          24);
}
static void in_both_shards(void)
{
    shard("{\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
          "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[12,28]}}",
          28);
}
static void name_with_line_feed(void)
{
    shard("{\"lm_head.weight\\nERROR\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", 12);
    text(INDEX, "{\"weight_map\":{\"model.norm.weight\":\"" A "\",\"lm_head.weight\\nERROR\":\"" B "\"}}");
}
static void name_with_zero(void)
{
    shard("{\"lm_head.weight\\u0000\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", 12);
}
static void name_not_utf8(void)
{
    shard("{\"lm_head.weight\xff\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", 12);
}
static void name_too_long(void)
{
    char name[601] = {0};
    memset(name, 'n', 600);
    char *header = k2_asprintf("{\"%s\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", name);
    shard(header, 12);
    k2_free(header);
}
static void header_nested(void)
{
    shard("{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[0]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", 0);
}

static void place_above(void)
{
    place("\"../blob\"");
}
static void place_absolute(void)
{
    place("\"/dev/zero\"");
}
static void place_inside_out(void)
{
    place("\"x/../../blob\"");
}
static void place_dot(void)
{
    place("\".\"");
}
static void place_hidden(void)
{
    place("\".hidden.safetensors\"");
}
static void place_empty(void)
{
    place("\"\"");
}
static void place_list(void)
{
    place("[\"" B "\"]");
}
static void place_zero(void)
{
    place("\"" B "\\u0000/x\"");
}
static void place_long(void)
{
    repeated(INDEX, "{\"weight_map\":{\"model.norm.weight\":\"" A "\",\"lm_head.weight\":\"", "x", 300, "\"}}");
}
static void place_config(void)
{
    place("\"config.json\"");
}
static void place_index(void)
{
    place("\"" INDEX "\"");
}
static void index_names_twice(void)
{
    text(INDEX, "{\"weight_map\":{\"model.norm.weight\":\"" A "\",\"lm_head.weight\":\"" B "\",\"lm_head.weight\":\"" A "\"}}");
}
static void index_names_metadata(void)
{
    text(INDEX, "{\"weight_map\":{\"model.norm.weight\":\"" A "\",\"__metadata__\":\"" A "\",\"lm_head.weight\":\"" B "\"}}");
}
static void index_of_lists(void)
{
    repeated(INDEX, "{\"weight_map\":{\"a\":[", "0,", 11u << 20, "0]}}");
}
static void index_nested(void)
{
    repeated(INDEX, "", "{\"weight_map\":", 1u << 20, "0");
}
static void index_huge(void)
{
    cut(INDEX, (off_t)1 << 40);
}
static void index_cut(void)
{
    cut(INDEX, 90);
}
static void index_is_pipe(void)
{
    pipe_at(INDEX);
}
static void config_huge(void)
{
    cut("config.json", (off_t)1 << 40);
}
static void config_block_zero(void)
{
    text("config.json", "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[0,0]}}");
}

static const struct {
    const char *name;
    void (*spoil)(void);
    k2_code code;
    const char *text;
} rows[] = {
#define ROW(spoil, code, text)                                                                                                 \
    {                                                                                                                          \
#spoil, spoil, code, text                                                                                              \
    }
    ROW(nothing, K2_OK, ""),
    ROW(shard_elsewhere, K2_OK, ""), /* a link: the hub's cache is made of them */
    ROW(shard_missing, K2_NOT_FOUND, B ": cannot open"),
    ROW(shard_empty, K2_BAD_INPUT, B ": is empty"),
    ROW(shard_seven_bytes, K2_BAD_INPUT, B ": 7 bytes are no safetensors file"),
    ROW(shard_header_cut, K2_BAD_INPUT, B ": is truncated"),
    ROW(shard_data_cut, K2_BAD_INPUT, B ": tensor lm_head.weight: data_offsets 0 to 12, but the file has 11 bytes of data"),
    ROW(shard_header_largest, K2_LIMIT, B ": a header of 18446744073709551615 bytes"),
    ROW(shard_header_sign, K2_LIMIT, B ": a header of 9223372036854775808 bytes"),
    ROW(shard_is_folder, K2_BAD_INPUT, B ": is not a regular file"),
    ROW(shard_is_pipe, K2_BAD_INPUT, B ": is not a regular file"),
    ROW(shard_is_endless, K2_BAD_INPUT, B ": is not a regular file"),
    ROW(shard_is_itself, K2_BAD_INPUT, B ": cannot open"),
    ROW(shard_is_the_other, K2_BAD_INPUT, B ": tensor lm_head.weight is missing, but " INDEX " promises it"),
    ROW(shape_overflows, K2_BAD_INPUT, "tensor lm_head.weight: 0 bytes of data do not fit its dtype F32 and its shape"),
    ROW(bytes_overflow, K2_BAD_INPUT, "tensor lm_head.weight: 0 bytes of data do not fit its dtype F32 and its shape"),
    ROW(shape_negative, K2_BAD_INPUT, "tensor lm_head.weight: shape[0] is no whole number"),
    ROW(rank_nine, K2_LIMIT, "tensor lm_head.weight: more than 4 dimensions"),
    ROW(sparse_giant, K2_BAD_INPUT, "tensor lm_head.weight has the shape [274877906944], expected [3]"),
    ROW(giant_without_tensors, K2_BAD_INPUT, B ": 1099511627776 bytes of data, but the tensors take 0"),
    ROW(claims_beyond_file, K2_BAD_INPUT, "data_offsets 0 to 1099511627776, but the file has 12 bytes of data"),
    ROW(offsets_swapped, K2_BAD_INPUT, "data_offsets 12 to 0"),
    ROW(integers, K2_UNSUPPORTED, B ": tensor lm_head.weight: dtype I32 cannot be loaded, expected F32, BF16 or F16"),
    ROW(unknown_type, K2_UNSUPPORTED, "dtype \"F8_E5M2\" is not supported"),
    ROW(fp8_without_config, K2_UNSUPPORTED, "dtype F8_E4M3, but config.json has no quantization_config"),
    ROW(overlapping, K2_BAD_INPUT, "tensor x begins at byte 4 of the data, expected 12 (it overlaps)"),
    ROW(named_twice, K2_BAD_INPUT, B ": tensor lm_head.weight is there twice"),
    ROW(in_both_shards, K2_BAD_INPUT, B ": holds 2 tensors, but " INDEX " names 1 of it"),
    ROW(name_with_line_feed, K2_NOT_FOUND, INDEX ": tensor lm_head.weight is missing"),
    ROW(name_with_zero, K2_BAD_INPUT, B ": the JSON holds the character U+0000"),
    ROW(name_not_utf8, K2_BAD_INPUT, B ": the JSON is not UTF-8"),
    ROW(name_too_long, K2_LIMIT, B ": a tensor's name has 600 bytes, at most 512 are accepted"),
    ROW(header_nested, K2_BAD_INPUT, B ": the JSON is nested too deep"),
    ROW(place_above, K2_BAD_INPUT, INDEX ": weight_map of lm_head.weight is not the name of a file in the directory"),
    ROW(place_absolute, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_inside_out, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_dot, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_hidden, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_empty, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_list, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_zero, K2_BAD_INPUT, INDEX ": the JSON holds the character U+0000"),
    ROW(place_long, K2_BAD_INPUT, "is not the name of a file in the directory"),
    ROW(place_config, K2_LIMIT, "config.json: a header of"),
    ROW(place_index, K2_LIMIT, INDEX ": a header of"),
    ROW(index_names_twice, K2_BAD_INPUT, INDEX ": weight_map names lm_head.weight twice"),
    ROW(index_names_metadata, K2_BAD_INPUT, A ": tensor __metadata__ is missing, but " INDEX " promises it"),
    ROW(index_of_lists, K2_LIMIT, INDEX ": more than 10485760 values of JSON"),
    ROW(index_nested, K2_BAD_INPUT, INDEX ": the JSON is nested too deep"),
    ROW(index_huge, K2_LIMIT, INDEX ": 1099511627776 bytes, at most"),
    ROW(index_cut, K2_BAD_INPUT, INDEX ": is not JSON"),
    ROW(index_is_pipe, K2_BAD_INPUT, INDEX ": is not a regular file"),
    ROW(config_huge, K2_LIMIT, "config.json: 1099511627776 bytes, at most"),
    ROW(config_block_zero, K2_UNSUPPORTED, "config.json: quantization_config.weight_block_size: [0,0]"),
#undef ROW
};

static int entries(const char *path)
{
    struct dirent **names = NULL;
    const int n = scandir(path, &names, NULL, NULL); /* below 0: there is no such directory */
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
    return n - 2;
}

/* Loading, checking and verifying agree, and the line has no line feed that an input could forge. Converting asks for no slots,
 * so it may take what is another model; where it does not, nothing is left of it. */
static void every_row(void **state)
{
    (void)state;
    const k2_weights_format bf16 = {.dtype = K2_DTYPE_BF16};
    char *dir = at(""), *to = k2_asprintf("%s/to", top);
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        k2_error err = {0}, same = {0};
        k2_digest digest;
        sound_make();
        rows[i].spoil();
        const k2_code code = k2_weights_dir_load(dir, slots, 2, &err);
        if (code != rows[i].code || !strstr(err.text, rows[i].text) || strchr(err.text, '\n'))
            fail_msg("%s: %s \"%s\"", rows[i].name, k2_code_name(code), err.text);
        assert_int_equal(k2_weights_dir_check(dir, slots, 2, &same), code);
        assert_string_equal(err.text, same.text);
        assert_int_equal(k2_weights_dir_verify(dir, slots, 2, NULL, NULL, &digest, &same), code);
        assert_string_equal(err.text, same.text);
        assert_int_equal(k2_dir_remove(to, NULL), K2_OK);
        const bool giant = rows[i].spoil == sparse_giant; /* there may be room for it */
        const k2_code converted = giant ? K2_NO_SPACE : k2_weights_dir_convert(dir, to, &bf16, NULL, NULL, NULL);
        assert_int_equal(converted == K2_OK, entries(to) > 0);
        assert_int_equal(entries(top), 1 + (entries(to) > 0) + (rows[i].spoil == shard_elsewhere));
        gone("../blob");
    }
    k2_free(dir);
    k2_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(every_row, setup, teardown)};
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
