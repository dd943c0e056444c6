/* try: see try_int.h. */
#include "try_int.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "planted_int.h"
#include "sim_int.h"

#define HANG_S     60u /* of real time, for one seed */
#define SAID_BYTES 4096u

struct sim_shared {
    sim_outcome outcome;
    sim_totals totals;
    sim_truth truths[SIM_WORLDS]; /* undisturbed runs, one for each world: what all seeds are compared with */
    k2_planted truths_with;       /* made with this mistake */
    bool done;                    /* the child came to its end */
};

sim_shared *sim_shared_new(void)
{
    void *x = mmap(NULL, sizeof(sim_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    K2_ASSERT(x != MAP_FAILED);
    return x;
}

void sim_shared_free(sim_shared *x)
{
    munmap(x, sizeof *x);
}

const sim_outcome *sim_shared_outcome(const sim_shared *x)
{
    return &x->outcome;
}

const sim_totals *sim_shared_totals(const sim_shared *x)
{
    return &x->totals;
}

/* ---- in the child */

static const sim_truth *truth_of(sim_world world, uint64_t seed, sim_shared *x)
{
    sim_truth *t = &x->truths[sim_world_number(world)];
    if (t->known) return t;
    sim *s = k2_alloc(sizeof *s);
    sim_init(s, 0, world, NULL, &x->outcome);
    x->outcome.seed = seed; /* that it is made for: where it fails, this one fails without any fault */
    bool ok = sim_run(s);
    if (ok) *t = s->seen;
    sim_fini(s);
    k2_free(s);
    return ok ? t : NULL;
}

static void count(sim_shared *x)
{
    const sim_outcome *o = &x->outcome;
    sim_totals *t = &x->totals;
    bool in[SIM_FAULT_KINDS] = {false};
    t->seeds++;
    t->events += o->events;
    t->deaths += o->deaths;
    t->masters += o->masters - (o->masters > 0);
    t->dropped += o->dropped;
    t->fenced += o->fenced;
    t->stale += o->stale;
    t->after_ns_max = K2_MAX(t->after_ns_max, o->after_ns);
    for (uint32_t i = 0; i < o->hit_count; i++) {
        t->fired[o->hits[i].kind]++;
        in[o->hits[i].kind] = true;
    }
    for (uint32_t i = 0; i < SIM_FAULT_KINDS; i++) t->fired_in[i] += in[i];
}

static bool one(sim_shared *x, const sim_job *job, uint64_t seed, const sim_hit *script, size_t script_count)
{
    alarm(HANG_S);
    sim_world world = sim_seed_world(seed);
    const sim_truth *truth = truth_of(world, seed, x);
    if (!truth) return false;
    x->totals.calm_ns = K2_MAX(x->totals.calm_ns, truth->end_ns);
    sim *s = k2_alloc(sizeof *s);
    sim_init(s, seed, world, truth, &x->outcome);
    s->script = script;
    s->script_count = script_count;
    if (job->every_step) s->faults_end_ns = 10 * K2_NS_PER_S; /* past its end */
    s->trace = job->trace;
    bool ok = sim_run(s);
    sim_fini(s);
    k2_free(s);
    count(x);
    return ok;
}

/* Beginning with none: the first step at which it does not die any more is past the last one. */
static bool each_step(sim_shared *x, const sim_job *job, uint64_t seed)
{
    sim_hit at = {.kind = SIM_CRASH_AT, .who = SIM_MASTER};
    do {
        if (!one(x, job, seed, &at, 1)) return false;
        at.nth++;
    } while (x->outcome.hit_count > 0);
    return true;
}

static void child(sim_shared *x, const sim_job *job)
{
    uint64_t from = k2_now_ns();
    bool ok = true;
    for (uint64_t i = 0; i < job->seeds && ok; i++) {
        if (job->seconds && k2_now_ns() - from > job->seconds * K2_NS_PER_S) break;
        ok = job->every_step ? each_step(x, job, job->first + i) : one(x, job, job->first + i, job->script, job->script_count);
    }
    x->totals.wall_ns = k2_now_ns() - from;
    x->outcome.ok = ok;
    x->done = true;
}

/* ---- in the parent */

/* The child was ended by a signal: its last line says which assertion it was. */
static void crashed(sim_shared *x, int status, FILE *said)
{
    char text[SAID_BYTES] = "";
    rewind(said);
    size_t n = fread(text, 1, sizeof text - 1, said);
    while (n > 0 && text[n - 1] == '\n') text[--n] = 0;
    const char *last = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    x->outcome.ok = false;
    x->outcome.check = sig == SIGALRM ? SIM_CHECK_PROGRESS : SIM_CHECK_CRASH;
    if (sig == SIGALRM)
        snprintf(x->outcome.text, sizeof x->outcome.text, "the simulator itself hangs");
    else
        snprintf(x->outcome.text, sizeof x->outcome.text, "%s %d: %.400s", sig ? "signal" : "status",
                 sig ? sig : WEXITSTATUS(status), last);
}

bool sim_try(sim_shared *x, const sim_job *job)
{
    FILE *said = fdopen(memfd_create("said", MFD_CLOEXEC), "r+");
    K2_ASSERT(said);
    if (x->truths_with != sim_planted_now()) memset(x->truths, 0, sizeof x->truths);
    x->truths_with = sim_planted_now();
    memset(x, 0, offsetof(sim_outcome, hits));
    memset(&x->totals, 0, sizeof x->totals);
    x->done = false;
    x->outcome.seed = job->first;
    fflush(NULL);
    pid_t pid = fork();
    K2_ASSERT(pid >= 0);
    if (pid == 0) {
        (void)dup2(fileno(said), STDERR_FILENO);
        child(x, job);
        exit(0); /* not _exit: a sanitizer looks for leaks now */
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) continue;
    if (!x->done || status != 0) crashed(x, status, said);
    fclose(said);
    return x->outcome.ok;
}
