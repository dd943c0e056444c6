/* Words that came before and their ids: a table of fixed size in which a new word takes the place of the one that was there.
 *
 * Any number of threads read and write it without a lock. A slot is one cache line; its first word is odd while it is written,
 * and another than before afterwards, so a reader that saw a mixture knows, and takes it for a miss. All words are atomics:
 * a torn read is possible and found, never undefined.
 *
 *     sequence | 32 bytes of the word, zeros behind | bytes, count, first id | 4 more ids
 */
#include "common/token/token_int.h"

#include <stdatomic.h>
#include <string.h>

#define SLOTS       (1u << 14) /* 1 MiB: stays in the caches next to the core */
#define KEY_WORDS   (K2I_CACHE_BYTES / 8)
#define VALUE_WORDS 3u

typedef struct slot {
    _Atomic uint64_t sequence;
    _Atomic uint64_t words[KEY_WORDS + VALUE_WORDS];
} slot;
_Static_assert(sizeof(slot) == 64, "a slot is a cache line");
_Static_assert(8 + 4 * K2I_CACHE_IDS <= 8 * VALUE_WORDS + 4, "sizes and ids fit");

struct k2i_cache {
    slot *slots;
};

k2i_cache *k2i_cache_new(void)
{
    k2i_cache *c = k2_alloc(sizeof *c);
    c->slots = k2_alloc_aligned(64, SLOTS * sizeof *c->slots);
    return c;
}

void k2i_cache_free(k2i_cache *c)
{
    if (!c) return;
    k2_free(c->slots);
    k2_free(c);
}

static void key_of(const void *bytes, size_t n, uint64_t key[KEY_WORDS])
{
    memset(key, 0, KEY_WORDS * sizeof *key);
    memcpy(key, bytes, n);
}

uint32_t k2i_cache_get(const k2i_cache *c, uint64_t hash, const void *bytes, size_t n, int32_t ids[K2I_CACHE_IDS])
{
    slot *s = &c->slots[hash & (SLOTS - 1)];
    uint64_t key[KEY_WORDS], value[VALUE_WORDS], differs = 0;
    key_of(bytes, n, key);
    const uint64_t sequence = atomic_load_explicit(&s->sequence, memory_order_acquire);
    /* Acquire: if one of these was written since, the sequence read below is another. */
    for (unsigned i = 0; i < KEY_WORDS; i++) differs |= key[i] ^ atomic_load_explicit(&s->words[i], memory_order_acquire);
    if (differs || sequence & 1) return 0;
    for (unsigned i = 0; i < VALUE_WORDS; i++) value[i] = atomic_load_explicit(&s->words[KEY_WORDS + i], memory_order_acquire);
    if (atomic_load_explicit(&s->sequence, memory_order_relaxed) != sequence || (value[0] & 0xff) != n) return 0;
    ids[0] = (int32_t)(value[0] >> 32);
    memcpy(ids + 1, value + 1, 2 * sizeof *value);
    return value[0] >> 8 & 0xff;
}

void k2i_cache_put(k2i_cache *c, uint64_t hash, const void *bytes, size_t n, const int32_t *ids, uint32_t count)
{
    slot *s = &c->slots[hash & (SLOTS - 1)];
    uint64_t key[KEY_WORDS], value[VALUE_WORDS] = {n | count << 8 | (uint64_t)(uint32_t)ids[0] << 32};
    uint64_t sequence = atomic_load_explicit(&s->sequence, memory_order_relaxed);
    if (sequence & 1 || !atomic_compare_exchange_strong_explicit(&s->sequence, &sequence, sequence + 1, memory_order_acquire,
                                                                 memory_order_relaxed))
        return; /* another thread writes it */
    key_of(bytes, n, key);
    memcpy(value + 1, ids + 1, (count - 1) * sizeof *ids);
    /* Release: whoever sees one of these sees the odd sequence, too. */
    for (unsigned i = 0; i < KEY_WORDS; i++) atomic_store_explicit(&s->words[i], key[i], memory_order_release);
    for (unsigned i = 0; i < VALUE_WORDS; i++) atomic_store_explicit(&s->words[KEY_WORDS + i], value[i], memory_order_release);
    atomic_store_explicit(&s->sequence, sequence + 2, memory_order_release);
}
