/* Which path runs, and the public functions that go through it. The choice is made once, by asking the processor. */
#include "common/kernel/kernel_int.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
/* Is this machine's vdpbf16ps the one of the manual, to the bit, where another could differ: in the order of a pair, with
 * denormals to add to and as a result, at the border of the normal numbers? If not, the path below it gives everybody's bits.
 */
static bool bf16_is_native(void)
{
    static const struct {
        float a[2], b[2], c;
    } steps[] = {{{-1.0f, 0x1p-24f}, {1.0f, 1.0f}, 1.0f},
                 {{0.0f, 0.0f}, {0.0f, 0.0f}, 0x1p-127f},
                 {{0x1p-100f, 0.0f}, {0x1p-27f, 0.0f}, 0.0f},
                 {{0.0f, -0x1p-75f}, {0.0f, 0x1.02p-76f}, 0x1p-126f}};
    if (!k2i_native_gemm_bf16 || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512bf16")) return false;
    for (size_t i = 0; i < K2_COUNT(steps); i++) {
        float want = steps[i].c, got = steps[i].c;
        k2_gemm g = {.m = 1, .n = 1, .k = 2, .a = steps[i].a, .lda = 2, .b = steps[i].b, .ldb = 1, .b_form = K2_B_KN};
        g.accumulate = g.bf16 = true;
        g.ldc = 1;
        g.c = &want;
        k2i_kern_ref.gemm_bf16(&g);
        g.c = &got;
        k2i_native_gemm_bf16(&g);
        if (memcmp(&got, &want, sizeof(got)) != 0) return false;
    }
    return true;
}
#endif

static const k2i_kern_ops *table_of(k2_isa isa)
{
    switch (isa) {
    case K2_ISA_REF: return &k2i_kern_ref;
    case K2_ISA_PORTABLE: return &k2i_kern_portable;
    case K2_ISA_AVX2:
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return k2i_kern_avx2;
#endif
        return NULL;
    case K2_ISA_AVX512:
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
            return k2i_kern_avx512;
        }
#endif
        return NULL;
    case K2_ISA_AVX512BF16:
#if defined(__x86_64__)
        if (table_of(K2_ISA_AVX512) && bf16_is_native()) return k2i_kern_avx512bf16;
#endif
        return NULL;
    case K2_ISA_COUNT: break;
    }
    return NULL;
}

static _Atomic(const k2i_kern_ops *) current;

/* Two threads that come first at once choose the same table. */
static const k2i_kern_ops *ops(void)
{
    const k2i_kern_ops *o = atomic_load_explicit(&current, memory_order_relaxed);
    if (__builtin_expect(o != NULL, 1)) return o;
    for (int isa = K2_ISA_COUNT - 1; !o; isa--) o = table_of((k2_isa)isa);
    atomic_store_explicit(&current, o, memory_order_relaxed);
    return o;
}

k2_isa k2_kern_isa(void)
{
    const k2i_kern_ops *o = ops();
    int isa = 0;
    while (table_of((k2_isa)isa) != o) isa++;
    return (k2_isa)isa;
}

const char *k2_kern_isa_name(k2_isa isa)
{
    static const char *const names[K2_ISA_COUNT] = {"ref", "portable", "avx2", "avx512", "avx512bf16"};
    K2_ASSERT((unsigned)isa < K2_ISA_COUNT);
    return names[isa];
}

k2_code k2_kern_isa_use(k2_isa isa)
{
    const k2i_kern_ops *o = table_of(isa);
    if (!o) return K2_UNSUPPORTED;
    atomic_store_explicit(&current, o, memory_order_relaxed);
    return K2_OK;
}

void k2_kern_gemm(const k2_gemm *g)
{
    if (g->bf16) {
        ops()->gemm_bf16(g);
    } else {
        ops()->gemm(g);
    }
}

void k2_kern_bf16(size_t n, const float *x, uint16_t *y)
{
    ops()->bf16(n, x, y);
}

void k2_kern_rmsnorm_fwd(size_t rows, size_t width, const float *x, size_t ldx, const float *g, float eps, float *y, size_t ldy,
                         float *r)
{
    ops()->rmsnorm_fwd(rows, width, x, ldx, g, eps, y, ldy, r);
}

void k2_kern_rmsnorm_bwd(const k2_rmsnorm_bwd *a)
{
    ops()->rmsnorm_bwd(a);
}

void k2_kern_rmsnorm_bwd_gain(const k2_rmsnorm_bwd *a, float *dg, size_t from, size_t to)
{
    ops()->rmsnorm_bwd_gain(a, dg, from, to);
}

void k2_kern_rope(float *x, size_t count, size_t stride, size_t width, const float *table_row, bool inverse)
{
    ops()->rope(x, count, stride, width, table_row, inverse);
}

void k2_kern_attn_fwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *o, float *scratch)
{
    ops()->attn_fwd(a, keys, count, q, o, scratch);
}

void k2_kern_attn_bwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, const float *d_o, float *dq,
                      float *d_keys, float *scratch)
{
    ops()->attn_bwd(a, keys, count, q, d_o, dq, d_keys, scratch);
}

void k2_kern_swiglu_fwd(size_t n, const float *gate, const float *up, float *y)
{
    ops()->swiglu_fwd(n, gate, up, y);
}

void k2_kern_swiglu_bwd(size_t n, const float *gate, const float *up, const float *dy, float *d_gate, float *d_up)
{
    ops()->swiglu_bwd(n, gate, up, dy, d_gate, d_up);
}

void k2_kern_sigmoid(size_t n, const float *x, float *y)
{
    ops()->sigmoid(n, x, y);
}

/* log of x >= 1 in double: x = 2^e m, m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m-1)/(m+1)) by its series, whose first
 * term left out is below 1e-14. Only + - * / of IEEE, so no library's log can change a bit. */
static double log_above_one(double x)
{
    if (!(x >= 1.0) || x > 1e300) return x - 1.0 + (x - x);
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof(m));
    if (m >= 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int i = 17; i >= 1; i -= 2) sum = sum * s2 + 1.0 / i;
    return 2.0 * s * sum + e * 0.69314718055994530942;
}

k2_softmax k2_kern_softmax_row(const float *logits, size_t n)
{
    K2_ASSERT(n >= 1);
    float max, sum, weighted;
    ops()->softmax_sums(n, logits, &max, &sum, &weighted);
    float logsum = (float)log_above_one((double)sum);
    return (k2_softmax){.max = max, .logsum = logsum, .entropy = logsum - weighted / sum};
}

void k2_kern_softmax_bwd(float *logits, size_t n, const k2_softmax *s, size_t id, float g)
{
    ops()->softmax_bwd(logits, n, s, id, g);
}

void k2_kern_exp(size_t n, const float *x, float shift, float *y)
{
    ops()->exp(n, x, shift, y);
}
void k2_kern_add(size_t n, const float *x, float *y)
{
    ops()->add(n, x, y);
}
void k2_kern_axpy(size_t n, float a, const float *x, float *y)
{
    ops()->axpy(n, a, x, y);
}
void k2_kern_scale(size_t n, float a, const float *x, float *y)
{
    ops()->scale(n, a, x, y);
}
float k2_kern_dot(size_t n, const float *x, const float *y)
{
    return ops()->dot(n, x, y);
}
double k2_kern_sumsq(size_t n, const float *x)
{
    return ops()->sumsq(n, x);
}

bool k2_kern_finite(size_t n, const float *x)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

void k2_kern_adamw(const k2_adamw *a, size_t n, const float *grad, float *param, float *m, float *v)
{
    ops()->adamw(a, n, grad, param, m, v);
}
