/* What the launchers of this folder share. */
#ifndef K2_COMMON_LAUNCH_INT_H
#define K2_COMMON_LAUNCH_INT_H

#include "common/launch/launch.h"

#include <stdio.h>

struct k2_launch {
    const k2_launch_ops *ops;
    k2_loop *loop;
    k2_log *log;
    k2_launch_proc *procs; /* all that run */
};

struct k2_launch_proc {
    k2_launch *launch;
    k2_launch_proc *next, *prev;
    char role[32];
    uint32_t index;
    void (*on_exit)(void *arg, int exit_code, int term_signal);
    void *arg;
    k2_child *child;                /* local */
    k2_timer *end;                  /* fake: its end is on the way */
    int exit_code, term_signal;     /* fake: what that end will say */
};

extern const k2_launch_ops k2i_launch_local, k2i_launch_fake;

void k2i_launch_add(k2_launch *l, k2_launch_proc *p, const k2_launch_spec *spec);
void k2i_launch_remove(k2_launch_proc *p);

#endif
