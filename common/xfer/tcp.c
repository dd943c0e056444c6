/* The `tcp` transport: server and client halves behind the ops table. */
#include "common/xfer/xfer_int.h"

typedef struct transport {
    k2_xfer_config config;
    k2i_server *server; /* NULL in an engine that only reads */
} transport;

static k2_code tcp_open(const k2_xfer_config *config, bool offers, void **out, k2_error *err)
{
    k2i_server *server = NULL;
    k2_code code = offers ? k2i_tcp_server_open(config, &server, err) : K2_OK;
    if (code != K2_OK) return code;
    transport *t = k2_alloc(sizeof *t);
    *t = (transport){.config = *config, .server = server};
    *out = t;
    return K2_OK;
}

static void tcp_close(void *arg)
{
    transport *t = arg;
    if (t->server != NULL) k2i_server_close(t->server);
    k2_free(t);
}

static void tcp_stats(void *arg, k2_xfer_stats *out)
{
    transport *t = arg;
    *out = (k2_xfer_stats){0};
    if (t->server != NULL) k2i_server_stats(t->server, out);
}

static k2_code tcp_segment_create(void *arg, uint64_t bytes, const k2_xfer_nonce *nonce, void **out, k2_xfer_locator *where,
                                  k2_error *err)
{
    transport *t = arg;
    K2_ASSERT(t->server != NULL);
    k2i_server_segment *s;
    k2_code code = k2i_server_segment_create(t->server, bytes, nonce, &s, where, err);
    if (code == K2_OK) *out = s;
    return code;
}

static void *tcp_segment_memory(void *s)
{
    return k2i_server_segment_memory(s);
}

static void tcp_segment_signal(void *s, uint64_t offset, uint64_t value)
{
    k2i_server_segment_signal(s, offset, value);
}

static void tcp_segment_destroy(void *s)
{
    k2i_server_segment_destroy(s);
}

static k2_code tcp_remote_open(void *arg, const k2_xfer_locator *where, uint64_t deadline_ns, void **out, k2_error *err)
{
    return k2i_client_open(&((transport *)arg)->config, where, deadline_ns, out, err);
}

static const void *tcp_remote_map(void *r)
{
    (void)r;
    return NULL;
}

const k2_xfer_ops k2i_tcp_ops = {
    .name = "tcp",
    .caps = {.between_processes = true, .between_hosts = true, .verifies = true, .read_max = K2_XFER_CHUNK_MAX},
    .open = tcp_open,
    .close = tcp_close,
    .stats = tcp_stats,
    .segment_create = tcp_segment_create,
    .segment_memory = tcp_segment_memory,
    .segment_signal = tcp_segment_signal,
    .segment_destroy = tcp_segment_destroy,
    .remote_open = tcp_remote_open,
    .remote_map = tcp_remote_map,
    .remote_read = k2i_client_read,
    .remote_wait = k2i_client_wait,
    .remote_close = k2i_client_close,
};
