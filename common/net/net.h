/* net - control messages between processes: requests, long polls, leases; all of it delivered on the loop.
 *
 * Nouns: a `k2_net_server` (the master's) gets requests and answers each with one reply, whenever it likes; a `k2_net_call`
 * is one request that waits for its reply; a `k2_net_client` sends requests; a `k2_net_worker` is the client side of a
 * worker's whole life: HELLO, POLL, DONE, and its end when the master is gone.
 *
 * A request that is lost or whose reply is lost is sent again by itself; the server remembers its last replies and repeats the
 * one it gave, so that a request takes effect once. (Memory of replies is bounded: K2_NET_REPLIES, K2_NET_REPLY_BYTES_MAX.
 * After an overflow, or in a new server process, a repeated request is delivered as a new one; incarnations and command ids
 * must make that harmless.)
 *
 * Lifetime: close before k2_loop_free; a closed object calls nobody any more. A close takes milliseconds, at worst a second
 * (nng can wait for ever for a message that arrives at that moment; what it holds then stays until the process ends, and so
 * does what is closed after it). All
 * functions are for the loop's thread.
 * URLs: ipc://<absolute path> and tcp://<address>:<port>; a listener's port 0 takes a free one.
 */
#ifndef K2_COMMON_NET_H
#define K2_COMMON_NET_H

#include "common/base/base.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/wire/wire.h"

#define K2_NET_CALLS(peers)    (2u * (peers) + 256u) /* requests waiting for a reply: a POLL and a DONE of every peer, 256 HELLOs */
#define K2_NET_REPLIES(peers)  (4u * (peers) + 256u) /* replies remembered */
#define K2_NET_REPLY_BYTES_MAX 67108864u /* bytes of them */
#define K2_NET_REQUESTS_MAX    64u       /* requests under way in one client */
#define K2_NET_URL_MAX         256u
#define K2_NET_TOKEN_BYTES     33u       /* 32 hex digits and the terminator */
_Static_assert(K2_INBOX_MAX >= K2_NET_CALLS(K2_PEERS_MAX), "all waiting requests may arrive in one turn of the loop");

/* ---- server ------------------------------------------------------------------------------------------------------ */

typedef struct k2_net_server k2_net_server;
typedef struct k2_net_call k2_net_call;

/* k2_net_listen - take requests of so many peers (up to K2_PEERS_MAX).
 *
 * memory   about 300 bytes a peer in tables; what waits for a reply, and the replies remembered, come on top. msg is on_request's for the duration of the call (k2_msg_copy what is to stay)
 * keeps    what does not decode is answered with REFUSED and never delivered; so is what passes K2_NET_CALLS(peers). A request
 *          that comes again while it waits for its reply counts once, however often it comes and however full it is
 * errors   BUSY when the address is in use; BAD_INPUT for a URL that is none of ours; IO
 */
k2_net_server *k2_net_listen(k2_loop *loop, const char *url, uint32_t peers,
                             void (*on_request)(void *arg, k2_net_call *call, const k2_msg *msg), void *arg, k2_error *err);
/* Answer a call, exactly once; the call is gone then. seq is filled in; so are worker, incarnation and cmd where they are 0. */
void k2_net_reply(k2_net_call *call, const k2_msg *reply);
/* The URL with the port that it got. */
const char *k2_net_server_url(const k2_net_server *s);
/* Calls without a reply are dropped and must not be answered any more. NULL is fine. */
void k2_net_server_close(k2_net_server *s);

/* ---- client ------------------------------------------------------------------------------------------------------ */

typedef struct k2_net_client k2_net_client;

/* Connecting goes on in the background and never fails for good: requests wait for it until their deadline. */
k2_net_client *k2_net_dial(k2_loop *loop, const char *url, k2_error *err);

/* k2_net_request - send a request, get its reply.
 *
 * memory   msg is copied; reply is on_reply's for the duration of the call, NULL when code is not OK
 * units    deadline_ns from now
 * errors   FULL when K2_NET_REQUESTS_MAX are under way (on_reply does not come then); by on_reply: TIMEOUT, PEER_PROTOCOL
 */
k2_code k2_net_request(k2_net_client *c, const k2_msg *msg, uint64_t deadline_ns,
                       void (*on_reply)(void *arg, k2_code code, const k2_msg *reply), void *arg);
/* Requests under way are dropped without on_reply. NULL is fine. */
void k2_net_client_close(k2_net_client *c);

/* ---- worker ------------------------------------------------------------------------------------------------------ */

typedef struct k2_net_worker k2_net_worker;

typedef struct k2_net_worker_config {
    const char *url, *role, *endpoint, *token; /* endpoint and token may be NULL */
    uint64_t index, nonce;
    uint64_t welcome_ms; /* time to get a WELCOME before the master counts as lost; 0 = 60 s */
    k2_log *log;         /* may be NULL */
} k2_net_worker_config;

/* State machine:   greeting ──WELCOME──► polling ⟲ (NOP, command)   ──FENCED, REFUSED, silence──► lost (ends)
 *
 * on_welcome  once, first. msg->welcome.config is the resolved config.
 * on_command  each command once, in order of cmd, also while earlier ones are unfinished; answer each with k2_net_worker_done.
 *             msg is valid during the call only.
 * on_lost     at most once, last: FENCED (another took our place), PEER_REFUSED (not admitted), TIMEOUT (no answer for the
 *             lease, counted on the monotonic clock from the last answer; who was stopped itself listens for a quarter of a lease
 *             first, and most often hears that it is fenced). The process shall clean up and exit; nothing comes
 *             any more.
 */
typedef struct k2_net_worker_ops {
    void (*on_welcome)(void *arg, const k2_msg *msg);
    void (*on_command)(void *arg, const k2_msg *msg);
    void (*on_lost)(void *arg, k2_code why, const char *text);
} k2_net_worker_ops;

k2_net_worker *k2_net_worker_start(k2_loop *loop, const k2_net_worker_config *config, const k2_net_worker_ops *ops, void *arg,
                                   k2_error *err);
/* Report that a command ended: done is copied, sent until the master acknowledged it. done->type is K2_MSG_DONE, done->cmd the
 * command's id. At most K2_NET_DONE_MAX may wait for their ACK (asserted; a worker has few commands at once). */
#define K2_NET_DONE_MAX 32u
void k2_net_worker_done(k2_net_worker *w, const k2_msg *done);
/* What the next POLLs say; both are copied. Costs nothing until then: call it as often as you like. gauges: at most
 * K2_WIRE_GAUGES_MAX, more are left out. */
void k2_net_worker_status(k2_net_worker *w, const char *phase, const k2_wire_metric *gauges, uint32_t count);
/* Call fn(arg) once when no DONE waits for its ACK any more (at once on the loop if none does): what STOP's handler needs
 * before it ends the loop. Comes after 2 s at the latest, but not after on_lost. */
void k2_net_worker_flush(k2_net_worker *w, void (*fn)(void *arg), void *arg);
/* Open this process's flight recorder (common/flight), for on_welcome, which knows directory, run and size. Where it cannot be
 * opened the log says so, and all goes on without it. */
void k2_net_worker_record(k2_net_worker *w, const char *run_dir, const char *run_id, uint64_t kib);
uint64_t k2_net_worker_id(const k2_net_worker *w);          /* 0 before WELCOME */
uint64_t k2_net_worker_incarnation(const k2_net_worker *w); /* 0 before WELCOME */
/* NULL is fine. */
void k2_net_worker_close(k2_net_worker *w);

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

/* ipc://<run_dir>/master.sock; where that path is too long for a socket (100 bytes), a name made of its digest in a
 * directory of our own (mode 0700, owner checked) under $XDG_RUNTIME_DIR or /tmp. The run directory must exist. */
k2_code k2_net_url_for_dir(const char *run_dir, char out[K2_NET_URL_MAX], k2_error *err);
/* 128 bits from the system, as hex. */
void k2_net_token_make(char out[K2_NET_TOKEN_BYTES]);
/* Equal? In a time that depends on the lengths alone. A NULL or empty expected token equals nothing. */
bool k2_net_token_equal(const char *expected, const char *got);

/* k2_net_process_begin, k2_net_process_end - the door of every program that speaks over nng, and the one way to end it.
 *
 * nng 1.5 cannot be trusted to close: nng_close may wait for ever for a message that arrives at that moment, aborts now and then
 * when the peer goes just then ("panic: pthread_mutex_unlock"), and its exit handler destroys locks that its threads still use.
 * In a process that began here, closing a server or client only ends its callbacks (and removes the server's socket file); the
 * sockets go with the process, which end() ends as exit(status) does, but without the handlers that libraries left for that
 * moment. Tests, which open and close many in one process, do not begin here and close for real.
 *
 * keeps    buffered output is written; the leak check of a sanitizer and the counts of a coverage build still happen
 */
void k2_net_process_begin(void);
_Noreturn void k2_net_process_end(int status);

#endif
