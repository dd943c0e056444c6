/* A team: helpers that take tasks of the caller's run, and between the runs of a region look out for the next one.
 *
 * One word holds the run: how many tasks were taken from its front and where its back is. Whoever moves an end has that task;
 * the caller and even members take from the front, odd ones from the back, so that equal runs give a member the same tasks and
 * it finds its share of the weights in its own cache. Nothing else says that a run is on: a run that nobody of the team has met
 * yet is worked by the caller alone, for these machines give a process fewer cores than it has threads and nobody may wait for
 * a helper that has not begun. fn and arg are read after a task was taken, when the run cannot end before that task does.
 *
 * Looking out costs the core, so it is bounded - in looks of its own, not by the clock - and gives the core up between them to
 * whoever wants it. It stays bounded the same when nothing came for a time: a helper that sleeps through the first half of each
 * run finds no task left, and would do so for ever.
 */
#include "common/kernel/kernel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define LOOKS  128u /* looks, each with a pause, between two yields: about two microseconds */
#define ROUNDS 50u  /* of looks and a yield; then a helper sleeps */

typedef struct helper {
    k2_team *team;
    uint32_t member;
    pthread_t thread;
    bool asleep, moved; /* under lock; moved: its own cores are `cores` without the caller's */
} helper;

struct k2_team {
    uint32_t threads;
    helper *helpers; /* [threads], the first is not used */
    void (*fn)(void *arg, size_t task, uint32_t member);
    void *arg;
    _Alignas(64) _Atomic uint64_t run;      /* tasks [low half, high half) are free */
    _Alignas(64) _Atomic uint32_t left;     /* tasks of the run that are not done */
    _Alignas(64) _Atomic uint32_t sleepers; /* helpers that must be woken; changed under lock */
    _Atomic bool waiting;                   /* the caller sleeps until `left` is 0; changed under lock */
    _Atomic uint32_t regions;               /* begins without their ends */
    _Atomic bool stop;
    cpu_set_t cores; /* the caller's, when it last woke somebody; under lock */
    uint64_t calls;  /* sleepers were told so often that a region begins; under lock */
    pthread_mutex_t lock;
    pthread_cond_t start, done;
};

static bool run_open(uint64_t run)
{
    return (uint32_t)run < (uint32_t)(run >> 32);
}

/* A task for this member, if one is free. */
static bool take(k2_team *t, bool back, size_t *task)
{
    uint64_t run = atomic_load_explicit(&t->run, memory_order_relaxed);
    while (run_open(run)) {
        uint64_t next = back ? run - ((uint64_t)1 << 32) : run + 1;
        if (!atomic_compare_exchange_weak_explicit(&t->run, &run, next, memory_order_acquire, memory_order_relaxed)) continue;
        *task = back ? (uint32_t)(next >> 32) : (uint32_t)run;
        return true;
    }
    return false;
}

static void work(k2_team *t, uint32_t member)
{
    uint32_t count = 0;
    for (size_t task; take(t, member % 2 == 1, &task); count++) t->fn(t->arg, task, member);
    if (count == 0 || atomic_fetch_sub(&t->left, count) > count || member == 0) return;
    if (!atomic_load(&t->waiting)) return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_signal(&t->done);
    pthread_mutex_unlock(&t->lock);
}

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool helper_may_go(k2_team *t)
{
    return run_open(atomic_load(&t->run)) || atomic_load(&t->stop);
}

static bool caller_may_go(k2_team *t)
{
    return atomic_load(&t->left) == 0;
}

static bool in_region(k2_team *t)
{
    return atomic_load_explicit(&t->regions, memory_order_relaxed) > 0;
}

/* Until `ready`, the looks are used up, or no region is open. */
static void look_out(k2_team *t, bool (*ready)(k2_team *t))
{
    for (uint32_t round = 0; round < ROUNDS && in_region(t); round++) {
        for (uint32_t i = 0; i < LOOKS; i++) {
            if (ready(t)) return;
            pause_a_moment();
        }
        sched_yield();
    }
}

/* Sleepers are counted before they look for the last time, and a run is there before they are looked for: one sees the other.
 */
static void helper_sleep(k2_team *t, helper *h)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    h->asleep = true;
    uint64_t calls = t->calls;
    while (!helper_may_go(t) && t->calls == calls) pthread_cond_wait(&t->start, &t->lock);
    h->asleep = false;
    if (h->moved) (void)pthread_setaffinity_np(h->thread, sizeof(t->cores), &t->cores);
    h->moved = false;
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static void *helper_main(void *arg)
{
    k2_thread_begin();
    helper *h = arg;
    k2_team *t = h->team;
    while (!atomic_load(&t->stop)) {
        work(t, h->member);
        look_out(t, helper_may_go);
        if (!helper_may_go(t)) helper_sleep(t, h);
    }
    return NULL;
}

k2_team *k2_kern_team_new(uint32_t threads)
{
    K2_ASSERT(threads >= 1 && threads <= K2_TEAM_THREADS_MAX);
    k2_team *t = k2_alloc_aligned(_Alignof(k2_team), sizeof(*t));
    t->threads = threads;
    t->helpers = k2_alloc_array(threads, sizeof(*t->helpers));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->start, NULL);
    pthread_cond_init(&t->done, NULL);
    for (uint32_t i = 1; i < threads; i++) {
        helper *h = &t->helpers[i];
        *h = (helper){.team = t, .member = i};
        pthread_mutex_lock(&t->lock); /* whoever sleeps has its thread's name */
        int failed = pthread_create(&h->thread, NULL, helper_main, h);
        pthread_mutex_unlock(&t->lock);
        K2_ASSERT(!failed);
    }
    return t;
}

/* The kernel puts who is woken beside who wakes it where no other core looks idle, and to a virtual machine's kernel none does:
 * a core that halts is one that the host has taken away. Then both share a core until the next balance, some milliseconds
 * later. So sleepers are woken to any core but the caller's; once awake they may go wherever the caller may. Under lock. */
static void move_off_my_core(k2_team *t)
{
    int mine = sched_getcpu();
    if (mine < 0 || sched_getaffinity(0, sizeof(t->cores), &t->cores) != 0) return;
    cpu_set_t others = t->cores;
    CPU_CLR((size_t)mine, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (uint32_t i = 1; i < t->threads; i++) {
        helper *h = &t->helpers[i];
        if (h->asleep && pthread_setaffinity_np(h->thread, sizeof(others), &others) == 0) h->moved = true;
    }
}

/* Sleepers look again. */
static void wake(k2_team *t, bool call)
{
    if (atomic_load(&t->sleepers) == 0) return;
    pthread_mutex_lock(&t->lock);
    t->calls += call;
    move_off_my_core(t);
    pthread_cond_broadcast(&t->start);
    pthread_mutex_unlock(&t->lock);
}

void k2_kern_team_free(k2_team *t)
{
    if (!t) return;
    atomic_store(&t->stop, true);
    wake(t, false);
    for (uint32_t i = 1; i < t->threads; i++) pthread_join(t->helpers[i].thread, NULL);
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

void k2_kern_team_begin(k2_team *t)
{
    atomic_fetch_add(&t->regions, 1);
    wake(t, true);
}

void k2_kern_team_end(k2_team *t)
{
    uint32_t before = atomic_fetch_sub(&t->regions, 1);
    K2_ASSERT(before > 0);
}

static void caller_wait(k2_team *t)
{
    if (caller_may_go(t)) return;
    look_out(t, caller_may_go);
    if (caller_may_go(t)) return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->waiting, true);
    while (!caller_may_go(t)) pthread_cond_wait(&t->done, &t->lock);
    atomic_store(&t->waiting, false);
    pthread_mutex_unlock(&t->lock);
}

void k2_kern_team_run(k2_team *t, size_t tasks, void (*fn)(void *arg, size_t task, uint32_t member), void *arg)
{
    if (t->threads == 1 || tasks <= 1) {
        for (size_t i = 0; i < tasks; i++) fn(arg, i, 0);
        return;
    }
    K2_ASSERT(tasks <= UINT32_MAX);
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->left, (uint32_t)tasks, memory_order_relaxed);
    atomic_store(&t->run, (uint64_t)tasks << 32);
    wake(t, false);
    work(t, 0);
    caller_wait(t);
}
