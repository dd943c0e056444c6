/* page - see page_int.h. Everything is an index into fixed arrays: no pointer can dangle and nothing is allocated after
 * init. Free pages are a stack, so that a recently used page, whose bytes are still in the processor's caches, comes back
 * first. */
#include "rollout/page_int.h"

#include <string.h>

void k2i_pages_init(k2i_pages *p, uint32_t count, uint32_t page_tokens)
{
    K2_ASSERT(count >= 1 && count < K2I_PAGE_NONE / 2 && page_tokens >= 1);
    memset(p, 0, sizeof *p);
    p->count = count;
    p->page_tokens = page_tokens;
    p->page = k2_alloc_array(count, sizeof *p->page);
    p->tokens = k2_alloc_array((size_t)count * page_tokens, sizeof *p->tokens);
    uint32_t buckets = 1;
    while (buckets < 2 * count) buckets *= 2;
    p->bucket_mask = buckets - 1;
    p->buckets = k2_alloc_array(buckets, sizeof *p->buckets);
    for (uint32_t i = 0; i < buckets; i++) p->buckets[i] = K2I_PAGE_NONE;
    p->rest_head = p->rest_tail = K2I_PAGE_NONE;
    p->free_head = K2I_PAGE_NONE;
    for (uint32_t i = count; i-- > 0;) {
        p->page[i].next = p->free_head;
        p->free_head = i;
    }
    p->free_count = count;
}

void k2i_pages_fini(k2i_pages *p)
{
    k2_free(p->page);
    k2_free(p->tokens);
    k2_free(p->buckets);
    memset(p, 0, sizeof *p);
}

static int32_t *key_tokens(const k2i_pages *p, uint32_t id)
{
    return p->tokens + (size_t)id * p->page_tokens;
}

static uint64_t key_hash(const k2i_pages *p, uint32_t parent, const int32_t *tokens)
{
    uint64_t seed = parent == K2I_PAGE_NONE ? 0 : p->page[parent].generation * 0x9E3779B97F4A7C15ull + parent + 1;
    return k2_hash64(tokens, p->page_tokens * sizeof *tokens, seed);
}

static void free_push(k2i_pages *p, uint32_t id)
{
    p->page[id].next = p->free_head;
    p->free_head = id;
    p->free_count++;
}

static void rest_push(k2i_pages *p, uint32_t id)
{
    k2i_page *page = &p->page[id];
    page->next = K2I_PAGE_NONE;
    page->prev = p->rest_tail;
    if (p->rest_tail == K2I_PAGE_NONE)
        p->rest_head = id;
    else
        p->page[p->rest_tail].next = id;
    p->rest_tail = id;
    p->rest_count++;
}

static void rest_remove(k2i_pages *p, uint32_t id)
{
    k2i_page *page = &p->page[id];
    if (page->prev == K2I_PAGE_NONE)
        p->rest_head = page->next;
    else
        p->page[page->prev].next = page->next;
    if (page->next == K2I_PAGE_NONE)
        p->rest_tail = page->prev;
    else
        p->page[page->next].prev = page->prev;
    p->rest_count--;
}

static void index_remove(k2i_pages *p, uint32_t id)
{
    uint32_t *link = &p->buckets[p->page[id].hash & p->bucket_mask];
    while (*link != id) {
        K2_ASSERT(*link != K2I_PAGE_NONE);
        link = &p->page[*link].bucket_next;
    }
    *link = p->page[id].bucket_next;
    p->page[id].indexed = false;
}

uint32_t k2i_pages_take(k2i_pages *p)
{
    uint32_t id = p->free_head;
    if (id != K2I_PAGE_NONE) {
        p->free_head = p->page[id].next;
        p->free_count--;
    } else if (p->rest_head != K2I_PAGE_NONE) {
        id = p->rest_head;
        rest_remove(p, id);
        index_remove(p, id);
        p->evictions++;
    } else {
        return K2I_PAGE_NONE;
    }
    p->page[id].refs = 1;
    p->page[id].generation++;
    return id;
}

void k2i_pages_hold(k2i_pages *p, uint32_t id)
{
    K2_ASSERT(id < p->count);
    k2i_page *page = &p->page[id];
    if (page->refs++ == 0) {
        K2_ASSERT(page->indexed);
        rest_remove(p, id);
    }
}

void k2i_pages_release(k2i_pages *p, uint32_t id)
{
    K2_ASSERT(id < p->count && p->page[id].refs > 0);
    k2i_page *page = &p->page[id];
    if (--page->refs > 0) return;
    if (page->indexed)
        rest_push(p, id);
    else
        free_push(p, id);
}

static uint32_t lookup(const k2i_pages *p, uint64_t hash, uint32_t parent, const int32_t *tokens)
{
    uint64_t parent_generation = parent == K2I_PAGE_NONE ? 0 : p->page[parent].generation;
    for (uint32_t id = p->buckets[hash & p->bucket_mask]; id != K2I_PAGE_NONE; id = p->page[id].bucket_next) {
        const k2i_page *page = &p->page[id];
        if (page->hash == hash && page->parent == parent && page->parent_generation == parent_generation &&
            memcmp(key_tokens(p, id), tokens, p->page_tokens * sizeof *tokens) == 0)
            return id;
    }
    return K2I_PAGE_NONE;
}

uint32_t k2i_pages_seal(k2i_pages *p, uint32_t id, uint32_t parent, const int32_t *tokens)
{
    K2_ASSERT(id < p->count && p->page[id].refs > 0 && !p->page[id].indexed);
    uint64_t hash = key_hash(p, parent, tokens);
    uint32_t other = lookup(p, hash, parent, tokens);
    if (other != K2I_PAGE_NONE) {
        k2i_pages_hold(p, other);
        k2i_pages_release(p, id);
        return other;
    }
    k2i_page *page = &p->page[id];
    page->hash = hash;
    page->parent = parent;
    page->parent_generation = parent == K2I_PAGE_NONE ? 0 : p->page[parent].generation;
    memcpy(key_tokens(p, id), tokens, p->page_tokens * sizeof *tokens);
    page->bucket_next = p->buckets[hash & p->bucket_mask];
    p->buckets[hash & p->bucket_mask] = id;
    page->indexed = true;
    return id;
}

uint32_t k2i_pages_find(k2i_pages *p, uint32_t parent, const int32_t *tokens)
{
    uint32_t id = lookup(p, key_hash(p, parent, tokens), parent, tokens);
    if (id != K2I_PAGE_NONE) p->hits++;
    return id;
}

void k2i_pages_forget(k2i_pages *p)
{
    for (uint32_t id = 0; id < p->count; id++) {
        if (!p->page[id].indexed) continue;
        index_remove(p, id);
        if (p->page[id].refs == 0) {
            rest_remove(p, id);
            free_push(p, id);
        }
    }
}

void k2i_pages_check(const k2i_pages *p)
{
    uint32_t idle = 0, resting = 0, indexed = 0, listed = 0;
    for (uint32_t id = p->free_head; id != K2I_PAGE_NONE; id = p->page[id].next, idle++) {
        K2_ASSERT(idle < p->count && p->page[id].refs == 0 && !p->page[id].indexed);
    }
    K2_ASSERT(idle == p->free_count);
    for (uint32_t id = p->rest_head; id != K2I_PAGE_NONE; id = p->page[id].next, resting++) {
        K2_ASSERT(resting < p->count && p->page[id].refs == 0 && p->page[id].indexed);
        K2_ASSERT(p->page[id].next != K2I_PAGE_NONE || p->rest_tail == id);
    }
    K2_ASSERT(resting == p->rest_count);
    uint32_t held = 0;
    for (uint32_t id = 0; id < p->count; id++) {
        held += p->page[id].refs > 0;
        indexed += p->page[id].indexed;
    }
    K2_ASSERT(held + idle + resting == p->count);
    for (uint32_t b = 0; b <= p->bucket_mask; b++) {
        for (uint32_t id = p->buckets[b]; id != K2I_PAGE_NONE; id = p->page[id].bucket_next, listed++) {
            K2_ASSERT(p->page[id].indexed && (p->page[id].hash & p->bucket_mask) == b && listed < p->count);
        }
    }
    K2_ASSERT(listed == indexed);
}
