/* OpenBLAS and oneDNN, each where it was found at configure time. Sizes are those of the product itself: C [m,n], k summed.
 *
 *   BENCH_Y   A [m,k], B [n,k]    BENCH_DX  A [m,k], B [k,n]    BENCH_DW  A [k,m], B [k,n], C is added to
 *
 * oneDNN comes twice: on B as it lies, and with B brought into the layout that it likes best beforehand, where ours is packed.
 * A product in bf16, which Debian's OpenBLAS has not, takes A and B in bf16 and gives C in f32.
 */
#include "tests/bench/kernel/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/base.h"

#ifdef K2_HAVE_OPENBLAS
#include <cblas.h>
void openblas_set_num_threads(int n);

typedef struct blas {
    bench_form form;
    int m, n, k;
} blas;

static void *blas_begin(bench_form form, bool bf16, size_t m, size_t n, size_t k, uint32_t threads)
{
    if (bf16) return NULL;
    blas *p = k2_alloc(sizeof(*p));
    *p = (blas){.form = form, .m = (int)m, .n = (int)n, .k = (int)k};
    openblas_set_num_threads((int)threads);
    return p;
}

static void blas_run(void *product, const void *a, const void *b, float *c)
{
    const blas *p = product;
    bool a_trans = p->form == BENCH_DW, b_trans = p->form == BENCH_Y;
    cblas_sgemm(CblasRowMajor, a_trans ? CblasTrans : CblasNoTrans, b_trans ? CblasTrans : CblasNoTrans, p->m, p->n, p->k, 1, a,
                a_trans ? p->m : p->k, b, b_trans ? p->k : p->n, p->form == BENCH_DW ? 1 : 0, c, p->n);
}

static void blas_end(void *product)
{
    k2_free(product);
}

static const bench_rival openblas = {"openblas", blas_begin, blas_run, blas_end};
#endif

#ifdef K2_HAVE_DNNL
#include <dnnl.h>
void omp_set_num_threads(int n); /* of the OpenMP that oneDNN brings: its header is the compiler's, and clang has none here */

typedef struct dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
    bool packed, fresh; /* fresh: B was not brought into its layout yet */
    dnnl_memory_t b_plain;
} dnn;

static void ok(dnnl_status_t status)
{
    K2_ASSERT(status == dnnl_success);
}

static dnnl_memory_desc_t plain(dnnl_data_type_t type, size_t rows, size_t cols, bool trans)
{
    dnnl_memory_desc_t md;
    const dnnl_dims_t sizes = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    ok(dnnl_memory_desc_init_by_tag(&md, 2, sizes, type, trans ? dnnl_ba : dnnl_ab));
    return md;
}

static void *dnn_begin_as(bench_form form, bool bf16, size_t m, size_t n, size_t k, uint32_t threads, bool packed)
{
    if (bf16 && k2_kern_isa() < K2_ISA_AVX512) return NULL; /* it has none there */
    dnn *p = k2_alloc(sizeof(*p));
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t add;
    omp_set_num_threads((int)threads);
    ok(dnnl_engine_create(&p->engine, dnnl_cpu, 0));
    ok(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags));
    const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t a = plain(type, m, k, form == BENCH_DW), b = plain(type, k, n, form == BENCH_Y);
    dnnl_memory_desc_t c = plain(dnnl_f32, m, n, false), b_want = b;
    const dnnl_dims_t b_sizes = {(dnnl_dim_t)k, (dnnl_dim_t)n};
    if (packed) ok(dnnl_memory_desc_init_by_tag(&b_want, 2, b_sizes, type, dnnl_format_tag_any));
    ok(dnnl_matmul_desc_init(&desc, &a, &b_want, NULL, &c));
    ok(dnnl_primitive_attr_create(&attr));
    if (form == BENCH_DW) {
        ok(dnnl_post_ops_create(&add));
        ok(dnnl_post_ops_append_sum(add, 1));
        ok(dnnl_primitive_attr_set_post_ops(attr, add));
        ok(dnnl_post_ops_destroy(add));
    }
    ok(dnnl_primitive_desc_create(&pd, &desc, attr, p->engine, NULL));
    ok(dnnl_primitive_attr_destroy(attr));
    ok(dnnl_primitive_create(&p->primitive, pd));
    p->packed = p->fresh = packed;
    ok(dnnl_memory_create(&p->a, &a, p->engine, DNNL_MEMORY_NONE));
    ok(dnnl_memory_create(&p->c, &c, p->engine, DNNL_MEMORY_NONE));
    ok(dnnl_memory_create(&p->b_plain, &b, p->engine, DNNL_MEMORY_NONE));
    const dnnl_memory_desc_t *chosen = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    ok(dnnl_memory_create(&p->b, chosen, p->engine, packed ? DNNL_MEMORY_ALLOCATE : DNNL_MEMORY_NONE));
    ok(dnnl_primitive_desc_destroy(pd));
    return p;
}

static void *dnn_begin(bench_form form, bool bf16, size_t m, size_t n, size_t k, uint32_t threads)
{
    return dnn_begin_as(form, bf16, m, n, k, threads, false);
}

/* Only weights stay the same from call to call; ours are packed for the backward in bf16 only. */
static void *dnn_begin_packed(bench_form form, bool bf16, size_t m, size_t n, size_t k, uint32_t threads)
{
    return form == BENCH_Y || (form == BENCH_DX && bf16) ? dnn_begin_as(form, bf16, m, n, k, threads, true) : NULL;
}

static void dnn_reorder(dnn *p, const void *b)
{
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t reorder;
    const dnnl_memory_desc_t *from, *to;
    ok(dnnl_memory_set_data_handle(p->b_plain, (void *)(uintptr_t)b));
    ok(dnnl_memory_get_memory_desc(p->b_plain, &from));
    ok(dnnl_memory_get_memory_desc(p->b, &to));
    ok(dnnl_reorder_primitive_desc_create(&pd, from, p->engine, to, p->engine, NULL));
    ok(dnnl_primitive_create(&reorder, pd));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->b_plain}, {DNNL_ARG_TO, p->b}};
    ok(dnnl_primitive_execute(reorder, p->stream, 2, args));
    ok(dnnl_primitive_destroy(reorder));
    ok(dnnl_primitive_desc_destroy(pd));
    p->fresh = false;
}

static void dnn_run(void *product, const void *a, const void *b, float *c)
{
    dnn *p = product;
    if (p->fresh) dnn_reorder(p, b);
    ok(dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)a));
    ok(dnnl_memory_set_data_handle(p->c, c));
    if (!p->packed) ok(dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c}};
    ok(dnnl_primitive_execute(p->primitive, p->stream, 3, args));
    ok(dnnl_stream_wait(p->stream));
}

static void dnn_end(void *product)
{
    dnn *p = product;
    ok(dnnl_memory_destroy(p->a));
    ok(dnnl_memory_destroy(p->b));
    ok(dnnl_memory_destroy(p->b_plain));
    ok(dnnl_memory_destroy(p->c));
    ok(dnnl_primitive_destroy(p->primitive));
    ok(dnnl_stream_destroy(p->stream));
    ok(dnnl_engine_destroy(p->engine));
    k2_free(p);
}

static const bench_rival onednn = {"onednn", dnn_begin, dnn_run, dnn_end};
static const bench_rival onednn_packed = {"onednn packed", dnn_begin_packed, dnn_run, dnn_end};
#endif

const bench_rival *const bench_rivals[] = {
#ifdef K2_HAVE_OPENBLAS
    &openblas,
#endif
#ifdef K2_HAVE_DNNL
    &onednn, &onednn_packed,
#endif
    NULL};
