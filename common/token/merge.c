/* One piece of text to ids by byte pair encoding: the neighbours of the lowest rank merge, the leftmost of equals, until none
 * do.
 *
 * Short pieces are scanned for the lowest rank anew after every merge, which for a dozen bytes beats any structure. Long ones
 * (a line without a space may be a megabyte) go through a heap of pairs over a linked list, in time n log n.
 */
#include "common/token/token_int.h"

#include <string.h>

#define SCAN_MAX 64u /* bytes: above, the heap is faster */

/* ---- short pieces ----------------------------------------------------------------------------------------------------------
 */

static uint32_t scan_merge(const k2i_vocab *v, const unsigned char *bytes, uint32_t n, int32_t *ids)
{
    uint32_t ranks[SCAN_MAX], made[SCAN_MAX]; /* of the pair that begins there */
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)v->byte_ids[bytes[i]];
    for (uint32_t i = 0; i + 1 < n; i++) {
        const k2i_byte_pair p = v->byte_pairs[(unsigned)bytes[i] << 8 | bytes[i + 1]];
        ranks[i] = p.rank;
        made[i] = p.id;
    }
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == K2I_MERGE_NONE) break;
        ids[best] = (int32_t)made[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best) * sizeof *ranks);
        memmove(made + best, made + best + 1, (n - best) * sizeof *made);
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const k2i_pair p = k2i_vocab_pair(v, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
            ranks[i] = p.rank;
            made[i] = p.id;
        }
    }
    return n;
}

/* ---- long pieces -----------------------------------------------------------------------------------------------------------
 */

typedef struct candidate {
    uint32_t rank, at;
} candidate;

typedef struct work {
    const k2i_vocab *v;
    uint32_t *ids, *next, *prev; /* next[i] == n: the last; ids of parts that were merged away are K2I_MERGE_NONE */
    candidate *heap;
    uint32_t n;
    size_t heap_count;
} work;

static bool before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(work *w, candidate c)
{
    size_t i = w->heap_count++;
    for (; i > 0 && before(c, w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static candidate heap_pop(work *w)
{
    const candidate top = w->heap[0], last = w->heap[--w->heap_count];
    size_t i = 0;
    for (size_t child = 1; child < w->heap_count; child = 2 * i + 1) {
        if (child + 1 < w->heap_count && before(w->heap[child + 1], w->heap[child])) child++;
        if (!before(w->heap[child], last)) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static k2i_pair pair_at(const work *w, uint32_t at)
{
    static const k2i_pair none = {.rank = K2I_MERGE_NONE};
    if (w->ids[at] == K2I_MERGE_NONE || w->next[at] == w->n) return none;
    return k2i_vocab_pair(w->v, w->ids[at], w->ids[w->next[at]]);
}

static void consider(work *w, uint32_t at)
{
    const k2i_pair p = pair_at(w, at);
    if (p.rank != K2I_MERGE_NONE) heap_push(w, (candidate){p.rank, at});
}

static void heap_merge(work *w)
{
    while (w->heap_count) {
        const candidate c = heap_pop(w);
        const k2i_pair p = pair_at(w, c.at);
        if (p.rank != c.rank)
            continue; /* one of the two has merged with another since; its new pair is a candidate of its own */
        const uint32_t gone = w->next[c.at];
        w->ids[c.at] = p.id;
        w->ids[gone] = K2I_MERGE_NONE;
        w->next[c.at] = w->next[gone];
        if (w->next[gone] < w->n) w->prev[w->next[gone]] = c.at;
        consider(w, c.at);
        if (c.at > 0) consider(w, w->prev[c.at]);
    }
}

static k2_code long_encode(const k2i_vocab *v, const unsigned char *bytes, uint32_t n, k2_tokens *out, k2_error *err)
{
    work w = {.v = v, .n = n};
    w.ids = k2_alloc_array(n, sizeof *w.ids);
    w.next = k2_alloc_array(n, sizeof *w.next);
    w.prev = k2_alloc_array(n, sizeof *w.prev);
    w.heap = k2_alloc_array(n, 3 * sizeof *w.heap); /* one a pair, and two more for each of the n-1 merges */
    for (uint32_t i = 0; i < n; i++) {
        w.ids[i] = v->byte_ids[bytes[i]];
        w.next[i] = i + 1;
        w.prev[i] = i - 1; /* of 0: never read */
    }
    for (uint32_t i = 0; i < n; i++) consider(&w, i);
    heap_merge(&w);
    bool fits = true;
    for (uint32_t i = 0; fits && i < n; i = w.next[i]) fits = k2_tokens_push(out, &(int32_t){(int32_t)w.ids[i]}, 1);
    k2_free(w.ids);
    k2_free(w.next);
    k2_free(w.prev);
    k2_free(w.heap);
    return fits ? K2_OK : k2_error_set(err, K2_LIMIT, "more than %zu tokens", out->count_max);
}

/* ---- all -------------------------------------------------------------------------------------------------------------------
 */

static k2_code push(k2_tokens *out, const int32_t *ids, uint32_t count, k2_error *err)
{
    if (k2_tokens_push(out, ids, count)) return K2_OK;
    return k2_error_set(err, K2_LIMIT, "more than %zu tokens", out->count_max);
}

k2_code k2i_piece_encode(const k2i_vocab *v, k2i_cache *cache, const unsigned char *bytes, size_t n, k2_tokens *out,
                         k2_error *err)
{
    int32_t ids[SCAN_MAX];
    if (n == 1) return push(out, &(int32_t){(int32_t)v->byte_ids[bytes[0]]}, 1, err);
    if (n > K2_TOKEN_WORD_MAX)
        return k2_error_set(err, K2_LIMIT, "a word of %zu bytes, at most %u are supported", n, K2_TOKEN_WORD_MAX);
    const bool cached = n <= K2I_CACHE_BYTES;
    const uint64_t hash = cached || v->whole ? k2_hash64(bytes, n, 0) : 0;
    uint32_t count = cached ? k2i_cache_get(cache, hash, bytes, n, ids) : 0;
    if (count) return push(out, ids, count, err);
    const uint32_t whole = v->whole ? k2i_vocab_find_hashed(v, hash, bytes, n) : UINT32_MAX;
    if (whole != UINT32_MAX) {
        ids[0] = (int32_t)whole;
        count = 1;
    } else if (n > SCAN_MAX) {
        return long_encode(v, bytes, (uint32_t)n, out, err);
    } else {
        count = scan_merge(v, bytes, (uint32_t)n, ids);
    }
    if (cached && count <= K2I_CACHE_IDS) k2i_cache_put(cache, hash, bytes, n, ids, count);
    return push(out, ids, count, err);
}
