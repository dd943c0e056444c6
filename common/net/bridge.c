/* What stands between nng's threads and the loop: posting, and an end that neither side can miss. */
#include "common/net/net_int.h"

#include <time.h>
#include <unistd.h>

#define CLOSE_WAIT_S 1

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
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_WAIT_S;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) pthread_detach(thread);
}
