/* Latent attention: paths against the reference, pages against one stretch of memory, backward against differences. */
#include "tests/unit/kernel/kernel_test_int.h"

typedef struct attn_case {
    size_t heads, latent, rope, count, page_tokens;
} attn_case;

static const attn_case cases[] = {{1, 5, 2, 1, 1},     {2, 16, 8, 16, 4},  {3, 32, 16, 17, 5}, {4, 32, 16, 40, 16},
                                  {5, 40, 6, 33, 100}, {7, 16, 16, 31, 3}, {8, 512, 64, 20, 7}};

typedef struct attn_data {
    k2_attn a;
    float *flat, *paged, *q, *d_o;
    uint32_t table[64];
    k2_keys whole, pages;
} attn_data;

static void data_make(const attn_case *c, attn_data *d)
{
    size_t width = (c->latent + c->rope + 15) / 16 * 16, used = c->latent + c->rope;
    d->a = (k2_attn){.heads = c->heads, .latent = c->latent, .width = width, .scale = 0.4f};
    d->flat = test_floats(c->count * width, 1, 1.0);
    d->q = test_floats(c->heads * width, 2, 1.0);
    d->d_o = test_floats(c->heads * c->latent, 3, 1.0);
    for (size_t i = 0; i < c->count * width; i++) d->flat[i] = i % width < used ? d->flat[i] : 0.0f;
    for (size_t i = 0; i < c->heads * width; i++) d->q[i] = i % width < used ? d->q[i] : 0.0f;
    size_t pages = (c->count + c->page_tokens - 1) / c->page_tokens;
    d->paged = k2_alloc_array(pages * c->page_tokens * width, sizeof(float));
    for (size_t p = 0; p < pages; p++) d->table[p] = (uint32_t)(pages - 1 - p); /* not in order, on purpose */
    for (size_t t = 0; t < c->count; t++) {
        size_t at = d->table[t / c->page_tokens] * c->page_tokens + t % c->page_tokens;
        memcpy(d->paged + at * width, d->flat + t * width, width * sizeof(float));
    }
    d->whole = (k2_keys){.base = d->flat, .page_tokens = c->count};
    d->pages =
        (k2_keys){.base = d->paged, .table = d->table, .page_tokens = c->page_tokens, .page_stride = c->page_tokens * width};
}

static void data_free(attn_data *d)
{
    k2_free(d->flat);
    k2_free(d->paged);
    k2_free(d->q);
    k2_free(d->d_o);
}

/* Largest score of each head but the second one, which holds a larger one from before. */
static void tops_expected(const attn_case *c, const attn_data *d, float *top)
{
    for (size_t h = 0; h < c->heads; h++) {
        top[h] = h == 1 ? 1e6f : -INFINITY;
        for (size_t t = 0; t < c->count; t++) {
            float score = k2_kern_dot(d->a.width, d->flat + t * d->a.width, d->q + h * d->a.width) * d->a.scale;
            top[h] = K2_MAX(top[h], score);
        }
    }
}

static void one_case(const attn_case *c)
{
    attn_data d;
    data_make(c, &d);
    size_t width = d.a.width, ld = (c->count + 15) / 16 * 16, keys = c->count * width, oq = c->heads * width,
           oo = c->heads * c->latent;
    float *scratch = k2_alloc_array(2 * c->heads * ld, sizeof(float)), *o = k2_alloc_array(oo, sizeof(float)),
          *o2 = k2_alloc_array(oo, sizeof(float));
    float *dq = k2_alloc_array(oq, sizeof(float)), *dq2 = k2_alloc_array(oq, sizeof(float)), *dk0 = test_floats(keys, 4, 1.0);
    for (size_t i = 0; i < keys; i++) dk0[i] = i % width < c->latent + c->rope ? dk0[i] : 0.0f;
    float *dk = test_copy(dk0, keys), top[8], top2[8];
    test_use_ref();
    tops_expected(c, &d, top);
    k2_kern_attn_fwd(&d.a, &d.whole, c->count, d.q, o, scratch);
    k2_kern_attn_bwd(&d.a, &d.whole, c->count, d.q, d.d_o, dq, dk, scratch);
    TEST_EACH_ISA(isa)
    {
        for (int paged = 0; paged < 2; paged++) {
            const k2_keys *k = paged ? &d.pages : &d.whole;
            float *dk2 = test_copy(dk0, keys);
            for (size_t h = 0; h < c->heads; h++) top2[h] = h == 1 ? 1e6f : -INFINITY; /* what is larger already stays */
            k2_keys asked = *k;
            asked.top = top2;
            k2_kern_attn_fwd(&d.a, &asked, c->count, d.q, o2, scratch);
            test_same_bits("attn_fwd", isa, o2, o, oo);
            test_same_bits("attn_fwd top", isa, top2, top, c->heads);
            k2_kern_attn_bwd(&d.a, k, c->count, d.q, d.d_o, dq2, dk2, scratch);
            test_same_bits("attn_bwd dq", isa, dq2, dq, oq);
            test_same_bits("attn_bwd dk", isa, dk2, dk, keys);
            k2_free(dk2);
        }
    }
    k2_free(scratch);
    k2_free(o);
    k2_free(o2);
    k2_free(dq);
    k2_free(dq2);
    k2_free(dk0);
    k2_free(dk);
    data_free(&d);
}

static void paths_and_pages_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < K2_COUNT(cases); i++) one_case(&cases[i]);
}

/* sum(d_o * o) as a function of q and keys, in f32 kernels but summed in double. */
static double value(const attn_data *d, size_t count, float *o, float *scratch)
{
    k2_kern_attn_fwd(&d->a, &d->whole, count, d->q, o, scratch);
    double sum = 0;
    for (size_t i = 0; i < d->a.heads * d->a.latent; i++) sum += (double)o[i] * (double)d->d_o[i];
    return sum;
}

static void check_slope(const attn_data *d, size_t count, float *x, float want, float *o, float *scratch)
{
    const float h = 1e-2f, keep = *x;
    *x = keep + h;
    double up = value(d, count, o, scratch);
    *x = keep - h;
    double down = value(d, count, o, scratch);
    *x = keep;
    assert_true(fabs((up - down) / (2 * (double)h) - (double)want) < 1e-3);
}

static void backward_is_right(void **state)
{
    (void)state;
    const attn_case c = {2, 9, 4, 6, 6};
    attn_data d;
    data_make(&c, &d);
    float scratch[2 * 2 * 16], o[18], dq[32], dk[6 * 16] = {0};
    assert_int_equal(d.a.width, 16);
    k2_kern_attn_bwd(&d.a, &d.whole, 6, d.q, d.d_o, dq, dk, scratch);
    for (size_t i = 0; i < 32; i++) {
        if (i % 16 < 13) check_slope(&d, 6, &d.q[i], dq[i], o, scratch);
    }
    for (size_t i = 0; i < 96; i++) {
        if (i % 16 < 13) check_slope(&d, 6, &d.flat[i], dk[i], o, scratch);
    }
    data_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(paths_and_pages_agree), cmocka_unit_test(backward_is_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
