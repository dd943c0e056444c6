/* Packing a weight into the panels that the products read: ceil(n/16) blocks of [k][16], zero past n. */
#include "common/kernel/kernel_int.h"

#include <string.h>

void k2_kern_pack_nk(const float *w, size_t ldw, size_t n, size_t k, float *packed)
{
    for (size_t n0 = 0; n0 < n; n0 += 16) {
        size_t cols = K2_MIN((size_t)16, n - n0);
        for (size_t j = 0; j < cols; j++) {
            const float *row = w + (n0 + j) * ldw;
            for (size_t i = 0; i < k; i++) packed[i * 16 + j] = row[i];
        }
        for (size_t i = 0; cols < 16 && i < k; i++) memset(packed + i * 16 + cols, 0, (16 - cols) * sizeof(float));
        packed += k * 16;
    }
}

void k2_kern_pack_kn(const float *w, size_t ldw, size_t n, size_t k, float *packed)
{
    for (size_t n0 = 0; n0 < n; n0 += 16) {
        size_t cols = K2_MIN((size_t)16, n - n0);
        for (size_t i = 0; i < k; i++, packed += 16) {
            memcpy(packed, w + i * ldw + n0, cols * sizeof(float));
            if (cols < 16) memset(packed + cols, 0, (16 - cols) * sizeof(float));
        }
    }
}

/* ---- bf16: numbers are rounded by the path in use, a piece of a row at a time, and then put into pairs */

#define PIECE 512u

/* `count` pairs, each from the places 2i and 2i + 1 of a rounded row or i of two, `step` pairs apart. */
static void put_pairs(const uint16_t *even, const uint16_t *odd, size_t from_step, size_t count, uint16_t *out, size_t step)
{
    for (size_t i = 0; i < count; i++) {
        out[i * step * 2] = even[i * from_step];
        out[i * step * 2 + 1] = odd[i * from_step];
    }
}

void k2_kern_pack_bf16_nk(const float *w, size_t ldw, size_t n, size_t k, uint16_t *packed)
{
    const size_t panel = k2_kern_packed_bf16(16, k);
    uint16_t row[PIECE];
    for (size_t n0 = 0; n0 < n; n0 += 16, packed += panel) {
        size_t cols = K2_MIN((size_t)16, n - n0);
        if (cols < 16) memset(packed, 0, panel * sizeof(*packed));
        for (size_t j = 0; j < cols; j++) {
            for (size_t i = 0; i < k; i += PIECE) {
                size_t count = K2_MIN((size_t)PIECE, k - i);
                k2_kern_bf16(count, w + (n0 + j) * ldw + i, row);
                if (count % 2) row[count] = 0;
                put_pairs(row, row + 1, 2, (count + 1) / 2, packed + i * 16 + j * 2, 16);
            }
        }
    }
}

void k2_kern_pack_bf16_kn(const float *w, size_t ldw, size_t n, size_t k, uint16_t *packed)
{
    const size_t panel = k2_kern_packed_bf16(16, k);
    uint16_t even[PIECE], odd[PIECE];
    for (size_t i = 0; i < k; i += 2) {
        for (size_t n0 = 0; n0 < n; n0 += PIECE) {
            size_t cols = K2_MIN((size_t)PIECE, n - n0), whole = (cols + 15) / 16 * 16;
            memset(odd, 0, whole * sizeof(*odd));
            k2_kern_bf16(cols, w + i * ldw + n0, even);
            if (i + 1 < k) k2_kern_bf16(cols, w + (i + 1) * ldw + n0, odd);
            for (size_t j = cols; j < whole; j++) even[j] = odd[j] = 0;
            for (size_t j = 0; j < whole; j += 16)
                put_pairs(even + j, odd + j, 1, 16, packed + (n0 + j) / 16 * panel + i * 16, 1);
        }
    }
}
