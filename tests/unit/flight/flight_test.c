/* flight: what is recorded can be read again, also after SIGKILL, a wrap, damage; a full disk switches it off. */
#include "common/flight/flight_int.h"
#include "common/flight/trace.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "rings.h"

#define SLOTS ((64u * 1024u - K2I_FLIGHT_SLOTS_AT) / 64u)

static k2_flight_ring *only_ring(k2_flight_trace **trace)
{
    *trace = rings_load();
    assert_int_equal((*trace)->count, 1);
    return (*trace)->rings[0];
}

static void each_kind_comes_back(void **state)
{
    (void)state;
    rings_open("rollout", 3);
    uint32_t outer = k2_flight_begin(K2_FLIGHT_COMMAND, k2_flight_text("TRAIN"), 5, 6, K2_FLIGHT_NONE);
    uint32_t inner =
        k2_flight_begin(K2_FLIGHT_TEST, 1, 2, k2_flight_text("a longer text"), k2_flight_text_at("a longer text", 8));
    k2_flight_end(inner);
    k2_flight_mark(K2_FLIGHT_ROUTED, 10, 11, 12, 13);
    k2_flight_end_with(outer, 3, K2_TIMEOUT);
    k2_flight_start(K2_FLIGHT_REQUEST, 77, 1, 2, 3, 4);
    k2_flight_count(K2_FLIGHT_QUEUES, 8, 9, 0, 0);
    k2_flight_finish(K2_FLIGHT_REQUEST, 77, 1, 2, 3, 5);
    k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text("train"), 0, 1, 1);
    k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text("publish"), 0, 1, 2);
    k2_flight_trace *t;
    k2_flight_ring *r = only_ring(&t);
    assert_string_equal(r->role, "rollout");
    assert_int_equal(r->index, 3);
    assert_int_equal(r->incarnation, 7);
    assert_string_equal(r->run_id, "test");
    assert_int_equal(r->pid, getpid());
    assert_int_equal(r->life, K2_FLIGHT_ALIVE);
    assert_int_equal(r->torn + r->lost + r->left_out, 0);
    assert_string_equal(r->tracks[1], "main");
    assert_int_equal(r->count, 8);
    static const k2_flight_kind kinds[] = {K2_FLIGHT_IS_SPAN,  K2_FLIGHT_IS_SPAN,   K2_FLIGHT_IS_MARK, K2_FLIGHT_IS_START,
                                           K2_FLIGHT_IS_COUNT, K2_FLIGHT_IS_FINISH, K2_FLIGHT_IS_SPAN, K2_FLIGHT_IS_OPEN};
    for (size_t i = 0; i < r->count; i++) {
        assert_int_equal(r->events[i].kind, kinds[i]);
        assert_true(r->events[i].begin_ns <= r->events[i].end_ns);
        if (i > 0) assert_true(r->events[i - 1].begin_ns <= r->events[i].begin_ns);
    }
    k2_buf out;
    k2_buf_init(&out, 4096);
    k2_flight_event_text(&r->events[0], &out);
    assert_string_equal(out.data, "command name=TRAIN cmd=5 step=6 code=TIMEOUT");
    k2_buf_clear(&out);
    k2_flight_event_text(&r->events[1], &out);
    assert_string_equal(out.data, "test a=1 b=2 text=a longer text");
    k2_buf_clear(&out);
    k2_flight_event_text(&r->events[7], &out);
    assert_string_equal(out.data, "phase name=publish iteration=1 version=2");
    k2_buf_fini(&out);
    assert_true(r->events[0].end_ns >= r->events[1].end_ns);
    k2_flight_trace_free(t);
    k2_flight_close();
    t = rings_load();
    assert_int_equal(t->rings[0]->life, K2_FLIGHT_ENDED);
    k2_flight_trace_free(t);
}

static void closed_it_does_nothing(void **state)
{
    (void)state;
    k2_flight_close();
    assert_false(k2_flight_on());
    assert_int_equal(k2_flight_begin(K2_FLIGHT_TEST, 1, 2, 3, 4), 0);
    k2_flight_end(0);
    k2_flight_end(3);
    k2_flight_mark(K2_FLIGHT_TEST, 1, 2, 3, 4);
    k2_flight_state(K2_FLIGHT_PHASE, 1, 2, 3, 4);
    k2_flight_thread("x");
    k2_flight_config off = {.dir = rings_dir, .role = "master", .kib = 0};
    assert_int_equal(k2_flight_open(&off, NULL), K2_OK);
    assert_false(k2_flight_on());
}

static void an_end_ends_what_was_left_open_inside(void **state)
{
    (void)state;
    rings_open("trainer", 0);
    uint32_t outer = k2_flight_begin(K2_FLIGHT_TEST, 1, 0, 0, 0);
    (void)k2_flight_begin(K2_FLIGHT_TEST, 2, 0, 0, 0);
    (void)k2_flight_begin(K2_FLIGHT_TEST, 3, 0, 0, 0);
    k2_flight_end(outer);
    for (uint32_t i = 0; i < K2_FLIGHT_DEPTH_MAX; i++) assert_int_equal(k2_flight_begin(K2_FLIGHT_TEST, 4, 0, 0, 0), i + 1);
    assert_int_equal(k2_flight_begin(K2_FLIGHT_TEST, 5, 0, 0, 0), 0); /* too deep: left out, the rest is not hurt */
    k2_flight_end(1);
    k2_flight_trace *t;
    k2_flight_ring *r = only_ring(&t);
    assert_int_equal(r->count, 3 + K2_FLIGHT_DEPTH_MAX);
    assert_int_equal(r->left_out, 1);
    for (size_t i = 0; i < r->count; i++) assert_int_equal(r->events[i].kind, K2_FLIGHT_IS_SPAN);
    k2_flight_trace_free(t);
}

/* A process that is killed in the middle, 3000 events after a span began: the ring knows the span all the same. */
static void it_survives_sigkill_and_wraps(void **state)
{
    (void)state;
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        rings_open("rollout", 0);
        (void)k2_flight_begin(K2_FLIGHT_PULL, 41, 0, 2, K2_FLIGHT_NONE);
        for (uint64_t i = 0; i < 3000; i++) k2_flight_mark(K2_FLIGHT_TEST, i, 0, 0, 0);
        (void)!write(ready[1], "x", 1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    k2_flight_trace *t;
    k2_flight_ring *r = only_ring(&t);
    assert_int_equal(r->life, K2_FLIGHT_ALIVE);
    k2_flight_trace_free(t);
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(waitpid(child, NULL, WUNTRACED), child);
    r = only_ring(&t);
    assert_int_equal(r->life, K2_FLIGHT_STOPPED);
    k2_flight_trace_free(t);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    r = only_ring(&t);
    assert_int_equal(r->life, K2_FLIGHT_DEAD);
    assert_int_equal(r->recorded, 3000);
    assert_int_equal(r->lost, 3000 - SLOTS);
    assert_int_equal(r->torn, 0);
    assert_int_equal(r->count, SLOTS + 1);
    assert_int_equal(r->events[0].kind, K2_FLIGHT_IS_OPEN);
    assert_int_equal(r->events[0].name, K2_FLIGHT_PULL);
    assert_int_equal(r->events[0].end_ns, r->end_ns);
    for (uint64_t i = 1; i < r->count; i++) assert_int_equal(r->events[i].args[0], 3000 - SLOTS + i - 1);
    k2_flight_trace_free(t);
    close(ready[0]);
    close(ready[1]);
}

enum { THREADS = 4, EACH = 20000 };

static void *writer(void *arg)
{
    uint64_t thread = (uint64_t)(uintptr_t)arg;
    k2_flight_thread("writer");
    for (uint64_t i = 0; i < EACH; i++) k2_flight_mark(K2_FLIGHT_TEST, thread, i, thread ^ i, ~i);
    return NULL;
}

/* Readers while four threads go round and round the ring: what is taken is whole. */
static void many_threads_and_a_reader(void **state)
{
    (void)state;
    rings_open("proxy", 0);
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, writer, (void *)(uintptr_t)i), 0);
    for (int round = 0; round < 20; round++) {
        k2_flight_trace *t;
        k2_flight_ring *r = only_ring(&t);
        for (size_t i = 0; i < r->count; i++) {
            const k2_flight_event *e = &r->events[i];
            assert_true(e->args[0] < THREADS && e->args[1] < EACH);
            assert_true(e->args[2] == (e->args[0] ^ e->args[1]) && e->args[3] == ~e->args[1]);
        }
        k2_flight_trace_free(t);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    k2_flight_trace *t;
    k2_flight_ring *r = only_ring(&t);
    assert_int_equal(r->recorded, THREADS * EACH);
    /* A writer that was overtaken by a whole turn of the ring may have spoilt its slot, and no more than that. */
    assert_true(r->count + r->torn == SLOTS && r->torn <= THREADS);
    k2_flight_trace_free(t);
}

static void *once(void *arg)
{
    (void)arg;
    k2_flight_mark(K2_FLIGHT_TEST, 0, 0, 0, 0);
    return NULL;
}

static void threads_beyond_the_last_are_counted(void **state)
{
    (void)state;
    rings_open("proxy", 0);
    for (uint32_t i = 0; i < K2_FLIGHT_THREADS_MAX + 4; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, once, NULL), 0);
        pthread_join(thread, NULL);
    }
    k2_flight_trace *t;
    k2_flight_ring *r = only_ring(&t);
    assert_int_equal(r->count, K2_FLIGHT_THREADS_MAX - 1); /* the main thread has one */
    assert_int_equal(r->left_out, 5);
    k2_flight_trace_free(t);
}

static void older_rings_are_removed(void **state)
{
    (void)state;
    char *other = k2_asprintf("%s/flight/rollout-1.txt", rings_dir);
    for (int i = 0; i < 7; i++) {
        rings_open("rollout", 1);
        if (i == 0) assert_int_equal(k2_file_write_atomic(other, "x", 1, NULL), K2_OK);
        k2_flight_mark(K2_FLIGHT_TEST, (uint64_t)i, 0, 0, 0);
        for (uint64_t from = k2_wall_us() / 1000; k2_wall_us() / 1000 == from;) continue; /* names differ by the millisecond */
    }
    rings_open("rollout", 11); /* another place, though its name begins alike */
    k2_flight_trace *t = rings_load();
    assert_int_equal(t->count, K2_FLIGHT_KEPT + 1);
    for (uint32_t i = 0; i < K2_FLIGHT_KEPT; i++) assert_int_equal(t->rings[i]->events[0].args[0], 3 + i);
    k2_flight_trace_free(t);
    assert_true(k2_file_exists(other));
    k2_free(other);
}

static void what_cannot_be_opened_says_why(void **state)
{
    (void)state;
    k2_error err;
    k2_flight_config c = {.dir = rings_dir, .role = "master", .kib = 64};
    struct rlimit old, small = {.rlim_cur = 10000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(k2_flight_open(&c, &err), K2_NO_SPACE); /* and no SIGXFSZ */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_false(k2_flight_on());
    c.role = "../x";
    assert_int_equal(k2_flight_open(&c, &err), K2_BAD_INPUT);
    c.role = "master";
    c.kib = 63;
    assert_int_equal(k2_flight_open(&c, &err), K2_LIMIT);
    c.kib = 64;
    c.dir = "/proc/none";
    assert_int_not_equal(k2_flight_open(&c, &err), K2_OK);
    assert_false(k2_flight_on());
    k2_flight_trace *t;
    assert_int_equal(k2_flight_trace_load("/proc/none", NULL, NULL, &t, &err), K2_NOT_FOUND);
}

static void nobody_else_may_read_it(void **state)
{
    (void)state;
    char *bytes;
    size_t n;
    struct stat st;
    rings_open("master", 0);
    char *path = rings_file(&bytes, &n);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 64 * 1024);
    assert_true(st.st_blocks * 512 >= 64 * 1024);
    k2_free(bytes);
    k2_free(path);
}

/* ---- hostile bytes ---------------------------------------------------------------------------------------------------- */

static char *some_ring(size_t *n)
{
    char *bytes;
    rings_open("trainer", 2);
    uint32_t span = k2_flight_begin(K2_FLIGHT_TEST, 1, 2, 3, 4);
    k2_flight_mark(K2_FLIGHT_TEST, 5, 6, 7, 8);
    k2_flight_end(span);
    (void)k2_flight_begin(K2_FLIGHT_COLLECTIVE, 1, 2, 3, k2_flight_coll(1, 2, 3));
    k2_flight_close();
    k2_free(rings_file(&bytes, n));
    return bytes;
}

/* At the end of a page with nothing behind it: one byte too far is a crash. */
static void a_ring_cut_anywhere_is_refused(void **state)
{
    (void)state;
    size_t n;
    char *bytes = some_ring(&n);
    size_t pages = (n + 8191) / 4096 * 4096;
    char *map = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *guard = map + pages - 4096;
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(guard, 4096, PROT_NONE), 0);
    k2_flight_ring *r;
    for (size_t len = 0; len < n; len++) {
        memcpy(guard - len, bytes, len);
        assert_int_equal(k2_flight_ring_parse(guard - len, len, &r, NULL), K2_BAD_INPUT);
        if (len > 600) len += 63;
    }
    memcpy(guard - n, bytes, n);
    assert_int_equal(k2_flight_ring_parse(guard - n, n, &r, NULL), K2_OK);
    assert_int_equal(r->count, 3);
    k2_flight_ring_free(r);
    munmap(map, pages);
    k2_free(bytes);
}

static void one_wrong_bit_costs_one_event(void **state)
{
    (void)state;
    size_t n;
    char *bytes = some_ring(&n);
    k2_flight_ring *r;
    for (size_t bit = 0; bit < 64 * 8; bit++) {
        bytes[K2I_FLIGHT_SLOTS_AT + bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(k2_flight_ring_parse(bytes, n, &r, NULL), K2_OK);
        assert_int_equal(r->count, 2);
        assert_int_equal(r->torn, 1);
        k2_flight_ring_free(r);
        bytes[K2I_FLIGHT_SLOTS_AT + bit / 8] ^= (char)(1 << bit % 8);
    }
    k2i_flight_header h;
    memcpy(&h, bytes, sizeof h);
    h.names ^= 1;
    memcpy(bytes, &h, sizeof h);
    assert_int_equal(k2_flight_ring_parse(bytes, n, &r, NULL), K2_UNSUPPORTED);
    k2_free(bytes);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(name, rings_setup)
    const struct CMUnitTest tests[] = {
        T(each_kind_comes_back),           T(closed_it_does_nothing),         T(an_end_ends_what_was_left_open_inside),
        T(it_survives_sigkill_and_wraps),  T(many_threads_and_a_reader),      T(threads_beyond_the_last_are_counted),
        T(older_rings_are_removed),        T(what_cannot_be_opened_says_why), T(nobody_else_may_read_it),
        T(a_ring_cut_anywhere_is_refused), T(one_wrong_bit_costs_one_event),
    };
    return cmocka_run_group_tests(tests, NULL, rings_teardown);
}
