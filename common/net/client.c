/* The client side of requests: each request under way has one of nng's REQ contexts, which sends it again when its connection
 * breaks or when no reply comes for a while. nng's threads only say "something happened"; all else is the loop's. */
#include "common/net/net_int.h"

#include <nng/protocol/reqrep0/req.h>
#include <string.h>

/* A reply is only lost with its connection, and then nng sends again at once; this is the net below. */
#define RESEND_MS        20000
#define RECONNECT_MIN_MS 20
#define RECONNECT_MAX_MS 500

typedef enum step { STEP_SENDING, STEP_RECEIVING } step;

typedef struct request {
    k2_net_client *client;
    nng_ctx ctx;
    nng_aio *aio;
    bool open, busy; /* ctx and aio exist; a request is under way: both the loop's */
    step step;       /* nng's thread's while nng has the aio */
    int rc;
    nng_msg *reply;
    uint64_t seq, deadline_ns;
    void (*on_reply)(void *arg, k2_code code, const k2_msg *reply);
    void *arg;
} request;

struct k2_net_client {
    k2i_bridge bridge;
    nng_socket socket;
    request requests[K2_NET_REQUESTS_MAX];
    uint64_t seq; /* starts anywhere: two clients of one worker must not meet in the server's memory */
    k2_buf buf;
};

/* ---- nng's threads ------------------------------------------------------------------------------------------------ */

static void request_ended(void *arg);

static void receive(request *r)
{
    uint64_t now = k2_now_ns();
    uint64_t left_ms = r->deadline_ns > now ? (r->deadline_ns - now) / K2_NS_PER_MS + 1 : 1;
    nng_aio_set_timeout(r->aio, (nng_duration)K2_MIN(left_ms, (uint64_t)INT32_MAX));
    r->step = STEP_RECEIVING;
    nng_ctx_recv(r->ctx, r->aio);
}

static void request_event(void *arg)
{
    request *r = arg;
    int rc = nng_aio_result(r->aio);
    if (r->step == STEP_SENDING && rc == 0) {
        receive(r);
        return;
    }
    if (r->step == STEP_SENDING) nng_msg_free(nng_aio_get_msg(r->aio));
    if (r->step == STEP_RECEIVING && rc == 0) r->reply = nng_aio_get_msg(r->aio);
    r->rc = rc;
    k2i_bridge_post(&r->client->bridge, request_ended, r);
}

/* ---- the loop ----------------------------------------------------------------------------------------------------- */

static void request_close(request *r)
{
    if (!r->open) return;
    nng_ctx_close(r->ctx);
    nng_aio_free(r->aio);
    r->open = false;
}

static int request_open(request *r)
{
    if (r->open) return 0;
    int rc = nng_ctx_open(&r->ctx, r->client->socket);
    if (rc != 0) return rc;
    rc = nng_ctx_set_ms(r->ctx, NNG_OPT_REQ_RESENDTIME, RESEND_MS);
    if (rc == 0) rc = nng_aio_alloc(&r->aio, request_event, r);
    if (rc != 0)
        nng_ctx_close(r->ctx);
    else
        r->open = true;
    return rc;
}

static void client_leave(k2_net_client *c)
{
    if (!k2i_bridge_leave(&c->bridge)) return;
    for (uint32_t i = 0; i < K2_NET_REQUESTS_MAX; i++)
        if (c->requests[i].reply) nng_msg_free(c->requests[i].reply);
    k2_buf_fini(&c->buf);
    k2i_bridge_fini(&c->bridge);
    k2_free(c);
}

static k2_code reply_decode(request *r, k2_msg *msg)
{
    k2_code code = r->rc == 0 ? K2_OK : k2i_net_code(r->rc);
    if (code == K2_OK && k2_wire_decode(nng_msg_body(r->reply), nng_msg_len(r->reply), msg, NULL) != K2_OK)
        code = K2_PEER_PROTOCOL;
    if (r->reply) nng_msg_free(r->reply);
    r->reply = NULL;
    /* What could not be decoded there is refused with seq 0, which is an answer too. */
    bool ours = code != K2_OK || msg->seq == r->seq || (msg->seq == 0 && msg->type == K2_MSG_REFUSED);
    if (ours && (code != K2_OK || k2_msg_class_of(msg->type) != K2_MSG_CLASS_REQUEST)) return code;
    k2_msg_free(msg);
    return K2_PEER_PROTOCOL;
}

static void request_ended(void *arg)
{
    request *r = arg;
    k2_net_client *c = r->client;
    bool closing = k2i_bridge_closing(&c->bridge);
    client_leave(c);
    if (closing) return; /* and the memory may be gone */
    k2_msg msg = {.type = K2_MSG_NONE};
    k2_code code = reply_decode(r, &msg);
    /* A context whose request timed out would go on sending it. */
    if (r->rc != 0) request_close(r);
    r->busy = false;
    r->on_reply(r->arg, code, code == K2_OK ? &msg : NULL); /* may close the client */
    k2_msg_free(&msg);
}

k2_net_client *k2_net_dial(k2_loop *loop, const char *url, k2_error *err)
{
    if (k2i_net_url_check(url, err) != K2_OK) return NULL;
    K2_ASSERT(k2i_net_epipe_renamed());
    nng_socket socket;
    int rc = nng_req0_open(&socket);
    if (rc == 0) {
        nng_socket_set_ms(socket, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
        nng_socket_set_ms(socket, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
        nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, K2_WIRE_BYTES_MAX);
        rc = nng_dial(socket, url, NULL, NNG_FLAG_NONBLOCK);
        if (rc != 0) nng_close(socket);
    }
    if (rc != 0) {
        k2i_net_error(err, url, rc);
        return NULL;
    }
    k2_net_client *c = k2_alloc(sizeof *c);
    k2i_bridge_init(&c->bridge, loop);
    c->socket = socket;
    c->seq = k2i_net_random() >> 1;
    k2_buf_init(&c->buf, K2_WIRE_BYTES_MAX);
    for (uint32_t i = 0; i < K2_NET_REQUESTS_MAX; i++) c->requests[i].client = c;
    return c;
}

static request *request_find(k2_net_client *c)
{
    for (uint32_t i = 0; i < K2_NET_REQUESTS_MAX; i++)
        if (!c->requests[i].busy) return &c->requests[i];
    return NULL;
}

k2_code k2_net_request(k2_net_client *c, const k2_msg *msg, uint64_t deadline_ns,
                       void (*on_reply)(void *arg, k2_code code, const k2_msg *reply), void *arg)
{
    K2_ASSERT(k2_msg_class_of(msg->type) == K2_MSG_CLASS_REQUEST);
    request *r = request_find(c);
    if (!r || request_open(r) != 0) return K2_FULL;
    k2_msg filled = *msg;
    filled.seq = r->seq = c->seq++;
    k2_buf_clear(&c->buf);
    K2_ASSERT(k2_wire_encode(&filled, &c->buf, NULL) == K2_OK);
    nng_msg *bytes;
    K2_ASSERT(nng_msg_alloc(&bytes, 0) == 0 && nng_msg_append(bytes, c->buf.data, c->buf.len) == 0);
    r->deadline_ns = k2_now_ns() + deadline_ns;
    r->on_reply = on_reply;
    r->arg = arg;
    r->rc = 0;
    r->busy = true;
    r->step = STEP_SENDING;
    nng_aio_set_msg(r->aio, bytes);
    nng_aio_set_timeout(r->aio, (nng_duration)K2_MIN(deadline_ns / K2_NS_PER_MS + 1, (uint64_t)INT32_MAX));
    nng_ctx_send(r->ctx, r->aio);
    return K2_OK;
}

static void *close_socket(void *arg)
{
    k2_net_client *c = arg;
    nng_close(c->socket);
    for (uint32_t i = 0; i < K2_NET_REQUESTS_MAX; i++)
        if (c->requests[i].open) nng_aio_free(c->requests[i].aio); /* waits for its callback */
    client_leave(c);
    return NULL;
}

void k2_net_client_close(k2_net_client *c)
{
    if (!c) return;
    k2i_bridge_close(&c->bridge);
    if (k2i_net_leave_open(&c->bridge)) return;
    k2i_net_close_bounded(close_socket, c);
}
