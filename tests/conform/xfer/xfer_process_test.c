/* Reader and owner as two real processes, and owners that are killed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/xfer/xfer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 16384, CHUNKS = 256, BYTES = CHUNK * CHUNKS };

/* A child that offers BYTES bytes, whose first word counts up on every byte that it is sent, until it is killed or its pipe
 * closes. */
typedef struct owner {
    pid_t pid;
    int to;
    char locator[K2_XFER_LOCATOR_MAX];
} owner;

static void pattern(unsigned char *m)
{
    for (size_t i = 8; i < BYTES; i++) m[i] = (unsigned char)((i * 2654435761u) >> 13);
}

static void owner_main(const char *transport, int in, int out)
{
    k2_xfer *x;
    k2_xfer_segment *s;
    k2_error err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (k2_xfer_open(&(k2_xfer_config){.transport = transport}, &x, &err) != K2_OK) _exit(1);
    if (k2_xfer_segment_create(x, BYTES, &s, &err) != K2_OK) _exit(2);
    pattern(k2_xfer_segment_memory(s));
    char locator[K2_XFER_LOCATOR_MAX] = {0};
    snprintf(locator, sizeof locator, "%s", k2_xfer_segment_locator(s));
    if (write(out, locator, sizeof locator) != sizeof locator) _exit(3);
    char byte;
    for (uint64_t count = 1; read(in, &byte, 1) == 1; count++) k2_xfer_segment_signal(s, 0, count);
    k2_xfer_segment_destroy(s);
    k2_xfer_close(x);
    _exit(0);
}

static owner owner_start(const char *transport)
{
    int down[2], up[2];
    assert_int_equal(pipe(down) + pipe(up), 0);
    owner o = {.pid = fork(), .to = down[1]};
    assert_true(o.pid >= 0);
    if (o.pid == 0) {
        close(down[1]);
        close(up[0]);
        owner_main(transport, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    assert_int_equal(read(up[0], o.locator, sizeof o.locator), (int)sizeof o.locator);
    close(up[0]);
    return o;
}

static void owner_kill(owner *o)
{
    assert_int_equal(kill(o->pid, SIGKILL), 0);
    assert_int_equal(waitpid(o->pid, NULL, 0), o->pid);
    close(o->to);
}

static void owner_end(owner *o)
{
    int status;
    close(o->to);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    assert_int_equal(status, 0);
}

static k2_xfer *reader(void)
{
    k2_xfer *x;
    k2_error err;
    k2_xfer_config config = {.transport = "self", .retries = 2, .backoff_ns = 1000, .chunk_bytes = CHUNK, .rails = 2};
    assert_int_equal(k2_xfer_open(&config, &x, &err), K2_OK);
    return x;
}

static k2_xfer_remote *reach(k2_xfer *x, const owner *o)
{
    k2_xfer_remote *r = NULL;
    k2_error err;
    if (k2_xfer_remote_open(x, o->locator, UINT64_MAX, &r, &err) != K2_OK) fail_msg("%s", err.text);
    return r;
}

static k2_xfer_batch *pull(k2_xfer *x, k2_xfer_remote *const *r, uint32_t n, unsigned char *local)
{
    k2_xfer_batch *b = NULL;
    k2_error err;
    memset(local, 0, BYTES);
    k2_xfer_request q = {.sources = r, .source_count = n, .offset = 8, .bytes = BYTES - 8, .local = local + 8};
    assert_int_equal(k2_xfer_batch_submit(x, &q, 1, &b, &err), K2_OK);
    return b;
}

static void bytes_and_signals_cross_processes(void **state)
{
    const char *transport = *state;
    owner o = owner_start(transport);
    k2_xfer *x = reader();
    k2_xfer_remote *r = reach(x, &o);
    unsigned char *expected = k2_alloc(BYTES), *local = k2_alloc(BYTES);
    pattern(expected);
    k2_xfer_batch *b = pull(x, &r, 1, local);
    assert_int_equal(k2_xfer_batch_wait(b, UINT64_MAX, NULL), K2_OK);
    assert_memory_equal(local, expected, BYTES);
    k2_xfer_batch_close(b);
    for (uint64_t i = 1; i <= 50; i++) {
        uint64_t seen;
        assert_int_equal(write(o.to, "x", 1), 1);
        assert_int_equal(k2_xfer_remote_wait(r, 0, i, UINT64_MAX, &seen, NULL), K2_OK);
        assert_int_equal(seen, i);
    }
    k2_xfer_remote_close(r);
    owner_end(&o);
    k2_xfer_close(x);
    k2_free(expected);
    k2_free(local);
}

static void a_killed_owner_is_noticed(void **state)
{
    const char *transport = *state;
    owner o = owner_start(transport);
    k2_xfer *x = reader();
    k2_xfer_remote *r = reach(x, &o), *late = NULL;
    unsigned char *expected = k2_alloc(BYTES), *local = k2_alloc(BYTES);
    bool maps = k2_xfer_remote_map(r) != NULL;
    pattern(expected);
    k2_xfer_batch *b = pull(x, &r, 1, local);
    while (!k2_xfer_batch_poll(b, NULL)) {
        k2_xfer_progress p;
        k2_xfer_batch_poll(b, &p);
        if (p.done_bytes > 0) break;
    }
    owner_kill(&o); /* in the middle, or so nearly after it that both ends must be right */
    k2_error err = {0};
    k2_code code = k2_xfer_batch_wait(b, UINT64_MAX, &err);
    assert_true(code == K2_OK || (!maps && code == K2_PEER_CLOSED));
    if (code == K2_OK) assert_memory_equal(local, expected, BYTES);
    k2_xfer_batch_close(b);

    /* Now it is certainly dead. */
    b = pull(x, &r, 1, local);
    code = k2_xfer_batch_wait(b, UINT64_MAX, &err);
    assert_int_equal(code, maps ? K2_OK : K2_PEER_CLOSED);
    if (maps) assert_memory_equal(local, expected, BYTES);
    k2_xfer_batch_close(b);
    assert_int_equal(k2_xfer_remote_wait(r, 0, 1, UINT64_MAX, NULL, &err), K2_PEER_CLOSED);
    assert_int_equal(k2_xfer_remote_open(x, o.locator, UINT64_MAX, &late, &err), K2_PEER_CLOSED);
    k2_xfer_remote_close(r);
    k2_xfer_close(x);
    k2_free(expected);
    k2_free(local);
}

static void another_holder_takes_over_from_a_killed_one(void **state)
{
    const char *transport = *state;
    owner o[3] = {owner_start(transport), owner_start(transport), owner_start("tcp")};
    k2_xfer *x = reader();
    k2_xfer_remote *r[3];
    for (size_t i = 0; i < 3; i++) r[i] = reach(x, &o[i]);
    unsigned char *expected = k2_alloc(BYTES), *local = k2_alloc(BYTES);
    pattern(expected);
    k2_error err = {0};
    k2_xfer_batch *b = pull(x, r, 3, local);
    owner_kill(&o[0]); /* somewhere in the first batch, before the second */
    if (k2_xfer_batch_wait(b, UINT64_MAX, &err) != K2_OK) fail_msg("%s", err.text);
    assert_memory_equal(local, expected, BYTES);
    k2_xfer_batch_close(b);
    owner_kill(&o[1]);
    b = pull(x, r, 3, local);
    if (k2_xfer_batch_wait(b, UINT64_MAX, &err) != K2_OK) fail_msg("%s", err.text);
    assert_memory_equal(local, expected, BYTES);
    k2_xfer_progress p;
    assert_true(k2_xfer_batch_poll(b, &p));
    if (k2_xfer_remote_map(r[0]) == NULL) assert_int_equal(p.elsewhere, CHUNKS);
    k2_xfer_batch_close(b);
    for (size_t i = 0; i < 3; i++) k2_xfer_remote_close(r[i]);
    owner_end(&o[2]);
    k2_xfer_close(x);
    k2_free(expected);
    k2_free(local);
}

/* A waiter in the middle of its wait, not one that comes too late. */
static void a_waiter_is_told_of_the_death(void **state)
{
    const char *transport = *state;
    owner o = owner_start(transport);
    int go[2];
    char byte = 0;
    assert_int_equal(pipe(go), 0);
    pid_t killer = fork(); /* before this process has threads */
    if (killer == 0) {
        struct pollfd none = {.fd = -1};
        if (read(go[0], &byte, 1) != 1) _exit(1);
        poll(&none, 1, 30); /* the order of kill and wait does not matter for the outcome, only for what is exercised */
        kill(o.pid, SIGKILL);
        _exit(0);
    }
    k2_xfer *x = reader();
    k2_xfer_remote *r = reach(x, &o);
    k2_error err = {0};
    assert_int_equal(write(go[1], &byte, 1), 1);
    close(go[0]);
    close(go[1]);
    assert_int_equal(k2_xfer_remote_wait(r, 0, 1, UINT64_MAX, NULL, &err), K2_PEER_CLOSED);
    k2_xfer_remote_close(r);
    k2_xfer_close(x);
    assert_int_equal(waitpid(killer, NULL, 0), killer);
    assert_int_equal(waitpid(o.pid, NULL, 0), o.pid);
    close(o.to);
}

#define CASE(test, transport)                                                                                                  \
    {                                                                                                                          \
#test " (" transport ")", test, NULL, NULL, (void *)(uintptr_t)transport                                               \
    }
#define CASES(transport)                                                                                                       \
    CASE(bytes_and_signals_cross_processes, transport), CASE(a_killed_owner_is_noticed, transport),                            \
        CASE(another_holder_takes_over_from_a_killed_one, transport), CASE(a_waiter_is_told_of_the_death, transport)

int main(void)
{
    const struct CMUnitTest tests[] = {CASES("shm"), CASES("tcp")};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
