/* batch: what is encoded comes back, equal content gives equal bytes, and no damaged byte passes. */
#include "common/wire/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const int32_t ids_a[] = {256, 1, 2, 7, 8, 9}, ids_b[] = {256, 1, 2}, ids_c[] = {5, 6};
static const float logps_a[] = {-0.5f, -1.25f, -3e-7f}, logps_c[] = {-2.0f};
static const uint32_t versions_a[] = {3, 4, 4}, versions_c[] = {4};

static const k2_batch_trajectory list[] = {
    {.id = 1024,
     .group = 1,
     .prompt = 17,
     .reward = 1,
     .prompt_tokens = 3,
     .generated_tokens = 3,
     .finish = K2_BATCH_STOP,
     .tokens = ids_a,
     .logps = logps_a,
     .versions = versions_a},
    {.id = 1025,
     .group = 1,
     .prompt = 17,
     .reward = 0,
     .prompt_tokens = 3,
     .generated_tokens = 0,
     .finish = K2_BATCH_LENGTH,
     .tokens = ids_b},
    {.id = 5120,
     .group = 5,
     .prompt = 2,
     .reward = 0.25f,
     .prompt_tokens = 1,
     .generated_tokens = 1,
     .finish = K2_BATCH_REPETITION,
     .tokens = ids_c,
     .logps = logps_c,
     .versions = versions_c},
};

static void encode_decode(void **state)
{
    (void)state;
    k2_buf buf;
    k2_buf_init(&buf, 1 << 20);
    k2_error err;
    assert_int_equal(k2_batch_encode(5, list, 3, &buf, &err), K2_OK);
    assert_int_equal(buf.len, k2_batch_bytes(3, 3, 11, 4));
    k2_batch b;
    assert_int_equal(k2_batch_decode(buf.data, buf.len, &b, &err), K2_OK);
    assert_int_equal(b.step, 5);
    assert_int_equal(b.groups, 2);
    assert_int_equal(b.tokens, 11);
    for (uint32_t i = 0; i < 3; i++) {
        k2_batch_trajectory t;
        k2_batch_get(&b, i, &t);
        assert_int_equal(t.id, list[i].id);
        assert_int_equal(t.prompt, list[i].prompt);
        assert_true(t.reward == list[i].reward);
        assert_int_equal(t.finish, list[i].finish);
        assert_memory_equal(t.tokens, list[i].tokens, 4 * (list[i].prompt_tokens + list[i].generated_tokens));
        if (t.generated_tokens) {
            assert_memory_equal(t.logps, list[i].logps, 4 * list[i].generated_tokens);
            assert_memory_equal(t.versions, list[i].versions, 4 * list[i].generated_tokens);
        }
    }
    k2_batch_trajectory t;
    k2_batch_get(&b, 0, &t);
    assert_int_equal(t.span_count, 2);
    assert_int_equal(t.spans[1].start, 1);
    assert_int_equal(t.spans[1].end, 3);
    assert_true(t.group_mean == 0.5f && t.group_std == 0.5f && t.group_size == 2);
    k2_batch_get(&b, 2, &t);
    assert_true(t.group_mean == 0.25f && t.group_std == 0 && t.group_size == 1);
    k2_buf again;
    k2_buf_init(&again, 1 << 20);
    assert_int_equal(k2_batch_encode(5, list, 3, &again, &err), K2_OK);
    assert_int_equal(again.len, buf.len);
    assert_memory_equal(again.data, buf.data, buf.len);
    k2_buf_fini(&again);
    k2_buf_fini(&buf);
}

static void empty_batch(void **state)
{
    (void)state;
    k2_buf buf;
    k2_buf_init(&buf, 1 << 20);
    k2_error err;
    k2_batch b;
    assert_int_equal(k2_batch_encode(9, NULL, 0, &buf, &err), K2_OK);
    assert_int_equal(buf.len, K2_BATCH_HEADER_BYTES);
    assert_int_equal(k2_batch_decode(buf.data, buf.len, &b, &err), K2_OK);
    assert_int_equal(b.trajectories, 0);
    k2_buf_fini(&buf);
}

/* Put a correct digest over damaged content, so that the checks behind it are reached. */
static void reseal(k2_buf *b)
{
    k2_digest d = k2_digest_of(b->data + 64, b->len - 64);
    k2_store_u64le(b->data + 48, d.hi);
    k2_store_u64le(b->data + 56, d.lo);
}

static void damage_is_found(void **state)
{
    (void)state;
    k2_buf buf;
    k2_buf_init(&buf, 1 << 20);
    k2_error err;
    k2_batch b;
    assert_int_equal(k2_batch_encode(5, list, 3, &buf, &err), K2_OK);
    for (size_t n = 0; n < buf.len; n++) assert_int_equal(k2_batch_decode(buf.data, n, &b, &err), K2_CORRUPT);
    for (size_t i = 0; i < buf.len; i++) {
        if (i >= 8 && i < 16) continue; /* the step is the caller's to compare */
        buf.data[i] ^= 0x41;
        assert_int_equal(k2_batch_decode(buf.data, buf.len, &b, &err), K2_CORRUPT);
        buf.data[i] ^= 0x41;
    }
    /* Hostile but sealed: every byte of header counts and table set to large values must not lead outside the buffer. */
    for (size_t i = 24; i < 64 + 3 * 72; i++) {
        if (i >= 48 && i < 64) continue;
        char old = buf.data[i];
        buf.data[i] = (char)0xff;
        reseal(&buf);
        if (k2_batch_decode(buf.data, buf.len, &b, &err) == K2_OK)
            for (uint32_t k = 0; k < b.trajectories; k++) {
                k2_batch_trajectory t;
                k2_batch_get(&b, k, &t);
            }
        buf.data[i] = old;
    }
    k2_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encode_decode), cmocka_unit_test(empty_batch),
                                       cmocka_unit_test(damage_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
