/* Products of bf16 pairs: every path against the reference, bit for bit, over shapes and over the values where such arithmetic
 * goes wrong; on a machine with vdpbf16ps that holds the reference to the instruction. */
#include "tests/unit/kernel/kernel_test_int.h"

#include <float.h>

static float of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

/* As test_same_bits, but a NaN is a NaN: which one, the order of operands decides. */
static void same(const char *what, k2_isa isa, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isnan(got[i]) || !isnan(want[i])) test_same_bits(what, isa, &got[i], &want[i], 1);
}

typedef struct numbers {
    float *a, *b, *c;
    uint16_t *packed;
    k2_gemm g;
} numbers;

static void begin(numbers *x, size_t m, size_t n, size_t k, k2_gemm_b form, bool a_trans, bool accumulate)
{
    size_t lda = (a_trans ? m : k) + 3;
    x->a = test_floats((a_trans ? k : m) * lda, 1, 1.0);
    x->b = test_floats(n * k, 2, 1.0);
    x->c = test_floats(m * (n + 3), 3, 1.0);
    x->packed = k2_alloc_array(k2_kern_packed_bf16(n, k) + 1, sizeof(uint16_t));
    x->g = (k2_gemm){.m = m, .n = n, .k = k, .a = x->a, .lda = lda, .a_trans = a_trans, .b_form = form, .bf16 = true};
    x->g.b = form == K2_B_PACKED ? NULL : x->b;
    x->g.ldb = form == K2_B_KN ? n : k;
    x->g.b_bf16 = x->packed;
    x->g.ldc = n + 3;
    x->g.accumulate = accumulate;
}

static void end(numbers *x)
{
    k2_free(x->a);
    k2_free(x->b);
    k2_free(x->c);
    k2_free(x->packed);
}

/* Whatever stands in a, b and c by now. */
static void check(numbers *x, const char *what)
{
    k2_gemm *g = &x->g;
    size_t floats = g->m * g->ldc;
    if (g->b_form == K2_B_PACKED) k2_kern_pack_bf16_nk(x->b, g->k, g->n, g->k, x->packed);
    float *want = test_copy(x->c, floats);
    test_use_ref();
    g->c = want;
    k2_kern_gemm(g);
    TEST_EACH_ISA(isa)
    {
        float *got = test_copy(x->c, floats);
        g->c = got;
        k2_kern_gemm(g);
        same(what, isa, got, want, floats);
        k2_free(got);
    }
    k2_free(want);
}

static void all_shapes(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},    {1, 16, 4},   {2, 17, 3},    {3, 31, 33},   {4, 48, 16}, {5, 49, 7},
                                       {6, 100, 20}, {7, 5, 64},   {8, 33, 257},  {9, 64, 40},   {1, 130, 9}, {17, 70, 300},
                                       {13, 15, 1},  {2, 97, 11},  {3, 80, 2},    {0, 16, 4},    {4, 0, 3},   {3, 20, 0},
                                       {65, 50, 31}, {4, 20, 600}, {2, 18, 2051}, {66, 300, 250}};
    for (size_t i = 0; i < K2_COUNT(shapes); i++) {
        for (int form = K2_B_PACKED; form <= K2_B_NK; form++) {
            for (int flags = 0; flags < 4; flags++) {
                const size_t *s = shapes[i];
                numbers x;
                char what[96];
                begin(&x, s[0], s[1], s[2], (k2_gemm_b)form, flags & 1, flags & 2);
                snprintf(what, sizeof(what), "bf16 gemm %zux%zux%zu form %d flags %d", s[0], s[1], s[2], form, flags);
                check(&x, what);
                end(&x);
            }
        }
    }
}

/* What random numbers between -1 and 1 never are. */
static float edge(uint64_t i)
{
    static const uint32_t bits[] = {
        0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x00000001, 0x807fffff,
        0x007fffff, /* zeros, ones, denormals */
        0x00800000, 0x80800000, 0x00ffffff, 0x7f7fffff, 0xff7fffff, 0x7f7f0000,
        0x7f7f8000,                                                 /* smallest normal; largest, rounding to inf or not */
        0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345, /* infinities, NaN */
        0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x3f7fffff, 0xbf808000, /* ties of the rounding, and beside them */
        0x1f800000, 0x20000000, 0x1fff0000, 0x9f800000, 0x1a000000, 0x9a400000, /* products about 2^-126 and 2^-150 */
        0x5f800000, 0xdf800000, 0x5f7f0000, 0x3f800100, 0x34000000};            /* products about 2^128 */
    uint64_t r = (uint64_t)(k2_rand_unit(7, K2_STREAM_TEST, 0, i) * 1e9);
    if (r % 4 == 0) return of_bits((uint32_t)(k2_rand_unit(8, K2_STREAM_TEST, 0, i) * 4294967296.0));
    return of_bits(bits[r / 4 % K2_COUNT(bits)]);
}

static void rounding(void **state)
{
    (void)state;
    enum { N = 1000 };
    float x[N];
    uint16_t want[N], got[N];
    for (size_t i = 0; i < N; i++) x[i] = edge(i);
    test_use_ref();
    k2_kern_bf16(N, x, want);
    for (size_t i = 0; i < N; i++) { /* by hand: of the two bf16 around a number the nearer */
        float low = of_bits(bits_of(x[i]) & 0xffff0000u), up = of_bits((bits_of(x[i]) & 0xffff0000u) + 0x10000u);
        float r = of_bits((uint32_t)want[i] << 16);
        if (isnan(x[i])) {
            assert_true(isnan(r));
        } else if (fabsf(x[i]) < FLT_MIN) {
            assert_true(r == 0 && !signbit(r) == !signbit(x[i]));
        } else if (isfinite(up) && isfinite(low)) {
            double to_low = fabs((double)x[i] - (double)low), to_up = fabs((double)x[i] - (double)up);
            assert_true(to_low < to_up ? r == low : to_low > to_up ? r == up : (want[i] & 1) == 0 && (r == low || r == up));
        }
    }
    TEST_EACH_ISA(isa)
    {
        for (size_t n = 0; n < 70; n++) {
            memset(got, 0x55, sizeof(got));
            k2_kern_bf16(n, x + 7 * n, got);
            assert_memory_equal(got, want + 7 * n, n * sizeof(*got));
            assert_int_equal(got[n], 0x5555);
        }
    }
}

static void edges(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        numbers x;
        begin(&x, 9, 37, round % 5 + 1, (k2_gemm_b)(round % 3), round & 1, true);
        size_t rows = x.g.a_trans ? x.g.k : x.g.m;
        for (size_t i = 0; i < rows * x.g.lda; i++) x.a[i] = edge(round * 100000 + i);
        for (size_t i = 0; i < x.g.n * x.g.k; i++) x.b[i] = edge(round * 100000 + 20000 + i);
        for (size_t i = 0; i < x.g.m * x.g.ldc; i++) x.c[i] = edge(round * 100000 + 40000 + i);
        check(&x, "bf16 gemm of edges");
        end(&x);
    }
}

/* One step of a chain, a pair and what it is added to, worked out by hand. */
static void one_step(void **state)
{
    (void)state;
    const float tiny = FLT_MIN, half = 0x1p-75f;
    const float inf = INFINITY;
    const struct {
        float a[2], b[2], c, want;
        const char *what;
    } rows[] = {
        {{2, 3}, {5, 7}, 1, 32, "numbers"},
        {{-1, 0x1p-24f}, {1, 1}, 1, 0, "the odd one first: 2^-24 is lost in 1, of which the even one leaves nothing"},
        {{0x1p-24f, -1}, {1, 1}, 1, 0x1p-24f, "the even one after"},
        {{-1, 1}, {1, 1}, 0x1p-25f, 0, "nor is the pair added up by itself: 2^-25 is lost in 1"},
        {{0, half}, {0, half}, tiny, tiny, "2^-150 above 2^-126"},
        {{0, -half}, {0, half * 0.5f}, tiny, tiny, "2^-151 below 2^-126 is a tie, to the even 2^-126"},
        {{0, -half}, {0, half * (1 + 0x1p-7f) * 0.5f}, tiny, 0, "more is below the normal numbers, and zero"},
        {{0, -half}, {0, half}, tiny, 0, "as 2^-150 below, which fmaf would round up"},
        {{0, 0x1p-100f}, {0, 0x1p-27f}, 0, 0, "a result of 2^-127"},
        {{-0x1p-100f, 0}, {0x1p-27f, 0}, 0, -0.0f, "keeps its sign"},
        {{0, 0}, {0, 0}, tiny / 2, 0, "a denormal to add to"},
        {{0, tiny / 2}, {0, 0x1p127f}, 1, 1, "a denormal operand"},
        {{0x1p127f, 0x1p127f}, {1, 1}, 0, inf, "overflow"},
        {{-inf, 0x1p127f}, {1, 2}, 0, NAN, "infinity first, its opposite after"},
        {{0, inf}, {0, 0}, 0, NAN, "infinity times zero"},
        {{1.00390625f, 0}, {1, 0}, 0, 1, "a tie of the rounding to the even 1"},
        {{1.01171875f, 0}, {1, 0}, 0, 1.015625f, "and to the even number above"},
        {{0, 0}, {0, 0}, -0.0f, 0, "minus zero and zero"},
    };
    for (k2_isa isa = K2_ISA_REF; isa < K2_ISA_COUNT; isa++) {
        if (k2_kern_isa_use(isa) != K2_OK) continue;
        for (size_t i = 0; i < K2_COUNT(rows); i++) {
            float c = rows[i].c;
            k2_kern_gemm(&(k2_gemm){.m = 1,
                                    .n = 1,
                                    .k = 2,
                                    .a = rows[i].a,
                                    .lda = 2,
                                    .b = rows[i].b,
                                    .ldb = 2,
                                    .b_form = K2_B_NK,
                                    .bf16 = true,
                                    .c = &c,
                                    .ldc = 1,
                                    .accumulate = true});
            same(rows[i].what, isa, &c, &rows[i].want, 1);
        }
        volatile float denormal = tiny; /* the caller's own arithmetic knows them still */
        denormal *= 0.5f;
        assert_true(denormal > 0);
    }
}

/* The bits of a row do not depend on the rows beside it, nor those of a column on the columns; a chain may rest in C between
 * pairs. */
static void parts_are_independent(void **state)
{
    (void)state;
    numbers x;
    begin(&x, 37, 70, 130, K2_B_PACKED, false, false);
    k2_kern_pack_bf16_nk(x.b, x.g.k, x.g.n, x.g.k, x.packed);
    TEST_EACH_ISA(isa)
    {
        float one[70];
        x.g.c = x.c;
        k2_kern_gemm(&x.g);
        for (size_t i = 0; i < x.g.m; i++) {
            k2_gemm part = x.g;
            part.m = 1;
            part.a += i * x.g.lda;
            part.n -= 16;
            part.b_bf16 += k2_kern_packed_bf16(16, x.g.k);
            part.c = one;
            k2_kern_gemm(&part);
            test_same_bits("one row", isa, one, x.c + i * x.g.ldc + 16, part.n);
            part.b_form = K2_B_NK;
            part.b = x.b + 16 * x.g.k;
            part.k = 86;
            k2_kern_gemm(&part);
            part.a += 86;
            part.b += 86;
            part.k = x.g.k - 86;
            part.accumulate = true;
            k2_kern_gemm(&part);
            test_same_bits("one row in two parts", isa, one, x.c + i * x.g.ldc + 16, part.n);
        }
    }
    end(&x);
}

static void threads_parts(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 7, 100};
    for (size_t i = 0; i < 3 * K2_COUNT(rows); i++) {
        numbers x;
        begin(&x, rows[i / 3], 70, 33, (k2_gemm_b)(i % 3), false, true);
        if (i % 3 == K2_B_PACKED) k2_kern_pack_bf16_nk(x.b, x.g.k, x.g.n, x.g.k, x.packed);
        float *whole = test_copy(x.c, x.g.m * x.g.ldc);
        x.g.c = whole;
        k2_kern_gemm(&x.g);
        x.g.c = x.c;
        for (size_t part = 0; part < 3; part++) k2_kern_gemm_part(&x.g, 3, part);
        test_same_bits("three parts", k2_kern_isa(), x.c, whole, x.g.m * x.g.ldc);
        k2_free(whole);
        end(&x);
    }
}

static void packings_agree(void **state)
{
    (void)state;
    const size_t n = 37, k = 11;
    float *w = test_floats(n * k, 8, 1.0), *t = k2_alloc_array(n * k, sizeof(float));
    w[0] = of_bits(0x3f818000);
    w[1] = of_bits(0xff812345);
    w[2] = of_bits(0x807fffff);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) t[j * n + i] = w[i * k + j];
    size_t count = k2_kern_packed_bf16(n, k);
    assert_int_equal(count, 48 * 12);
    uint16_t *p = k2_alloc_array(count, sizeof(*p)), *q = k2_alloc_array(count, sizeof(*q));
    memset(p, 0x55, count * sizeof(*p));
    memset(q, 0xaa, count * sizeof(*q));
    k2_kern_pack_bf16_nk(w, k, n, k, p);
    k2_kern_pack_bf16_kn(t, n, n, k, q);
    assert_memory_equal(p, q, count * sizeof(*p));
    assert_int_equal(p[0], 0x3f82);
    assert_int_equal(p[1], 0xffc1);
    assert_int_equal(p[32], 0x8000);
    assert_int_equal(p[5 * 32 + 1], 0);                   /* k = 11 is not there */
    assert_int_equal(p[2 * 12 * 16 + 3 * 32 + 5 * 2], 0); /* nor is n = 37 */
    k2_free(w);
    k2_free(t);
    k2_free(p);
    k2_free(q);
}

/* Operands off by at most 2^-9 each, sums in f32: the distance to the product in double is bounded by both. */
static void near_the_product(void **state)
{
    (void)state;
    numbers x;
    begin(&x, 5, 6, 40, K2_B_NK, false, false);
    x.g.c = x.c;
    k2_kern_gemm(&x.g);
    for (size_t m = 0; m < 5; m++) {
        for (size_t n = 0; n < 6; n++) {
            double sum = 0, abs = 0;
            for (size_t k = 0; k < 40; k++) {
                double product = (double)x.a[m * x.g.lda + k] * (double)x.b[n * 40 + k];
                sum += product;
                abs += fabs(product);
            }
            double off = fabs(sum - (double)x.c[m * x.g.ldc + n]);
            assert_true(off < abs * 0x1.02p-8);
        }
    }
    end(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shapes),
        cmocka_unit_test(edges),
        cmocka_unit_test(rounding),
        cmocka_unit_test(one_step),
        cmocka_unit_test(parts_are_independent),
        cmocka_unit_test(packings_agree),
        cmocka_unit_test(threads_parts),
        cmocka_unit_test(near_the_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
