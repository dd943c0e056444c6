/* What only shm can get wrong: process and descriptor numbers that were used again, memory that could shrink under a reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/xfer/xfer.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static k2_xfer *engine(void)
{
    k2_xfer *x = NULL;
    k2_error err;
    assert_int_equal(k2_xfer_open(&(k2_xfer_config){.transport = "shm"}, &x, &err), K2_OK);
    return x;
}

static void refused(k2_xfer *x, const char *locator, k2_code code, const char *text)
{
    k2_xfer_remote *r = NULL;
    k2_error err = {0};
    assert_int_equal(k2_xfer_remote_open(x, locator, UINT64_MAX, &r, &err), code);
    if (strstr(err.text, text) == NULL) fail_msg("'%s' does not say '%s'", err.text, text);
    assert_null(r);
}

static void a_descriptor_that_was_used_again_is_refused(void **state)
{
    (void)state;
    k2_xfer *x = engine();
    k2_xfer_segment *a, *b;
    k2_error err;
    assert_int_equal(k2_xfer_segment_create(x, 100, &a, &err), K2_OK);
    k2_xfer_locator la, lb;
    char old[K2_XFER_LOCATOR_MAX];
    snprintf(old, sizeof old, "%s", k2_xfer_segment_locator(a));
    assert_int_equal(k2_xfer_locator_parse(old, &la, &err), K2_OK);
    k2_xfer_segment_destroy(a);
    refused(x, old, K2_PEER_REFUSED, "shm: /proc/"); /* nothing there, or what the reader itself has just opened */

    /* The next segment of the same size gets the same descriptor; only the nonce tells. */
    assert_int_equal(k2_xfer_segment_create(x, 100, &b, &err), K2_OK);
    assert_int_equal(k2_xfer_locator_parse(k2_xfer_segment_locator(b), &lb, &err), K2_OK);
    assert_int_equal(la.fd, lb.fd);
    refused(x, old, K2_PEER_REFUSED, "another segment");
    lb.bytes++;
    k2_xfer_locator_format(&lb, true, old);
    refused(x, old, K2_PEER_REFUSED, "bytes, expected");
    k2_xfer_segment_destroy(b);

    int pipes[2];
    assert_int_equal(pipe(pipes), 0); /* opening this one would block */
    la.fd = pipes[0];
    k2_xfer_locator_format(&la, true, old);
    refused(x, old, K2_PEER_REFUSED, "used again");
    close(pipes[0]);
    close(pipes[1]);
    k2_xfer_close(x);
}

static void memory_that_may_shrink_is_refused(void **state)
{
    (void)state;
    k2_xfer *x = engine();
    int fd = memfd_create("k2-xfer", MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096 + 100), 0);
    k2_xfer_locator l = {.transport = "shm", .pid = (int32_t)getpid(), .fd = fd, .bytes = 100};
    char text[K2_XFER_LOCATOR_MAX];
    k2_xfer_locator_format(&l, true, text);
    refused(x, text, K2_PEER_REFUSED, "not sealed");
    close(fd);
    k2_xfer_close(x);
}

static void nobody_else_can_shrink_or_write_a_segment(void **state)
{
    (void)state;
    k2_xfer *x = engine();
    k2_xfer_segment *s;
    k2_error err;
    k2_xfer_locator l;
    char path[64];
    assert_int_equal(k2_xfer_segment_create(x, 100, &s, &err), K2_OK);
    assert_int_equal(k2_xfer_locator_parse(k2_xfer_segment_locator(s), &l, &err), K2_OK);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", l.pid, l.fd);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_not_equal(ftruncate(fd, 10), 0);
    assert_int_not_equal(write(fd, "x", 1), 1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    close(fd);
    memset(k2_xfer_segment_memory(s), 1, 100); /* we still can */
    k2_xfer_segment_destroy(s);
    k2_xfer_close(x);
}

static void a_dead_process_is_named(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    k2_xfer *x = engine();
    k2_xfer_locator l = {.transport = "shm", .pid = (int32_t)pid, .fd = 3, .bytes = 100};
    char text[K2_XFER_LOCATOR_MAX];
    k2_xfer_locator_format(&l, true, text);
    refused(x, text, K2_PEER_CLOSED, "is gone");
    k2_xfer_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_descriptor_that_was_used_again_is_refused),
        cmocka_unit_test(memory_that_may_shrink_is_refused),
        cmocka_unit_test(nobody_else_can_shrink_or_write_a_segment),
        cmocka_unit_test(a_dead_process_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
