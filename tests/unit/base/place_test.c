/* Set and tournament against what a plain scan says, for sizes around powers of two and of 64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/base.h"

static const uint32_t sizes[] = {1, 2, 3, 5, 63, 64, 65, 127, 1000, 4095, 4096, 4097, 5000};
enum { SIZE_MAX_ = 5000, STEPS = 4000 };

static uint64_t draw(uint64_t *at, uint64_t n)
{
    return k2_rand_below(7, K2_STREAM_TEST, 1, (*at)++, n);
}

static void set_is_what_a_scan_finds(void **state)
{
    (void)state;
    for (size_t z = 0; z < K2_COUNT(sizes); z++) {
        uint32_t n = sizes[z], count = 0;
        bool in[SIZE_MAX_] = {false};
        uint64_t at = z << 32;
        k2_set *s = k2_set_new(n);
        for (uint32_t i = 0; i < STEPS; i++) {
            uint32_t place = (uint32_t)draw(&at, n), from = (uint32_t)draw(&at, n + 2);
            bool put = draw(&at, i / 1000 % 2 ? 8 : 3) == 0; /* sparse and less sparse by turns */
            count = count + put - in[place];
            in[place] = put;
            k2_set_put(s, place, put);
            assert_int_equal(k2_set_has(s, place), put);
            assert_int_equal(k2_set_count(s), count);
            uint32_t next = from;
            while (next < n && !in[next]) next++;
            assert_int_equal(k2_set_next(s, from), next < n ? next : K2_PLACE_NONE);
        }
        k2_set_free(s);
    }
}

typedef struct entry {
    bool in;
    uint64_t major, minor;
} entry;

static uint32_t scan(const entry *e, uint32_t n, uint32_t but)
{
    uint32_t best = K2_PLACE_NONE;
    for (uint32_t i = 0; i < n; i++) {
        if (!e[i].in || i == but) continue;
        if (best == K2_PLACE_NONE || e[i].major < e[best].major || (e[i].major == e[best].major && e[i].minor < e[best].minor))
            best = i;
    }
    return best;
}

static void tournament_is_what_a_scan_finds(void **state)
{
    (void)state;
    for (size_t z = 0; z < K2_COUNT(sizes); z++) {
        uint32_t n = sizes[z], levels = 1;
        while (1u << levels < n) levels++;
        static entry e[SIZE_MAX_];
        for (uint32_t i = 0; i < n; i++) e[i] = (entry){0};
        uint64_t at = z << 32;
        k2_least *l = k2_least_new(n);
        for (uint32_t i = 0; i < STEPS; i++) {
            uint32_t place = (uint32_t)draw(&at, n), but = (uint32_t)draw(&at, n);
            uint64_t before = k2_least_matches(l);
            e[place] = (entry){draw(&at, 4) > 0, draw(&at, 5), draw(&at, 3)}; /* many equals */
            if (e[place].in)
                k2_least_set(l, place, e[place].major, e[place].minor);
            else
                k2_least_drop(l, place);
            assert_true(k2_least_matches(l) - before <= levels + 1);
            assert_true(k2_least_major(l, place) == (e[place].in ? e[place].major : UINT64_MAX));
            assert_int_equal(k2_least_first(l), scan(e, n, K2_PLACE_NONE));
            assert_int_equal(k2_least_first_but(l, but), scan(e, n, but));
        }
        k2_least_free(l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(set_is_what_a_scan_finds),
                                       cmocka_unit_test(tournament_is_what_a_scan_finds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
