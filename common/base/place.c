/* place: a set of numbered places, and a tournament over them. See base.h. */
#include "common/base/base.h"

/* ---- set: a bitmap, and above it two maps of which words are not empty -----------------------------------------------------
 */

#define LEVELS 3u

struct k2_set {
    uint64_t *words[LEVELS]; /* [0] has a bit for each place, [i + 1] one for each word of [i] */
    uint32_t word_count[LEVELS];
    uint32_t places, count;
};

k2_set *k2_set_new(uint32_t places)
{
    K2_ASSERT(places >= 1 && places <= 1u << (6 * LEVELS));
    k2_set *s = k2_alloc(sizeof *s);
    s->places = places;
    for (uint32_t i = 0, n = places; i < LEVELS; i++) {
        n = (n + 63) / 64;
        s->word_count[i] = n;
        s->words[i] = k2_alloc_array(n, sizeof *s->words[i]);
    }
    return s;
}

void k2_set_free(k2_set *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < LEVELS; i++) k2_free(s->words[i]);
    k2_free(s);
}

bool k2_set_has(const k2_set *s, uint32_t place)
{
    K2_ASSERT(place < s->places);
    return s->words[0][place / 64] >> place % 64 & 1u;
}

void k2_set_put(k2_set *s, uint32_t place, bool in)
{
    if (k2_set_has(s, place) == in) return;
    s->count += in ? 1u : UINT32_MAX;
    for (uint32_t i = 0; i < LEVELS; i++, place /= 64) {
        uint64_t *word = &s->words[i][place / 64], bit = 1ull << place % 64;
        bool same_above = (*word & ~bit) != 0; /* its word had others, and still has */
        *word = in ? *word | bit : *word & ~bit;
        if (same_above) return;
    }
}

uint32_t k2_set_next(const k2_set *s, uint32_t from)
{
    if (from >= s->places) return K2_PLACE_NONE;
    uint32_t level = 0, at = from;
    for (;; level++, at = at / 64 + 1) { /* up: is there one behind, in the same word? */
        if (level == LEVELS || at / 64 >= s->word_count[level]) return K2_PLACE_NONE;
        uint64_t rest = s->words[level][at / 64] & (UINT64_MAX << at % 64);
        if (rest == 0) continue;
        at = at / 64 * 64 + (uint32_t)__builtin_ctzll(rest);
        break;
    }
    for (; level > 0; level--) at = at * 64 + (uint32_t)__builtin_ctzll(s->words[level - 1][at]); /* down: the first of it */
    return at;
}

uint32_t k2_set_count(const k2_set *s)
{
    return s->count;
}

/* ---- tournament ------------------------------------------------------------------------------------------------------------
 */

typedef struct key {
    uint64_t major, minor;
} key;

struct k2_least {
    key *keys;
    uint32_t *best; /* of node k the children are 2k and 2k + 1, the root is 1; place p stands at places + p */
    uint32_t places;
    uint64_t matches;
};

k2_least *k2_least_new(uint32_t places)
{
    K2_ASSERT(places >= 1 && places <= UINT32_MAX / 4);
    k2_least *l = k2_alloc(sizeof *l);
    l->places = places;
    l->keys = k2_alloc_array(places, sizeof *l->keys);
    l->best = k2_alloc_array(2 * (size_t)places, sizeof *l->best);
    for (uint32_t i = 0; i < 2 * places; i++) l->best[i] = K2_PLACE_NONE;
    return l;
}

void k2_least_free(k2_least *l)
{
    if (!l) return;
    k2_free(l->keys);
    k2_free(l->best);
    k2_free(l);
}

static uint32_t match(const k2_least *l, uint32_t a, uint32_t b)
{
    if (a == K2_PLACE_NONE || b == K2_PLACE_NONE) return K2_MIN(a, b);
    const key *x = &l->keys[a], *y = &l->keys[b];
    if (x->major != y->major) return x->major < y->major ? a : b;
    if (x->minor != y->minor) return x->minor < y->minor ? a : b;
    return K2_MIN(a, b);
}

static void replay(k2_least *l, uint32_t place)
{
    for (uint32_t k = (l->places + place) / 2; k >= 1; k /= 2) {
        uint32_t winner = match(l, l->best[2 * k], l->best[2 * k + 1]);
        l->matches++;
        if (winner == l->best[k] && winner != place) return; /* the same with the same key: nothing changes above */
        l->best[k] = winner;
    }
}

void k2_least_set(k2_least *l, uint32_t place, uint64_t major, uint64_t minor)
{
    K2_ASSERT(place < l->places);
    uint32_t *leaf = &l->best[l->places + place];
    if (*leaf == place && l->keys[place].major == major && l->keys[place].minor == minor) return;
    l->keys[place] = (key){major, minor};
    *leaf = place;
    replay(l, place);
}

void k2_least_drop(k2_least *l, uint32_t place)
{
    K2_ASSERT(place < l->places);
    if (l->best[l->places + place] == K2_PLACE_NONE) return;
    l->best[l->places + place] = K2_PLACE_NONE;
    replay(l, place);
}

uint32_t k2_least_first(const k2_least *l)
{
    return l->best[1]; /* with a single place that is its own */
}

uint32_t k2_least_first_but(const k2_least *l, uint32_t place)
{
    K2_ASSERT(place < l->places);
    uint32_t best = K2_PLACE_NONE;
    for (uint32_t k = l->places + place; k > 1; k /= 2) best = match(l, best, l->best[k ^ 1]);
    return best;
}

uint64_t k2_least_major(const k2_least *l, uint32_t place)
{
    K2_ASSERT(place < l->places);
    return l->best[l->places + place] == K2_PLACE_NONE ? UINT64_MAX : l->keys[place].major;
}

uint64_t k2_least_matches(const k2_least *l)
{
    return l->matches;
}
