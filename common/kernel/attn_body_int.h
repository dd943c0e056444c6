/* attn_body_int - latent attention of one query row over vec_int's lanes; included once by each fast_*.c, after rows_body_int.
 *
 * Scores: sixteen keys at a time, one accumulator each, and one joint tree that leaves the sixteen sums in order. Output and
 * query gradient: lanes run over features, the chain over keys. Keys are shared by all heads, so they stay in the cache.
 */

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
            v16 acc[16];
            K2I_UNROLL
            for (int j = 0; j < 16; j++) acc[j] = v_zero();
            K2I_EACH(n, i, left)
            {
                v16 xv = get(x + h * ldx + i, left);
                K2I_UNROLL
                for (int j = 0; j < 16; j++) acc[j] = v_fma(v_load(key[j] + i), xv, acc[j]);
            }
            v_store(out + h * ld + t, v_sum16(acc));
        }
    }
}

/* out[h*ldo + i] = sum_t p[h*ld + t] key[t,i] for i in [0,n), one chain over t for each element; up to 4 heads at once. */
K2I_INLINE void key_sums(const k2_attn *a, const k2_keys *keys, size_t count, const float *p, size_t ld, size_t n, float *out,
                         size_t ldo, const int heads)
{
    for (size_t i = 0; i < n; i += 32) {
        v16 acc[4][2];
        const bool two = n - i > 16;
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
                    acc[h][1] = v_fma(pv, k1, acc[h][1]);
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

/* d_keys[t] += sum_h ds[h,t] q[h] and, on the latent part, p[h,t] d_o[h]. */
static void attn_bwd_keys(const k2_attn *a, size_t count, const float *p, const float *ds, const float *q, const float *d_o,
                          float *d_keys)
{
    const size_t ld = k2i_round16(count), width = a->width, latent = a->latent;
    for (size_t t = 0; t < count; t++) {
        for (size_t i = 0; i < width; i += 16) {
            float *out = d_keys + t * width + i;
            v16 acc = v_load(out);
            for (size_t h = 0; h < a->heads; h++) {
                acc = v_fma(v_set(ds[h * ld + t]), v_load(q + h * width + i), acc);
                if (i < latent) {
                    v16 sum = v_fma(v_set(p[h * ld + t]), get(d_o + h * latent + i, latent - i), acc);
                    acc = latent - i >= 16 ? sum : v_keep(sum, latent - i, acc);
                }
            }
            v_store(out, acc);
        }
    }
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
    attn_bwd_keys(a, count, p, ds, q, d_o, d_keys);
}
