/* Holding a process still. PTRACE_SEIZE and PTRACE_INTERRUPT, not PTRACE_ATTACH: that one sends a SIGSTOP, which may stay
 * behind and stop the target for good when we are killed in between. A seized thread leaves no trace: when we let go, or end in
 * whatever way, the kernel lets it run on, or puts it back into the stop that it was in. */
#include "common/stack/stack_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#define ROUNDS_MAX 8 /* looks at the list of threads: those not yet held may have started others */

static bool known(const k2i_hold *h, pid_t tid)
{
    for (uint32_t i = 0; i < h->count; i++)
        if (h->threads[i].tid == tid) return true;
    return false;
}

/* The kernel answers EPERM for one that has ended and is not reaped. */
static bool ended(pid_t tid)
{
    k2_proc p;
    return !k2_proc_read(tid, &p) || p.state == 'Z' || p.state == 'X';
}

/* 0, or errno. A thread that has ended meanwhile is no fault. */
static int seize(k2i_hold *h, pid_t tid)
{
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
        int why = errno;
        return why == ESRCH || ended(tid) ? 0 : why;
    }
    if (h->count == h->capacity) {
        h->capacity = h->capacity ? 2 * h->capacity : 32;
        h->threads = k2_realloc_array(h->threads, h->capacity, sizeof *h->threads);
    }
    h->threads[h->count++] = (k2i_held){.tid = tid};
    (void)ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    return 0;
}

/* Seize those that are not yet; the number of new ones, or -errno. */
static int seize_new(k2i_hold *h)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)h->pid);
    DIR *d = opendir(path);
    if (!d) return -ESRCH;
    uint32_t before = h->count;
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d)) && h->count < K2_STACK_THREADS_MAX;) {
        uint64_t tid;
        if (!k2_str_u64(e->d_name, &tid) || known(h, (pid_t)tid)) continue;
        rc = seize(h, (pid_t)tid);
    }
    closedir(d);
    return rc ? -rc : (int)(h->count - before);
}

/* One look at a thread; false when it is neither still nor gone. */
static bool settled(k2i_held *t)
{
    if (t->still || t->tid == 0) return true;
    int status;
    pid_t got = waitpid(t->tid, &status, __WALL | WNOHANG);
    if (got == 0) return false;
    if (got < 0 || !WIFSTOPPED(status)) {
        t->tid = 0; /* it has ended; were it our child, its end would not be ours to take: see the header */
        return true;
    }
    t->still = true;
    t->signum = status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
    return true;
}

static uint32_t wait_still(k2i_hold *h, uint64_t until_ns)
{
    for (;;) {
        uint32_t missing = 0;
        for (uint32_t i = 0; i < h->count; i++) missing += !settled(&h->threads[i]);
        if (missing == 0 || k2_now_ns() >= until_ns) return missing;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

static k2_code refused(int errnum, pid_t pid, k2_error *err)
{
    if (errnum == ESRCH) return k2_error_set(err, K2_NOT_FOUND, "pid %d has ended", (int)pid);
    if (errnum != EPERM && errnum != EACCES) return k2_error_errno(err, errnum, "pid %d: cannot be traced", (int)pid);
    int scope = 0;
    FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (f && fscanf(f, "%d", &scope) != 1) scope = 0;
    if (f) fclose(f);
    return k2_error_set(err, K2_PEER_REFUSED, "pid %d: may not be traced: %s", (int)pid,
                        scope == 1   ? "kernel.yama.ptrace_scope is 1 and we are neither root nor a child of its master"
                        : scope == 2 ? "kernel.yama.ptrace_scope is 2: only root may"
                        : scope == 3 ? "kernel.yama.ptrace_scope is 3: nobody may until the next boot"
                                     : "it is another user's, or a debugger or a sandbox stands in the way");
}

k2_code k2i_hold_begin(k2i_hold *h, pid_t pid, uint64_t deadline_ns, uint32_t *missing, k2_error *err)
{
    uint64_t until = k2_now_ns() + deadline_ns;
    *h = (k2i_hold){.pid = pid};
    for (int round = 0; round < ROUNDS_MAX; round++) {
        int fresh = seize_new(h);
        if (fresh < 0) {
            k2i_hold_end(h);
            return refused(-fresh, pid, err);
        }
        if (fresh == 0 && round > 0) break;
        *missing = wait_still(h, until);
    }
    return K2_OK;
}

void k2i_hold_end(k2i_hold *h)
{
    for (uint32_t i = 0; i < h->count; i++) {
        k2i_held *t = &h->threads[i];
        if (!settled(t)) wait_still(&(k2i_hold){.threads = t, .count = 1}, k2_now_ns() + 10 * K2_NS_PER_MS);
        if (t->still) (void)ptrace(PTRACE_DETACH, t->tid, NULL, (void *)(intptr_t)t->signum);
    }
    k2_free(h->threads);
    h->threads = NULL;
    h->count = 0;
}
