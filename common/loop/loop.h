/* loop - one thread's event loop: timers, an inbox for other threads, a worker pool, byte streams, signals, children.
 *
 * Nouns: a `k2_loop` belongs to the thread that runs it; a `k2_conn` is one byte stream (TCP, or the standard input and output
 * of a child); a `k2_listener` makes conns; a `k2_timer` and a `k2_child` are what they are called.
 *
 * One lifetime rule: every promised last callback (a conn's on_close, a work's done, a posted function, a child's on_exit)
 * comes exactly once, on the loop thread, never from inside the call that asked for it (save a sure work's), and at the latest
 * inside k2_loop_free - which is why k2_loop_free comes before the memory of those who wait for callbacks is released, and why
 * they close their conns and stop their timers before it, or in those last callbacks. A child that still runs when the loop is
 * freed is killed and waited for; its on_exit comes like the others.
 *
 * Threads: everything is for the loop's own thread, except k2_loop_post and k2_loop_stop. Nothing here blocks, except
 * k2_listen where its host is a name, and k2_loop_free. Nothing slow may run in a callback: that is what k2_loop_work is for.
 */
#ifndef K2_COMMON_LOOP_H
#define K2_COMMON_LOOP_H

#include <sys/types.h>

#include "common/base/base.h"

#define K2_INBOX_MAX      65536u   /* functions posted to one loop and not yet run: every peer a poll and a report, twice */
#define K2_WORK_MAX       4096u    /* works handed to the pool and not yet done, per loop */
#define K2_CONNS_MAX      131072u  /* conns of one loop: 100,000 clients and their engines; beyond it accept closes at once */
#define K2_CONN_QUEUE_MAX 1048576u /* bytes waiting in one conn's write queue, unless k2_conn_queue_max says otherwise */
#define K2_READ_BYTES     65536u   /* the loop's one read buffer: conns own none, an idle one costs about 650 bytes in all */
#define K2_ADDRESS_MAX    64u      /* "[IPv6]:port" and its terminator */

typedef struct k2_loop k2_loop;
typedef struct k2_timer k2_timer;
typedef struct k2_conn k2_conn;
typedef struct k2_listener k2_listener;
typedef struct k2_child k2_child;
typedef struct k2_signal k2_signal;

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* Ends the process when the system gives no event descriptor. SIGPIPE is ignored from then on, process-wide. */
k2_loop *k2_loop_new(void);
/* Run until k2_loop_stop. A loop with nothing to wait for keeps waiting: the inbox may bring something. */
void k2_loop_run(k2_loop *loop);
/* Make k2_loop_run return soon: callbacks that are due in this turn still come. Any thread, and also before the run, which
 * then returns at once. */
void k2_loop_stop(k2_loop *loop);
/* Close what is left, deliver the last callbacks (see the lifetime rule), release. Works that have not begun are not run,
 * except sure ones; their done comes all the same; a work that runs is waited for. NULL is fine. */
void k2_loop_free(k2_loop *loop);
/* True from the moment k2_loop_free began: what a last callback looks at before it starts anything new. */
bool k2_loop_ending(const k2_loop *loop);
/* CLOCK_MONOTONIC; the time to put into events for cores. */
uint64_t k2_loop_now_ns(k2_loop *loop);
/* Raise the soft limit of open descriptors to the hard one; gives the limit in force. Call at start, before 1,000 conns. */
uint64_t k2_loop_raise_fd_limit(void);

/* ---- timers ----------------------------------------------------------------------------------------------------- */

/* k2_timer_start - call cb after delay_ns, then every repeat_ns (0 = once).
 *
 * units    rounded up to whole milliseconds: a timer is never early, and up to 2 ms late on an idle loop
 * memory   the timer lives until k2_timer_stop, also after it fired once; stop is allowed inside cb
 */
k2_timer *k2_timer_start(k2_loop *loop, uint64_t delay_ns, uint64_t repeat_ns, void (*cb)(void *arg), void *arg);
/* Start it anew, whether it waits or has fired: no allocation. For deadlines that move. */
void k2_timer_restart(k2_timer *timer, uint64_t delay_ns, uint64_t repeat_ns);
/* Stop and release; cb does not come any more. NULL is fine. */
void k2_timer_stop(k2_timer *timer);

/* ---- inbox and worker pool --------------------------------------------------------------------------------------- */

/* k2_loop_post - run fn(arg) on the loop thread; in order of posting.
 *
 * errors   FULL when K2_INBOX_MAX functions wait: nothing was queued, and the caller keeps arg
 * threads  any; the poster must have ended before k2_loop_free is entered
 */
k2_code k2_loop_post(k2_loop *loop, void (*fn)(void *arg), void *arg);

/* k2_loop_work - run work(arg) on a pool thread, then done(arg) on the loop thread.
 *
 * memory   arg is work's alone until done; done may be NULL
 * keeps    a work that has not begun when k2_loop_free comes is not run, but done still comes: let work set a flag where
 *          the difference matters
 * errors   FULL when K2_WORK_MAX are under way
 * threads  the pool is one for the process, 4 threads, or what UV_THREADPOOL_SIZE says when the first work starts; name
 *          look-ups use it too. A long step (training, a pull of weights) is one work.
 */
k2_code k2_loop_work(k2_loop *loop, void (*work)(void *arg), void (*done)(void *arg), void *arg);
/* The same for what must not be left out, such as a write: one that has not begun when k2_loop_free comes runs there, on the
 * loop's thread; where FULL would be the answer, work and done run before this returns. */
void k2_loop_work_surely(k2_loop *loop, void (*work)(void *arg), void (*done)(void *arg), void *arg);

/* ---- byte streams ------------------------------------------------------------------------------------------------ */

/* What a conn tells its owner. Must stay valid as long as the conn; usually static const.
 *
 * States:  dialing ──on_connect──► open ──► closed (on_close)
 *             └──────────────────────────────┘  a dial that fails goes straight to on_close, with the reason
 * A conn from a listener or a child is open from the start, without on_connect.
 */
typedef struct k2_stream_ops {
    /* Dialed and open. May be NULL. */
    void (*on_connect)(void *arg, k2_conn *c);
    /* n >= 1 bytes came; they are gone when this returns. Never NULL. */
    void (*on_read)(void *arg, const char *data, size_t n);
    /* May be NULL. Where the next bytes shall be put, to save a copy: set *room to what is there (>= 1); on_read then gets
     * this pointer as data. NULL as answer: the loop's own buffer is used this time. */
    void *(*on_space)(void *arg, size_t *room);
    /* The peer will send no more, but may still read. NULL: the conn closes with PEER_CLOSED then. */
    void (*on_eof)(void *arg);
    /* The write queue, which was not empty, is empty now. May be NULL. */
    void (*on_drain)(void *arg);
    /* The last callback; c is released when it returns. why is OK after k2_conn_close or k2_conn_close_flushed, CANCELED from
     * k2_loop_free, else PEER_CLOSED, PEER_REFUSED, TIMEOUT (connecting), NOT_FOUND (name), or IO; text is one line. Never
     * NULL. */
    void (*on_close)(void *arg, k2_code why, const char *text);
} k2_stream_ops;

/* k2_conn_dial - connect to host:port.
 *
 * memory   never NULL; the conn ends by on_close, also when the connection does not come about. Writes before on_connect
 *          are queued.
 * units    connect_deadline_ns from now for look-up and connecting together; 0 = 30 s
 * errors   all by on_close, with the address in the text
 */
k2_conn *k2_conn_dial(k2_loop *loop, const char *host, uint16_t port, const k2_stream_ops *ops, void *arg,
                      uint64_t connect_deadline_ns);

/* k2_listen - accept TCP connections on host:port.
 *
 * memory   port 0 takes a free one, see k2_listener_port. on_accept gets an open conn and must call k2_conn_attach before it
 *          returns, else the conn is closed. on_accept may close the listener.
 * errors   BUSY when the port is in use ("127.0.0.1:8000 is in use by another process"), NOT_FOUND for an unknown host, IO
 */
k2_listener *k2_listen(k2_loop *loop, const char *host, uint16_t port, int backlog,
                       void (*on_accept)(void *arg, k2_conn *c), void *arg, k2_error *err);
uint16_t k2_listener_port(const k2_listener *l);
void k2_listener_close(k2_listener *l); /* accepted conns stay; NULL is fine; l is gone when this returns */

/* Give an accepted conn its owner. Later it may also hand a conn over to another owner; bytes queued for writing stay. */
void k2_conn_attach(k2_conn *c, const k2_stream_ops *ops, void *arg);

/* k2_conn_write - write bytes in order; what the socket does not take at once is copied and queued.
 *
 * errors   FULL when bytes are queued already and these would pass the cap: nothing of them was taken, wait for on_drain.
 *          (On an empty queue any size is taken.) PEER_CLOSED when the conn is closing: on_close comes or has come.
 */
k2_code k2_conn_write(k2_conn *c, const void *data, size_t n);
/* The same for two pieces in one go (head and body), all or nothing; n may be 0. */
k2_code k2_conn_write2(k2_conn *c, const void *a, size_t a_n, const void *b, size_t b_n);
/* The same without a copy: data must stay until release(release_arg), which comes exactly once, later, also when the conn
 * closes before; but not when this answers an error. */
k2_code k2_conn_write_ref(k2_conn *c, const void *data, size_t n, void (*release)(void *arg), void *release_arg);
size_t k2_conn_queued(const k2_conn *c); /* bytes in the write queue */
void k2_conn_queue_max(k2_conn *c, size_t bytes);

/* Back-pressure towards the peer: no on_read until started again; the kernel's window fills and the peer stops. A conn starts
 * out reading. While stopped, the peer's end is not noticed. Both are idempotent. */
void k2_conn_read_stop(k2_conn *c);
void k2_conn_read_start(k2_conn *c);

/* End at once: queued bytes are dropped, on_close(OK) comes later, no other callback does. Idempotent; NULL is fine. */
void k2_conn_close(k2_conn *c);
/* Stop reading, write what is queued, then close. The owner keeps its own deadline for a peer that does not read. */
void k2_conn_close_flushed(k2_conn *c);
/* Half close: the peer sees the end after what is queued; reading goes on until the peer ends too. Nothing may be written
 * after. */
void k2_conn_finish(k2_conn *c);

bool k2_conn_closing(const k2_conn *c);
void k2_conn_peer(const k2_conn *c, char out[K2_ADDRESS_MAX]); /* "127.0.0.1:4711"; "-" for what has no address */
k2_loop *k2_conn_loop(const k2_conn *c);

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* Call cb(arg, signum) on the loop when the process gets this signal. Several may watch one. Ends the process on a signal
 * that cannot be watched (SIGKILL). */
k2_signal *k2_loop_signal(k2_loop *loop, int signum, void (*cb)(void *arg, int signum), void *arg);
void k2_signal_stop(k2_signal *s); /* NULL is fine */

/* ---- children ---------------------------------------------------------------------------------------------------- */

typedef struct k2_child_spec {
    const char *const *argv;        /* NULL-terminated; argv[0] is looked up in PATH when it has no slash */
    const char *const *env;         /* on top of ours: "NAME=value" sets, "NAME" removes; NULL-terminated; may be NULL */
    const char *cwd;                /* NULL: ours */
    const char *stdout_path;        /* appended to, made with mode 0644; NULL: ours, or the io stream */
    const char *stderr_path;        /* the same; may be the same file */
    const k2_stream_ops *io;        /* NULL: stdin is /dev/null. Else stdin and, without stdout_path, stdout are one conn */
    void *io_arg;
    void (*on_exit)(void *arg, int exit_code, int term_signal); /* one of both is 0; c is gone when this returns */
    void *arg;
    bool outlives_us;               /* false: the kernel kills it when the thread that spawned it ends, however it ends */
    bool guarded;                   /* and with it all that it has started: a shell stands in front of it and sees to that; the pid
                                       is the shell's, and on_exit comes a little later than the end of io */
} k2_child_spec;

/* k2_child_spawn - start a process in its own process group.
 *
 * memory   the child handle lives until on_exit has returned. When the leader ends, what is left in its group is killed.
 *          No descriptor of ours is inherited.
 * errors   NOT_FOUND or IO with the program's name when it cannot be started; LIMIT when there are too many processes;
 *          CANCELED once k2_loop_free began
 * threads  from the process's main thread only: the kernel's parent-death signal follows the *thread* that forked
 */
k2_child *k2_child_spawn(k2_loop *loop, const k2_child_spec *spec, k2_error *err);
pid_t k2_child_pid(const k2_child *c);
k2_conn *k2_child_io(const k2_child *c); /* NULL without spec.io, and after its on_close */
/* Send a signal to the whole group. */
void k2_child_kill(k2_child *c, int signum);
/* The child shall end without on_exit being called: killed with SIGKILL, reaped, released. NULL is fine. */
void k2_child_abandon(k2_child *c);

#endif
