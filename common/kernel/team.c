/* A team: helpers that wait until a run begins, then take task numbers from one counter.
 *
 * These machines give a process fewer cores than it has threads, so nobody waits for a helper that has not begun: a run ends
 * when its tasks are done, and a helper that wakes after that finds it closed. A helper looks out for the next run for some
 * microseconds, for in the middle of a forward it comes at once and a sleep costs more; then it sleeps, for a helper
 * that spins takes the time of the thread it waits for.
 */
#include "common/kernel/kernel.h"

#include <pthread.h>
#include <stdatomic.h>

#define LOOKS 600u /* times a waiting thread looks before it sleeps: about ten microseconds */

struct k2_team {
    uint32_t threads;
    pthread_t *helpers;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    _Atomic uint64_t run;    /* number of the last run; written under lock */
    _Atomic uint32_t inside; /* helpers that work on it; written under lock */
    uint32_t sleepers;       /* helpers that must be woken; under lock */
    bool open;               /* the run may still have tasks; under lock */
    bool stop;               /* under lock */
    void (*fn)(void *arg, size_t task, uint32_t member);
    void *arg;
    size_t tasks;
    _Atomic size_t next;
};

typedef struct helper_arg {
    k2_team *team;
    uint32_t member;
} helper_arg;

static void work(k2_team *t, uint32_t member)
{
    for (;;) {
        size_t task = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (task >= t->tasks) return;
        t->fn(t->arg, task, member);
    }
}

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void helper_wait(k2_team *t, uint64_t seen)
{
    for (uint32_t i = 0; i < LOOKS && atomic_load_explicit(&t->run, memory_order_relaxed) == seen; i++) pause_a_moment();
    pthread_mutex_lock(&t->lock);
    while (!t->stop && !(t->open && atomic_load(&t->run) != seen)) {
        t->sleepers++;
        pthread_cond_wait(&t->start, &t->lock);
        t->sleepers--;
    }
}

static void *helper_main(void *arg)
{
    k2_thread_begin();
    k2_team *t = ((helper_arg *)arg)->team;
    uint32_t member = ((helper_arg *)arg)->member;
    k2_free(arg);
    for (uint64_t seen = 0;;) {
        helper_wait(t, seen); /* returns with the lock */
        if (t->stop) break;
        seen = atomic_load(&t->run);
        atomic_fetch_add(&t->inside, 1);
        pthread_mutex_unlock(&t->lock);
        work(t, member);
        pthread_mutex_lock(&t->lock);
        if (atomic_fetch_sub(&t->inside, 1) == 1) pthread_cond_signal(&t->done);
        pthread_mutex_unlock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

k2_team *k2_kern_team_new(uint32_t threads)
{
    K2_ASSERT(threads >= 1 && threads <= K2_TEAM_THREADS_MAX);
    k2_team *t = k2_alloc(sizeof(*t));
    t->threads = threads;
    t->helpers = k2_alloc_array(threads, sizeof(pthread_t));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->start, NULL);
    pthread_cond_init(&t->done, NULL);
    for (uint32_t i = 1; i < threads; i++) {
        helper_arg *arg = k2_alloc(sizeof(*arg));
        *arg = (helper_arg){.team = t, .member = i};
        int failed = pthread_create(&t->helpers[i], NULL, helper_main, arg);
        K2_ASSERT(!failed);
    }
    return t;
}

void k2_kern_team_free(k2_team *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->start);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 1; i < t->threads; i++) pthread_join(t->helpers[i], NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->start);
    pthread_mutex_destroy(&t->lock);
    k2_free(t->helpers);
    k2_free(t);
}

uint32_t k2_kern_team_threads(const k2_team *t)
{
    return t->threads;
}

void k2_kern_team_run(k2_team *t, size_t tasks, void (*fn)(void *arg, size_t task, uint32_t member), void *arg)
{
    if (t->threads == 1 || tasks <= 1) {
        for (size_t i = 0; i < tasks; i++) fn(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->fn = fn;
    t->arg = arg;
    t->tasks = tasks;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    t->open = true;
    atomic_fetch_add(&t->run, 1);
    if (t->sleepers > 0) pthread_cond_broadcast(&t->start);
    pthread_mutex_unlock(&t->lock);
    work(t, 0);
    for (uint32_t i = 0; i < LOOKS && atomic_load_explicit(&t->inside, memory_order_relaxed) > 0; i++) pause_a_moment();
    pthread_mutex_lock(&t->lock);
    t->open = false;
    while (atomic_load(&t->inside) > 0) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}
