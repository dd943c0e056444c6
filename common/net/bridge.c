/* What stands between nng's threads and the loop: posting, and an end that neither side can miss. */
#include "common/net/net_int.h"

#include <time.h>
#include <unistd.h>

#define CLOSE_WAIT_NS       K2_NS_PER_S
#define CLOSE_WAIT_STUCK_NS (10 * K2_NS_PER_MS)

void k2i_bridge_init(k2i_bridge *b, k2_loop *loop)
{
    b->loop = loop;
    b->closing = false;
    pthread_mutex_init(&b->lock, NULL);
    atomic_init(&b->refs, 1);
}

void k2i_bridge_fini(k2i_bridge *b)
{
    pthread_mutex_destroy(&b->lock);
}

bool k2i_bridge_post(k2i_bridge *b, void (*fn)(void *arg), void *arg)
{
    for (;;) {
        pthread_mutex_lock(&b->lock);
        bool closing = b->closing;
        k2_code code = K2_CANCELED;
        if (!closing) {
            atomic_fetch_add(&b->refs, 1);
            code = k2_loop_post(b->loop, fn, arg);
            if (code != K2_OK) atomic_fetch_sub(&b->refs, 1); /* never the last: the owner has one while it is not closing */
        }
        pthread_mutex_unlock(&b->lock);
        if (closing || code == K2_OK) return !closing;
        usleep(500); /* the loop is behind, and this thread is one of nng's few: exactly what shall slow the peers down */
    }
}

void k2i_bridge_close(k2i_bridge *b)
{
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_mutex_unlock(&b->lock);
}

bool k2i_bridge_closing(k2i_bridge *b)
{
    pthread_mutex_lock(&b->lock);
    bool closing = b->closing;
    pthread_mutex_unlock(&b->lock);
    return closing;
}

bool k2i_bridge_leave(k2i_bridge *b)
{
    return atomic_fetch_sub(&b->refs, 1) == 1;
}

void k2i_net_close_bounded(void *(*close)(void *arg), void *arg)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, close, arg) != 0) {
        close(arg); /* out of threads: then without the bound */
        return;
    }
    /* One thread of nng's ends all sockets of the process, one after the other, and it is this thread that hangs: no later
     * close can end either. A hundred of them shall not wait a second each. */
    static atomic_bool stuck;
    uint64_t wait_ns = atomic_load(&stuck) ? CLOSE_WAIT_STUCK_NS : CLOSE_WAIT_NS;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + wait_ns;
    until.tv_sec += (time_t)(ns / K2_NS_PER_S);
    until.tv_nsec = (long)(ns % K2_NS_PER_S);
    if (pthread_timedjoin_np(thread, NULL, &until) == 0) return;
    atomic_store(&stuck, true);
    pthread_detach(thread);
}
