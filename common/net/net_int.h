/* What the files of net share: nng's errors in our codes, and the memory of replies. */
#ifndef K2_COMMON_NET_INT_H
#define K2_COMMON_NET_INT_H

#include "common/net/net.h"

#include <nng/nng.h>
#include <pthread.h>
#include <stdatomic.h>

k2_code k2i_net_code(int nng_errno);
/* "URL: what nng says", with the code that goes with it. */
k2_code k2i_net_error(k2_error *err, const char *url, int nng_errno);
/* BAD_INPUT unless the URL begins as one of ours. */
k2_code k2i_net_url_check(const char *url, k2_error *err);
/* A 64-bit number from the system that is unlikely to repeat. */
uint64_t k2i_net_random(void);

/* ---- between nng's threads and the loop ---------------------------------------------------------------------------- */

/* The part of a server or client that both sides touch. Its owner's memory lives until `refs` is 0: one for the owner
 * itself, one for each function in the loop's inbox. */
typedef struct k2i_bridge {
    k2_loop *loop;
    pthread_mutex_t lock; /* held while posting: after k2i_bridge_close nobody posts any more, so the loop may go */
    bool closing;
    atomic_uint refs;
    struct k2i_bridge *left; /* the one before, of those that stay until the process ends */
} k2i_bridge;

void k2i_bridge_init(k2i_bridge *b, k2_loop *loop);
void k2i_bridge_fini(k2i_bridge *b);
/* From one of nng's threads: run fn(arg) on the loop. While the inbox is full this thread waits: that is the back-pressure
 * towards the sockets. False when the bridge was closed; else the function owns one of refs. */
bool k2i_bridge_post(k2i_bridge *b, void (*fn)(void *arg), void *arg);
/* On the loop: no post comes any more. */
void k2i_bridge_close(k2i_bridge *b);
bool k2i_bridge_closing(k2i_bridge *b);
/* True for the one that gave back the last of refs, and must release the memory. */
bool k2i_bridge_leave(k2i_bridge *b);

/* epipe.c: true when everyone in this process who calls sendmsg comes through ours. */
bool k2i_net_epipe_renamed(void);
/* True in a process whose sockets end with it: then the object, whose bridge is closed, is kept reachable and left as it is. */
bool k2i_net_leave_open(k2i_bridge *b);
/* Run close(arg) on a thread of its own, and wait for its end for at most a second, or 10 ms once one has not ended. nng 1.5
 * can wait for ever in nng_close when a message arrives at that very moment (its stopped receive is never completed); then that
 * thread stays behind, with what it holds. */
void k2i_net_close_bounded(void *(*close)(void *arg), void *arg);

/* ---- the last replies, by request --------------------------------------------------------------------------------- */

typedef struct k2i_key {
    uint64_t worker, incarnation, seq;
} k2i_key;

uint32_t k2i_key_hash(k2i_key key);
bool k2i_key_equal(k2i_key a, k2i_key b);

typedef struct k2i_replies k2i_replies;
k2i_replies *k2i_replies_new(uint32_t count_max, size_t bytes_max);
void k2i_replies_free(k2i_replies *r);
/* Keep a copy; the oldest give way. A reply larger than bytes_max is not kept. */
void k2i_replies_put(k2i_replies *r, k2i_key key, const void *bytes, size_t n);
/* NULL when it is not known (any more); valid until the next put. */
const void *k2i_replies_get(const k2i_replies *r, k2i_key key, size_t *n);

#endif
