/* latest: `checkpoints/latest` names the checkpoint that everything may go back to; older ones beyond the number to keep are
 * removed. Both touch the disk, so they run on a pool thread. */
#include "master/io_int.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    k2m_io *io;
    char *dir;
    uint64_t number, kept;
    k2_error err;
} job;

static int by_number_down(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Directories step_N below the latest, youngest first: all beyond kept - 1 go, but never the first: until the journal has the
 * record of the latest one, a restart begins from the one before. Those above it are of a run that was abandoned. */
static void prune(const job *j)
{
    DIR *d = opendir(j->dir);
    if (!d) return;
    uint64_t *found = NULL;
    size_t count = 0;
    for (struct dirent *e; (e = readdir(d));) {
        uint64_t n;
        if (strncmp(e->d_name, "step_", 5) != 0 || strlen(e->d_name) < 6 ||
            strspn(e->d_name + 5, "0123456789") != strlen(e->d_name + 5))
            continue;
        n = strtoull(e->d_name + 5, NULL, 10);
        if (n >= j->number) continue;
        found = k2_realloc_array(found, count + 1, sizeof *found);
        found[count++] = n;
    }
    closedir(d);
    if (count) qsort(found, count, sizeof *found, by_number_down);
    for (size_t i = (size_t)K2_MAX(j->kept, 2) - 1; i < count; i++) {
        char *path = k2_asprintf("%s/step_%07llu", j->dir, (unsigned long long)found[i]);
        (void)k2_dir_remove(path, NULL);
        k2_free(path);
    }
    k2_free(found);
}

static void work(void *arg)
{
    job *j = arg;
    char *path = k2_asprintf("%s/latest", j->dir), text[32];
    int n = snprintf(text, sizeof text, "step_%07llu\n", (unsigned long long)j->number);
    j->err.code = K2_OK;
    if (k2_file_write_atomic(path, text, (size_t)n, &j->err) == K2_OK) prune(j);
    k2_free(path);
}

static void done(void *arg)
{
    job *j = arg;
    if (!k2_loop_ending(j->io->loop)) {
        if (j->err.code == K2_OK)
            k2m_io_event(j->io, &(k2m_event){.type = K2M_EV_LATEST, .step = j->number});
        else
            k2m_io_event(j->io, &(k2m_event){.type = K2M_EV_FAULT, .code = j->err.code, .text = j->err.text});
    }
    k2_free(j->dir);
    k2_free(j);
}

void k2m_latest_write(k2m_io *io, uint64_t number)
{
    job *j = k2_alloc(sizeof *j);
    *j = (job){.io = io, .dir = k2_strdup(io->checkpoints_dir), .number = number, .kept = io->run->config.run_checkpoints_kept};
    k2_loop_work_surely(io->loop, work, done, j);
}
