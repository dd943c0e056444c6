/* seen: the processes of a run on this machine, found in /proc. */
#include "master/stacks_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/config/config.h"
#include "common/net/net.h"

#define CMDLINE_MAX 4096u
#define DEPTH_MAX   16 /* of the tree of processes */

static const char *const roles[] = {"master", "trainer", "rollout", "proxy"};

typedef struct cmdline {
    char words[CMDLINE_MAX];
    size_t n;
} cmdline;

static void cmdline_read(pid_t pid, cmdline *c)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, c->words, sizeof c->words - 1) : -1;
    if (fd >= 0) close(fd);
    c->n = n > 0 ? (size_t)n : 0;
    c->words[c->n] = 0;
}

const char *k2m_cmdline_option(const char *words, size_t n, const char *option)
{
    for (size_t at = 0; at < n; at += strlen(words + at) + 1) {
        if (strcmp(words + at, option) != 0) continue;
        at += strlen(words + at) + 1;
        return at < n ? words + at : NULL;
    }
    return NULL;
}

/* The role that a command line of ours names, NULL = it is not one. */
static const char *role_of(const cmdline *c)
{
    size_t at = strlen(c->words) + 1;
    for (size_t i = 0; i < K2_COUNT(roles) && at < c->n; i++)
        if (strcmp(c->words + at, roles[i]) == 0) return roles[i];
    return NULL;
}

/* ---- the master -------------------------------------------------------------------------------------------------------------
 */

/* Pids are used again; a process that has the run's lock open is its master. */
static bool has_open(pid_t pid, const char *file)
{
    char dir[64], link[512], target[PATH_MAX], wanted[PATH_MAX];
    bool found = false;
    if (!realpath(file, wanted)) return false;
    snprintf(dir, sizeof dir, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        snprintf(link, sizeof link, "%s/%s", dir, e->d_name);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        found = strcmp(target, wanted) == 0;
    }
    if (d) closedir(d);
    return found;
}

static pid_t master_of(const char *run_dir)
{
    char *path = k2_asprintf("%s/journal/writer.lock", run_dir), *text = NULL;
    size_t n;
    long pid = 0;
    if (k2_file_read(path, 64, &text, &n, NULL) == K2_OK) pid = strtol(text, NULL, 10);
    if (pid <= 0 || !has_open((pid_t)pid, path)) pid = 0;
    k2_free(text);
    k2_free(path);
    return (pid_t)pid;
}

/* ---- all others ----------------------------------------------------------------------------------------------------- */

typedef struct table {
    k2_proc *procs;
    size_t count;
    int *number; /* place in the list of those seen, -1 = not of this run */
    k2m_seen_list *out;
} table;

static const k2m_seen *parent_of(const table *t, size_t i)
{
    for (size_t k = 0; k < t->count; k++)
        if (t->procs[k].pid == t->procs[i].parent && t->number[k] >= 0) return &t->out->list[t->number[k]];
    return NULL;
}

static bool is_python(pid_t pid)
{
    char path[64], target[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    const char *name = strrchr(target, '/');
    return name && strncmp(name + 1, "python", 6) == 0;
}

static void add(table *t, size_t i, const char *role, const cmdline *c)
{
    const k2m_seen *parent = role ? NULL : parent_of(t, i);
    t->number[i] = (int)t->out->count;
    k2m_seen *s = &t->out->list[t->out->count++];
    *s = (k2m_seen){.proc = t->procs[i], .ours = role != NULL};
    if (role) {
        const char *index = k2m_cmdline_option(c->words, c->n, "--index");
        snprintf(s->name, sizeof s->name, "%s-%.10s", role, index ? index : "0");
        snprintf(s->role, sizeof s->role, "%s", role);
        return;
    }
    s->python = is_python(s->proc.pid);
    snprintf(s->name, sizeof s->name, "%.15s under %.40s", s->proc.name, parent ? parent->name : "?");
    snprintf(s->role, sizeof s->role, "%.15s", s->proc.name);
}

/* What looks at the run is not part of it. */
static bool is_looker(const cmdline *c)
{
    size_t at = strlen(c->words) + 1;
    return at < c->n && strcmp(c->words + at, "stacks") == 0;
}

/* One generation more: who names the run's address, and who is a child of one that was found. True when there were any. */
static bool grow(table *t, const char *url)
{
    size_t before = t->out->count;
    for (size_t i = 0; i < t->count; i++) {
        if (t->number[i] >= 0 || t->procs[i].pid == getpid() || t->procs[i].state == 'Z') continue;
        const k2m_seen *parent = parent_of(t, i);
        cmdline c;
        cmdline_read(t->procs[i].pid, &c);
        const char *role = role_of(&c), *master = k2m_cmdline_option(c.words, c.n, "--master");
        bool worker = role && master;
        if (is_looker(&c) || !(parent || (worker && strcmp(master, url) == 0))) continue;
        add(t, i, worker ? role : NULL, &c);
    }
    return t->out->count > before;
}

static k2_code url_of(const char *run_dir, char url[K2_NET_URL_MAX], k2_error *err)
{
    static k2_config config; /* large */
    char *path = k2_asprintf("%s/config.json", run_dir);
    k2_code code = K2_OK;
    k2_config_defaults(&config);
    if (!k2_file_exists(path))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: no run is here (config.json expected)", run_dir);
    else
        code = k2_config_load(&config, path, err);
    k2_free(path);
    if (code != K2_OK) return code;
    if (!config.master_listen[0]) return k2_net_url_for_dir(run_dir, url, err);
    snprintf(url, K2_NET_URL_MAX, "%.200s", config.master_listen);
    return K2_OK;
}

k2_code k2m_seen_find(const char *run_dir, k2m_seen_list *out, k2_error *err)
{
    char url[K2_NET_URL_MAX];
    k2_code code = url_of(run_dir, url, err);
    if (code != K2_OK) return code;
    table t = {.out = out};
    t.count = k2_proc_list(&t.procs);
    t.number = k2_alloc_array(t.count + 1, sizeof *t.number);
    *out = (k2m_seen_list){.list = k2_alloc_array(t.count + 1, sizeof *out->list)};
    pid_t master = master_of(run_dir);
    for (size_t i = 0; i < t.count; i++) t.number[i] = -1;
    for (size_t i = 0; i < t.count; i++)
        if (t.procs[i].pid == master) add(&t, i, "master", &(cmdline){0});
    for (int depth = 0; depth < DEPTH_MAX && grow(&t, url); depth++) continue;
    k2_free(t.procs);
    k2_free(t.number);
    if (out->count > 0) return K2_OK;
    k2m_seen_free(out);
    return k2_error_set(err, K2_NOT_FOUND, "%s: none of its processes is alive on this machine; k2rl why tells where it stood",
                        run_dir);
}

void k2m_seen_free(k2m_seen_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        k2_stacks_free(&l->list[i].stacks);
        k2_free(l->list[i].outside);
        k2_free(l->list[i].python_stack);
    }
    k2_free(l->list);
    k2_free(l->members);
    k2_free(l->clusters);
    *l = (k2m_seen_list){0};
}
