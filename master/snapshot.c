/* snapshot: the stacks of all processes, taken when a deadline has passed or a worker has crashed. A child of ours does it
 * (`k2rl stacks`), into a file of the run. Whoever is to be killed is what one wants to see, so ends and starts of workers wait
 * for it. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "master/io_int.h"

static const char prefix[] = "stacks-";

/* Keep the number of files bounded over all starts of a run: their names sort by time. */
static void forget_oldest(const char *logs)
{
    char oldest[256];
    for (;;) {
        uint32_t count = 0;
        oldest[0] = 0;
        DIR *d = opendir(logs);
        for (struct dirent *e; d && (e = readdir(d));) {
            if (strncmp(e->d_name, prefix, sizeof prefix - 1) != 0) continue;
            count++;
            if (!oldest[0] || strcmp(e->d_name, oldest) < 0) snprintf(oldest, sizeof oldest, "%s", e->d_name);
        }
        if (d) closedir(d);
        if (count < K2M_SNAPSHOT_FILES) return;
        char *path = k2_asprintf("%s/%s", logs, oldest);
        bool gone = unlink(path) == 0;
        k2_free(path);
        if (!gone) return;
    }
}

static void release(k2m_io *io)
{
    k2m_snapshot *s = &io->snapshot;
    uint32_t count = s->waiting_count;
    s->waiting_count = 0; /* nothing that these cause is kept again: no snapshot is under way, or it was late */
    for (uint32_t i = 0; i < count && !io->ended; i++) {
        k2m_action a = s->waiting[i]; /* a start that fails is an event, and may move the list */
        k2m_io_carry_out(io, &a);
    }
}

static void on_exit(void *arg, int exit_code, int term_signal)
{
    k2m_io *io = arg;
    k2m_snapshot *s = &io->snapshot;
    s->child = NULL;
    if (exit_code == 0 && term_signal == 0)
        K2_LOG_WARN(io->log, "the stacks of all processes are in logs/%s (%s)", s->file, s->why);
    else
        K2_LOG_WARN(io->log, "stacks could not be taken (%s): see logs/%s", s->why, s->file);
    release(io);
}

static void name_file(char *out, size_t n)
{
    uint64_t us = k2_wall_us();
    time_t now = (time_t)(us / 1000000);
    struct tm tm;
    gmtime_r(&now, &tm);
    snprintf(out, n, "%s%04d%02d%02dT%02d%02d%02d.%03uZ.txt", prefix, tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
             tm.tm_min, tm.tm_sec, (unsigned)(us / 1000 % 1000));
}

void k2m_snapshot_take(k2m_io *io, const k2m_action *a)
{
    k2m_snapshot *s = &io->snapshot;
    uint64_t now = k2_loop_now_ns(io->loop);
    if (s->child || (s->any && now - s->began_ns < K2M_SNAPSHOT_GAP_NS)) return;
    const char *dir = io->run->config.run_dir;
    char *logs = k2_asprintf("%s/logs", dir);
    forget_oldest(logs);
    name_file(s->file, sizeof s->file);
    char *path = k2_asprintf("%s/%s", logs, s->file);
    const char *argv[] = {"/proc/self/exe", "stacks", dir, NULL};
    k2_child_spec spec = {.argv = argv, .stdout_path = path, .stderr_path = path, .on_exit = on_exit, .arg = io};
    k2_error err;
    snprintf(s->why, sizeof s->why, "%s", a->text);
    s->any = true;
    s->began_ns = now;
    s->child = k2_child_spawn(io->loop, &spec, &err);
    if (!s->child) K2_LOG_WARN(io->log, "stacks could not be taken (%s): %s", s->why, err.text);
    k2_free(path);
    k2_free(logs);
}

bool k2m_snapshot_keeps(k2m_io *io, const k2m_action *a)
{
    k2m_snapshot *s = &io->snapshot;
    if (!s->child) return false;
    if (k2_loop_now_ns(io->loop) - s->began_ns >= K2M_SNAPSHOT_WAIT_NS) {
        release(io); /* those before it first */
        return false;
    }
    if (s->waiting_count == s->waiting_capacity) {
        s->waiting_capacity = s->waiting_capacity ? 2 * s->waiting_capacity : 16;
        s->waiting = k2_realloc_array(s->waiting, s->waiting_capacity, sizeof *s->waiting);
    }
    s->waiting[s->waiting_count] = *a;
    s->waiting[s->waiting_count++].msg = (k2_msg){0};
    return true;
}

void k2m_snapshot_tick(k2m_io *io, uint64_t now_ns)
{
    k2m_snapshot *s = &io->snapshot;
    if (!s->child) return;
    if (now_ns - s->began_ns >= K2M_SNAPSHOT_WAIT_NS) release(io);
    if (now_ns - s->began_ns >= K2M_SNAPSHOT_DEADLINE_NS) k2_child_kill(s->child, SIGKILL);
}

void k2m_snapshot_fini(k2m_io *io)
{
    k2_child_abandon(io->snapshot.child);
    io->snapshot.child = NULL;
    k2_free(io->snapshot.waiting);
}
