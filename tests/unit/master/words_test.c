/* The end of a log, and the kernel's count of kills: parsers, with files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/stack/stack.h"
#include "master/words_int.h"

static k2m_words w;
static char text[16384];

static void find(const char *log, bool crashed)
{
    snprintf(text, sizeof text, "%s", log);
    k2m_words_find(text, strlen(text), crashed, &w);
}

static void the_last_lines_of_a_log(void **state)
{
    (void)state;
    find("", true);
    assert_int_equal(w.count, 0);
    assert_string_equal(w.last, "");
    find("\n\n", false);
    assert_int_equal(w.count, 0);
    find("only", false);
    assert_int_equal(w.count, 1);
    assert_string_equal(w.last, "only");
    find("1\n2\n3\n\n4\n5\n6\n", false);
    assert_int_equal(w.count, 5);
    assert_string_equal(w.lines[0], "2");
    assert_string_equal(w.last, "6");
    find("1\n2\n", true); /* killed, without a report of its own */
    assert_int_equal(w.count, 2);
    assert_false(w.report);
}

#define M K2_STACK_CRASH_MARK

static void a_crash_s_own_report(void **state)
{
    (void)state;
    find("start\n" M "SIGSEGV at 0x0:\n" M "  f (a.c:1)\n" M "SIGSEGV at 0x0 in f\n", true);
    assert_true(w.report);
    assert_int_equal(w.count, 3);
    assert_string_equal(w.lines[0], M "SIGSEGV at 0x0:");
    assert_string_equal(w.last, "SIGSEGV at 0x0 in f");
    find(M "old\n" M "old in g\nstarted anew\n" M "new\n" M "new in f\nanother thread\n", true); /* that wrote behind it */
    assert_int_equal(w.count, 2);
    assert_string_equal(w.last, "new in f");
    find(M "old\n" M "old in g\n1\n2\n3\n4\n5\n", true); /* of an earlier life */
    assert_false(w.report);
    assert_string_equal(w.last, "5");
    find(M "old\n" M "old in g\n", false); /* this one ended otherwise */
    assert_false(w.report);

    size_t at = 0;
    for (int i = 0; i < 300; i++) at += (size_t)snprintf(text + at, sizeof text - at, M "%d\n", i);
    k2m_words_find(text, at, true, &w);
    assert_int_equal(w.count, K2M_WORDS_MAX);
    assert_string_equal(w.last, "299");
}

static void paths_of_cgroups(void **state)
{
    (void)state;
    char path[64];
    const char *hybrid = "9:name=systemd:/\n5:cpu,memory,pids:/a/b\n4:memory2:/no\n0::/u\n";
    assert_true(k2m_cgroup_path(hybrid, "memory", path, sizeof path));
    assert_string_equal(path, "/a/b");
    assert_true(k2m_cgroup_path(hybrid, "", path, sizeof path));
    assert_string_equal(path, "/u");
    assert_true(k2m_cgroup_path("0::/", "", path, sizeof path));
    assert_string_equal(path, "/");
    assert_false(k2m_cgroup_path("0::/x\n", "memory", path, sizeof path));
    assert_false(k2m_cgroup_path("4:memory:/x\n", "", path, sizeof path));
    assert_false(k2m_cgroup_path("0::/../../x\n", "", path, sizeof path)); /* outside of our namespace */
    assert_false(k2m_cgroup_path("0::x\n", "", path, sizeof path));
    assert_false(k2m_cgroup_path("0::/123456789\n", "", path, 8));
    static const char *const bad[] = {"", "\n", "0", "0:", "0:\n:", "memory"};
    for (size_t i = 0; i < K2_COUNT(bad); i++) assert_false(k2m_cgroup_path(bad[i], "", path, sizeof path));
}

static void counts_of_kills(void **state)
{
    (void)state;
    uint64_t kills = 7;
    assert_true(k2m_oom_parse("low 0\nhigh 0\nmax 5\noom 4\noom_kill 3\noom_group_kill 9\n", &kills)); /* v2 */
    assert_int_equal(kills, 3);
    assert_true(k2m_oom_parse("oom_kill_disable 0\nunder_oom 0\noom_kill 12\n", &kills)); /* v1 */
    assert_int_equal(kills, 12);
    assert_false(k2m_oom_parse("oom_kill_disable 0\nunder_oom 0\n", &kills)); /* before Linux 4.13 */
    assert_false(k2m_oom_parse("", &kills));
    assert_false(k2m_oom_parse("oom_kill many\n", &kills));
    assert_int_equal(kills, 12);
}

/* A tree like the kernel's, for this very process. */
static void the_file_of_a_process(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2rl_words_XXXXXX", own[64], own_text[4096] = "", path[512], file[1200];
    uint64_t kills = 0;
    assert_non_null(mkdtemp(dir));
    assert_null(k2m_oom_file(dir, getpid())); /* nothing there */
    snprintf(own, sizeof own, "/proc/%d/cgroup", (int)getpid());
    FILE *f = fopen(own, "r");
    if (f) {
        own_text[fread(own_text, 1, sizeof own_text - 1, f)] = 0;
        fclose(f);
    }
    bool v1 = k2m_cgroup_path(own_text, "memory", path, sizeof path);
    if (v1 || k2m_cgroup_path(own_text, "", path, sizeof path)) {
        snprintf(file, sizeof file, "%s%s%s", dir, v1 ? "/memory" : "", path);
        assert_int_equal(k2_dir_make(file, NULL), K2_OK);
        snprintf(file + strlen(file), sizeof file - strlen(file), "/%s", v1 ? "memory.oom_control" : "memory.events");
        assert_int_equal(k2_file_write_atomic(file, "oom_kill 5\n", 11, NULL), K2_OK);
        char *found = k2m_oom_file(dir, getpid());
        assert_non_null(found);
        assert_true(k2m_oom_read(found, &kills));
        assert_int_equal(kills, 5);
        k2_free(found);
    }
    assert_false(k2m_oom_read(NULL, &kills));
    assert_int_equal(k2_dir_remove(dir, NULL), K2_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_lines_of_a_log), cmocka_unit_test(a_crash_s_own_report),  cmocka_unit_test(paths_of_cgroups),
        cmocka_unit_test(counts_of_kills),         cmocka_unit_test(the_file_of_a_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
