/* The last replies of a server: a ring of fixed length (the oldest gives way) with a hash over it. */
#include "common/net/net_int.h"

#include <string.h>

#define NONE UINT32_MAX

typedef struct reply {
    k2i_key key;
    unsigned char *bytes;
    size_t n;
    uint32_t chain; /* next with the same hash, or NONE */
} reply;

struct k2i_replies {
    reply *ring;
    uint32_t *heads;
    uint32_t count_max, first, count, mask;
    size_t bytes, bytes_max;
};

uint32_t k2i_key_hash(k2i_key key)
{
    return (uint32_t)k2_hash64(&key, sizeof key, 0);
}

static uint32_t bucket(const k2i_replies *r, k2i_key key)
{
    return k2i_key_hash(key) & r->mask;
}

bool k2i_key_equal(k2i_key a, k2i_key b)
{
    return a.worker == b.worker && a.incarnation == b.incarnation && a.seq == b.seq;
}

k2i_replies *k2i_replies_new(uint32_t count_max, size_t bytes_max)
{
    k2i_replies *r = k2_alloc(sizeof *r);
    r->count_max = count_max;
    r->bytes_max = bytes_max;
    r->mask = 1;
    while (r->mask < count_max) r->mask = r->mask * 2 + 1;
    r->ring = k2_alloc_array(count_max, sizeof *r->ring);
    r->heads = k2_alloc_array(r->mask + 1u, sizeof *r->heads);
    for (uint32_t i = 0; i <= r->mask; i++) r->heads[i] = NONE;
    return r;
}

static void drop_oldest(k2i_replies *r)
{
    reply *old = &r->ring[r->first];
    uint32_t *link = &r->heads[bucket(r, old->key)];
    while (*link != r->first) link = &r->ring[*link].chain;
    *link = old->chain;
    r->bytes -= old->n;
    k2_free(old->bytes);
    old->bytes = NULL;
    r->first = (r->first + 1) % r->count_max;
    r->count--;
}

void k2i_replies_free(k2i_replies *r)
{
    while (r->count > 0) drop_oldest(r);
    k2_free(r->ring);
    k2_free(r->heads);
    k2_free(r);
}

void k2i_replies_put(k2i_replies *r, k2i_key key, const void *bytes, size_t n)
{
    if (n > r->bytes_max) return;
    while (r->count == r->count_max || r->bytes + n > r->bytes_max) drop_oldest(r);
    uint32_t at = (r->first + r->count) % r->count_max, h = bucket(r, key);
    r->ring[at] = (reply){.key = key, .bytes = k2_realloc_array(NULL, 1, n), .n = n, .chain = r->heads[h]};
    memcpy(r->ring[at].bytes, bytes, n);
    r->heads[h] = at;
    r->count++;
    r->bytes += n;
}

const void *k2i_replies_get(const k2i_replies *r, k2i_key key, size_t *n)
{
    for (uint32_t i = r->heads[bucket(r, key)]; i != NONE; i = r->ring[i].chain) {
        if (!k2i_key_equal(r->ring[i].key, key)) continue;
        *n = r->ring[i].n;
        return r->ring[i].bytes;
    }
    return NULL;
}
