/* What the files of net share: nng's errors in our codes, and the memory of replies. */
#ifndef K2_COMMON_NET_INT_H
#define K2_COMMON_NET_INT_H

#include "common/net/net.h"

#include <nng/nng.h>
#include <stdatomic.h>

k2_code k2i_net_code(int nng_errno);
/* "URL: what nng says", with the code that goes with it. */
k2_code k2i_net_error(k2_error *err, const char *url, int nng_errno);
/* BAD_INPUT unless the URL begins as one of ours. */
k2_code k2i_net_url_check(const char *url, k2_error *err);
/* A 64-bit number from the system that is unlikely to repeat. */
uint64_t k2i_net_random(void);

/* Hand something over to the loop from one of nng's threads. While the inbox is full this thread waits: that is the back-pressure
 * towards the sockets. False when `closing` became true meanwhile. */
bool k2i_net_post(k2_loop *loop, void (*fn)(void *arg), void *arg, atomic_bool *closing);

/* ---- the last replies, by request --------------------------------------------------------------------------------- */

typedef struct k2i_key {
    uint64_t worker, incarnation, seq;
} k2i_key;

typedef struct k2i_replies k2i_replies;
k2i_replies *k2i_replies_new(uint32_t count_max, size_t bytes_max);
void k2i_replies_free(k2i_replies *r);
/* Keep a copy; the oldest give way. A reply larger than bytes_max is not kept. */
void k2i_replies_put(k2i_replies *r, k2i_key key, const void *bytes, size_t n);
/* NULL when it is not known (any more); valid until the next put. */
const void *k2i_replies_get(const k2i_replies *r, k2i_key key, size_t *n);

#endif
