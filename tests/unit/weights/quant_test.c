/* Block-quantised fp8: values to the bit on ragged blocks, scales that are wrong, quantization_config, and memory. */
#include "common/weights/number_int.h"
#include "common/weights/weights.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/weights/scratch.h"

static int setup(void **state)
{
    (void)state;
    return scratch_begin();
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    char *path = at(name);
    assert_int_equal(k2_file_write_atomic(path, bytes, n, NULL), K2_OK);
    k2_free(path);
}

/* A safetensors file from its header and its data. */
static void write_file(const char *name, const char *header, const void *data, size_t data_bytes)
{
    const size_t n = strlen(header);
    unsigned char *bytes = k2_alloc(8 + n + data_bytes);
    k2_store_u64le(bytes, n);
    memcpy(bytes + 8, header, n);
    memcpy(bytes + 8 + n, data, data_bytes);
    write_bytes(name, bytes, 8 + n + data_bytes);
    k2_free(bytes);
}

#define CONFIG(block)                                                                                                          \
    "{\"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", \"quant_method\": \"fp8\", "            \
    "\"weight_block_size\": " block "}}"

static void write_config(const char *text)
{
    write_bytes("config.json", text, strlen(text));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

enum { ROWS = 7, COLUMNS = 11, BLOCK_ROWS = 3, BLOCK_COLUMNS = 4, DOWN = 3, ACROSS = 3 };

static unsigned char codes[ROWS * COLUMNS];
static float scales[DOWN * ACROSS];

static void content_make(void)
{
    for (unsigned i = 0; i < sizeof codes; i++) {
        codes[i] = (unsigned char)(i * 37 + 5);
        if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0;
    }
    for (unsigned i = 0; i < K2_COUNT(scales); i++) scales[i] = 0.0037f * (float)(i + 1) - 0.01f;
}

static void assert_values(const float *found)
{
    for (unsigned r = 0; r < ROWS; r++)
        for (unsigned c = 0; c < COLUMNS; c++) {
            const float scale = scales[r / BLOCK_ROWS * ACROSS + c / BLOCK_COLUMNS];
            const float want = k2i_f32_of_e4m3(codes[r * COLUMNS + c]) * scale;
            assert_memory_equal(&found[r * COLUMNS + c], &want, sizeof want);
        }
}

#define WEIGHT         "\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[7,11],\"data_offsets\":[0,77]}"
#define SCALE(offsets) "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[3,3],\"data_offsets\":" offsets "}"

static void ragged_blocks(void **state)
{
    (void)state;
    unsigned char data[sizeof codes + sizeof scales];
    float out[ROWS * COLUMNS];
    const k2_weights_slot slot = {.name = "w", .shape = {.rank = 2, .size = {ROWS, COLUMNS}}, .data = out};
    k2_error err;
    content_make();
    memcpy(data, codes, sizeof codes);
    memcpy(data + sizeof codes, scales, sizeof scales);
    write_config(CONFIG("[3, 4]"));
    write_file("model.safetensors", "{" WEIGHT "," SCALE("[77,113]") "}", data, sizeof data);
    if (k2_weights_dir_load(dir, &slot, 1, &err) != K2_OK) fail_msg("%s", err.text);
    assert_values(out);
    /* Any part is the same part of the whole. */
    k2_weights_dir *d = NULL;
    assert_int_equal(k2_weights_dir_open(dir, &d, &err), K2_OK);
    const k2_weights_item *item = k2_weights_dir_find(d, "w");
    assert_string_equal(item->scale->name, "w_scale_inv");
    assert_true(k2_weights_dir_find(d, "w_scale_inv")->is_scale);
    for (uint64_t first = 0; first < K2_COUNT(out); first++)
        for (uint64_t n = 0; n <= K2_COUNT(out) - first; n += 5) {
            float part[ROWS * COLUMNS];
            assert_int_equal(k2_weights_item_f32(d, item, first, n, part, &err), K2_OK);
            assert_memory_equal(part, out + first, n * sizeof *part);
        }
    k2_weights_dir_close(d);
}

static void scales_in_another_shard(void **state)
{
    (void)state;
    float out[ROWS * COLUMNS] = {0};
    const k2_weights_slot slot = {.name = "w", .shape = {.rank = 2, .size = {ROWS, COLUMNS}}, .data = out};
    k2_error err;
    content_make();
    write_config(CONFIG("[3, 4]"));
    write_file("a.safetensors", "{" SCALE("[0,36]") "}", scales, sizeof scales);
    write_file("b.safetensors", "{" WEIGHT "}", codes, sizeof codes);
    static const char index[] = "{\"weight_map\":{\"w\":\"b.safetensors\",\"w_scale_inv\":\"a.safetensors\"}}";
    write_bytes("model.safetensors.index.json", index, strlen(index));
    assert_int_equal(k2_weights_dir_check(dir, &slot, 1, &err), K2_OK);
    if (k2_weights_dir_load(dir, &slot, 1, &err) != K2_OK) fail_msg("%s", err.text);
    assert_values(out);
}

/* Every code alone, with the scale of Kimi-K2's kind: the two NaN are refused by element, all others are read. */
static void all_codes(void **state)
{
    (void)state;
    unsigned char data[260];
    float out[256];
    const float scale = 0.00012345678f;
    const k2_weights_slot slot = {.name = "w", .shape = {.rank = 2, .size = {2, 128}}, .data = out};
    static const char header[] = "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,128],\"data_offsets\":[0,256]},"
                                 "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[256,260]}}";
    k2_error err;
    write_config(CONFIG("[128, 128]"));
    for (unsigned i = 0; i < 256; i++) data[i] = (unsigned char)((i & 0x7f) == 0x7f ? 0 : i);
    memcpy(data + 256, &scale, sizeof scale);
    write_file("model.safetensors", header, data, sizeof data);
    if (k2_weights_dir_load(dir, &slot, 1, &err) != K2_OK) fail_msg("%s", err.text);
    for (unsigned i = 0; i < 256; i++) assert_true(out[i] == k2i_f32_of_e4m3(data[i]) * scale);
    for (unsigned nan = 0x7f; nan < 256; nan += 0x80) {
        data[nan] = (unsigned char)nan;
        write_file("model.safetensors", header, data, sizeof data);
        assert_int_equal(k2_weights_dir_load(dir, &slot, 1, &err), K2_NOT_FINITE);
        char *want = k2_asprintf("model.safetensors: tensor w: element %u is NaN or infinite", nan);
        assert_non_null(strstr(err.text, want));
        k2_free(want);
        data[nan] = 0;
    }
    static const float bad[] = {NAN, INFINITY, 3e38f};
    for (size_t i = 0; i < K2_COUNT(bad); i++) {
        memcpy(data + 256, &bad[i], sizeof bad[i]);
        write_file("model.safetensors", header, data, sizeof data);
        assert_int_equal(k2_weights_dir_load(dir, &slot, 1, &err), K2_NOT_FINITE);
    }
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void wrong_scales(void **state)
{
    (void)state;
#define FP8(shape, end) "\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":" shape ",\"data_offsets\":[0," end "]}"
#define WITH(name, dtype, shape, offsets)                                                                                      \
    ",\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *config, *header;
        size_t data;
        k2_code code;
        const char *text;
    } rows[] = {
        {CONFIG("[2, 2]"), FP8("[2,2]", "4") WITH("w_scale_inv", "F32", "[1,1]", "[4,8]"), 8, K2_OK, ""},
        {"{}", FP8("[2,2]", "4") WITH("w_scale_inv", "F32", "[1,1]", "[4,8]"), 8, K2_UNSUPPORTED,
         "model.safetensors: tensor w: dtype F8_E4M3, but config.json has no quantization_config"},
        {CONFIG("[2, 2]"), FP8("[2,2]", "4"), 4, K2_BAD_INPUT, "tensor w: its scales w_scale_inv are missing"},
        {CONFIG("[2, 2]"), FP8("[2,2]", "4") WITH("w_scale_inv", "F32", "[1]", "[4,8]"), 8, K2_BAD_INPUT,
         "tensor w_scale_inv: has the shape [1], expected [1,1] (blocks of 2 x 2)"},
        {CONFIG("[1, 2]"), FP8("[2,2]", "4") WITH("w_scale_inv", "F32", "[1,2]", "[4,12]"), 12, K2_BAD_INPUT,
         "has the shape [1,2], expected [2,1] (blocks of 1 x 2)"},
        {CONFIG("[128, 128]"), FP8("[2,2]", "4") WITH("w_scale_inv", "F32", "[0,0]", "[4,4]"), 4, K2_BAD_INPUT,
         "has the shape [0,0], expected [1,1]"},
        {CONFIG("[2, 2]"), FP8("[2,2]", "4") WITH("w_scale_inv", "BF16", "[1,1]", "[4,6]"), 6, K2_UNSUPPORTED,
         "tensor w_scale_inv: dtype BF16, expected F32"},
        {CONFIG("[2, 2]"), FP8("[4]", "4") WITH("w_scale_inv", "F32", "[1,1]", "[4,8]"), 8, K2_UNSUPPORTED,
         "tensor w: dtype F8_E4M3 and the shape [4], expected two sizes"},
        {CONFIG("[2, 2]"),
         FP8("[2,2]", "4") WITH("w_scale_inv", "F32", "[1,1]", "[4,8]") WITH("x_scale_inv", "F32", "[1,1]", "[8,12]"), 12,
         K2_BAD_INPUT, "tensor x_scale_inv is not one of this model's"},
        {CONFIG("[2, 2]"),
         "\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}" WITH("w_scale_inv", "F32", "[1,1]", "[16,20]"), 20,
         K2_BAD_INPUT, "tensor w_scale_inv is not one of this model's"},
    };
    float out[4];
    k2_weights_slot slot = {.name = "w", .shape = {.rank = 2, .size = {2, 2}}, .data = out};
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        static const unsigned char zeros[32];
        char *header = k2_asprintf("{%s}", rows[i].header);
        k2_error err = {0}, same = {0};
        write_config(rows[i].config);
        write_file("model.safetensors", header, zeros, rows[i].data);
        slot.shape = strstr(header, "[4]") ? (k2_shape){.rank = 1, .size = {4}} : (k2_shape){.rank = 2, .size = {2, 2}};
        k2_code code = k2_weights_dir_load(dir, &slot, 1, &err);
        if (code != rows[i].code || !strstr(err.text, rows[i].text))
            fail_msg("row %zu: %s \"%s\"", i, k2_code_name(code), err.text);
        assert_int_equal(k2_weights_dir_check(dir, &slot, 1, &same), code);
        assert_string_equal(err.text, same.text);
        k2_free(header);
    }
}

static void quantization_config(void **state)
{
    (void)state;
#define Q(object) "{\"quantization_config\": " object "}"
    static const struct {
        const char *text;
        k2_code code;
        uint32_t rows, columns;
        const char *error;
    } rows[] = {
        {"{}", K2_OK, 0, 0, ""},
        {Q("null"), K2_OK, 0, 0, ""},
        {CONFIG("[128, 128]"), K2_OK, 128, 128, ""},
        {Q("{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 32], \"modules_to_not_convert\": [\"lm_head\"]}"), K2_OK,
         64, 32, ""},
        {Q("{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"scale_fmt\": \"ue8m0\"}"), K2_OK, 128, 128, ""},
        {Q("7"), K2_BAD_INPUT, 0, 0, "c: quantization_config: is a number, expected an object or null"},
        {Q("{}"), K2_BAD_INPUT, 0, 0, "c: quantization_config.quant_method: is missing, expected fp8"},
        {Q("{\"quant_method\": \"compressed-tensors\", \"config_groups\": {}}"), K2_UNSUPPORTED, 0, 0,
         "c: quantization_config.quant_method: \"compressed-tensors\", expected fp8"},
        {Q("{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\", \"weight_block_size\": [1, 1]}"), K2_UNSUPPORTED, 0, 0,
         "quantization_config.fmt: \"e5m2\", expected e4m3"},
        {Q("{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\", \"weight_block_size\": [1, 1]}"), K2_UNSUPPORTED, 0,
         0, "quantization_config.activation_scheme: \"static\", expected dynamic"},
        {Q("{\"quant_method\": \"fp8\"}"), K2_BAD_INPUT, 0, 0, "quantization_config.weight_block_size: is missing"},
        {Q("{\"quant_method\": \"fp8\", \"weight_block_size\": null}"), K2_UNSUPPORTED, 0, 0,
         "weight_block_size: null, expected"},
        {CONFIG("[128]"), K2_UNSUPPORTED, 0, 0, "weight_block_size: [128], expected two whole numbers"},
        {CONFIG("[128, 0]"), K2_UNSUPPORTED, 0, 0, "weight_block_size: [128,0]"},
        {CONFIG("[128, -1]"), K2_UNSUPPORTED, 0, 0, "weight_block_size: [128,-1]"},
        {CONFIG("[1.5, 1]"), K2_UNSUPPORTED, 0, 0, "weight_block_size: [1.5,1]"},
        {CONFIG("[4294967297, 1]"), K2_UNSUPPORTED, 0, 0, "weight_block_size: [4294967297,1]"},
        {Q("{\"quant_method\": \"fp8\", \"weight_block_size\": [1, 1], \"bits\": 8}"), K2_BAD_INPUT, 0, 0,
         "c: quantization_config: unknown key \"bits\""},
        {Q("{\"quant_method\": \"fp8\", \"weight_block_size\": [1, 1], \"weight_block_size\": [1, 1]}"), K2_BAD_INPUT, 0, 0,
         "\"weight_block_size\" is there twice"},
        {"[]", K2_BAD_INPUT, 0, 0, "c: is a list"},
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        k2_weights_quant q = {7, 7};
        k2_error err = {0};
        k2_code code = k2_weights_quant_parse("c", rows[i].text, strlen(rows[i].text), &q, &err);
        if (code != rows[i].code || !strstr(err.text, rows[i].error))
            fail_msg("row %zu: %s \"%s\"", i, k2_code_name(code), err.text);
        assert_int_equal(q.block_rows, code == K2_OK ? rows[i].rows : 7);
        assert_int_equal(q.block_columns, code == K2_OK ? rows[i].columns : 7);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define SPARSE_COLUMNS 8192ull
#define SPARSE_ROWS    32768ull /* 256 MiB of codes */

static void sparse_make(void)
{
    char *header = k2_asprintf("{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[%llu,%llu],\"data_offsets\":[0,%llu]},"
                               "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[256,64],\"data_offsets\":[%llu,%llu]}}",
                               SPARSE_ROWS, SPARSE_COLUMNS, SPARSE_ROWS * SPARSE_COLUMNS, SPARSE_ROWS * SPARSE_COLUMNS,
                               SPARSE_ROWS * SPARSE_COLUMNS + 65536);
    char *path = k2_asprintf("%s/model.safetensors", dir);
    write_config(CONFIG("[128, 128]"));
    write_file("model.safetensors", header, "", 0);
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + SPARSE_ROWS * SPARSE_COLUMNS + 65536)), 0);
    k2_free(path);
    k2_free(header);
}

/* Reads all of it in pieces. How much larger its resident set ever became, MiB; -1: an error. */
static int growth(void)
{
    enum { PIECE = 1 << 20 };
    k2_weights_dir *d = NULL;
    struct rusage before, after;
    float *piece = k2_alloc_array(PIECE, sizeof *piece);
    getrusage(RUSAGE_SELF, &before);
    k2_code code = k2_weights_dir_open(dir, &d, NULL);
    for (uint64_t at = 0; code == K2_OK && at < SPARSE_ROWS * SPARSE_COLUMNS; at += PIECE)
        code = k2_weights_item_f32(d, k2_weights_dir_find(d, "w"), at, PIECE, piece, NULL);
    getrusage(RUSAGE_SELF, &after);
    return code == K2_OK ? (int)((after.ru_maxrss - before.ru_maxrss) / 1024) : -1;
}

static void memory_does_not_grow_with_the_model(void **state)
{
    (void)state;
    sparse_make();
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int mib = growth();
        _exit(mib < 0 ? 255 : K2_MIN(mib, 254));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) > 32) fail_msg("reading 256 MiB took %d MiB of memory", WEXITSTATUS(status));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, scratch_end)
    const struct CMUnitTest tests[] = {
        T(ragged_blocks), T(scales_in_another_shard), T(all_codes),
        T(wrong_scales),  T(quantization_config),     T(memory_does_not_grow_with_the_model),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
