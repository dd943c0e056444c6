/* Shared memory, a process-shared barrier, and one thread or process for each rank. */
#include "tests/unit/coll/ranks_int.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <string.h>
#include <unistd.h>

typedef struct shared {
    pthread_barrier_t meet;
    char locators[K2_COLL_RANKS_MAX][K2_XFER_LOCATOR_MAX];
    rank_result results[K2_COLL_RANKS_MAX];
} shared;

static shared *common; /* of the run in progress */

typedef struct rank_arg {
    const ranks_spec *spec;
    uint32_t rank;
} rank_arg;

static void *rank_main(void *p)
{
    const rank_arg *arg = p;
    const ranks_spec *spec = arg->spec;
    rank_result *result = &common->results[arg->rank];
    const char *locators[K2_COLL_RANKS_MAX];
    k2_xfer *x = NULL;
    k2_coll *c = NULL;
    k2_error err;
    k2_xfer_config xc = {.transport = spec->transport, .retries = 2, .backoff_ns = 1000};
    k2_code code = k2_xfer_open(&xc, &x, &err);
    K2_ASSERT(code == K2_OK);
    k2_coll_config cc = {.xfer = x,
                         .rank = arg->rank,
                         .ranks = spec->ranks,
                         .group = 7,
                         .bytes_max = spec->bytes_max,
                         .deadline_ns = spec->deadline_ns};
    if (spec->twist != NULL) spec->twist(&cc, spec->arg);
    code = k2_coll_open(&cc, &c, &err);
    K2_ASSERT(code == K2_OK);
    snprintf(common->locators[arg->rank], K2_XFER_LOCATOR_MAX, "%s", k2_coll_locator(c));
    ranks_meet();
    for (uint32_t i = 0; i < spec->ranks; i++) locators[i] = common->locators[i];
    spec->run(c, locators, spec->arg, result);
    k2_coll_close(c);
    k2_xfer_close(x);
    result->finished = true;
    return NULL;
}

void ranks_meet(void)
{
    pthread_barrier_wait(&common->meet);
}

static void threads_run(rank_arg *args, uint32_t ranks)
{
    pthread_t thread[K2_COLL_RANKS_MAX];
    for (uint32_t i = 0; i < ranks; i++) {
        int rc = pthread_create(&thread[i], NULL, rank_main, &args[i]);
        K2_ASSERT(rc == 0);
    }
    for (uint32_t i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
}

static void processes_run(rank_arg *args, uint32_t ranks)
{
    pid_t pid[K2_COLL_RANKS_MAX];
    for (uint32_t i = 0; i < ranks; i++) {
        pid[i] = fork();
        K2_ASSERT(pid[i] >= 0);
        if (pid[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank_main(&args[i]);
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < ranks; i++) {
        int status;
        pid_t ended = waitpid(pid[i], &status, 0);
        K2_ASSERT(ended == pid[i]);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) common->results[i].finished = false;
    }
}

void ranks_run(const ranks_spec *spec, rank_result *results)
{
    rank_arg args[K2_COLL_RANKS_MAX];
    pthread_barrierattr_t attr;
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    K2_ASSERT(common != MAP_FAILED);
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&common->meet, &attr, spec->ranks);
    pthread_barrierattr_destroy(&attr);
    for (uint32_t i = 0; i < spec->ranks; i++) args[i] = (rank_arg){spec, i};
    if (strcmp(spec->transport, "self") == 0)
        threads_run(args, spec->ranks);
    else
        processes_run(args, spec->ranks);
    memcpy(results, common->results, spec->ranks * sizeof *results);
    munmap(common, sizeof *common);
}
