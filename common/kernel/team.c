/* A team: helpers that sleep on a condition until a run begins, then take task numbers from one counter.
 *
 * Helpers do not spin: these machines give a process fewer cores than it has threads, and a spinning helper would take the
 * time of the thread it waits for. A run costs one broadcast, so callers give it tasks of at least tens of microseconds.
 */
#include "common/kernel/kernel.h"

#include <pthread.h>
#include <stdatomic.h>

struct k2_team {
    uint32_t threads;
    pthread_t *helpers;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    uint64_t run;     /* number of the run in progress; under lock */
    uint32_t working; /* helpers that have not left the run; under lock */
    bool stop;        /* under lock */
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

static void *helper_main(void *arg)
{
    k2_thread_begin();
    k2_team *t = ((helper_arg *)arg)->team;
    uint32_t member = ((helper_arg *)arg)->member;
    k2_free(arg);
    uint64_t seen = 0;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->stop && t->run == seen) pthread_cond_wait(&t->start, &t->lock);
        if (t->stop) break;
        seen = t->run;
        pthread_mutex_unlock(&t->lock);
        work(t, member);
        pthread_mutex_lock(&t->lock);
        if (--t->working == 0) pthread_cond_signal(&t->done);
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
    t->working = t->threads - 1;
    t->run++;
    pthread_cond_broadcast(&t->start);
    pthread_mutex_unlock(&t->lock);
    work(t, 0);
    pthread_mutex_lock(&t->lock);
    while (t->working > 0) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}
