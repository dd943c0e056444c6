/* The door of launch: picks the ops table. */
#include "common/launch/launch.h"

#include "common/launch/launch_int.h"

#include <string.h>

static const k2_launch_ops *const kinds[] = {&k2i_launch_local, &k2i_launch_fake};

k2_launch *k2_launch_open(k2_loop *loop, const char *kind, k2_log *log, k2_error *err)
{
    for (size_t i = 0; i < K2_COUNT(kinds); i++) {
        if (strcmp(kind, kinds[i]->name) != 0) continue;
        k2_launch *l = k2_alloc(sizeof *l);
        l->ops = kinds[i];
        l->loop = loop;
        l->log = log;
        return l;
    }
    k2_error_set(err, K2_UNSUPPORTED, "launcher '%s' found, one of local, fake expected", kind);
    return NULL;
}

const k2_launch_ops *k2_launch_ops_of(const k2_launch *l)
{
    return l->ops;
}

k2_launch_proc *k2_launch_start(k2_launch *l, const k2_launch_spec *spec, k2_error *err)
{
    K2_ASSERT(spec->role && spec->argv && spec->on_exit);
    k2_launch_proc *p = l->ops->start(l, spec, err);
    if (!p) return NULL;
    char name[K2_LAUNCH_NAME_MAX];
    l->ops->describe(p, name);
    K2_LOG_INFO(l->log, "%s started", name);
    return p;
}

void k2_launch_kill(k2_launch_proc *p, int signum)
{
    p->launch->ops->kill(p, signum);
}

void k2_launch_abandon(k2_launch_proc *p)
{
    if (p) p->launch->ops->abandon(p);
}

void k2_launch_describe(const k2_launch_proc *p, char out[K2_LAUNCH_NAME_MAX])
{
    p->launch->ops->describe(p, out);
}

pid_t k2_launch_pid(const k2_launch_proc *p)
{
    return p->launch->ops->pid(p);
}

void k2_launch_close(k2_launch *l)
{
    if (!l) return;
    while (l->procs) l->ops->abandon(l->procs);
    l->ops->close(l);
    k2_free(l);
}

void k2i_launch_add(k2_launch *l, k2_launch_proc *p, const k2_launch_spec *spec)
{
    p->launch = l;
    snprintf(p->role, sizeof p->role, "%s", spec->role);
    p->index = spec->index;
    p->on_exit = spec->on_exit;
    p->arg = spec->arg;
    p->next = l->procs;
    if (l->procs) l->procs->prev = p;
    l->procs = p;
}

void k2i_launch_remove(k2_launch_proc *p)
{
    if (p->prev)
        p->prev->next = p->next;
    else
        p->launch->procs = p->next;
    if (p->next) p->next->prev = p->prev;
    p->next = p->prev = NULL;
}
