/* Launch as children of this process. */
#include "common/launch/launch_int.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* The child's own handle is released by the loop when this returns. */
static void local_exit(void *arg, int exit_code, int term_signal)
{
    k2_launch_proc *p = arg;
    char name[K2_LAUNCH_NAME_MAX];
    k2i_launch_local.describe(p, name);
    k2_log_level level = exit_code == 0 && term_signal == 0 ? K2_LOG_INFO : K2_LOG_WARN;
    if (term_signal)
        k2_log_write(p->launch->log, level, "%s ended signal=%d", name, term_signal);
    else
        k2_log_write(p->launch->log, level, "%s ended exit=%d", name, exit_code);
    k2i_launch_remove(p);
    p->on_exit(p->arg, exit_code, term_signal);
    k2_free(p);
}

/* The running binary by its path, so that people see a name in their process list. Where the file was replaced by a rebuild
 * meanwhile the kernel says so, and the link itself is used: it still leads to what we run, and a run never mixes two builds.
 */
static const char *own_program(char out[PATH_MAX])
{
    static const char gone[] = " (deleted)", link[] = "/proc/self/exe";
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n < 0) return link;
    out[n] = 0;
    size_t tail = sizeof gone - 1;
    if ((size_t)n > tail && strcmp(out + (size_t)n - tail, gone) == 0) return link;
    return out;
}

static k2_launch_proc *local_start(k2_launch *l, const k2_launch_spec *spec, k2_error *err)
{
    size_t env_n = 0, argv_n = 0;
    while (spec->env && spec->env[env_n]) env_n++;
    while (argv_n == 0 || spec->argv[argv_n]) argv_n++;
    const char **env = k2_alloc_array(env_n + 2, sizeof *env);
    const char **argv = k2_alloc_array(argv_n + 1, sizeof *argv);
    for (size_t i = 0; i < env_n; i++) env[i] = spec->env[i];
    char *token = spec->token ? k2_asprintf("%s=%s", K2_LAUNCH_TOKEN_ENV, spec->token) : k2_strdup(K2_LAUNCH_TOKEN_ENV);
    env[env_n] = token;
    for (size_t i = 0; i < argv_n; i++) argv[i] = spec->argv[i];
    char own[PATH_MAX];
    if (!argv[0]) argv[0] = own_program(own);

    k2_launch_proc *p = k2_alloc(sizeof *p);
    p->child = k2_child_spawn(l->loop,
                              &(k2_child_spec){.argv = argv,
                                               .env = env,
                                               .stdout_path = spec->log_path,
                                               .stderr_path = spec->log_path,
                                               .on_exit = local_exit,
                                               .arg = p},
                              err);
    k2_free(argv);
    k2_free(env);
    k2_free(token);
    if (!p->child) {
        k2_error_prefix(err, "cannot start %s-%u", spec->role, spec->index);
        k2_free(p);
        return NULL;
    }
    k2i_launch_add(l, p, spec);
    return p;
}

static void local_kill(k2_launch_proc *p, int signum)
{
    k2_child_kill(p->child, signum);
}

static void local_abandon(k2_launch_proc *p)
{
    k2_child_abandon(p->child);
    k2i_launch_remove(p);
    k2_free(p);
}

static void local_describe(const k2_launch_proc *p, char out[K2_LAUNCH_NAME_MAX])
{
    snprintf(out, K2_LAUNCH_NAME_MAX, "%s-%u pid %d", p->role, p->index, (int)k2_child_pid(p->child));
}

static pid_t local_pid(const k2_launch_proc *p)
{
    return k2_child_pid(p->child);
}

static void local_close(k2_launch *l)
{
    (void)l;
}

const k2_launch_ops k2i_launch_local = {
    .name = "local",
    .same_host = true,
    .dies_with_us = true,
    .start = local_start,
    .kill = local_kill,
    .abandon = local_abandon,
    .describe = local_describe,
    .pid = local_pid,
    .close = local_close,
};
