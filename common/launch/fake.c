/* Launch nothing: procs that end when a test says so. */
#include "common/launch/launch_int.h"

#include <signal.h>

static void fake_exit(void *arg)
{
    k2_launch_proc *p = arg;
    k2_timer_stop(p->end);
    k2i_launch_remove(p);
    p->on_exit(p->arg, p->exit_code, p->term_signal);
    k2_free(p);
}

static k2_launch_proc *fake_start(k2_launch *l, const k2_launch_spec *spec, k2_error *err)
{
    (void)err;
    k2_launch_proc *p = k2_alloc(sizeof *p);
    k2i_launch_add(l, p, spec);
    return p;
}

void k2_launch_fake_end(k2_launch_proc *p, int exit_code, int term_signal)
{
    K2_ASSERT(p->launch->ops == &k2i_launch_fake);
    if (p->end) return; /* a process ends once */
    p->exit_code = exit_code;
    p->term_signal = term_signal;
    p->end = k2_timer_start(p->launch->loop, 0, 0, fake_exit, p);
}

static void fake_kill(k2_launch_proc *p, int signum)
{
    if (signum == SIGKILL || signum == SIGTERM) k2_launch_fake_end(p, 0, signum);
}

static void fake_abandon(k2_launch_proc *p)
{
    k2_timer_stop(p->end);
    k2i_launch_remove(p);
    k2_free(p);
}

static void fake_describe(const k2_launch_proc *p, char out[K2_LAUNCH_NAME_MAX])
{
    snprintf(out, K2_LAUNCH_NAME_MAX, "%s-%u fake", p->role, p->index);
}

static pid_t fake_pid(const k2_launch_proc *p)
{
    (void)p;
    return 0;
}

static void fake_close(k2_launch *l)
{
    (void)l;
}

const k2_launch_ops k2i_launch_fake = {
    .name = "fake",
    .same_host = true,
    .dies_with_us = true,
    .start = fake_start,
    .kill = fake_kill,
    .abandon = fake_abandon,
    .describe = fake_describe,
    .pid = fake_pid,
    .close = fake_close,
};
