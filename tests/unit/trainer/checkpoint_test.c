/* Checkpoints: what is written is what is read; damage is refused by name; an older one stands until the new one is whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <unistd.h>

#include "tests/unit/trainer/fixture.h"
#include "trainer/checkpoint_int.h"

typedef struct model {
    k2_dims dims;
    k2_model_layout *layout;
    float *params, *m, *v;
} model;

static model model_make(uint64_t seed)
{
    model x = {.dims = fixture_dims()};
    x.layout = k2_model_layout_new(&x.dims);
    float **vectors[] = {&x.params, &x.m, &x.v};
    for (uint64_t k = 0; k < 3; k++) {
        *vectors[k] = k2_alloc_array(x.layout->floats, sizeof(float));
        for (size_t i = 0; i < x.layout->params_count; i++)
            for (size_t e = 0; e < x.layout->params[i].count; e++) /* padding stays 0, as in training */
                (*vectors[k])[x.layout->params[i].offset + e] = (float)k2_rand_normal(seed + k, K2_STREAM_TEST, i, e);
    }
    return x;
}

static void model_end(model *x)
{
    k2_free(x->v);
    k2_free(x->m);
    k2_free(x->params);
    k2_model_layout_free(x->layout);
}

static k2_weights_format format; /* f32 in one file where a test does not say otherwise */

static k2_code write_at(const char *dir, model *x, k2i_checkpoint *state, k2_error *err)
{
    return k2i_checkpoint_write(dir, &x->dims, &format, x->layout, x->params, x->m, x->v, NULL, state, err);
}

static void test_round_trip(void **state)
{
    (void)state;
    char *top = fixture_dir(), *dir = k2_asprintf("%s/step_0000012", top);
    model a = model_make(1), b = model_make(2);
    k2i_checkpoint out = {.step = 12, .pretrain_step = 300, .updates = 17, .moments = K2I_MOMENTS_TRAIN, .seed = UINT64_MAX},
                   in;
    k2_error err;
    assert_int_equal(write_at(dir, &b, &out, &err), K2_OK); /* stands there first, and is replaced */
    assert_int_equal(write_at(dir, &a, &out, &err), K2_OK);
    assert_int_equal(k2i_checkpoint_read(dir, a.layout, b.params, b.m, b.v, &in, &err), K2_OK);
    assert_memory_equal(a.params, b.params, a.layout->floats * sizeof(float));
    assert_memory_equal(a.m, b.m, a.layout->floats * sizeof(float));
    assert_memory_equal(a.v, b.v, a.layout->floats * sizeof(float));
    assert_true(in.step == 12 && in.pretrain_step == 300 && in.updates == 17 && in.seed == UINT64_MAX);
    assert_int_equal(in.moments, K2I_MOMENTS_TRAIN);
    assert_true(k2_digest_equal(in.weights, out.weights) && k2_digest_equal(in.optimizer, out.optimizer));
    char *left = k2_asprintf("%s.tmp", dir);
    assert_false(k2_file_exists(left));
    k2_free(left);
    k2_free(dir);
    model_end(&a);
    model_end(&b);
    fixture_dir_end(top);
}

static void assert_damaged(const char *dir, model *x, k2_code code, const char *part)
{
    k2i_checkpoint in = {.step = 99};
    k2_error err;
    assert_int_equal(k2i_checkpoint_read(dir, x->layout, x->params, x->m, x->v, &in, &err), code);
    if (!strstr(err.text, part)) fail_msg("found \"%s\", expected \"%s\"", err.text, part);
    assert_int_equal(in.step, 99);
}

/* bf16 in shards: others read rounded weights, the trainer those that it had; the digest is that of an f32 checkpoint. */
static void test_rounded_weights(void **state)
{
    (void)state;
    char *dir = fixture_dir();
    model a = model_make(1), b = model_make(2);
    k2i_checkpoint full = {.step = 3}, out = {.step = 3}, in;
    k2_error err;
    assert_int_equal(write_at(dir, &a, &full, &err), K2_OK);
    format = (k2_weights_format){.dtype = K2_DTYPE_BF16, .shard_bytes = 4096};
    assert_int_equal(write_at(dir, &a, &out, &err), K2_OK);
    char *single = k2_asprintf("%s/model.safetensors", dir), *index = k2_asprintf("%s/model.safetensors.index.json", dir);
    assert_false(k2_file_exists(single)); /* nothing of the one before is left */
    assert_int_equal(k2i_checkpoint_read(dir, a.layout, b.params, b.m, b.v, &in, &err), K2_OK);
    assert_memory_equal(a.params, b.params, a.layout->floats * sizeof(float));
    assert_memory_equal(a.m, b.m, a.layout->floats * sizeof(float));
    assert_memory_equal(a.v, b.v, a.layout->floats * sizeof(float));
    assert_true(k2_digest_equal(in.weights, full.weights) && !k2_digest_equal(in.optimizer, full.optimizer));
    k2i_slots s = k2i_slots_make(a.layout, b.params, "");
    assert_int_equal(k2_weights_dir_load(dir, s.slots, s.count, &err), K2_OK);
    for (size_t i = 0; i < a.layout->floats; i++) assert_true(fabsf(a.params[i] - b.params[i]) <= fabsf(a.params[i]) / 256);
    k2i_slots_free(&s);
    assert_int_equal(unlink(index), 0);
    assert_damaged(dir, &a, K2_NOT_FOUND, "holds neither model.safetensors nor");
    format = (k2_weights_format){0};
    k2_free(single);
    k2_free(index);
    model_end(&a);
    model_end(&b);
    fixture_dir_end(dir);
}

/* Flip one byte of a file, at a distance from its end. */
static void damage(const char *dir, const char *name, long from_end)
{
    char *path = k2_asprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -from_end, SEEK_END), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, -from_end, SEEK_END), 0);
    fputc(c ^ 1, f);
    fclose(f);
    k2_free(path);
}

static void test_damage(void **state)
{
    (void)state;
    char *dir = fixture_dir();
    model a = model_make(1);
    k2i_checkpoint out = {.step = 1};
    assert_int_equal(write_at(dir, &a, &out, NULL), K2_OK);
    damage(dir, "model.safetensors", 9);
    assert_damaged(dir, &a, K2_CORRUPT, "the digest of its weights is not the one in trainer.json");
    damage(dir, "model.safetensors", 9);
    damage(dir, "optimizer.state", 9);
    assert_damaged(dir, &a, K2_CORRUPT, "optimizer.state: its digest is not the one in trainer.json");
    char *path = k2_asprintf("%s/optimizer.state", dir);
    assert_int_equal(truncate(path, 1000), 0);
    assert_damaged(dir, &a, K2_BAD_INPUT, "optimizer.state");
    k2_free(path);
    path = k2_asprintf("%s/trainer.json", dir);
    assert_int_equal(k2_file_write_atomic(path, "{\"format\": \"k2rl-trainer-1\", \"step\": -1}", 40, NULL), K2_OK);
    assert_damaged(dir, &a, K2_BAD_INPUT, "trainer.json: step: missing, or not what");
    assert_int_equal(k2_file_write_atomic(path, "{\"format\"", 9, NULL), K2_OK);
    assert_damaged(dir, &a, K2_BAD_INPUT, "trainer.json: not a JSON object");
    assert_int_equal(unlink(path), 0);
    assert_damaged(dir, &a, K2_NOT_FOUND, "trainer.json");
    k2_free(path);
    model_end(&a);
    fixture_dir_end(dir);
}

static void test_another_model(void **state)
{
    (void)state;
    char *dir = fixture_dir();
    model a = model_make(1), b = {.dims = fixture_dims()};
    k2i_checkpoint out = {.step = 1};
    assert_int_equal(write_at(dir, &a, &out, NULL), K2_OK);
    b.dims.intermediate_size = 32;
    b.layout = k2_model_layout_new(&b.dims);
    b.params = k2_alloc_array(b.layout->floats, sizeof(float));
    b.m = k2_alloc_array(b.layout->floats, sizeof(float));
    b.v = k2_alloc_array(b.layout->floats, sizeof(float));
    assert_damaged(dir, &b, K2_BAD_INPUT, "mlp.gate_proj.weight");
    model_end(&a);
    model_end(&b);
    fixture_dir_end(dir);
}

/* A directory that cannot be written leaves the old checkpoint as it was. */
static void test_failed_write(void **state)
{
    (void)state;
    char *top = fixture_dir(), *dir = k2_asprintf("%s/file/step_1", top), *file = k2_asprintf("%s/file", top);
    model a = model_make(1);
    k2i_checkpoint out = {.step = 1};
    k2_error err;
    assert_int_equal(k2_file_write_atomic(file, "x", 1, NULL), K2_OK);
    assert_int_not_equal(write_at(dir, &a, &out, &err), K2_OK);
    assert_non_null(strstr(err.text, top));
    k2_free(file);
    k2_free(dir);
    model_end(&a);
    fixture_dir_end(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_rounded_weights), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_another_model), cmocka_unit_test(test_failed_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
