/* Packing: nothing lost, nothing split, no cap broken, the same on every machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "trainer/pack_int.h"

static void test_even_shares(void **state)
{
    (void)state;
    uint32_t lengths[8] = {10, 10, 10, 10, 10, 10, 10, 10}, count = 0;
    k2i_micro micro[8];
    assert_int_equal(k2i_pack(lengths, 8, 60, 2, micro, &count, NULL), K2_OK);
    assert_int_equal(count, 2); /* 80 tokens fit one round of 2 x 60: 40 and 40, not 60 and 20 */
    assert_int_equal(micro[0].tokens, 40);
    assert_int_equal(micro[1].first, 4);
    assert_int_equal(k2i_pack(lengths, 8, 30, 2, micro, &count, NULL), K2_OK);
    assert_int_equal(count, 4);
    assert_int_equal(k2i_pack(lengths, 8, 10, 1, micro, &count, NULL), K2_OK);
    assert_int_equal(count, 8);
}

static void test_whole_and_in_order(void **state)
{
    (void)state;
    enum { N = 200 };
    static uint32_t lengths[N];
    static k2i_micro micro[N];
    for (uint64_t round = 0; round < 200; round++) {
        uint32_t n = (uint32_t)k2_rand_below(3, K2_STREAM_TEST, round, 0, N) + 1, count = 0, next = 0;
        for (uint32_t i = 0; i < n; i++) lengths[i] = 1 + (uint32_t)k2_rand_below(3, K2_STREAM_TEST, round, 1 + i, 100);
        uint32_t lanes = 1 + (uint32_t)(round % 4);
        assert_int_equal(k2i_pack(lengths, n, 128, lanes, micro, &count, NULL), K2_OK);
        for (uint32_t m = 0; m < count; m++) {
            uint32_t tokens = 0;
            assert_int_equal(micro[m].first, next);
            for (uint32_t i = 0; i < micro[m].count; i++) tokens += lengths[next++];
            assert_true(micro[m].count > 0 && tokens == micro[m].tokens && tokens <= 128);
        }
        assert_int_equal(next, n);
    }
}

static void test_refused(void **state)
{
    (void)state;
    uint32_t lengths[2] = {5, 11}, empty[1] = {0}, count = 77;
    k2i_micro micro[2];
    k2_error err;
    assert_int_equal(k2i_pack(lengths, 2, 10, 2, micro, &count, &err), K2_LIMIT);
    assert_string_equal(err.text, "sequence 1 of the batch has 11 tokens, trainer.micro_tokens is 10; raise it");
    assert_int_equal(k2i_pack(empty, 1, 10, 2, micro, &count, &err), K2_BAD_INPUT);
    assert_int_equal(count, 77);
    assert_int_equal(k2i_pack(lengths, 0, 10, 2, micro, &count, &err), K2_OK);
    assert_int_equal(count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even_shares),
        cmocka_unit_test(test_whole_and_in_order),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
