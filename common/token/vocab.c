/* The vocabulary: bytes of each id, the id of bytes, and which two ids merge to a third.
 *
 * Merges are kept as pairs of ids for every kind. tiktoken itself looks for the joined bytes of two neighbours; since each part
 * of a word is a token at any moment, a table of all pairs whose bytes join to a token answers the same with one look-up.
 */
#include "common/token/token_int.h"

#include <string.h>

#define SLOT_EMPTY UINT32_MAX
#define ID_BITS                                                                                                                \
    20u /* the others of a slot are of the hash, so that most of what is not there is known without a look at its bytes */
_Static_assert(K2_TOKEN_VOCAB_MAX <= 1u << ID_BITS, "an id fits");

static uint32_t slot_id(uint32_t slot)
{
    return slot & ((1u << ID_BITS) - 1);
}

/* What the slot of a token with this hash holds beside its id. All ones would be an empty one's. */
static uint32_t slot_tag(uint64_t hash)
{
    return K2_MIN((uint32_t)(hash >> (32 + ID_BITS)), 0xffeu);
}

static uint32_t slot_of(const k2i_vocab *v, uint64_t hash, const void *bytes, size_t n)
{
    const uint32_t tag = slot_tag(hash);
    uint32_t at = (uint32_t)hash & v->slot_mask;
    for (; v->slots[at] != SLOT_EMPTY; at = (at + 1) & v->slot_mask) {
        if (v->slots[at] >> ID_BITS != tag) continue;
        const k2i_token *t = &v->tokens[slot_id(v->slots[at])];
        if (t->n == n && memcmp(v->blob + t->at, bytes, n) == 0) break;
    }
    return at;
}

uint32_t k2i_vocab_find_hashed(const k2i_vocab *v, uint64_t hash, const void *bytes, size_t n)
{
    if (!v->slots || n == 0 || n > K2I_TOKEN_BYTES_MAX) return UINT32_MAX;
    const uint32_t slot = v->slots[slot_of(v, hash, bytes, n)];
    return slot == SLOT_EMPTY ? UINT32_MAX : slot_id(slot);
}

uint32_t k2i_vocab_find(const k2i_vocab *v, const void *bytes, size_t n)
{
    return k2i_vocab_find_hashed(v, k2_hash64(bytes, n, 0), bytes, n);
}

/* At most half of the slots are in use, so that a search ends soon. */
static void slots_grow(k2i_vocab *v)
{
    if (v->slots && v->slot_count * 2 <= v->slot_mask) return;
    uint32_t *old = v->slots;
    const uint32_t had = old ? v->slot_mask + 1 : 0, want = old ? had * 2 : 1024;
    v->slots = k2_alloc_array(want, sizeof *v->slots);
    memset(v->slots, 0xff, want * sizeof *v->slots);
    v->slot_mask = want - 1;
    for (uint32_t i = 0; i < had; i++) {
        if (old[i] == SLOT_EMPTY) continue;
        const k2i_token *t = &v->tokens[slot_id(old[i])];
        v->slots[slot_of(v, k2_hash64(v->blob + t->at, t->n, 0), v->blob + t->at, t->n)] = old[i];
    }
    k2_free(old);
}

static void tokens_grow(k2i_vocab *v, uint32_t id, size_t n)
{
    if (id >= v->capacity) {
        const uint32_t grown = K2_MAX(id + 1, v->capacity * 2);
        v->tokens = k2_realloc_array(v->tokens, grown, sizeof *v->tokens);
        memset(v->tokens + v->capacity, 0, (grown - v->capacity) * sizeof *v->tokens);
        v->capacity = grown;
    }
    if (n > v->blob_capacity - v->blob_bytes) {
        v->blob_capacity = K2_MAX(v->blob_bytes + n, v->blob_capacity * 2);
        v->blob = k2_realloc_array(v->blob, v->blob_capacity, 1);
    }
}

k2_code k2i_vocab_put(k2i_vocab *v, uint32_t id, const void *bytes, size_t n, bool text, k2_error *err)
{
    if (id >= K2_TOKEN_VOCAB_MAX) return k2_error_set(err, K2_LIMIT, "id %u, at most %u are supported", id, K2_TOKEN_VOCAB_MAX);
    if (n == 0) return k2_error_set(err, K2_BAD_INPUT, "id %u is an empty token", id);
    if (n > K2I_TOKEN_BYTES_MAX)
        return k2_error_set(err, K2_LIMIT, "id %u has %zu bytes, at most %u are supported", id, n, K2I_TOKEN_BYTES_MAX);
    tokens_grow(v, id, n);
    if (v->tokens[id].n) return k2_error_set(err, K2_BAD_INPUT, "id %u is there twice", id);
    if (text) {
        slots_grow(v);
        const uint64_t hash = k2_hash64(bytes, n, 0);
        const uint32_t slot = slot_of(v, hash, bytes, n);
        if (v->slots[slot] != SLOT_EMPTY)
            return k2_error_set(err, K2_BAD_INPUT, "ids %u and %u have the same bytes", slot_id(v->slots[slot]), id);
        v->slots[slot] = slot_tag(hash) << ID_BITS | id;
        v->slot_count++;
    }
    memcpy(v->blob + v->blob_bytes, bytes, n);
    v->tokens[id] = (k2i_token){.at = (uint32_t)v->blob_bytes, .n = (uint32_t)n};
    v->blob_bytes += n;
    v->count = K2_MAX(v->count, id + 1);
    return K2_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------------------------- */

static k2i_pair *pair_slot(k2i_vocab *v, uint32_t left, uint32_t right)
{
    const uint64_t key = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15ull;
    uint32_t at = (uint32_t)(key >> 32) & v->pair_mask;
    while (v->pairs[at].rank != K2I_MERGE_NONE && (v->pairs[at].left != left || v->pairs[at].right != right))
        at = (at + 1) & v->pair_mask;
    return &v->pairs[at];
}

/* At most two thirds are in use: they are many, and a smaller table is found in the caches more often. */
static void pairs_grow(k2i_vocab *v)
{
    if (v->pairs && v->pair_count * 3 <= v->pair_mask * 2) return;
    k2i_pair *old = v->pairs;
    const uint32_t had = old ? v->pair_mask + 1 : 0, want = old ? had * 2 : 1024;
    v->pairs = k2_alloc_array(want, sizeof *v->pairs);
    v->pair_mask = want - 1;
    for (uint32_t i = 0; i < want; i++) v->pairs[i].rank = K2I_MERGE_NONE;
    for (uint32_t i = 0; i < had; i++)
        if (old[i].rank != K2I_MERGE_NONE) *pair_slot(v, old[i].left, old[i].right) = old[i];
    k2_free(old);
}

bool k2i_vocab_merge(k2i_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    K2_ASSERT(rank != K2I_MERGE_NONE);
    pairs_grow(v);
    k2i_pair *p = pair_slot(v, left, right);
    if (p->rank != K2I_MERGE_NONE) return false;
    *p = (k2i_pair){.left = left, .right = right, .rank = rank, .id = id};
    v->pair_count++;
    return true;
}

k2_code k2i_vocab_merge_all(k2i_vocab *v, k2_error *err)
{
    for (uint32_t id = 0; id < v->count; id++) {
        if (v->pair_count > K2I_PAIRS_MAX)
            return k2_error_set(err, K2_LIMIT, "more than %u pairs of tokens make another", K2I_PAIRS_MAX);
        const k2i_token t = v->tokens[id];
        for (uint32_t k = 1; k < t.n; k++) {
            const uint32_t left = k2i_vocab_find(v, v->blob + t.at, k);
            if (left == UINT32_MAX) continue;
            const uint32_t right = k2i_vocab_find(v, v->blob + t.at + k, t.n - k);
            if (right != UINT32_MAX) k2i_vocab_merge(v, left, right, id, id);
        }
    }
    return K2_OK;
}

k2_code k2i_vocab_finish(k2i_vocab *v, k2_error *err)
{
    for (unsigned b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;
        v->byte_ids[b] = k2i_vocab_find(v, &byte, 1);
        if (v->byte_ids[b] == UINT32_MAX) return k2_error_set(err, K2_BAD_INPUT, "there is no token for the byte 0x%02x", b);
    }
    pairs_grow(v); /* the merges may be none, but a look-up needs a table */
    k2_free(v->byte_pairs);
    v->byte_pairs = k2_alloc_array(256 * 256, sizeof *v->byte_pairs);
    for (unsigned i = 0; i < 256 * 256; i++) {
        const k2i_pair p = k2i_vocab_pair(v, v->byte_ids[i >> 8], v->byte_ids[i & 255]);
        v->byte_pairs[i] = (k2i_byte_pair){.rank = p.rank, .id = p.id};
    }
    return K2_OK;
}

void k2i_vocab_fini(k2i_vocab *v)
{
    k2_free(v->tokens);
    k2_free(v->blob);
    k2_free(v->slots);
    k2_free(v->pairs);
    k2_free(v->byte_pairs);
    *v = (k2i_vocab){0};
}
