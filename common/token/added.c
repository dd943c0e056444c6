/* Added tokens: names that stand for one id, and where they are in a text (the first, and of those that begin there the
 * longest). */
#include "common/token/token_int.h"

#include <stdlib.h>
#include <string.h>

void k2i_added_put(k2i_addeds *a, uint32_t id, const char *name, size_t n, uint8_t flags)
{
    if (a->count == a->capacity) {
        a->capacity = K2_MAX(a->capacity * 2, 64u);
        a->list = k2_realloc_array(a->list, a->capacity, sizeof *a->list);
    }
    a->list[a->count++] = (k2i_added){.name = k2_strndup(name, n), .n = (uint32_t)n, .id = id, .flags = flags};
}

static uint32_t node_new(k2i_trie *t, unsigned char byte, uint32_t sibling)
{
    if (t->count == t->capacity) {
        t->capacity = K2_MAX(t->capacity * 2, 256u);
        t->nodes = k2_realloc_array(t->nodes, t->capacity, sizeof *t->nodes);
    }
    t->nodes[t->count] = (k2i_trie_node){.byte = byte, .sibling = sibling, .added = -1};
    return t->count++;
}

static uint32_t child_of(const k2i_trie *t, uint32_t node, unsigned char byte)
{
    uint32_t c = t->nodes[node].child;
    while (c && t->nodes[c].byte != byte) c = t->nodes[c].sibling;
    return c;
}

/* False where the name is there already. */
static bool trie_put(k2i_trie *t, const unsigned char *name, size_t n, int32_t added)
{
    if (t->count == 0) node_new(t, 0, 0);
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = child_of(t, at, name[i]);
        if (!c) {
            c = node_new(t, name[i], t->nodes[at].child);
            t->nodes[at].child = c;
        }
        at = c;
    }
    if (t->nodes[at].added >= 0) return false;
    t->nodes[at].added = added;
    return true;
}

static int by_id(const void *x, const void *y)
{
    const k2i_added *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

k2_code k2i_added_finish(k2i_addeds *a, bool nfc, k2_error *err)
{
    if (a->count) qsort(a->list, a->count, sizeof *a->list, by_id);
    for (uint32_t i = 0; i < a->count; i++) {
        const k2i_added *t = &a->list[i];
        if (i > 0 && a->list[i - 1].id == t->id)
            return k2_error_set(err, K2_BAD_INPUT, "added tokens: id %u is there twice", t->id);
        const unsigned which = t->flags & K2I_ADDED_NORMALIZED ? 1 : 0;
        size_t n = t->n;
        unsigned char *composed = nfc && which ? k2i_nfc((const unsigned char *)t->name, n, &n) : NULL;
        const bool is_new = trie_put(&a->tries[which], composed ? composed : (const unsigned char *)t->name, n, (int32_t)i);
        k2_free(composed);
        if (!is_new) return k2_error_set(err, K2_BAD_INPUT, "added tokens: \"%.100s\" is there twice", t->name);
        if (!(t->flags & K2I_ADDED_CONTROL)) a->from_text[which] = true;
    }
    return K2_OK;
}

void k2i_added_fini(k2i_addeds *a)
{
    for (uint32_t i = 0; i < a->count; i++) k2_free(a->list[i].name);
    k2_free(a->list);
    k2_free(a->tries[0].nodes);
    k2_free(a->tries[1].nodes);
    *a = (k2i_addeds){0};
}

const k2i_added *k2i_added_of(const k2i_addeds *a, int32_t id)
{
    const k2i_added key = {.id = (uint32_t)id};
    return a->count && id >= 0 ? bsearch(&key, a->list, a->count, sizeof *a->list, by_id) : NULL;
}

const k2i_added *k2i_added_named(const k2i_addeds *a, const char *name)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (strcmp(a->list[i].name, name) == 0) return &a->list[i];
    return NULL;
}

/* The longest name that begins at the text; *len is its bytes as the trie has them. */
static const k2i_added *longest(const k2i_addeds *a, const k2i_trie *t, const unsigned char *text, size_t n, size_t *len)
{
    const k2i_added *best = NULL;
    uint32_t at = 0;
    for (size_t i = 0; i < n && (at = child_of(t, at, text[i])) != 0; i++) {
        if (t->nodes[at].added < 0) continue;
        best = &a->list[t->nodes[at].added];
        *len = i + 1;
    }
    return best;
}

static size_t back_over_space(const unsigned char *text, size_t from, size_t floor, size_t n)
{
    while (from > floor) {
        size_t back = from - 1, len;
        while (back > floor && (text[back] & 0xc0) == 0x80) back--;
        if (!k2i_is_space(text + back, n - back, &len)) break;
        from = back;
    }
    return from;
}

k2i_found k2i_added_find(const k2i_addeds *a, unsigned trie, bool trusted, const unsigned char *text, size_t n, size_t floor)
{
    const k2i_trie *t = &a->tries[trie];
    if (!t->count || !(trusted || a->from_text[trie])) return (k2i_found){.begin = n, .end = n};
    for (size_t i = floor; i < n;) {
        size_t len = 0;
        const k2i_added *hit = longest(a, t, text + i, n - i, &len);
        if (hit && (trusted || !(hit->flags & K2I_ADDED_CONTROL))) {
            k2i_found f = {.added = hit, .begin = i, .end = i + len};
            if (hit->flags & K2I_ADDED_LSTRIP) f.begin = back_over_space(text, f.begin, floor, n);
            if (hit->flags & K2I_ADDED_RSTRIP)
                while (k2i_is_space(text + f.end, n - f.end, &len)) f.end += len;
            return f;
        }
        i +=
            hit ? len : 1; /* the name of a control token is text, but no other is looked for inside it, as in Hugging Face's */
    }
    return (k2i_found){.begin = n, .end = n};
}
