/* The loop itself: its run and end, the inbox, the worker pool, timers and signals. */
#include "common/loop/loop_int.h"

#include <signal.h>
#include <sys/resource.h>

struct k2_timer {
    k2i_kind kind;
    uv_timer_t uv;
    void (*cb)(void *arg);
    void *arg;
};

struct k2_signal {
    k2i_kind kind;
    uv_signal_t uv;
    void (*cb)(void *arg, int signum);
    void *arg;
};

typedef struct work {
    k2i_link link;
    uv_work_t uv;
    k2_loop *loop;
    void (*run)(void *arg);
    void (*done)(void *arg);
    void *arg;
    bool surely;
} work;

#define END_ROUNDS_MAX 100000u /* turns of the loop in k2_loop_free: more means that callbacks keep starting new things */

static void must(int rc)
{
    K2_ASSERT(rc == 0);
}

/* ---- inbox ------------------------------------------------------------------------------------------------------ */

static bool inbox_take(k2_loop *loop, k2i_post *out)
{
    uv_mutex_lock(&loop->inbox_lock);
    bool have = loop->inbox_count > 0;
    if (have) {
        *out = loop->inbox[loop->inbox_head];
        loop->inbox_head = (loop->inbox_head + 1) % K2_INBOX_MAX;
        loop->inbox_count--;
    }
    uv_mutex_unlock(&loop->inbox_lock);
    return have;
}

/* Runs what waits now; what these functions post waits for the next turn, so that sockets and timers get theirs. */
static bool inbox_drain(k2_loop *loop)
{
    uv_mutex_lock(&loop->inbox_lock);
    uint32_t n = loop->inbox_count;
    uv_mutex_unlock(&loop->inbox_lock);
    k2i_post post;
    for (uint32_t i = 0; i < n && inbox_take(loop, &post); i++) post.fn(post.arg);
    return n > 0;
}

static void on_wake(uv_async_t *wake)
{
    k2_loop *loop = wake->loop->data;
    inbox_drain(loop);
    if (atomic_load(&loop->stop)) uv_stop(&loop->uv);
}

k2_code k2_loop_post(k2_loop *loop, void (*fn)(void *arg), void *arg)
{
    uv_mutex_lock(&loop->inbox_lock);
    bool full = loop->inbox_count == K2_INBOX_MAX;
    if (!full) {
        loop->inbox[(loop->inbox_head + loop->inbox_count) % K2_INBOX_MAX] = (k2i_post){fn, arg};
        loop->inbox_count++;
        /* Under the lock, so that the handle cannot be closed by an ending loop between the two. */
        uv_async_send(&loop->wake);
    }
    uv_mutex_unlock(&loop->inbox_lock);
    return full ? K2_FULL : K2_OK;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

k2_loop *k2_loop_new(void)
{
    signal(SIGPIPE, SIG_IGN);
    k2_loop *loop = k2_alloc(sizeof *loop);
    must(uv_loop_init(&loop->uv));
    loop->uv.data = loop;
    loop->plain = K2I_PLAIN;
    must(uv_async_init(&loop->uv, &loop->wake, on_wake));
    loop->wake.data = &loop->plain;
    must(uv_mutex_init(&loop->inbox_lock));
    atomic_init(&loop->stop, false);
    loop->inbox = k2_alloc_array(K2_INBOX_MAX, sizeof *loop->inbox);
    loop->read_buffer = k2_alloc(K2_READ_BYTES);
    k2i_link_init(&loop->works);
    k2i_link_init(&loop->children);
    return loop;
}

void k2_loop_run(k2_loop *loop)
{
    while (!atomic_load(&loop->stop)) uv_run(&loop->uv, UV_RUN_DEFAULT);
    atomic_store(&loop->stop, false);
}

void k2_loop_stop(k2_loop *loop)
{
    atomic_store(&loop->stop, true);
    uv_async_send(&loop->wake);
}

static void signal_closed(uv_handle_t *handle)
{
    k2_free((char *)handle - offsetof(k2_signal, uv));
}
static void timer_closed(uv_handle_t *handle)
{
    k2_free((char *)handle - offsetof(k2_timer, uv));
}

/* First walks: conns end and tell their owners. Timers, signals and listeners only fall silent: their owners may still stop
 * them in a last callback, so their memory has to stay until all of those have come. */
static void quiet_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (uv_is_closing(handle)) return;
    switch (*(k2i_kind *)handle->data) {
    case K2I_TIMER: uv_timer_stop((uv_timer_t *)handle); break;
    case K2I_SIGNAL: uv_signal_stop((uv_signal_t *)handle); break;
    case K2I_CONN: k2i_conn_end(handle->data, K2_CANCELED, "the loop ends", 0); break;
    case K2I_LISTENER:
        uv_unref(handle); /* who comes now is turned away, see listener_came */
        break;
    case K2I_PLAIN: break;
    }
}

/* Last walk. */
static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (uv_is_closing(handle)) return;
    switch (*(k2i_kind *)handle->data) {
    case K2I_TIMER: uv_close(handle, timer_closed); break;
    case K2I_SIGNAL: uv_close(handle, signal_closed); break;
    case K2I_LISTENER: k2i_listener_end(handle->data); break;
    case K2I_CONN: k2_assert_fail(__FILE__, __LINE__, "a conn is left");
    case K2I_PLAIN: uv_close(handle, NULL); break;
    }
}

static void end_works(k2_loop *loop)
{
    /* A running one cannot be canceled and answers BUSY; a waiting one comes back through after_work all the same. */
    for (k2i_link *l = loop->works.next; l != &loop->works; l = l->next) uv_cancel((uv_req_t *)&((work *)(void *)l)->uv);
}

void k2_loop_free(k2_loop *loop)
{
    if (!loop) return;
    loop->ending = true;
    uv_unref((uv_handle_t *)&loop->wake);
    k2i_children_end(loop);
    end_works(loop);
    unsigned rounds = 0;
    bool again = true;
    while (again) {
        K2_ASSERT(rounds++ < END_ROUNDS_MAX);
        uv_walk(&loop->uv, quiet_handle, NULL);
        again = uv_run(&loop->uv, UV_RUN_ONCE) != 0;
        if (inbox_drain(loop)) again = true;
    }
    uv_walk(&loop->uv, close_handle, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    must(uv_loop_close(&loop->uv));
    uv_mutex_destroy(&loop->inbox_lock);
    k2_free(loop->inbox);
    k2_free(loop->read_buffer);
    k2_free(loop);
}

bool k2_loop_ending(const k2_loop *loop)
{
    return loop->ending;
}

uint64_t k2_loop_now_ns(k2_loop *loop)
{
    (void)loop;
    return k2_now_ns();
}

uint64_t k2_loop_raise_fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit more = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
    }
    return limit.rlim_cur;
}

/* ---- timers ----------------------------------------------------------------------------------------------------- */

/* libuv counts whole milliseconds from a clock it has cut to milliseconds: one more makes sure that we are never early. */
static uint64_t ms_of(uint64_t ns)
{
    return ns == 0 ? 0 : (ns - 1) / K2_NS_PER_MS + 2;
}

static void timer_fired(uv_timer_t *uv)
{
    k2_timer *timer = uv->data;
    timer->cb(timer->arg);
}

k2_timer *k2_timer_start(k2_loop *loop, uint64_t delay_ns, uint64_t repeat_ns, void (*cb)(void *arg), void *arg)
{
    k2_timer *timer = k2_alloc(sizeof *timer);
    timer->kind = K2I_TIMER;
    timer->cb = cb;
    timer->arg = arg;
    must(uv_timer_init(&loop->uv, &timer->uv));
    timer->uv.data = timer;
    k2_timer_restart(timer, delay_ns, repeat_ns);
    return timer;
}

void k2_timer_restart(k2_timer *timer, uint64_t delay_ns, uint64_t repeat_ns)
{
    k2_loop *loop = timer->uv.loop->data;
    if (loop->ending || uv_is_closing((uv_handle_t *)&timer->uv)) return;
    /* The loop's idea of now is from the start of this turn; a long callback must not shorten the delay. */
    uv_update_time(&loop->uv);
    must(uv_timer_start(&timer->uv, timer_fired, ms_of(delay_ns), repeat_ns == 0 ? 0 : ms_of(repeat_ns) - 1));
}

void k2_timer_stop(k2_timer *timer)
{
    if (!timer || uv_is_closing((uv_handle_t *)&timer->uv)) return;
    uv_close((uv_handle_t *)&timer->uv, timer_closed);
}

/* ---- worker pool ------------------------------------------------------------------------------------------------ */

static void work_run(uv_work_t *uv)
{
    work *w = uv->data;
    k2_thread_begin(); /* the pool's threads are not started by us, but ours run there */
    w->run(w->arg);
}

static void work_done(uv_work_t *uv, int status)
{
    work *w = uv->data;
    k2i_link_remove(&w->link);
    w->loop->works_n--;
    if (status == UV_ECANCELED && w->surely) w->run(w->arg);
    if (w->done) w->done(w->arg);
    k2_free(w);
}

static k2_code work_queue(k2_loop *loop, const work *what)
{
    if (loop->works_n == K2_WORK_MAX || loop->ending) return K2_FULL;
    work *w = k2_alloc(sizeof *w);
    *w = *what;
    w->uv.data = w;
    must(uv_queue_work(&loop->uv, &w->uv, work_run, work_done));
    k2i_link_push(&loop->works, &w->link);
    loop->works_n++;
    return K2_OK;
}

k2_code k2_loop_work(k2_loop *loop, void (*run)(void *arg), void (*done)(void *arg), void *arg)
{
    return work_queue(loop, &(work){.loop = loop, .run = run, .done = done, .arg = arg});
}

void k2_loop_work_surely(k2_loop *loop, void (*run)(void *arg), void (*done)(void *arg), void *arg)
{
    if (work_queue(loop, &(work){.loop = loop, .run = run, .done = done, .arg = arg, .surely = true}) == K2_OK) return;
    run(arg);
    if (done) done(arg);
}

/* ---- signals ---------------------------------------------------------------------------------------------------- */

static void signal_fired(uv_signal_t *uv, int signum)
{
    k2_signal *s = uv->data;
    s->cb(s->arg, signum);
}

k2_signal *k2_loop_signal(k2_loop *loop, int signum, void (*cb)(void *arg, int signum), void *arg)
{
    k2_signal *s = k2_alloc(sizeof *s);
    s->kind = K2I_SIGNAL;
    s->cb = cb;
    s->arg = arg;
    must(uv_signal_init(&loop->uv, &s->uv));
    s->uv.data = s;
    must(uv_signal_start(&s->uv, signal_fired, signum));
    return s;
}

void k2_signal_stop(k2_signal *s)
{
    if (!s || uv_is_closing((uv_handle_t *)&s->uv)) return;
    uv_close((uv_handle_t *)&s->uv, signal_closed);
}
