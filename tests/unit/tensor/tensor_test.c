/* Storage formats, shapes, and the check of a model's sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/tensor/tensor.h"
#include "tests/support/tiny_dims.h"

static k2_dims good(void)
{
    k2_dims d = tiny_dims();
    d.num_hidden_layers = 4;
    d.kv_lora_rank = 32;
    d.qk_rope_head_dim = 16;
    d.n_routed_experts = 8;
    d.bos_token_id = 256;
    d.eos_token_id = 257;
    return d;
}

static void dtypes_have_names_and_sizes(void **state)
{
    (void)state;
    k2_dtype t;
    assert_true(k2_dtype_parse("BF16", &t));
    assert_int_equal(t, K2_DTYPE_BF16);
    assert_int_equal(k2_dtype_bytes(t), 2);
    assert_string_equal(k2_dtype_name(K2_DTYPE_F8_E4M3), "F8_E4M3");
    assert_false(k2_dtype_parse("bf16", &t));
    assert_false(k2_dtype_parse("", &t));
}

static void shapes_count_and_overflow(void **state)
{
    (void)state;
    uint64_t n;
    assert_true(k2_shape_count(&(k2_shape){.rank = 0}, &n) && n == 1);
    assert_true(k2_shape_count(&(k2_shape){.rank = 3, .size = {2, 3, 4}}, &n) && n == 24);
    assert_false(k2_shape_count(&(k2_shape){.rank = 2, .size = {UINT64_MAX, 2}}, &n));
    assert_true(k2_shape_equal(&(k2_shape){.rank = 1, .size = {5}}, &(k2_shape){.rank = 1, .size = {5}}));
    assert_false(k2_shape_equal(&(k2_shape){.rank = 1, .size = {5}}, &(k2_shape){.rank = 2, .size = {5, 1}}));
}

static void moe_layers_follow_the_two_switches(void **state)
{
    (void)state;
    k2_dims d = good();
    assert_int_equal(k2_dims_moe_layers(&d), 3);
    assert_false(k2_dims_is_moe(&d, 0));
    d.moe_layer_freq = 2;
    assert_int_equal(k2_dims_moe_layers(&d), 1); /* only layer 2 */
    d.n_routed_experts = 0;
    assert_int_equal(k2_dims_moe_layers(&d), 0);
    assert_int_equal(k2_dims_key_floats(&d), 48);
}

#define BAD(field, value, word)                                                                                                \
    do {                                                                                                                       \
        k2_dims bad = good();                                                                                                  \
        k2_error err = {0};                                                                                                    \
        bad.field = value;                                                                                                     \
        assert_int_equal(k2_dims_check(&bad, &err), K2_BAD_INPUT);                                                             \
        if (!strstr(err.text, word)) fail_msg("text is: %s", err.text);                                                        \
    } while (0)

static void faults_are_named(void **state)
{
    (void)state;
    k2_dims d = good();
    assert_int_equal(k2_dims_check(&d, NULL), K2_OK);
    BAD(vocab_size, 0, "vocab_size");
    BAD(hidden_size, 2000000, "hidden_size");
    BAD(num_attention_heads, 0, "num_attention_heads");
    BAD(qk_rope_head_dim, 7, "qk_rope_head_dim");
    BAD(n_group, 3, "n_group");
    BAD(n_group, 8, "n_group");
    BAD(topk_group, 2, "topk_group");
    BAD(num_experts_per_tok, 9, "num_experts_per_tok");
    BAD(moe_layer_freq, 0, "moe_layer_freq");
    BAD(routed_scaling_factor, NAN, "routed_scaling_factor");
    BAD(rope_theta, 1, "rope_theta");
    BAD(rms_norm_eps, 0, "rms_norm_eps");
    BAD(bos_token_id, 264, "bos_token_id");
    BAD(eos_token_id, -2, "eos_token_id");
    BAD(yarn.factor, 0.5, "rope_scaling.factor");
    BAD(initializer_range, -1, "initializer_range");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_have_names_and_sizes),
        cmocka_unit_test(shapes_count_and_overflow),
        cmocka_unit_test(moe_layers_follow_the_two_switches),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
