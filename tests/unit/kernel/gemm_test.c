/* The matrix product: all paths, forms of B and shapes against the reference, bit for bit. */
#include "tests/unit/kernel/kernel_test_int.h"

static float *make_b(const k2_gemm *g, const float *w, float *packed)
{
    /* w is [k,n] for KN and [n,k] for NK; packed panels can be made from either. */
    if (g->b_form != K2_B_PACKED) return NULL;
    k2_kern_pack_nk(w, g->k, g->n, g->k, packed);
    return packed;
}

static void check_one(size_t m, size_t n, size_t k, k2_gemm_b form, bool a_trans, bool accumulate)
{
    size_t pad = 3, ldc = n + pad, lda = (a_trans ? m : k) + pad;
    float *a = test_floats((a_trans ? k : m) * lda, 1, 1.0), *b = test_floats(n * k, 2, 1.0);
    float *packed = k2_alloc_array(k2_kern_packed_floats(n, k) + 1, sizeof(float)), *c0 = test_floats(m * ldc, 3, 1.0);
    k2_gemm g = {
        .m = m, .n = n, .k = k, .a = a, .lda = lda, .a_trans = a_trans, .b = b, .b_form = form, .accumulate = accumulate};
    g.ldb = form == K2_B_KN ? n : k;
    g.ldc = ldc;
    if (form == K2_B_PACKED) g.b = make_b(&g, b, packed);
    float *want = test_copy(c0, m * ldc);
    test_use_ref();
    g.c = want;
    k2_kern_gemm(&g);
    TEST_EACH_ISA(isa)
    {
        float *got = test_copy(c0, m * ldc);
        g.c = got;
        k2_kern_gemm(&g);
        char what[96];
        snprintf(what, sizeof(what), "gemm %zux%zux%zu form %d trans %d add %d", m, n, k, (int)form, a_trans, accumulate);
        test_same_bits(what, isa, got, want, m * ldc); /* padding of C too: it must not be written */
        k2_free(got);
    }
    k2_free(want);
    k2_free(c0);
    k2_free(packed);
    k2_free(b);
    k2_free(a);
}

static void all_shapes(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 1, 1},   {1, 16, 4},    {2, 17, 3},  {3, 31, 33},  {4, 48, 16},
                                       {5, 49, 7},  {6, 100, 20},  {7, 5, 64},  {8, 33, 257}, {9, 64, 40},
                                       {1, 130, 9}, {17, 70, 300}, {13, 15, 1}, {261, 33, 5}, {2, 97, 11},
                                       {3, 80, 2},  {0, 16, 4},    {4, 0, 3},   {3, 20, 0},   {39, 210, 300}};
    for (size_t i = 0; i < K2_COUNT(shapes); i++) {
        for (int form = K2_B_PACKED; form <= K2_B_NK; form++) {
            for (int flags = 0; flags < 4; flags++) {
                check_one(shapes[i][0], shapes[i][1], shapes[i][2], (k2_gemm_b)form, flags & 1, flags & 2);
            }
        }
    }
}

/* The bits of a row do not depend on the rows beside it, nor those of a column on the columns. */
static void rows_are_independent(void **state)
{
    (void)state;
    const size_t m = 37, n = 70, k = 130;
    float *a = test_floats(m * k, 4, 1.0), *b = test_floats(n * k, 5, 1.0), *all = test_floats(m * n, 6, 1.0),
          *one = test_floats(n, 7, 1.0);
    TEST_EACH_ISA(isa)
    {
        k2_kern_gemm(
            &(k2_gemm){.m = m, .n = n, .k = k, .a = a, .lda = k, .b = b, .ldb = n, .b_form = K2_B_KN, .c = all, .ldc = n});
        for (size_t i = 0; i < m; i++) {
            k2_kern_gemm(&(k2_gemm){.m = 1,
                                    .n = n - 9,
                                    .k = k,
                                    .a = a + i * k,
                                    .lda = k,
                                    .b = b + 9,
                                    .ldb = n,
                                    .b_form = K2_B_KN,
                                    .c = one,
                                    .ldc = n});
            test_same_bits("one row", isa, one, all + i * n + 9, n - 9);
        }
    }
    k2_free(a);
    k2_free(b);
    k2_free(all);
    k2_free(one);
}

/* Parts cover C, each element once, and give the bits of the whole. */
static void parts_are_the_whole(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {{1, 100, 9}, {3, 15, 4}, {40, 16, 5}, {70, 33, 8}, {200, 70, 3}, {0, 16, 2}, {2, 0, 2}};
    for (size_t i = 0; i < 3 * 2 * K2_COUNT(shapes); i++) {
        const size_t *shape = shapes[i / 6], m = shape[0], n = shape[1], k = shape[2];
        k2_gemm_b form = (k2_gemm_b)(i % 3);
        bool a_trans = i / 3 % 2;
        float *a = test_floats(m * k, 14, 1.0), *b = test_floats(n * k, 15, 1.0), *want = test_floats(m * n, 16, 1.0);
        float *packed = k2_alloc_array(k2_kern_packed_floats(n, k) + 1, sizeof(float));
        k2_gemm g = {.m = m, .n = n, .k = k, .a = a, .lda = a_trans ? m : k, .a_trans = a_trans, .b = b, .b_form = form};
        g.ldb = form == K2_B_KN ? n : k;
        g.ldc = n;
        g.c = want;
        g.accumulate = true; /* an element that two parts compute is added twice */
        if (form == K2_B_PACKED) g.b = make_b(&g, b, packed);
        float *start = test_copy(want, m * n);
        test_use_ref();
        k2_kern_gemm(&g);
        for (size_t parts = 1; parts <= 7; parts++) {
            float *got = test_copy(start, m * n);
            g.c = got;
            for (size_t part = 0; part < parts; part++) k2_kern_gemm_part(&g, parts, part);
            test_same_bits("parts", K2_ISA_REF, got, want, m * n);
            k2_free(got);
        }
        k2_free(start);
        k2_free(packed);
        k2_free(want);
        k2_free(b);
        k2_free(a);
    }
}

static void packings_agree(void **state)
{
    (void)state;
    const size_t n = 37, k = 11;
    float *w = test_floats(n * k, 8, 1.0), *t = k2_alloc_array(n * k, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) t[j * n + i] = w[i * k + j];
    }
    size_t floats = k2_kern_packed_floats(n, k);
    assert_int_equal(floats, 48 * k);
    float *p = test_floats(floats, 9, 1.0), *q = test_floats(floats, 10, 1.0);
    k2_kern_pack_nk(w, k, n, k, p);
    k2_kern_pack_kn(t, n, n, k, q);
    assert_memory_equal(p, q, floats * sizeof(float));
    assert_true(p[(2 * k + 1) * 16 + 5] == 0.0f);
    k2_free(w);
    k2_free(t);
    k2_free(p);
    k2_free(q);
}

/* Against sums in double, so that the reference itself stands on something. */
static void reference_is_right(void **state)
{
    (void)state;
    const size_t m = 5, n = 6, k = 40;
    float *a = test_floats(m * k, 11, 1.0), *b = test_floats(n * k, 12, 1.0), *c = test_floats(m * n, 13, 1.0);
    test_use_ref();
    k2_kern_gemm(&(k2_gemm){.m = m, .n = n, .k = k, .a = a, .lda = k, .b = b, .ldb = k, .b_form = K2_B_NK, .c = c, .ldc = n});
    for (size_t i = 0; i < m * n; i++) {
        double sum = 0;
        for (size_t j = 0; j < k; j++) sum += (double)a[i / n * k + j] * (double)b[i % n * k + j];
        assert_true(fabs(sum - (double)c[i]) < 1e-5);
    }
    k2_free(a);
    k2_free(b);
    k2_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shapes),     cmocka_unit_test(rows_are_independent), cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(packings_agree), cmocka_unit_test(reference_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
