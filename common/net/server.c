/* The server side of requests.
 *
 * Each request that waits for its reply occupies one of nng's REP contexts, here a `slot`. A few slots are always receiving;
 * when few are left, more are opened, up to the cap. nng's threads only move a slot's message to the loop; all else is the
 * loop's.
 *
 *   receiving ──message──► arrived (in the inbox) ──► held by a call ──k2_net_reply──► sending ──► receiving
 *
 * A request that comes again (its asker sends it every so often, and after each break) never takes a second place: it is
 * looked up before anything is counted, takes over its call, and the context that the call held goes back to receiving.
 */
#include "common/net/net_int.h"

#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define IDLE_SLOTS 8u /* receiving at any time, so that a burst is not answered one by one */

typedef struct slot {
    k2_net_server *server;
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg; /* between arrival and the loop */
    bool sending; /* changed only while nng does not have the aio */
} slot;

struct k2_net_call {
    k2_net_server *server;
    struct k2_net_call *next, *prev; /* of its bucket */
    slot *slot;                      /* the newest that this request came through */
    k2i_key key;
    uint64_t cmd;
};

struct k2_net_server {
    k2i_bridge bridge;
    nng_socket socket;
    char url[K2_NET_URL_MAX];
    void (*on_request)(void *arg, k2_net_call *call, const k2_msg *msg);
    void *arg;
    slot **slots; /* [calls_max + IDLE_SLOTS] */
    uint32_t slots_n, idle;
    k2_net_call **calls; /* [mask + 1], by key */
    uint32_t calls_n, calls_max, mask;
    k2i_replies *replies;
    k2_buf buf; /* of the reply in hand */
};

/* ---- nng's threads ------------------------------------------------------------------------------------------------ */

static void slot_arrived(void *arg);

static void slot_event(void *arg)
{
    slot *s = arg;
    int rc = nng_aio_result(s->aio);
    if (s->sending) {
        if (rc != 0) nng_msg_free(nng_aio_get_msg(s->aio)); /* the peer is gone; it will ask again */
        s->sending = false;
        if (rc == NNG_ECLOSED || rc == NNG_ECANCELED) return;
        nng_ctx_recv(s->ctx, s->aio);
        return;
    }
    if (rc == NNG_ECLOSED || rc == NNG_ECANCELED) return;
    if (rc != 0) {
        nng_ctx_recv(s->ctx, s->aio);
        return;
    }
    s->msg = nng_aio_get_msg(s->aio);
    k2i_bridge_post(&s->server->bridge, slot_arrived, s);
}

/* ---- slots -------------------------------------------------------------------------------------------------------- */

static int slot_open(k2_net_server *server)
{
    slot *s = k2_alloc(sizeof *s);
    s->server = server;
    int rc = nng_ctx_open(&s->ctx, server->socket);
    if (rc == 0) {
        rc = nng_aio_alloc(&s->aio, slot_event, s);
        if (rc != 0) nng_ctx_close(s->ctx);
    }
    if (rc != 0) {
        k2_free(s);
        return rc;
    }
    server->slots[server->slots_n++] = s;
    server->idle++;
    nng_ctx_recv(s->ctx, s->aio);
    return 0;
}

/* Sending takes no turn of the loop: from here on the slot counts as receiving again. */
static void slot_send(slot *s, const void *bytes, size_t n)
{
    nng_msg *msg;
    K2_ASSERT(nng_msg_alloc(&msg, 0) == 0 && nng_msg_append(msg, bytes, n) == 0);
    s->server->idle++;
    s->sending = true;
    nng_aio_set_msg(s->aio, msg);
    nng_ctx_send(s->ctx, s->aio);
}

static void server_leave(k2_net_server *server)
{
    if (!k2i_bridge_leave(&server->bridge)) return;
    for (uint32_t i = 0; i < server->slots_n; i++) {
        if (server->slots[i]->msg) nng_msg_free(server->slots[i]->msg);
        k2_free(server->slots[i]);
    }
    k2_free(server->slots);
    k2_free(server->calls);
    k2i_replies_free(server->replies);
    k2_buf_fini(&server->buf);
    k2i_bridge_fini(&server->bridge);
    k2_free(server);
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

static k2_net_call **bucket(const k2_net_server *server, k2i_key key)
{
    return &server->calls[k2i_key_hash(key) & server->mask];
}

static void call_link(k2_net_server *server, k2_net_call *call)
{
    k2_net_call **head = bucket(server, call->key);
    call->next = *head;
    if (*head) (*head)->prev = call;
    *head = call;
    server->calls_n++;
}

static void call_unlink(k2_net_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        *bucket(call->server, call->key) = call->next;
    if (call->next) call->next->prev = call->prev;
    call->server->calls_n--;
}

static k2_net_call *call_find(const k2_net_server *server, k2i_key key)
{
    for (k2_net_call *call = *bucket(server, key); call; call = call->next)
        if (k2i_key_equal(call->key, key)) return call;
    return NULL;
}

static void slot_refuse(slot *s, const k2_msg *request, k2_code code, const char *text)
{
    k2_msg reply = {.type = K2_MSG_REFUSED,
                    .worker = request->worker,
                    .incarnation = request->incarnation,
                    .seq = request->seq,
                    .cmd = request->cmd,
                    .refused = {.code = (uint64_t)code, .text = text}};
    k2_buf_clear(&s->server->buf);
    K2_ASSERT(k2_wire_encode(&reply, &s->server->buf, NULL) == K2_OK);
    slot_send(s, s->server->buf.data, s->server->buf.len);
}

/* True when the request had come before: its reply is given once more, or its call goes on waiting. Costs no place. */
static bool request_again(slot *s, k2i_key key)
{
    k2_net_server *server = s->server;
    size_t n;
    const void *known = k2i_replies_get(server->replies, key, &n);
    if (known) {
        slot_send(s, known, n);
        return true;
    }
    k2_net_call *call = call_find(server, key);
    if (!call) return false;
    /* Over a new connection or because the reply takes long: the newest way back is the one that stands. The older context
     * forgets its request by receiving. */
    server->idle++;
    nng_ctx_recv(call->slot->ctx, call->slot->aio);
    call->slot = s;
    return true;
}

static void request_deliver(slot *s, const k2_msg *msg)
{
    k2_net_server *server = s->server;
    k2i_key key = {msg->worker, msg->incarnation, msg->seq};
    if (request_again(s, key)) return;
    if (k2_msg_class_of(msg->type) != K2_MSG_CLASS_REQUEST) {
        slot_refuse(s, msg, K2_BAD_INPUT, "this message is no request");
        return;
    }
    /* A failure to open one more shows when none is left. */
    if (server->idle < IDLE_SLOTS && server->slots_n < server->calls_max + IDLE_SLOTS) slot_open(server);
    /* The last slots are never held: they say that there are too many, and let those that wait ask again. */
    if (server->idle == 0 || server->calls_n == server->calls_max) {
        slot_refuse(s, msg, K2_FULL, "too many requests wait for a reply");
        return;
    }
    k2_net_call *call = k2_alloc(sizeof *call);
    *call = (k2_net_call){.server = server, .slot = s, .key = key, .cmd = msg->cmd};
    call_link(server, call);
    server->on_request(server->arg, call, msg);
}

static void slot_arrived(void *arg)
{
    slot *s = arg;
    k2_net_server *server = s->server;
    bool closing = k2i_bridge_closing(&server->bridge);
    server_leave(server);
    if (closing) return; /* and the memory may be gone */
    server->idle--;
    nng_msg *bytes = s->msg;
    s->msg = NULL;
    k2_msg msg = {.type = K2_MSG_NONE};
    k2_error err;
    k2_code code = k2_wire_decode(nng_msg_body(bytes), nng_msg_len(bytes), &msg, &err);
    nng_msg_free(bytes);
    if (code != K2_OK) {
        slot_refuse(s, &msg, code == K2_INCOMPLETE ? K2_BAD_INPUT : code, err.text);
        return;
    }
    request_deliver(s, &msg); /* may close the server */
    k2_msg_free(&msg);
}

void k2_net_reply(k2_net_call *call, const k2_msg *reply)
{
    k2_net_server *server = call->server;
    k2_msg filled = *reply;
    if (!filled.worker) filled.worker = call->key.worker;
    if (!filled.incarnation) filled.incarnation = call->key.incarnation;
    if (!filled.cmd) filled.cmd = call->cmd;
    filled.seq = call->key.seq;
    k2_buf_clear(&server->buf);
    k2_error err = {0};
    if (k2_wire_encode(&filled, &server->buf, &err) != K2_OK) {
        k2_msg refused = {.type = K2_MSG_REFUSED, .seq = call->key.seq, .refused = {.code = K2_INTERNAL, .text = err.text}};
        K2_ASSERT(k2_wire_encode(&refused, &server->buf, NULL) == K2_OK);
    }
    k2i_replies_put(server->replies, call->key, server->buf.data, server->buf.len);
    slot_send(call->slot, server->buf.data, server->buf.len);
    call_unlink(call);
    k2_free(call);
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

static int listen_on(k2_net_server *server, const char *url)
{
    nng_listener listener;
    int rc = nng_listener_create(&listener, server->socket, url);
    if (rc == 0 && strncmp(url, "ipc:", 4) == 0) rc = nng_listener_set_int(listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    if (rc == 0) rc = nng_listener_start(listener, 0);
    int port;
    const char *colon = strrchr(url, ':');
    if (rc == 0 && strncmp(url, "tcp:", 4) == 0 && nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port) == 0)
        snprintf(server->url, sizeof server->url, "%.*s:%d", (int)K2_MIN(colon - url, 240), url, port);
    else
        snprintf(server->url, sizeof server->url, "%s", url);
    for (uint32_t i = 0; rc == 0 && i < IDLE_SLOTS; i++) rc = slot_open(server);
    return rc;
}

k2_net_server *k2_net_listen(k2_loop *loop, const char *url, uint32_t peers,
                             void (*on_request)(void *arg, k2_net_call *call, const k2_msg *msg), void *arg, k2_error *err)
{
    K2_ASSERT(on_request && peers <= K2_PEERS_MAX);
    if (k2i_net_url_check(url, err) != K2_OK) return NULL;
    K2_ASSERT(k2i_net_epipe_renamed());
    nng_socket socket;
    int rc = nng_rep0_open(&socket);
    if (rc != 0) {
        k2i_net_error(err, url, rc);
        return NULL;
    }
    k2_net_server *server = k2_alloc(sizeof *server);
    *server = (k2_net_server){.socket = socket, .on_request = on_request, .arg = arg};
    k2i_bridge_init(&server->bridge, loop);
    server->calls_max = K2_NET_CALLS(peers);
    while (server->mask < server->calls_max) server->mask = server->mask * 2 + 1; /* so that a chain has half a call */
    server->slots = k2_alloc_array(server->calls_max + IDLE_SLOTS, sizeof *server->slots);
    server->calls = k2_alloc_array(server->mask + 1u, sizeof *server->calls);
    server->replies = k2i_replies_new(K2_NET_REPLIES(peers), K2_NET_REPLY_BYTES_MAX);
    k2_buf_init(&server->buf, K2_WIRE_BYTES_MAX);
    nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, K2_WIRE_BYTES_MAX);
    rc = listen_on(server, url);
    if (rc == 0) return server;
    k2i_net_error(err, url, rc);
    k2_net_server_close(server);
    return NULL;
}

const char *k2_net_server_url(const k2_net_server *s)
{
    return s->url;
}

static void *close_socket(void *arg)
{
    k2_net_server *server = arg;
    nng_close(server->socket);
    for (uint32_t i = 0; i < server->slots_n; i++) nng_aio_stop(server->slots[i]->aio);
    for (uint32_t i = 0; i < server->slots_n; i++) nng_aio_free(server->slots[i]->aio);
    server_leave(server);
    return NULL;
}

void k2_net_server_close(k2_net_server *server)
{
    if (!server) return;
    k2i_bridge_close(&server->bridge);
    for (uint32_t i = 0; i <= server->mask; i++)
        while (server->calls[i]) {
            k2_net_call *call = server->calls[i];
            call_unlink(call);
            k2_free(call);
        }
    if (k2i_net_leave_open(&server->bridge)) {
        if (strncmp(server->url, "ipc://", 6) == 0) unlink(server->url + 6);
        return;
    }
    k2i_net_close_bounded(close_socket, server);
}
