/* Model directories as we write them: types, shards, index, what is refused; and one made from another. */
#include "common/weights/number_int.h"
#include "common/weights/weights.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tests/unit/weights/scratch.h"

enum { ROWS = 130, COLUMNS = 150 }; /* beyond a block both ways */

/* Stands before the C library's: what a directory's disk has to spare. */
static bool disk_full;
int statvfs(const char *path, struct statvfs *out)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY), rc = fd < 0 ? -1 : fstatvfs(fd, out);
    if (fd >= 0) close(fd);
    if (rc == 0 && disk_full) out->f_bavail = 3;
    return rc;
}

static float embed[6], norm[2], proj[ROWS * COLUMNS], bias[3];
static k2_weights_slot slots[4];

static void slots_reset(void)
{
    for (int i = 0; i < 6; i++) embed[i] = (float)i / 3;
    norm[0] = norm[1] = 1.00390625f; /* half a step of bf16 above 1 */
    for (int i = 0; i < ROWS * COLUMNS; i++)
        proj[i] = (float)k2_rand_normal(1, K2_STREAM_TEST, 0, (uint64_t)i) * (i / COLUMNS < 128 ? 1.0f : 1e-3f);
    for (int r = 0; r < 128; r++) /* the second block of the first row is all zeros */
        for (int c = 128; c < COLUMNS; c++) proj[r * COLUMNS + c] = 0;
    for (int i = 0; i < 3; i++) bias[i] = 1 + 1e-6f * (float)i;
    slots[0] = (k2_weights_slot){.name = "model.embed_tokens.weight", .shape = {.rank = 2, .size = {3, 2}}, .data = embed};
    slots[1] =
        (k2_weights_slot){.name = "model.layers.0.input_layernorm.weight", .shape = {.rank = 1, .size = {2}}, .data = norm};
    slots[2] = (k2_weights_slot){
        .name = "model.layers.0.mlp.up_proj.weight", .shape = {.rank = 2, .size = {ROWS, COLUMNS}}, .data = proj};
    slots[3] = (k2_weights_slot){
        .name = "model.layers.0.mlp.gate.e_score_correction_bias", .shape = {.rank = 1, .size = {3}}, .data = bias};
}

static int setup(void **state)
{
    (void)state;
    slots_reset();
    return scratch_begin();
}

static const k2_dims dims = SMALL_DIMS(1);

static void save(const char *name, k2_dtype dtype, uint64_t shard_bytes)
{
    char *path = at(name);
    k2_error err = {0};
    if (k2_weights_dir_save(path, &dims, &(k2_weights_format){dtype, shard_bytes}, slots, 4, &err) != K2_OK)
        fail_msg("%s", err.text);
    k2_free(path);
}

static char *text_of(const char *name)
{
    char *path = at(name), *text = NULL;
    size_t n = 0;
    assert_int_equal(k2_file_read(path, 1u << 20, &text, &n, NULL), K2_OK);
    k2_free(path);
    return text;
}

static void assert_has(const char *name, const char *what, bool has)
{
    char *text = text_of(name);
    if (!strstr(text, what) == has) fail_msg("%s %s \"%s\"", name, has ? "lacks" : "has", what);
    k2_free(text);
}

static unsigned entries_of(const char *name)
{
    char *path = at(name);
    DIR *d = opendir(path);
    unsigned n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    k2_free(path);
    return n;
}

static size_t tensors_of(const char *name)
{
    char *path = at(name);
    k2_weights_dir *d = NULL;
    assert_int_equal(k2_weights_dir_open(path, &d, NULL), K2_OK);
    const size_t n = k2_weights_dir_count(d);
    k2_weights_dir_close(d);
    k2_free(path);
    return n;
}

/* Into the slots. */
static void load(const char *name)
{
    char *path = at(name);
    k2_error err = {0};
    for (int i = 0; i < 4; i++) {
        uint64_t n = 0;
        assert_true(k2_shape_count(&slots[i].shape, &n));
        memset(slots[i].data, 0xff, n * sizeof(float));
    }
    if (k2_weights_dir_load(path, slots, 4, &err) != K2_OK) fail_msg("%s", err.text);
    k2_free(path);
}

/* ---- types and shards -------------------------------------------------------------------------------------------- */

static void narrow_types(void **state)
{
    (void)state;
    static const struct {
        k2_dtype dtype;
        const char *torch;
    } rows[] = {{K2_DTYPE_F32, "float32"}, {K2_DTYPE_BF16, "bfloat16"}, {K2_DTYPE_F16, "float16"}};
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        slots_reset();
        float *kept = memcpy(k2_alloc(sizeof proj), proj, sizeof proj);
        char *config = k2_asprintf("%s/config.json", rows[i].torch);
        save(rows[i].torch, rows[i].dtype, 0);
        assert_has(config, rows[i].torch, true);
        assert_int_equal(entries_of(rows[i].torch), 2);
        load(rows[i].torch);
        for (int e = 0; e < ROWS * COLUMNS; e++) {
            const float want = rows[i].dtype == K2_DTYPE_F32    ? kept[e]
                               : rows[i].dtype == K2_DTYPE_BF16 ? k2i_f32_of_bf16(k2i_bf16_of_f32(kept[e]))
                                                                : k2i_f32_of_f16(k2i_f16_of_f32(kept[e]));
            assert_true(proj[e] == want);
        }
        assert_true(norm[0] == (rows[i].dtype == K2_DTYPE_BF16 ? 1.0f : 1.00390625f));
        assert_true(bias[2] == 1 + 1e-6f * 2); /* stays f32 */
        k2_free(config);
        k2_free(kept);
    }
}

static void shards_and_index(void **state)
{
    (void)state;
    const k2_digest before = k2_weights_digest(slots, 4);
    save("one", K2_DTYPE_F32, 1u << 30);
    assert_int_equal(tensors_of("one"), 4);
    assert_int_equal(entries_of("one"), 2);
    save("three", K2_DTYPE_F32, 100); /* 24 + 8 | 78000, larger than a shard, alone | 12 */
    assert_int_equal(entries_of("three"), 5);
    char *index = text_of("three/model.safetensors.index.json");
    assert_string_equal(index, "{\n  \"metadata\": {\n    \"total_size\": 78044\n  },\n  \"weight_map\": {\n"
                               "    \"model.embed_tokens.weight\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"model.layers.0.input_layernorm.weight\": \"model-00001-of-00003.safetensors\",\n"
                               "    \"model.layers.0.mlp.up_proj.weight\": \"model-00002-of-00003.safetensors\",\n"
                               "    \"model.layers.0.mlp.gate.e_score_correction_bias\": \"model-00003-of-00003.safetensors\"\n"
                               "  }\n}\n");
    k2_free(index);
    load("three");
    assert_true(k2_digest_equal(before, k2_weights_digest(slots, 4)));
    save("four", K2_DTYPE_F32, 1); /* each alone; none is empty */
    assert_int_equal(entries_of("four"), 6);
}

/* Within half a step of e4m3 at the block's scale; the largest magnitude of a block is met as well as f32 can. */
static void quantised(void **state)
{
    (void)state;
    float *kept = memcpy(k2_alloc(sizeof proj), proj, sizeof proj);
    save("fp8", K2_DTYPE_F8_E4M3, 0);
    assert_has("fp8/config.json", "\"weight_block_size\": [128, 128]", true);
    load("fp8");
    for (int e = 0; e < ROWS * COLUMNS; e++) {
        const float amax = e / COLUMNS < 128 ? 5.0f : 5e-3f; /* of normal draws */
        assert_true(fabsf(proj[e] - kept[e]) <= fmaxf(fabsf(kept[e]) / 16, amax / 448 / 1024) * 1.0001f);
    }
    assert_true(embed[1] == k2i_f32_of_bf16(k2i_bf16_of_f32(1.0f / 3)) && bias[1] == 1 + 1e-6f);
    char *path = at("fp8");
    k2_weights_dir *d = NULL;
    assert_int_equal(k2_weights_dir_open(path, &d, NULL), K2_OK);
    const k2_weights_item *item = k2_weights_dir_find(d, slots[2].name);
    assert_int_equal(item->tensor->dtype, K2_DTYPE_F8_E4M3);
    assert_int_equal(item->scale->shape.size[0] * item->scale->shape.size[1], 4);
    k2_weights_dir_close(d);
    k2_free(path);
    k2_free(kept);
}

static void what_is_refused(void **state)
{
    (void)state;
    k2_error err = {0};
    save("a", K2_DTYPE_F32, 0);
    char *path = at("a"), *other = at("b");
    const k2_weights_format bf16 = {.dtype = K2_DTYPE_BF16, .shard_bytes = 100}, f16 = {.dtype = K2_DTYPE_F16},
                            fp8 = {.dtype = K2_DTYPE_F8_E4M3};
    assert_int_equal(k2_weights_dir_save(path, &dims, &bf16, slots, 4, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "/a: holds a model already (model.safetensors)"));
    assert_int_equal(entries_of("a"), 2);
    proj[7] = 65520;
    assert_int_equal(k2_weights_dir_save(other, &dims, &f16, slots, 4, &err), K2_NOT_FINITE);
    assert_string_equal(err.text, "tensor model.layers.0.mlp.up_proj.weight: element 7 is 65520, which F16 cannot hold");
    proj[7] = NAN;
    assert_int_equal(k2_weights_dir_save(other, &dims, &bf16, slots, 4, &err), K2_NOT_FINITE);
    assert_string_equal(err.text, "tensor model.layers.0.mlp.up_proj.weight: element 7 is NaN or infinite");
    assert_int_equal(k2_weights_dir_save(other, &dims, &fp8, slots, 4, &err), K2_NOT_FINITE);
    assert_int_equal(k2_weights_dir_save(other, &dims, &fp8, slots, 4, NULL), K2_NOT_FINITE);
    /* The first shard may be there: no index, no config and nothing temporary, so nobody takes it for a model. */
    assert_int_equal(entries_of("b"), 1);
    assert_int_equal(k2_weights_dir_load(other, slots, 4, &err), K2_NOT_FOUND);
    slots_reset();
    save("b", K2_DTYPE_BF16, 100); /* and writing it again is possible */
    load("b");
    k2_free(path);
    k2_free(other);
}

/* ---- one from another -------------------------------------------------------------------------------------------- */

static k2_code convert(const char *from, const char *to, k2_dtype dtype, uint64_t shard_bytes, k2_error *err)
{
    char *a = at(from), *b = at(to);
    k2_code code = k2_weights_dir_convert(a, b, &(k2_weights_format){dtype, shard_bytes}, NULL, NULL, err);
    k2_free(a);
    k2_free(b);
    return code;
}

static k2_digest digest_of(const char *name)
{
    load(name);
    return k2_weights_digest(slots, 4);
}

static void conversions(void **state)
{
    (void)state;
    k2_error err = {0};
    save("f32", K2_DTYPE_F32, 0);
    save("bf16", K2_DTYPE_BF16, 0);
    save("fp8", K2_DTYPE_F8_E4M3, 0);
    write_text("f32/tokenizer.json", "{}");
    write_text("f32/trainer.json", "{}");
    assert_int_equal(convert("f32", "a", K2_DTYPE_BF16, 0, &err), K2_OK);
    assert_true(k2_digest_equal(digest_of("a"), digest_of("bf16")));
    assert_has("a/config.json", "\"bfloat16\"", true);
    assert_int_equal(entries_of("a"), 3);                               /* with the tokenizer, without the trainer's state */
    assert_int_equal(convert("a", "b", K2_DTYPE_F32, 50, &err), K2_OK); /* wider: the same values */
    assert_true(k2_digest_equal(digest_of("b"), digest_of("bf16")));
    assert_int_equal(convert("f32", "c/", K2_DTYPE_F8_E4M3, 0, &err), K2_OK);
    assert_true(k2_digest_equal(digest_of("c"), digest_of("fp8")));
    assert_int_equal(convert("c", "d", K2_DTYPE_F8_E4M3, 50, &err), K2_OK); /* kept, not quantised once more */
    assert_true(k2_digest_equal(digest_of("d"), digest_of("fp8")));
    assert_has("d/config.json", "weight_block_size", true);
    assert_int_equal(convert("d", "e", K2_DTYPE_F32, 0, &err), K2_OK); /* the values that codes and scales stand for */
    assert_true(k2_digest_equal(digest_of("e"), digest_of("fp8")));
    assert_has("e/config.json", "quantization_config", false);
    assert_true(tensors_of("d") == 5 && tensors_of("e") == 4); /* the scales are gone */
}

static void conversions_refused(void **state)
{
    (void)state;
    k2_error err = {0};
    save("a", K2_DTYPE_F32, 0);
    save("b", K2_DTYPE_F32, 0);
    assert_int_equal(convert("a", "b", K2_DTYPE_BF16, 0, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "/b: exists already; nothing is written over"));
    assert_int_equal(convert("nowhere", "c", K2_DTYPE_BF16, 0, &err), K2_NOT_FOUND);
    proj[0] = 1e30f;
    save("large", K2_DTYPE_F32, 0);
    assert_int_equal(convert("large", "c", K2_DTYPE_F16, 0, &err), K2_NOT_FINITE);
    disk_full = true;
    assert_int_equal(convert("a", "c", K2_DTYPE_BF16, 0, &err), K2_NO_SPACE);
    disk_full = false;
    assert_non_null(strstr(err.text, ": the weights take 39028 bytes, but only "));
    char *link = at("dangling");
    assert_int_equal(symlink("/nonexistent/k2", link), 0); /* that it leads nowhere does not make the name free */
    assert_int_equal(convert("a", "dangling", K2_DTYPE_BF16, 0, &err), K2_BAD_INPUT);
    k2_free(link);
    assert_int_equal(entries_of(""), 4); /* a, b, large, dangling: no temporary directory is left */
}

/* No file may be longer than so many bytes, as if the disk were full there: at every length it is either all of a model or
 * none, and a conversion leaves nothing. */
static void writes_that_fail(void **state)
{
    (void)state;
    struct rlimit free_limit, limit;
    unsigned failed = 0;
    save("from", K2_DTYPE_F32, 0);
    char *dir_path = at("x"), *to = at("to"), *config = at("x/config.json"), *from = at("from");
    const k2_weights_format format = {.dtype = K2_DTYPE_BF16, .shard_bytes = 100};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &free_limit) == 0);
    for (rlim_t bytes = 0; bytes < 50000; bytes += bytes < 1000 ? 61 : 7001) {
        limit = (struct rlimit){.rlim_cur = bytes, .rlim_max = free_limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        const k2_code saved = k2_weights_dir_save(dir_path, &dims, &format, slots, 4, NULL);
        const k2_code converted = k2_weights_dir_convert(from, to, &format, NULL, NULL, NULL);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &free_limit), 0);
        assert_true(saved == K2_OK || saved == K2_IO || saved == K2_NO_SPACE);
        assert_int_equal(k2_file_exists(config), saved == K2_OK);
        assert_int_equal(k2_weights_dir_check(dir_path, slots, 4, NULL) == K2_OK, saved == K2_OK);
        assert_int_equal(k2_file_exists(to), converted == K2_OK);
        assert_int_equal(entries_of(""), converted == K2_OK ? 3 : 2); /* from, x, to: no temporary directory */
        failed += saved != K2_OK;
        assert_int_equal(k2_dir_remove(dir_path, NULL), K2_OK);
        assert_int_equal(k2_dir_remove(to, NULL), K2_OK);
    }
    assert_true(failed > 10 && failed < 24);
    k2_free(dir_path);
    k2_free(to);
    k2_free(config);
    k2_free(from);
}

static void count_progress(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;
    assert_true(done > last[0] && done <= total);
    last[0] = done;
    last[1] = total;
}

static void verified(void **state)
{
    (void)state;
    k2_error err = {0};
    k2_digest digest;
    uint64_t seen[2] = {0};
    save("a", K2_DTYPE_BF16, 100);
    char *path = at("a"), *shard = at("a/model-00002-of-00003.safetensors"), *data = NULL;
    assert_int_equal(k2_weights_dir_verify(path, slots, 4, count_progress, seen, &digest, &err), K2_OK);
    assert_true(seen[0] == seen[1] && seen[1] == 2 * (6 + 2 + ROWS * COLUMNS) + 4 * 3);
    assert_true(k2_digest_equal(digest, digest_of("a")));
    size_t n = 0;
    assert_int_equal(k2_file_read(shard, 1u << 20, &data, &n, &err), K2_OK);
    data[n - 2] ^= 1;
    assert_int_equal(k2_file_write_atomic(shard, data, n, &err), K2_OK);
    assert_int_equal(k2_weights_dir_verify(path, slots, 4, NULL, NULL, &digest, &err), K2_CORRUPT);
    assert_non_null(strstr(err.text, "model-00002-of-00003.safetensors: its data is not that of the digest in its header"));
    assert_int_equal(k2_weights_dir_load(path, slots, 4, &err), K2_OK); /* who loads it checks numbers, not digests */
    k2_free(data);
    k2_free(path);
    k2_free(shard);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, scratch_end)
    const struct CMUnitTest tests[] = {T(narrow_types), T(shards_and_index),    T(quantised),        T(what_is_refused),
                                       T(conversions),  T(conversions_refused), T(writes_that_fail), T(verified)};
    return cmocka_run_group_tests_name("save", tests, NULL, NULL);
}
