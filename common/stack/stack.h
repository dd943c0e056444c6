/* stack - native call stacks: of every thread of another process, and of this one when it crashes.
 *
 * Nouns: a *frame* is one call, by function, module and source line; a `k2_stack` is the frames of one thread, innermost first;
 * a `k2_stacks` is all of a process; a *cluster* is threads, of however many processes, whose functions are the same.
 * Lifetime: what k2_stacks_take fills is released with k2_stacks_free; a cluster only points into it.
 */
#ifndef K2_COMMON_STACK_H
#define K2_COMMON_STACK_H

#include <sys/types.h>

#include "common/base/base.h"

#define K2_STACK_FRAMES_MAX   96u    /* of one thread; the outermost ones beyond are left out */
#define K2_STACK_THREADS_MAX  4096u  /* of one process */
#define K2_STACK_NAME_MAX     96u    /* bytes of a function's, module's or file's name */
#define K2_STACK_ROLE_MAX     16u    /* bytes of a role's name */
#define K2_STACK_CRASH_MARK   "k2rl: crash: " /* begins every line of a crashing process's own report */

/* ---- /proc ------------------------------------------------------------------------------------------------------------ */

/* Of /proc/PID/stat. Pid and start together name a process for good: the number alone is used again. */
typedef struct k2_proc {
    pid_t pid, parent;
    char name[32]; /* the kernel's, cut at 15 bytes */
    char state;    /* R S D T t Z ... */
    uint64_t start; /* clock ticks since boot */
} k2_proc;

/* Pure. The name may hold anything, ')' and blanks too. False: not such a line. */
bool k2_proc_parse(const char *stat, k2_proc *out);
bool k2_proc_read(pid_t pid, k2_proc *out); /* false: there is none */
/* All processes that can be seen, in no order; k2_free the list. */
size_t k2_proc_list(k2_proc **list);
/* "T (stopped by a signal)" */
const char *k2_proc_state_text(char state);

/* ---- taking ----------------------------------------------------------------------------------------------------------- */

typedef struct k2_frame {
    char function[K2_STACK_NAME_MAX]; /* "" where no symbol is known */
    char module[K2_STACK_NAME_MAX];   /* file name without its folder, "" where the address belongs to none */
    char file[K2_STACK_NAME_MAX];     /* source, the end of its path; "" where unknown */
    uint32_t line;
    uint64_t offset; /* into the module, or the address itself where there is none */
    bool own;        /* the module is the process's program, not one of its libraries */
} k2_frame;

typedef struct k2_stack {
    pid_t tid;
    char name[32], state; /* as it was before we looked */
    k2_frame *frames;
    uint32_t count;
    bool cut; /* there were more frames, or the unwinder lost its way */
} k2_stack;

typedef struct k2_stacks {
    k2_proc proc;
    k2_stack *threads;
    uint32_t count;
    uint64_t stopped_ns; /* how long we held the process */
    char note[160];      /* what is missing and why, "" = nothing */
} k2_stacks;

/* k2_stacks_take - the stacks of all threads of a process.
 *
 * who      `proc` as k2_proc_read gave it: another process that has its number by now is refused
 * keeps    the target is seized with ptrace, never sent a signal: it is held for milliseconds, then goes on, or stays stopped when
 *          it was. When we are killed at any moment the kernel releases it the same way. A thread that cannot be held by the
 *          deadline (sleeping without interruption in the kernel) is left out, and `note` says so; it may hang at its next wake
 *          until our process ends. So call it from a process that is about to end.
 * units    deadline_ns from now, for holding it
 * errors   NOT_FOUND it has ended; PEER_REFUSED the kernel does not let us, text says why; IO
 * threads  one at a time; the caller's process must not trace or wait for the target otherwise
 * tests    tests/unit/stack/take_test.c
 */
k2_code k2_stacks_take(const k2_proc *proc, uint64_t deadline_ns, k2_stacks *out, k2_error *err);
void k2_stacks_free(k2_stacks *s);
/* What /proc tells beside the state of a process that may not be traced, one line: where it sleeps in the kernel, its system call. */
void k2_stacks_outside(const k2_proc *proc, k2_buf *out);

/* ---- normalising and clustering ------------------------------------------------------------------------------------------ */

/* A symbol as people wrote it: without what the compiler ("x.constprop.0", "x.part.1", "x.cold") and the C library's symbol
 * versions ("x@@GLIBC_2.2.5") hang on it. Pure. */
void k2_stack_function(const char *symbol, char out[K2_STACK_NAME_MAX]);
/* "k2_loop_run", or "libc.so.6+0x1234". */
void k2_frame_name(const k2_frame *f, char out[2 * K2_STACK_NAME_MAX]);
/* The same for people: "k2_loop_run (common/loop/loop.c:290)", "epoll_wait (libc.so.6)". */
void k2_frame_text(const k2_frame *f, char *out, size_t n);
/* Same functions in the same order, whatever the addresses and lines. */
bool k2_stack_same(const k2_stack *a, const k2_stack *b);
/* At least one frame is of the process's own program. */
bool k2_stack_own(const k2_stack *s);

/* One thread among those of a run. */
typedef struct k2_stack_member {
    uint32_t process;  /* caller's number */
    char role[K2_STACK_ROLE_MAX];
    const k2_stack *stack;
} k2_stack_member;

typedef struct k2_stack_cluster {
    uint32_t first, count;      /* of the members, which are sorted so that a cluster's stand together */
    uint32_t processes;         /* different ones */
    uint32_t share_of, share;   /* the role that is split most unequally: `share` of its `share_of` processes are here */
    char role[K2_STACK_ROLE_MAX]; /* that role */
    bool stopped;               /* by a signal, one of them at least */
} k2_stack_cluster;

/* k2_stack_clusters - put equal stacks together, outliers first.
 *
 *   A cluster is the more an outlier the smaller the part of its role's processes that it holds: one trainer of eight comes before
 *   the seven others, and both before the only proxy. Threads that a signal has stopped come before all. Equal parts: fewer processes first, then by the order of the members.
 *
 * memory   members are reordered; the list is the caller's to k2_free
 * threads  pure
 * tests    tests/unit/stack/cluster_test.c
 */
size_t k2_stack_clusters(k2_stack_member *members, size_t count, k2_stack_cluster **out);

/* ---- one's own ---------------------------------------------------------------------------------------------------------- */

/* k2_stack_arm - on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (which is how a failed K2_ASSERT ends) the process writes its stacks
 * to stderr, then the signal does what it always does: exit status and core dump are as without.
 *
 *   The handler takes no lock and no memory. It starts this same program as "k2rl stacks --crashed", by vfork, which unwinds us from
 *   outside; where that fails, the crashed thread's bare addresses are written. Every line begins with K2_STACK_CRASH_MARK, the last
 *   one has the innermost functions. It takes a fraction of a second, 5 s at most.
 *
 * who      `looker` and its children may take our stacks where Yama restricts ptrace (0: as the system has it)
 * keeps    nothing is done in builds with ASan or TSan, which own these signals. Only the calling thread gets a stack of its own
 *          for the handler: another thread whose stack has run over ends without a report.
 * threads  once, at the start of main
 * tests    tests/e2e/crash_test.sh
 */
void k2_stack_arm(pid_t looker);
/* The report goes to this file, too, where its end is looked for: the master's log. Before the loop runs. */
void k2_stack_report_to(const char *path);

/* The other half: what "k2rl stacks --crashed TEXT [PATH]" does, with TEXT as the handler put it together; the target is our parent. Gives
 * the exit status. */
int k2_stack_crashed(const char *text, const char *path);
/* A stack in one line, innermost first: "a < b < main"; at most `functions` of the program's own and what libraries they are in. */
void k2_stack_line(const k2_stack *s, uint32_t functions, char *out, size_t n);

#endif
