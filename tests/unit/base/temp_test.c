/* Names to write under: what is dead and nobody's goes, all else stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/base.h"

static pid_t dead_process(void)
{
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_true(pid > 0 && waitpid(pid, NULL, 0) == pid);
    return pid;
}

static void put(const char *path)
{
    assert_int_equal(k2_file_write_atomic(path, "x", 1, NULL), K2_OK);
}

static void remains_of_the_dead_go(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2rl_temp_XXXXXX";
    assert_non_null(mkdtemp(dir));
    int gone = dead_process(), other = dead_process();
    char *path = k2_asprintf("%s/out", dir), *own = k2_temp_name(path), *file = k2_asprintf("%s.%d.tmp", path, gone),
         *whole = k2_asprintf("%s/a.%d.tmp", dir, gone), *held = k2_asprintf("%s.%d.tmp", path, other), *inside;
    /* Of the same path: a living process's, a dead one's that another machine's process holds, and names that only look alike.
     */
    char *kept[] = {own,
                    held,
                    whole,
                    k2_asprintf("%s.%dx.tmp", path, gone),
                    k2_asprintf("%s..tmp", path),
                    k2_asprintf("%s.%d.tmp2", path, gone),
                    k2_asprintf("%sx.%d.tmp", path, gone),
                    k2_asprintf("%s.99999999999999999999.tmp", path)};
    for (size_t i = 0; i < K2_COUNT(kept); i++) put(kept[i]);
    put(file);
    int fd = open(held, O_RDONLY | O_CLOEXEC);
    k2_temp_hold(fd);
    k2_temp_clear(path);
    assert_false(k2_file_exists(file));
    for (size_t i = 0; i < K2_COUNT(kept); i++)
        if (!k2_file_exists(kept[i])) fail_msg("%s is gone", kept[i]);
    assert_int_equal(k2_dir_make(file, NULL), K2_OK); /* a directory, with content */
    inside = k2_asprintf("%s/inside", file);
    put(inside);
    close(fd); /* and the other one is held no more */
    k2_temp_clear(path);
    assert_false(k2_file_exists(file));
    assert_false(k2_file_exists(held));
    k2_temp_clear("/tmp/there is no such directory/out");
    for (size_t i = 3; i < K2_COUNT(kept); i++) k2_free(kept[i]);
    k2_free(inside);
    k2_free(held);
    k2_free(whole);
    k2_free(file);
    k2_free(own);
    k2_free(path);
    assert_int_equal(k2_dir_remove(dir, NULL), K2_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(remains_of_the_dead_go)};
    return cmocka_run_group_tests_name("temp", tests, NULL, NULL);
}
