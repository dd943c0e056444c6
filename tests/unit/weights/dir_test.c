/* Model directories: saved and loaded, sharded, and what is said where something is missing. */
#include "common/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/weights/scratch.h"

static float embed[6], norm[2], last[4];
static k2_weights_slot slots[3];

static void slots_reset(void)
{
    for (int i = 0; i < 6; i++) embed[i] = (float)i + 0.5f;
    norm[0] = norm[1] = 1;
    for (int i = 0; i < 4; i++) last[i] = (float)-i;
    slots[0] = (k2_weights_slot){.name = "model.embed_tokens.weight", .shape = {.rank = 2, .size = {3, 2}}, .data = embed};
    slots[1] =
        (k2_weights_slot){.name = "model.layers.0.input_layernorm.weight", .shape = {.rank = 1, .size = {2}}, .data = norm};
    slots[2] = (k2_weights_slot){.name = "model.layers.1.mlp.gate.weight", .shape = {.rank = 2, .size = {2, 2}}, .data = last};
}

static int setup(void **state)
{
    (void)state;
    slots_reset();
    return scratch_begin();
}

static const k2_dims dims = SMALL_DIMS(2);

static void write_shard(const char *name, const k2_weights_slot *s, size_t count)
{
    char *path = at(name);
    k2_error err;
    assert_int_equal(k2_weights_file_write(path, s, count, &err), K2_OK);
    k2_free(path);
}

/* What k2_weights_dir_each gives is what k2_weights_dir_load loads, each tensor once. */
typedef struct given {
    float *data[3];
    int times[3];
} given;

static void take(void *arg, size_t slot, const float *tensor)
{
    given *g = arg;
    uint64_t count = 0;
    assert_true(slot < 3 && k2_shape_count(&slots[slot].shape, &count));
    g->data[slot] = k2_alloc_array(count, sizeof(float));
    memcpy(g->data[slot], tensor, count * sizeof(float));
    g->times[slot]++;
}

static void assert_gives_the_same(void)
{
    given g = {0};
    k2_error err = {0};
    k2_digest digest;
    if (k2_weights_dir_each(dir, slots, 3, take, &g, &digest, &err) != K2_OK) fail_msg("%s", err.text);
    assert_true(k2_digest_equal(digest, k2_weights_digest(slots, 3)));
    for (int i = 0; i < 3; i++) {
        uint64_t count = 0;
        assert_true(g.times[i] == 1 && k2_shape_count(&slots[i].shape, &count));
        assert_memory_equal(g.data[i], slots[i].data, count * sizeof(float));
        k2_free(g.data[i]);
    }
}

static void assert_loads(void)
{
    k2_error err = {0};
    memset(embed, 0, sizeof embed);
    memset(norm, 0, sizeof norm);
    memset(last, 0, sizeof last);
    if (k2_weights_dir_load(dir, slots, 3, &err) != K2_OK) fail_msg("%s", err.text);
    assert_true(embed[5] == 5.5f && norm[1] == 1 && last[3] == -3);
    assert_gives_the_same();
    assert_int_equal(k2_weights_dir_check(dir, slots, 3, &err), K2_OK);
}

static void assert_fails(k2_code code, const char *text)
{
    k2_error err = {0};
    assert_int_equal(k2_weights_dir_load(dir, slots, 3, &err), code);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    /* A check reads no elements, and says the same about everything else. */
    k2_weights_slot bare[3] = {slots[0], slots[1], slots[2]};
    bare[0].data = bare[1].data = bare[2].data = NULL;
    k2_error same = {0};
    assert_int_equal(k2_weights_dir_check(dir, bare, 3, &same), code == K2_NOT_FINITE ? K2_OK : code);
    if (code != K2_NOT_FINITE) assert_string_equal(same.text, err.text);
}

static void saved_and_loaded(void **state)
{
    (void)state;
    char *sub = at("new/deeper");
    k2_error err;
    const k2_digest d = k2_weights_digest(slots, 3);
    assert_int_equal(k2_weights_dir_save(sub, &dims, &(k2_weights_format){.dtype = K2_DTYPE_F32}, slots, 3, &err), K2_OK);
    memset(embed, 0, sizeof embed);
    assert_false(k2_digest_equal(d, k2_weights_digest(slots, 3)));
    assert_int_equal(k2_weights_dir_load(sub, slots, 3, &err), K2_OK);
    assert_true(k2_digest_equal(d, k2_weights_digest(slots, 3)));
    char *config = k2_asprintf("%s/config.json", sub);
    k2_dims back;
    assert_int_equal(k2_weights_dims_load(config, &back, &err), K2_OK);
    assert_int_equal(back.vocab_size, 3);
    k2_free(config);
    k2_free(sub);
}

static void one_file(void **state)
{
    (void)state;
    assert_fails(K2_NOT_FOUND, "holds neither model.safetensors nor model.safetensors.index.json");
    write_shard("model.safetensors", slots, 3);
    assert_loads();
    write_shard("model.safetensors", slots, 2);
    assert_fails(K2_NOT_FOUND, "model.safetensors: tensor model.layers.1.mlp.gate.weight is missing");
    k2_weights_slot more[5] = {slots[0], slots[1], slots[2]};
    more[3] = (k2_weights_slot){.name = "lm_head.weight", .shape = {.rank = 1, .size = {2}}, .data = norm};
    write_shard("model.safetensors", more, 4);
    assert_fails(K2_BAD_INPUT, "tensor lm_head.weight is not one of this model's");
    more[2].shape = (k2_shape){.rank = 1, .size = {4}};
    write_shard("model.safetensors", more, 3);
    assert_fails(K2_BAD_INPUT, "tensor model.layers.1.mlp.gate.weight has the shape [4], expected [2,2]");
    /* What follows from the sizes, and prediction layers behind the last one, are skipped. */
    more[2] = slots[2];
    more[3].name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    more[4] = (k2_weights_slot){.name = "model.layers.2.eh_proj.weight", .shape = {.rank = 1, .size = {2}}, .data = norm};
    write_shard("model.safetensors", more, 5);
    assert_loads();
    slots_reset();
    last[0] = 0.0f / 1.0f;
    const uint32_t nan_bits = 0x7fc00000u;
    memcpy(&last[1], &nan_bits, sizeof nan_bits);
    write_shard("model.safetensors", slots, 3);
    assert_fails(K2_NOT_FINITE, "model.safetensors: tensor model.layers.1.mlp.gate.weight: element 1 is NaN or infinite");
    char *path = at("model.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    k2_free(path);
    assert_fails(K2_BAD_INPUT, "model.safetensors: is truncated");
}

#define INDEX(a, b, c)                                                                                                         \
    "{\"metadata\":{\"total_size\":48},\"weight_map\":{\"model.embed_tokens.weight\":" a                                       \
    ",\"model.layers.0.input_layernorm.weight\":" b ",\"model.layers.1.mlp.gate.weight\":" c "}}"

static void shards(void **state)
{
    (void)state;
    write_shard("m-1.safetensors", slots, 2);
    write_shard("m-2.safetensors", slots + 2, 1);
    write_text("model.safetensors.index.json", INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"m-2.safetensors\""));
    assert_loads();
    static const struct {
        const char *index;
        k2_code code;
        const char *text;
    } cases[] = {
        {INDEX("\"m-1.safetensors\"", "\"m-2.safetensors\"", "\"m-2.safetensors\""), K2_BAD_INPUT,
         "m-1.safetensors: holds 2 tensors, but model.safetensors.index.json names 1 of it"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"m-1.safetensors\""), K2_BAD_INPUT,
         "m-1.safetensors: tensor model.layers.1.mlp.gate.weight is missing, but model.safetensors.index.json promises it"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"m-3.safetensors\""), K2_NOT_FOUND,
         "m-3.safetensors: cannot open"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"../m-2.safetensors\""), K2_BAD_INPUT,
         "is not the name of a file"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"/etc/passwd\""), K2_BAD_INPUT, "is not the name of a file"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"..\""), K2_BAD_INPUT, "is not the name of a file"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "\"\""), K2_BAD_INPUT, "is not the name of a file"},
        {INDEX("\"m-1.safetensors\"", "\"m-1.safetensors\"", "7"), K2_BAD_INPUT, "is not the name of a file"},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"m-1.safetensors\"}}", K2_BAD_INPUT,
         "m-1.safetensors: holds 2 tensors, but model.safetensors.index.json names 1 of it"},
        {"{\"weight_map\":{\"model.layers.1.mlp.gate.weight\":\"m-2.safetensors\"}}", K2_NOT_FOUND,
         "model.safetensors.index.json: tensor model.embed_tokens.weight is missing"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-1.safetensors\"}}", K2_BAD_INPUT, "weight_map names a twice"},
        {"{\"weight_map\":[]}", K2_BAD_INPUT, "\"weight_map\" is no object"},
        {"{}", K2_BAD_INPUT, "\"weight_map\" is no object"},
        {"{\"weight_map\":{", K2_BAD_INPUT, "is not JSON"},
        {"", K2_BAD_INPUT, "is not JSON"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        write_text("model.safetensors.index.json", cases[i].index);
        assert_fails(cases[i].code, cases[i].text);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, scratch_end)
    const struct CMUnitTest tests[] = {T(saved_and_loaded), T(one_file), T(shards)};
    return cmocka_run_group_tests_name("dir", tests, NULL, NULL);
}
