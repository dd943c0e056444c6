/* The operations give the same bits whatever the number of ranks, the transport and the staging size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/coll/ranks_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 10007, LANES = 12 };

static const char *const transports[] = {"self", "shm", "tcp"};

/* Values whose sum depends on the order of addition: exponents from 2^-20 to 2^20, both signs. */
static float lane_value(uint32_t lane, uint64_t i)
{
    uint64_t r = k2_rand_u64(5, K2_STREAM_TEST, lane, i);
    double unit = (double)(r >> 11) * 0x1p-53 - 0.5;
    return (float)ldexp(unit, (int)(r % 41) - 20);
}

static void check(const k2_code code, const k2_error *err)
{
    if (code != K2_OK) fail_msg("%s", err->text);
}

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

/* Reduce-scatter to unequal ranges, then gather: every rank has the whole sum, whose digest it leaves. */
static void sum_run(k2_coll *c, const char *const *locators, const void *arg, rank_result *result)
{
    (void)arg;
    uint32_t ranks = k2_coll_ranks(c), rank = k2_coll_rank(c), local = LANES / ranks;
    float *lanes[LANES], *sum = k2_alloc_array(COUNT, sizeof *sum), *mine = k2_alloc_array(COUNT, sizeof *mine);
    k2_coll_range ranges[K2_COLL_RANKS_MAX];
    for (uint32_t l = 0; l < local; l++) {
        lanes[l] = k2_alloc_array(COUNT, sizeof(float));
        for (uint64_t i = 0; i < COUNT; i++) lanes[l][i] = lane_value(rank * local + l, i);
    }
    for (uint32_t r = 0; r < ranks; r++) { /* the last rank gets about half, the first nothing when there are four */
        ranges[r].begin = r == 0 ? 0 : ranges[r - 1].end;
        ranges[r].end = r + 1 == ranks ? COUNT : ranks == 4 && r == 0 ? 0 : ranges[r].begin + COUNT / (2 * ranks) + r;
    }
    k2_error *e = &result->error;
    k2_code code = k2_coll_join(c, locators, ranks, e);
    for (int again = 0; again < 2 && code == K2_OK; again++) {
        code = k2_coll_reduce_scatter_lanes(c, (const float *const *)lanes, local, COUNT, ranges, mine, e);
        if (code != K2_OK) break;
        memcpy(sum + ranges[rank].begin, mine, (ranges[rank].end - ranges[rank].begin) * sizeof *mine);
        code = k2_coll_all_gather(c, sum, sizeof *sum, COUNT, ranges, e);
    }
    result->digest = k2_digest_of(sum, COUNT * sizeof *sum);
    for (uint32_t l = 0; l < local; l++) k2_free(lanes[l]);
    k2_free(sum);
    k2_free(mine);
}

static k2_digest sum_expected(void)
{
    float *sum = k2_alloc_array(COUNT, sizeof *sum);
    for (uint64_t i = 0; i < COUNT; i++) {
        sum[i] = lane_value(0, i);
        for (uint32_t l = 1; l < LANES; l++) sum[i] = sum[i] + lane_value(l, i);
    }
    k2_digest d = k2_digest_of(sum, COUNT * sizeof *sum);
    k2_free(sum);
    return d;
}

static void sums_have_the_same_bits_for_any_number_of_ranks(void **state)
{
    (void)state;
    static const uint64_t staging[] = {4096, 1 << 20};
    k2_digest expected = sum_expected();
    for (size_t t = 0; t < K2_COUNT(transports); t++)
        for (uint32_t ranks = 1; ranks <= 4; ranks++)
            for (size_t s = 0; s < K2_COUNT(staging); s++) {
                if (staging[s] == 4096 && strcmp(transports[t], "tcp") == 0 && ranks == 4)
                    continue; /* hundreds of tiny rounds */
                rank_result r[4];
                ranks_spec spec = {.transport = transports[t], .ranks = ranks, .bytes_max = staging[s], .run = sum_run};
                ranks_run(&spec, r);
                for (uint32_t i = 0; i < ranks; i++) {
                    check(r[i].error.code, &r[i].error);
                    if (!r[i].finished || !k2_digest_equal(r[i].digest, expected))
                        fail_msg("%s, %u ranks, staging %llu: rank %u", transports[t], ranks, (unsigned long long)staging[s],
                                 i);
                }
            }
}

static void a_sum_of_one_lane_keeps_minus_zero(void **state)
{
    (void)state;
    k2_coll *c;
    k2_error err;
    float lane[3] = {-0.0f, 1.0f, NAN}, out[2];
    const float *lanes[] = {lane};
    k2_coll_range range = {0, 2};
    check(k2_coll_open(&(k2_coll_config){.ranks = 1}, &c, &err), &err);
    assert_string_equal(k2_coll_locator(c), "");
    check(k2_coll_join(c, &(const char *){""}, 1, &err), &err);
    check(k2_coll_reduce_scatter_lanes(c, lanes, 1, 3, &range, out, &err), &err);
    assert_true(signbit(out[0]) && out[1] == 1.0f);
    k2_coll_close(c);
}

/* ---- the rest ------------------------------------------------------------------------------------------------------- */

static bool bytes_are(const unsigned char *b, uint64_t n, unsigned seed)
{
    for (uint64_t i = 0; i < n; i++)
        if (b[i] != (unsigned char)(i * 7 + seed)) return false;
    return true;
}

static void bytes_fill(unsigned char *b, uint64_t n, unsigned seed)
{
    for (uint64_t i = 0; i < n; i++) b[i] = (unsigned char)(i * 7 + seed);
}

static k2_code wrong(rank_result *result, const char *what, uint64_t n)
{
    return k2_error_set(&result->error, K2_INTERNAL, "wrong bytes: %s of %llu", what, (unsigned long long)n);
}

static k2_code broadcasts(k2_coll *c, uint64_t n, rank_result *result)
{
    unsigned char *b = k2_alloc(n + 1);
    k2_code code = K2_OK;
    for (uint32_t root = 0; root < k2_coll_ranks(c) && code == K2_OK; root++) {
        memset(b, 0, n);
        if (root == k2_coll_rank(c)) bytes_fill(b, n, root + 3);
        code = k2_coll_broadcast(c, root, b, n, &result->error);
        if (code == K2_OK && !bytes_are(b, n, root + 3)) code = wrong(result, "broadcast", n);
    }
    k2_free(b);
    return code;
}

static k2_code gathers(k2_coll *c, uint64_t n, rank_result *result)
{
    uint32_t ranks = k2_coll_ranks(c), rank = k2_coll_rank(c);
    unsigned char *mine = k2_alloc(n + 1), *all = k2_alloc(n * ranks + 1);
    bytes_fill(mine, n, rank);
    k2_code code = k2_coll_all_gather_bytes(c, mine, n, all, &result->error);
    for (uint32_t r = 0; r < ranks && code == K2_OK; r++)
        if (!bytes_are(all + r * n, n, r)) code = wrong(result, "all_gather_bytes", n);
    k2_free(mine);
    k2_free(all);
    return code;
}

static void all_run(k2_coll *c, const char *const *locators, const void *arg, rank_result *result)
{
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 30000};
    (void)arg;
    uint32_t ranks = k2_coll_ranks(c), rank = k2_coll_rank(c);
    k2_error *e = &result->error;
    if (k2_coll_join(c, locators, ranks, e) != K2_OK) return;
    for (size_t i = 0; i < K2_COUNT(sizes); i++) {
        if (broadcasts(c, sizes[i], result) != K2_OK) return;
        if (gathers(c, sizes[i], result) != K2_OK) return;
        if (k2_coll_barrier(c, e) != K2_OK) return;
    }
    double all[3 * K2_COLL_RANKS_MAX], *mine = all + 3 * rank; /* its own place */
    for (unsigned i = 0; i < 3; i++) mine[i] = rank * 10 + i + 0.5;
    if (k2_coll_all_gather_f64(c, mine, 3, all, e) != K2_OK) return;
    for (uint32_t r = 0; r < ranks; r++)
        for (unsigned i = 0; i < 3; i++)
            if (all[3 * r + i] != r * 10 + i + 0.5) wrong(result, "all_gather_f64", r);
    k2_coll_range none[K2_COLL_RANKS_MAX] = {{0, 0}};
    unsigned char untouched = 9;
    if (k2_coll_all_gather(c, &untouched, 1, 1, none, e) != K2_OK) return;
    if (untouched != 9) wrong(result, "all_gather", 0);
}

static void gathers_broadcasts_and_barriers_give_everyone_everything(void **state)
{
    (void)state;
    for (size_t t = 0; t < K2_COUNT(transports); t++)
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            rank_result r[4];
            ranks_spec spec = {.transport = transports[t], .ranks = ranks, .bytes_max = 4096, .run = all_run};
            ranks_run(&spec, r);
            for (uint32_t i = 0; i < ranks; i++) {
                if (r[i].error.code != K2_OK) fail_msg("%s, %u ranks: %s", transports[t], ranks, r[i].error.text);
                assert_true(r[i].finished);
            }
        }
}

static void splits_cover_everything_once(void **state)
{
    (void)state;
    static const uint64_t counts[] = {0, 1, 15, 16, 17, 1000, 12345678901ull};
    for (size_t i = 0; i < K2_COUNT(counts); i++)
        for (uint32_t ranks = 1; ranks <= 9; ranks++)
            for (uint64_t align = 1; align <= 64; align *= 4) {
                uint64_t at = 0, longest = 0, shortest = UINT64_MAX;
                for (uint32_t r = 0; r < ranks; r++) {
                    k2_coll_range g = k2_coll_split(counts[i], ranks, r, align);
                    assert_true(g.begin == at && g.end >= g.begin);
                    assert_true(g.begin % align == 0 || g.begin == counts[i]);
                    longest = K2_MAX(longest, g.end - g.begin);
                    shortest = K2_MIN(shortest, g.end - g.begin);
                    at = g.end;
                }
                assert_true(at == counts[i] && longest - shortest < 2 * align);
            }
}

static void bad_arguments_are_named(void **state)
{
    (void)state;
    k2_coll *c = NULL;
    k2_error err = {0};
    static const k2_coll_config bad[] = {{.ranks = 0},
                                         {.ranks = 1, .rank = 1},
                                         {.ranks = K2_COLL_RANKS_MAX + 1},
                                         {.ranks = 2},
                                         {.ranks = 1, .bytes_max = 4095},
                                         {.ranks = 1, .bytes_max = 4097},
                                         {.ranks = 1, .bytes_max = K2_COLL_BYTES_MAX + 64}};
    for (size_t i = 0; i < K2_COUNT(bad); i++) {
        assert_int_equal(k2_coll_open(&bad[i], &c, &err), K2_BAD_INPUT);
        assert_true(strncmp(err.text, "coll: ", 6) == 0);
    }
    check(k2_coll_open(&(k2_coll_config){.ranks = 1}, &c, &err), &err);
    check(k2_coll_join(c, &(const char *){""}, 1, &err), &err);
    float v[4] = {0}, out[4];
    const float *lanes[] = {v};
    static const k2_coll_range ranges[] = {{0, 5}, {3, 2}, {UINT64_MAX, UINT64_MAX}};
    for (size_t i = 0; i < K2_COUNT(ranges); i++) {
        assert_int_equal(k2_coll_reduce_scatter_lanes(c, lanes, 1, 4, &ranges[i], out, &err), K2_BAD_INPUT);
        assert_int_equal(k2_coll_all_gather(c, v, 4, 4, &ranges[i], &err), K2_BAD_INPUT);
    }
    assert_int_equal(k2_coll_reduce_scatter_lanes(c, lanes, 0, 4, &(k2_coll_range){0, 4}, out, &err), K2_LIMIT);
    assert_int_equal(k2_coll_reduce_scatter_lanes(c, lanes, K2_COLL_LANES_MAX + 1, 4, &(k2_coll_range){0, 4}, out, &err),
                     K2_LIMIT);
    assert_int_equal(k2_coll_broadcast(c, 1, v, 4, &err), K2_BAD_INPUT);
    k2_coll_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_cover_everything_once),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(a_sum_of_one_lane_keeps_minus_zero),
        cmocka_unit_test(sums_have_the_same_bits_for_any_number_of_ranks),
        cmocka_unit_test(gathers_broadcasts_and_barriers_give_everyone_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
