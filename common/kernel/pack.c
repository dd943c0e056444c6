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
