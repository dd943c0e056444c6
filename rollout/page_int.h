/* page - the pool of cache pages: which are free, which are held and how often, which full ones can be shared.
 *
 * The pool only keeps the books; the bytes of a page belong to whoever owns the cache. A page that holds `page_tokens`
 * positions can be *sealed*: its tokens, and the page before it, become its key, and another sequence that begins with the
 * same tokens finds it. Keys are compared in full, never by hash alone: two prompts can not be taken for one another.
 *
 *        take ─► held (refs 1..) ─ seal ─► held, indexed ─ release ─► resting (refs 0, indexed) ─ evict ─► taken anew
 *                  └───────────── release ──► free                      └── find + hold ──► held, indexed
 *
 * Resting pages are evicted oldest first. A sequence is released from its end, so that a page rests no longer than its
 * children and a chain is never cut in the middle while its end still takes room.
 */
#ifndef K2_ROLLOUT_PAGE_INT_H
#define K2_ROLLOUT_PAGE_INT_H

#include "common/base/base.h"

#define K2I_PAGE_NONE UINT32_MAX

typedef struct k2i_page {
    uint64_t hash;         /* of the key; valid while indexed */
    uint64_t generation;   /* counts the times the page was taken: an old child never matches a page that was reused */
    uint64_t parent_generation;
    uint32_t parent;       /* page before it in the sequence, K2I_PAGE_NONE for the first */
    uint32_t refs;
    uint32_t bucket_next;  /* chain of one hash bucket */
    uint32_t prev, next;   /* list of resting pages, or of free ones (next only) */
    bool indexed;
} k2i_page;

typedef struct k2i_pages {
    k2i_page *page;
    int32_t *tokens;       /* [count, page_tokens]: the key's tokens */
    uint32_t *buckets;
    uint32_t bucket_mask;
    uint32_t count, page_tokens;
    uint32_t free_head, free_count;
    uint32_t rest_head, rest_tail, rest_count; /* head = oldest */
    uint64_t hits, evictions;                  /* for metrics */
} k2i_pages;

/* memory   init allocates all that is ever needed; fini gives it back */
void k2i_pages_init(k2i_pages *p, uint32_t count, uint32_t page_tokens);
void k2i_pages_fini(k2i_pages *p);

/* Pages that `take` can still give out: free ones and resting ones. */
static inline uint32_t k2i_pages_available(const k2i_pages *p) { return p->free_count + p->rest_count; }
/* Pages that someone holds. */
static inline uint32_t k2i_pages_held(const k2i_pages *p) { return p->count - k2i_pages_available(p); }

/* One page with one reference, its content undefined; K2I_PAGE_NONE when every page is held. */
uint32_t k2i_pages_take(k2i_pages *p);
void k2i_pages_hold(k2i_pages *p, uint32_t id);
void k2i_pages_release(k2i_pages *p, uint32_t id);

/* k2i_pages_seal - say that a held page now holds these `page_tokens` tokens, after `parent`.
 *
 * Gives the page to use from now on: `id`, or another one that holds the very same positions (then `id` was released and
 * the other one held; the bytes are equal, because the same tokens after the same prefix give the same bits).
 */
uint32_t k2i_pages_seal(k2i_pages *p, uint32_t id, uint32_t parent, const int32_t *tokens);

/* The sealed page with these tokens after `parent`, not yet held for the caller; K2I_PAGE_NONE when there is none. */
uint32_t k2i_pages_find(k2i_pages *p, uint32_t parent, const int32_t *tokens);

/* Forget every key: the weights changed. Resting pages become free; held ones stay held and are no longer found. */
void k2i_pages_forget(k2i_pages *p);

/* Panics when the books do not agree with themselves. O(count); for tests. */
void k2i_pages_check(const k2i_pages *p);

#endif
