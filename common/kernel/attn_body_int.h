/* attn_body_int - latent attention of one query row over vec_int's lanes; included once by each fast_*.c, after rows_body_int.
 *
 * Scores: as many keys at a time as there are registers for accumulators, and one joint tree that leaves their sums in order. Output
 * and query gradient: lanes run over features, the chain over keys. Keys are shared by all heads, so they stay in the cache.
 */
#if K2I_LEVEL == 512
#define K2I_DOTS 16 /* keys of key_dots at once: 1, 4 or 16 */
#define K2I_SUMS 2  /* vectors of features of key_sums at once, for four heads: 1 or 2 */
#elif K2I_LEVEL == 2 /* two registers a vector */
#define K2I_DOTS 4
#define K2I_SUMS 1
#else
#define K2I_DOTS 1
#define K2I_SUMS 1
#endif

/* Addresses of keys t0 .. t0+15; past `count` the last key stands in, and its results are thrown away. */
K2I_INLINE void key_block(const k2_attn *a, const k2_keys *keys, size_t count, size_t t0, const float *out[16])
{
    size_t slot = t0 % keys->page_tokens, n = K2_MIN((size_t)16, count - t0);
    const float *key = k2i_key(keys, a->width, t0);
    for (size_t i = 0; i < n; i++) {
        out[i] = key;
        key += a->width;
        if (++slot == keys->page_tokens && i + 1 < n) {
            key = k2i_key(keys, a->width, t0 + i + 1);
            slot = 0;
        }
    }
    for (size_t i = n; i < 16; i++) out[i] = out[n - 1];
}

/* out[h*ld + t] = x[h] . key[t] over n features, for all heads and keys; n need not be a multiple of 16. */
K2I_INLINE void key_dots(const k2_attn *a, const k2_keys *keys, size_t count, const float *x, size_t ldx, size_t n, float *out,
                         size_t ld)
{
    const float *key[16];
    for (size_t t = 0; t < count; t += 16) {
        key_block(a, keys, count, t, key);
        for (size_t h = 0; h < a->heads; h++) {
            for (size_t from = 0; from < 16; from += K2I_DOTS) {
                v16 acc[K2I_DOTS];
                K2I_UNROLL
                for (int j = 0; j < K2I_DOTS; j++) acc[j] = v_zero();
                K2I_EACH(n, i, left)
                {
                    v16 xv = get(x + h * ldx + i, left);
                    K2I_UNROLL
                    for (int j = 0; j < K2I_DOTS; j++) acc[j] = v_fma(v_load(key[from + (size_t)j] + i), xv, acc[j]);
                }
                v_sums(acc, K2I_DOTS, out + h * ld + t + from);
            }
        }
    }
}

/* out[h*ldo + i] = sum_t p[h*ld + t] key[t,i] for i in [0,n), one chain over t for each element; up to 4 heads at once. */
K2I_INLINE void key_sums(const k2_attn *a, const k2_keys *keys, size_t count, const float *p, size_t ld, size_t n, float *out,
                         size_t ldo, const int heads)
{
    for (size_t i = 0; i < n; i += 16 * K2I_SUMS) {
        v16 acc[4][2];
        const bool two = K2I_SUMS == 2 && n - i > 16;
        K2I_UNROLL
        for (int h = 0; h < heads; h++) acc[h][0] = acc[h][1] = v_zero();
        for (size_t t = 0; t < count;) {
            size_t run = K2_MIN(keys->page_tokens - t % keys->page_tokens, count - t);
            const float *key = k2i_key(keys, a->width, t) + i;
            for (size_t end = t + run; t < end; t++, key += a->width) {
                v16 k0 = v_load(key), k1 = two ? v_load(key + 16) : v_zero();
                K2I_UNROLL
                for (int h = 0; h < heads; h++) {
                    v16 pv = v_set(p[(size_t)h * ld + t]);
                    acc[h][0] = v_fma(pv, k0, acc[h][0]);
                    if (K2I_SUMS == 2) acc[h][1] = v_fma(pv, k1, acc[h][1]);
                }
            }
        }
        K2I_UNROLL
        for (int h = 0; h < heads; h++) {
            put(out + (size_t)h * ldo + i, n - i, acc[h][0]);
            if (two) put(out + (size_t)h * ldo + i + 16, n - i - 16, acc[h][1]);
        }
    }
}

static void key_sums_all(const k2_attn *a, const k2_keys *keys, size_t count, const float *p, size_t ld, size_t n, float *out,
                         size_t ldo)
{
    size_t h = 0;
    for (; h + 4 <= a->heads; h += 4) key_sums(a, keys, count, p + h * ld, ld, n, out + h * ldo, ldo, 4);
    for (; h + 2 <= a->heads; h += 2) key_sums(a, keys, count, p + h * ld, ld, n, out + h * ldo, ldo, 2);
    for (; h < a->heads; h++) key_sums(a, keys, count, p + h * ld, ld, n, out + h * ldo, ldo, 1);
}

static void attn_probs(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *p)
{
    const size_t ld = k2i_round16(count);
    key_dots(a, keys, count, q, a->width, a->width, p, ld);
    for (size_t h = 0; h < a->heads; h++) {
        float *s = p + h * ld;
        v16 top = v_set(-INFINITY), by = v_set(a->scale);
        for (size_t t = 0; t < ld; t += 16) {
            v16 x = v_mul(v_load(s + t), by);
            if (t + 16 > count) x = v_keep(x, count - t, v_set(-INFINITY));
            v_store(s + t, x);
            top = v_max(x, top);
        }
        float lane[16], max = -INFINITY;
        v_store(lane, top);
        for (int i = 0; i < 16; i++) max = lane[i] > max ? lane[i] : max;
        if (keys->top && max > keys->top[h]) keys->top[h] = max;
        v16 sum = v_zero(), shift = v_set(max);
        for (size_t t = 0; t < ld; t += 16) {
            v16 e = v_exp(v_sub(v_load(s + t), shift));
            v_store(s + t, e);
            sum = v_add(sum, e);
        }
        v16 inverse = v_set(1.0f / v_sum(sum));
        for (size_t t = 0; t < ld; t += 16) v_store(s + t, v_mul(v_load(s + t), inverse));
    }
}

static void fast_attn_fwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *o, float *scratch)
{
    attn_probs(a, keys, count, q, scratch);
    key_sums_all(a, keys, count, scratch, k2i_round16(count), a->latent, o, a->latent);
}

typedef struct keys_grad {
    const float *p, *ds, *q, *d_o; /* [heads, ld] twice, [heads, width], [heads, latent] */
    float *d_keys;                 /* [count, width] */
    size_t heads, ld, width, latent;
} keys_grad;

/* Features [i, i+16*wide) of keys t .. t+keys-1: a chain over the heads, of one term or two. */
K2I_INLINE void keys_grad_tile(const keys_grad *g, size_t t, size_t i, const int keys, const int wide, const bool both)
{
    v16 acc[2][2], x[2];
    float *out = g->d_keys + t * g->width + i;
    K2I_UNROLL
    for (int j = 0; j < keys; j++) {
        K2I_UNROLL
        for (int w = 0; w < wide; w++) acc[j][w] = v_load(out + (size_t)j * g->width + w * 16);
    }
    for (size_t h = 0; h < g->heads; h++) {
        K2I_UNROLL
        for (int w = 0; w < wide; w++) x[w] = v_load(g->q + h * g->width + i + w * 16);
        K2I_UNROLL
        for (int j = 0; j < keys; j++) {
            v16 by = v_set(g->ds[h * g->ld + t + (size_t)j]);
            K2I_UNROLL
            for (int w = 0; w < wide; w++) acc[j][w] = v_fma(by, x[w], acc[j][w]);
        }
        if (!both) continue;
        K2I_UNROLL
        for (int w = 0; w < wide; w++) x[w] = v_load(g->d_o + h * g->latent + i + w * 16);
        K2I_UNROLL
        for (int j = 0; j < keys; j++) {
            v16 by = v_set(g->p[h * g->ld + t + (size_t)j]);
            K2I_UNROLL
            for (int w = 0; w < wide; w++) acc[j][w] = v_fma(by, x[w], acc[j][w]);
        }
    }
    K2I_UNROLL
    for (int j = 0; j < keys; j++) {
        K2I_UNROLL
        for (int w = 0; w < wide; w++) v_store(out + (size_t)j * g->width + w * 16, acc[j][w]);
    }
}

/* The sixteen features of key t where the latent part ends: two terms up to there, one behind. */
K2I_INLINE void keys_grad_border(const keys_grad *g, size_t t, size_t i)
{
    float *out = g->d_keys + t * g->width + i;
    const size_t n = g->latent - i;
    v16 acc = v_load(out);
    for (size_t h = 0; h < g->heads; h++) {
        acc = v_fma(v_set(g->ds[h * g->ld + t]), v_load(g->q + h * g->width + i), acc);
        acc = v_keep(v_fma(v_set(g->p[h * g->ld + t]), v_load_n(g->d_o + h * g->latent + i, n), acc), n, acc);
    }
    v_store(out, acc);
}

K2I_INLINE void keys_grad_rows(const keys_grad *g, size_t t, const int keys)
{
    size_t i = 0;
    for (; i + 32 <= g->latent; i += 32) keys_grad_tile(g, t, i, keys, 2, true);
    for (; i + 16 <= g->latent; i += 16) keys_grad_tile(g, t, i, keys, 1, true);
    if (i < g->latent) {
        K2I_UNROLL
        for (int j = 0; j < keys; j++) keys_grad_border(g, t + (size_t)j, i);
        i += 16;
    }
    for (; i + 32 <= g->width; i += 32) keys_grad_tile(g, t, i, keys, 2, false);
    for (; i < g->width; i += 16) keys_grad_tile(g, t, i, keys, 1, false);
}

/* d_keys[t] += sum_h ds[h,t] q[h] and, on the latent part, p[h,t] d_o[h]. */
static void attn_bwd_keys(const keys_grad *g, size_t count)
{
    size_t t = 0;
    for (; t + 2 <= count; t += 2) keys_grad_rows(g, t, 2);
    if (t < count) keys_grad_rows(g, t, 1);
}

static void fast_attn_bwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, const float *d_o, float *dq,
                          float *d_keys, float *scratch)
{
    const size_t ld = k2i_round16(count);
    float *p = scratch, *ds = scratch + a->heads * ld;
    attn_probs(a, keys, count, q, p);
    key_dots(a, keys, count, d_o, a->latent, a->latent, ds, ld);
    for (size_t h = 0; h < a->heads; h++) {
        v16 sum = v_zero(), by = v_set(a->scale);
        for (size_t t = 0; t < ld; t += 16) sum = v_fma(v_load(p + h * ld + t), v_load(ds + h * ld + t), sum);
        v16 mean = v_set(v_sum(sum));
        for (size_t t = 0; t < ld; t += 16) {
            v16 centred = v_sub(v_load(ds + h * ld + t), mean);
            v_store(ds + h * ld + t, v_mul(v_mul(v_load(p + h * ld + t), centred), by));
        }
    }
    key_sums_all(a, keys, count, ds, ld, a->width, dq, a->width);
    const keys_grad g = {.p = p,
                         .ds = ds,
                         .q = q,
                         .d_o = d_o,
                         .d_keys = d_keys,
                         .heads = a->heads,
                         .ld = ld,
                         .width = a->width,
                         .latent = a->latent};
    attn_bwd_keys(&g, count);
}
