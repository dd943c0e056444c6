/* What must be called by another name, so that nng goes on accepting.
 *
 * When a peer dies between its connect and our first bytes to it, sending them fails with EPIPE. nng 1.5 calls that "closed",
 * hands it to the listener as the result of its accept, and the listener believes to be closed itself: it accepts nobody any
 * more, without a word, for as long as the process lives; nor does a dialer dial again. "Connection reset", which says the same
 * of a peer, they take for what it is. So the answer is changed between the system and nng: its call of sendmsg comes here
 * first. libuv takes both for the same end. */
#include "common/net/net_int.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

typedef ssize_t (*send_fn)(int fd, const struct msghdr *msg, int flags);

static _Atomic(send_fn) system_send;

static send_fn find_send(void)
{
    /* A sanitizer may stand in between. ISO C knows no function in a void pointer, POSIX does. */
    union {
        void *object;
        send_fn fn;
    } found = {.object = dlsym(RTLD_NEXT, "sendmsg")};
    K2_ASSERT(found.fn);
    atomic_store(&system_send, found.fn);
    return found.fn;
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    send_fn fn = atomic_load_explicit(&system_send, memory_order_acquire);
    ssize_t n = (fn ? fn : find_send())(fd, msg, flags);
    if (n < 0 && errno == EPIPE) errno = ECONNRESET;
    return n;
}

bool k2i_net_epipe_renamed(void)
{
    union {
        void *object;
        send_fn fn;
    } all = {.object = dlsym(RTLD_DEFAULT, "sendmsg")};
    return all.fn == sendmsg;
}
