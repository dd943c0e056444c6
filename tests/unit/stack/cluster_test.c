/* Names, lines of /proc, clusters and their order: all pure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/stack/stack.h"

static void names_lose_what_the_compiler_added(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"k2_gemm", "k2_gemm"},      {"k2_gemm.constprop.0", "k2_gemm"},        {"k2_gemm.isra.0.part.3", "k2_gemm"},
        {"k2_gemm.cold", "k2_gemm"}, {"epoll_wait@@GLIBC_2.3.2", "epoll_wait"}, {"epoll_wait@GLIBC_2.3.2", "epoll_wait"},
        {".cold", ".cold"}};
    char out[K2_STACK_NAME_MAX], long_name[400];
    for (size_t i = 0; i < K2_COUNT(pairs); i++) {
        k2_stack_function(pairs[i][0], out);
        assert_string_equal(out, pairs[i][1]);
    }
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    k2_stack_function(long_name, out);
    assert_int_equal(strlen(out), K2_STACK_NAME_MAX - 1);
}

static void a_line_of_proc_is_read(void **state)
{
    (void)state;
    k2_proc p;
    assert_true(k2_proc_parse("42 (a) b (c) T 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 19 0 987654 1 2", &p));
    assert_int_equal(p.pid, 42);
    assert_int_equal(p.parent, 7);
    assert_string_equal(p.name, "a) b (c");
    assert_int_equal(p.state, 'T');
    assert_int_equal(p.start, 987654);
    static const char *const bad[] = {
        "",       "42",           "x (a) S 1", "42 (a S 1",
        "42 (a)", "42 (a) S 7 1", ") ( ",      "-3 (a) S 7 42 42 0 -1 0 1 2 3 4 5 6 7 8 20 0 19 0 9"};
    for (size_t i = 0; i < K2_COUNT(bad); i++) assert_false(k2_proc_parse(bad[i], &p));
}

/* Frames from a text like "a<b<main"; a function in capitals is a library's. */
static k2_stack stack_of(const char *text, k2_frame *frames)
{
    k2_stack s = {.frames = frames, .state = 'S'};
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, "<");
        k2_frame *f = &frames[s.count++];
        *f = (k2_frame){.own = at[0] >= 'a', .line = s.count * 3, .offset = 0x1000u + s.count};
        snprintf(f->function, sizeof f->function, "%.*s", (int)n, at);
        snprintf(f->module, sizeof f->module, "%s", f->own ? "k2rl" : "libc.so.6");
        at += n + (at[n] == '<');
    }
    return s;
}

static void equal_functions_are_one_stack(void **state)
{
    (void)state;
    k2_frame f[3][4];
    k2_stack a = stack_of("WAIT<run<main", f[0]), b = stack_of("WAIT<run<main", f[1]), c = stack_of("WAIT<main", f[2]);
    f[1][1].offset = 99; /* another address and line of the same functions */
    f[1][1].line = 99;
    assert_true(k2_stack_same(&a, &b));
    assert_false(k2_stack_same(&a, &c));
    f[0][0].function[0] = f[1][0].function[0] = 0; /* without a name the place in the module counts */
    assert_true(k2_stack_same(&a, &b));
    f[1][0].offset++;
    assert_false(k2_stack_same(&a, &b));
    f[0][0].module[0] = f[1][0].module[0] = 0; /* generated code: the address says nothing */
    assert_true(k2_stack_same(&a, &b));
    assert_true(k2_stack_own(&a));
    a = stack_of("WAIT<THREAD", f[0]);
    assert_false(k2_stack_own(&a));
}

static void a_stack_is_one_line(void **state)
{
    (void)state;
    k2_frame f[8];
    char line[128], small[12];
    k2_stack s = stack_of("WAIT<POLL<run<trainer<main<START", f);
    k2_stack_line(&s, 6, line, sizeof line);
    assert_string_equal(line, "WAIT < POLL < run < trainer < main");
    k2_stack_line(&s, 1, line, sizeof line);
    assert_string_equal(line, "WAIT < POLL < run");
    k2_stack_line(&s, 6, small, sizeof small);
    assert_string_equal(small, "WAIT < POLL");
    s = stack_of("WAIT<POLL", f);
    k2_stack_line(&s, 6, line, sizeof line);
    assert_string_equal(line, "WAIT < POLL");
    char text[64];
    f[0].own = true;
    snprintf(f[0].file, sizeof f[0].file, "a.c");
    k2_frame_text(&f[0], text, sizeof text);
    assert_string_equal(text, "WAIT (a.c:3)");
    k2_frame_text(&f[1], text, sizeof text);
    assert_string_equal(text, "POLL (libc.so.6)");
    f[1].function[0] = 0;
    k2_frame_text(&f[1], text, sizeof text);
    assert_string_equal(text, "libc.so.6+0x1002");
}

static void put(k2_stack_member *m, uint32_t process, const char *role, const k2_stack *s)
{
    *m = (k2_stack_member){.process = process, .stack = s};
    snprintf(m->role, sizeof m->role, "%s", role);
}

/* Four trainers of which one is elsewhere, two rollouts that are the same, one proxy. */
static void the_one_that_differs_comes_first(void **state)
{
    (void)state;
    k2_frame f[4][4];
    k2_stack reduce = stack_of("WAIT<reduce<main", f[0]), load = stack_of("load<main", f[1]),
             decode = stack_of("decode<main", f[2]), route = stack_of("route<main", f[3]);
    k2_stack_member m[9];
    put(&m[0], 0, "proxy", &route);
    for (uint32_t i = 0; i < 4; i++) put(&m[1 + i], 1 + i, "trainer", i == 2 ? &load : &reduce);
    put(&m[5], 5, "rollout", &decode);
    put(&m[6], 6, "rollout", &decode);
    put(&m[7], 6, "rollout", &decode); /* a second thread of it */
    k2_stack_cluster *c;
    assert_int_equal(k2_stack_clusters(m, 8, &c), 4);
    assert_int_equal(c[0].count, 1);
    assert_int_equal(m[c[0].first].process, 3);
    assert_int_equal(c[0].share, 1);
    assert_int_equal(c[0].share_of, 4);
    assert_string_equal(c[0].role, "trainer");
    assert_int_equal(c[1].count, 3);
    assert_int_equal(c[1].share, 3);
    assert_int_equal(c[2].processes, 1); /* the proxy before the two rollouts: fewer processes */
    assert_string_equal(c[2].role, "proxy");
    assert_int_equal(c[3].count, 3);
    assert_int_equal(c[3].processes, 2);
    k2_free(c);

    decode.state = 'T'; /* a stopped one is what one looks for */
    assert_int_equal(k2_stack_clusters(m, 8, &c), 4);
    assert_string_equal(c[0].role, "rollout");
    assert_true(c[0].stopped);
    k2_free(c);
    assert_int_equal(k2_stack_clusters(m, 0, &c), 0);
    k2_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_lose_what_the_compiler_added), cmocka_unit_test(a_line_of_proc_is_read),
        cmocka_unit_test(equal_functions_are_one_stack),      cmocka_unit_test(a_stack_is_one_line),
        cmocka_unit_test(the_one_that_differs_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
