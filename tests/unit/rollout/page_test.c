/* page - the pool against a model of itself: random sequences that share prefixes, are released, and are evicted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "rollout/page_int.h"

static void test_take_until_empty(void **state)
{
    (void)state;
    k2i_pages p;
    k2i_pages_init(&p, 3, 2);
    uint32_t a = k2i_pages_take(&p), b = k2i_pages_take(&p), c = k2i_pages_take(&p);
    assert_true(a != b && b != c && a != c);
    assert_int_equal(k2i_pages_take(&p), K2I_PAGE_NONE);
    k2i_pages_release(&p, b);
    assert_int_equal(k2i_pages_available(&p), 1);
    assert_int_equal(k2i_pages_take(&p), b);
    k2i_pages_check(&p);
    k2i_pages_fini(&p);
}

static void test_sealed_page_is_found_only_after_its_parent(void **state)
{
    (void)state;
    k2i_pages p;
    k2i_pages_init(&p, 4, 2);
    const int32_t one[2] = {1, 2}, two[2] = {3, 4};
    uint32_t a = k2i_pages_take(&p), b = k2i_pages_take(&p);
    assert_int_equal(k2i_pages_seal(&p, a, K2I_PAGE_NONE, one), a);
    assert_int_equal(k2i_pages_seal(&p, b, a, two), b);
    assert_int_equal(k2i_pages_find(&p, K2I_PAGE_NONE, one), a);
    assert_int_equal(k2i_pages_find(&p, a, two), b);
    assert_int_equal(k2i_pages_find(&p, K2I_PAGE_NONE, two), K2I_PAGE_NONE);
    assert_int_equal(k2i_pages_find(&p, b, one), K2I_PAGE_NONE);

    /* The same positions, computed twice: the second page is given back and the first one shared. */
    uint32_t c = k2i_pages_take(&p);
    assert_int_equal(k2i_pages_seal(&p, c, a, two), b);
    k2i_pages_check(&p);
    assert_int_equal(k2i_pages_available(&p), 2);
    k2i_pages_release(&p, b);
    k2i_pages_release(&p, b);
    k2i_pages_release(&p, a);
    assert_int_equal(k2i_pages_held(&p), 0);
    assert_int_equal(k2i_pages_find(&p, a, two), b);
    k2i_pages_fini(&p);
}

static void test_reused_parent_does_not_lend_its_children(void **state)
{
    (void)state;
    k2i_pages p;
    k2i_pages_init(&p, 2, 1);
    const int32_t x = 7, y = 8, z = 9;
    uint32_t a = k2i_pages_take(&p), b = k2i_pages_take(&p);
    k2i_pages_seal(&p, a, K2I_PAGE_NONE, &x);
    k2i_pages_seal(&p, b, a, &y);
    k2i_pages_release(&p, a); /* the wrong order on purpose: the parent is evicted first */
    k2i_pages_release(&p, b);
    uint32_t again = k2i_pages_take(&p);
    assert_int_equal(again, a);
    assert_int_equal(k2i_pages_seal(&p, again, K2I_PAGE_NONE, &z), a);
    assert_int_equal(k2i_pages_find(&p, a, &y), K2I_PAGE_NONE);
    k2i_pages_check(&p);
    k2i_pages_fini(&p);
}

static void test_forget(void **state)
{
    (void)state;
    k2i_pages p;
    k2i_pages_init(&p, 3, 1);
    const int32_t x = 7, y = 8;
    uint32_t a = k2i_pages_take(&p), b = k2i_pages_take(&p);
    k2i_pages_seal(&p, a, K2I_PAGE_NONE, &x);
    k2i_pages_seal(&p, b, a, &y);
    k2i_pages_release(&p, b);
    k2i_pages_forget(&p);
    k2i_pages_check(&p);
    assert_int_equal(k2i_pages_find(&p, K2I_PAGE_NONE, &x), K2I_PAGE_NONE);
    assert_int_equal(p.free_count, 2);
    k2i_pages_release(&p, a);
    assert_int_equal(p.free_count, 3);
    k2i_pages_fini(&p);
}

enum { POOL = 24, TOKENS = 2, SEQS = 8, DEPTH = 6 };

typedef struct sequence {
    uint32_t pages[DEPTH];
    int32_t tokens[DEPTH * TOKENS];
    uint32_t count;
    bool live;
} sequence;

/* What the bytes of each page would be: a digest of all tokens up to its end. Two sequences that share a page must agree on it.
 */
static uint64_t content[POOL];

static uint64_t prefix_of(const sequence *s, uint32_t pages)
{
    return k2_hash64(s->tokens, pages * TOKENS * sizeof(int32_t), 5);
}

static void sequence_drop(k2i_pages *p, sequence *s)
{
    while (s->count > 0) k2i_pages_release(p, s->pages[--s->count]);
    s->live = false;
}

static void sequence_grow(k2i_pages *p, sequence *s)
{
    uint32_t i = s->count, parent = i ? s->pages[i - 1] : K2I_PAGE_NONE;
    const int32_t *tokens = s->tokens + (size_t)i * TOKENS;
    uint32_t id = k2i_pages_find(p, parent, tokens);
    if (id != K2I_PAGE_NONE) {
        k2i_pages_hold(p, id);
    } else {
        id = k2i_pages_take(p);
        if (id == K2I_PAGE_NONE) return;
        content[id] = prefix_of(s, i + 1);
        id = k2i_pages_seal(p, id, parent, tokens);
    }
    s->pages[s->count++] = id;
}

static void test_random_sequences_share_only_equal_prefixes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        k2i_pages p;
        k2i_pages_init(&p, POOL, TOKENS);
        sequence seqs[SEQS] = {0};
        for (uint64_t step = 0; step < 2000; step++) {
            sequence *s = &seqs[k2_rand_below(seed, K2_STREAM_TEST, step, 0, SEQS)];
            if (!s->live) {
                for (uint32_t i = 0; i < DEPTH * TOKENS; i++)
                    s->tokens[i] = (int32_t)k2_rand_below(seed, K2_STREAM_TEST, step, 1 + i, 2);
                s->live = true;
            } else if (s->count == DEPTH || k2_rand_below(seed, K2_STREAM_TEST, step, 50, 8) == 0) {
                sequence_drop(&p, s);
            } else {
                sequence_grow(&p, s);
            }
            if (k2_rand_below(seed, K2_STREAM_TEST, step, 51, 400) == 0) {
                for (uint32_t i = 0; i < SEQS; i++) sequence_drop(&p, &seqs[i]);
                k2i_pages_forget(&p);
            }
            k2i_pages_check(&p);
            for (uint32_t i = 0; i < SEQS; i++) {
                for (uint32_t j = 0; j < seqs[i].count; j++)
                    assert_true(content[seqs[i].pages[j]] == prefix_of(&seqs[i], j + 1));
            }
        }
        for (uint32_t i = 0; i < SEQS; i++) sequence_drop(&p, &seqs[i]);
        assert_int_equal(k2i_pages_available(&p), POOL);
        k2i_pages_fini(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_until_empty),
        cmocka_unit_test(test_sealed_page_is_found_only_after_its_parent),
        cmocka_unit_test(test_reused_parent_does_not_lend_its_children),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_random_sequences_share_only_equal_prefixes),
    };
    return cmocka_run_group_tests_name("rollout_page", tests, NULL, NULL);
}
