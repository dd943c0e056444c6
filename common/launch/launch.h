/* launch - how a worker process comes to exist, and how its starter learns of its end.
 *
 * Nouns: a `k2_launch` is a way to start processes, behind one ops table: `local` (children of this process), and `fake` (no
 * process at all, for tests of those who launch); a `k2_launch_proc` is one started process.
 * Lifetime: a proc lives until its on_exit has returned, or until k2_launch_abandon; k2_launch_close abandons what is left.
 * Everything is for the loop's thread, which for `local` must be the process's main thread (see k2_child_spawn).
 */
#ifndef K2_COMMON_LAUNCH_H
#define K2_COMMON_LAUNCH_H

#include "common/base/base.h"
#include "common/log/log.h"
#include "common/loop/loop.h"

#define K2_LAUNCH_TOKEN_ENV "K2RL_TOKEN" /* not on the command line, which everyone can read */
#define K2_LAUNCH_NAME_MAX  128u         /* bytes of a description */

typedef struct k2_launch k2_launch;
typedef struct k2_launch_proc k2_launch_proc;

typedef struct k2_launch_spec {
    const char *role;
    uint32_t index;
    const char *const *argv;     /* as in k2_child_spec; argv[0] NULL = this very executable, argv[1...] its arguments */
    const char *const *env;      /* additions as in k2_child_spec; NULL-terminated; may be NULL */
    const char *token;           /* put into K2_LAUNCH_TOKEN_ENV; NULL: the variable is removed */
    const char *log_path;        /* standard output and error are appended to it; NULL: ours */
    void (*on_exit)(void *arg, int exit_code, int term_signal); /* one of both is 0; never from inside start or kill */
    void *arg;
} k2_launch_spec;

/* One way to start processes. tests/conform/launch holds for all. */
typedef struct k2_launch_ops {
    const char *name;
    bool same_host;  /* processes share our memory and loopback: shm locators and pids mean something to them */
    bool dies_with_us; /* the system ends the processes when we end, however that happens */
    /* Start one; NOT_FOUND or IO when that fails, and on_exit does not come then. */
    k2_launch_proc *(*start)(k2_launch *l, const k2_launch_spec *spec, k2_error *err);
    /* Send a signal to the process and its own children; its end is told by on_exit as always. */
    void (*kill)(k2_launch_proc *p, int signum);
    /* Kill, reap and release, without on_exit. */
    void (*abandon)(k2_launch_proc *p);
    /* One line for people: "rollout-2 pid 4711". */
    void (*describe)(const k2_launch_proc *p, char out[K2_LAUNCH_NAME_MAX]);
    /* 0 where there is none on this host. */
    pid_t (*pid)(const k2_launch_proc *p);
    void (*close)(k2_launch *l);
} k2_launch_ops;

/* kind "local" or "fake"; UNSUPPORTED for others, with the list. log may be NULL. */
k2_launch *k2_launch_open(k2_loop *loop, const char *kind, k2_log *log, k2_error *err);
const k2_launch_ops *k2_launch_ops_of(const k2_launch *l);
k2_launch_proc *k2_launch_start(k2_launch *l, const k2_launch_spec *spec, k2_error *err);
void k2_launch_kill(k2_launch_proc *p, int signum);
void k2_launch_abandon(k2_launch_proc *p); /* NULL is fine */
void k2_launch_describe(const k2_launch_proc *p, char out[K2_LAUNCH_NAME_MAX]);
pid_t k2_launch_pid(const k2_launch_proc *p);
void k2_launch_close(k2_launch *l); /* NULL is fine */

/* Only for procs of a fake: let it end. A fake also ends when it is sent SIGKILL or SIGTERM, with that signal. */
void k2_launch_fake_end(k2_launch_proc *p, int exit_code, int term_signal);

#endif
