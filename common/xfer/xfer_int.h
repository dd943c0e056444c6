/* What the files of common/xfer share. */
#ifndef K2_COMMON_XFER_INT_H
#define K2_COMMON_XFER_INT_H

#include "common/xfer/xfer.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

/* ---- memory that reader and owner both map (self, shm): mapped.c ------------------------------------------------ */

/* Whether the owner still lives. */
typedef bool (*k2i_alive_fn)(void *arg);

void *k2i_memory_map(uint64_t bytes, k2_error *err); /* private zeroed pages, or NULL */
void k2i_memory_unmap(void *memory, uint64_t bytes);
void k2i_mapped_read(const unsigned char *data, k2_xfer_io *io);
void k2i_mapped_signal(unsigned char *data, uint64_t offset, uint64_t value);
uint64_t k2i_mapped_word(const unsigned char *data, uint64_t offset);
k2_code k2i_mapped_wait(const unsigned char *data, uint64_t offset, uint64_t value, uint64_t deadline_ns, k2i_alive_fn alive,
                        void *arg, uint64_t *seen, k2_error *err);

/* ---- nonces: locator.c ------------------------------------------------------------------------------------------- */

k2_code k2i_nonce_make(k2_xfer_nonce *out, k2_error *err);
bool k2i_nonce_equal(const k2_xfer_nonce *a, const k2_xfer_nonce *b); /* in a time that tells nothing about either */

/* ---- frames of the tcp transport: tcp_frame.c --------------------------------------------------------------------- */

/*  request, 64 bytes, little-endian                 reply, 40 bytes, then `bytes` of payload
 *   0 u32 magic "K2XQ"                               0 u32 magic "K2XA"
 *   4 u16 version                                    4 u16 version
 *   6 u16 op                                         6 u16 status
 *   8 u64 segment                                    8 u64 tag of the request
 *  16     nonce                                     16 u64 bytes of payload
 *  32 u64 offset                                    24 u64 hash of the payload
 *  40 u64 bytes (READ) or value (WAIT)              32 u64 word (WAIT) or bytes of the segment (READ)
 *  48 u32 timeout in ms (WAIT), else 0
 *  52 u32 0
 *  56 u64 tag
 */
#define K2I_REQUEST_BYTES 64u
#define K2I_REPLY_BYTES   40u
#define K2I_WAIT_MS_MAX   10000u /* longest long poll: shorter than what idle connections are granted anywhere */

typedef enum k2i_tcp_op { K2I_OP_READ = 1, K2I_OP_WAIT = 2 } k2i_tcp_op;

/* name, code at the reader, text */
#define K2I_STATUSES(X)                                                                 \
    X(OK, K2_OK, "ok")                                                                  \
    X(REFUSED, K2_PEER_REFUSED, "the segment is not offered (any more) to this nonce")  \
    X(RANGE, K2_BAD_INPUT, "the range is outside of the segment")                       \
    X(TIMEOUT, K2_TIMEOUT, "the word did not reach the value in time")
typedef enum k2i_tcp_status {
#define K2_X(name, code, text) K2I_STATUS_##name,
    K2I_STATUSES(K2_X)
#undef K2_X
    K2I_STATUS_COUNT
} k2i_tcp_status;

typedef struct k2i_tcp_request {
    k2i_tcp_op op;
    uint64_t segment;
    k2_xfer_nonce nonce;
    uint64_t offset, bytes; /* bytes is the value for WAIT */
    uint32_t timeout_ms;
    uint64_t tag;
} k2i_tcp_request;

typedef struct k2i_tcp_reply {
    k2i_tcp_status status;
    uint64_t tag, bytes, hash, word;
} k2i_tcp_reply;

void k2i_tcp_request_encode(const k2i_tcp_request *q, unsigned char out[K2I_REQUEST_BYTES]);
/* Pure. INCOMPLETE below K2I_REQUEST_BYTES, provided that the bytes there can still become a request; else PEER_PROTOCOL. */
k2_code k2i_tcp_request_decode(const unsigned char *in, size_t n, k2i_tcp_request *out, k2_error *err);
void k2i_tcp_reply_encode(const k2i_tcp_reply *a, unsigned char out[K2I_REPLY_BYTES]);
k2_code k2i_tcp_reply_decode(const unsigned char *in, size_t n, k2i_tcp_reply *out, k2_error *err);
k2_code k2i_tcp_status_error(k2i_tcp_status status, k2_error *err);
/* What the server answers for a segment of `segment_bytes`: RANGE or OK, without overflow. */
k2i_tcp_status k2i_tcp_request_range(const k2i_tcp_request *q, uint64_t segment_bytes);

/* ---- the tcp transport's halves: tcp_server.c, tcp_client.c ------------------------------------------------------ */

typedef struct k2i_server k2i_server;
typedef struct k2i_server_segment k2i_server_segment;

k2_code k2i_tcp_server_open(const k2_xfer_config *config, k2i_server **out, k2_error *err);
void k2i_server_close(k2i_server *v);
void k2i_server_stats(k2i_server *v, k2_xfer_stats *out);
k2_code k2i_server_segment_create(k2i_server *v, uint64_t bytes, const k2_xfer_nonce *nonce, k2i_server_segment **out,
                                  k2_xfer_locator *where, k2_error *err);
unsigned char *k2i_server_segment_memory(k2i_server_segment *s);
void k2i_server_segment_signal(k2i_server_segment *s, uint64_t offset, uint64_t value);
void k2i_server_segment_destroy(k2i_server_segment *s);

/* Numeric address to socket address; false where it is none. */
bool k2i_sockaddr(const char *host, uint16_t port, struct sockaddr_storage *out, socklen_t *len);

k2_code k2i_client_open(const k2_xfer_config *config, const k2_xfer_locator *where, uint64_t deadline_ns, void **r,
                        k2_error *err);
k2_code k2i_client_read(void *r, k2_xfer_io *io, k2_error *err);
k2_code k2i_client_wait(void *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err);
void k2i_client_close(void *r);

/* An owner writes, hands its locator on or signals, and one of its server threads reads. These are ordered, but the order
 * runs through another process, where C's memory model (and the tools that go by it) cannot follow. So it is said here:
 * who hands on releases, who serves acquires. */
extern atomic_uint k2i_order;
static inline void k2i_order_release(void)
{
    atomic_fetch_add_explicit(&k2i_order, 1, memory_order_acq_rel);
}
static inline void k2i_order_acquire(void)
{
    (void)atomic_load_explicit(&k2i_order, memory_order_acquire);
}

extern const k2_xfer_ops k2i_self_ops, k2i_shm_ops, k2i_tcp_ops;

/* ---- engine and batches: engine.c, batch.c ------------------------------------------------------------------------ */

#define K2I_TRANSPORTS_MAX 8u

typedef struct k2i_transport {
    const k2_xfer_ops *ops;
    void *t;
    bool open;
} k2i_transport;

struct k2_xfer {
    k2_xfer_config config; /* with defaults filled in; strings are owned */
    char *host;
    k2i_transport transports[K2I_TRANSPORTS_MAX];
    uint32_t transport_count, own; /* own: index of the transport of this engine's segments */
    uint32_t objects;              /* segments, remotes and batches that exist: must be 0 at close */

    pthread_mutex_t lock; /* everything below, and the fields of batches */
    pthread_cond_t work;  /* a batch has chunks to give, or stop */
    pthread_cond_t done;  /* a batch is finished */
    k2_xfer_batch *batches[K2_XFER_BATCHES_MAX];
    uint32_t batch_turn; /* batches take turns, chunk by chunk */
    bool stop;
    uint32_t segments;
    pthread_t workers[K2_XFER_RAILS_MAX];
    uint32_t worker_count;
};

struct k2_xfer_remote {
    k2_xfer *x;
    const k2_xfer_ops *ops;
    void *r;
    uint64_t bytes;
    char name[K2_XFER_LOCATOR_MAX];
    atomic_uint_fast64_t done_bytes, done_chunks, retries, failures, corrupt;
};

/* One chunk, with everything needed to read it from any of its sources. */
typedef struct k2i_chunk {
    k2_xfer_remote *const *sources;
    uint32_t source_count;
    atomic_uint *preferred;     /* source that worked last; NULL = always begin with the first */
    atomic_uint *refused;       /* bit per source that said no for good; NULL = not remembered */
    uint64_t offset, bytes;
    void *local;
    const uint64_t *hash;       /* NULL = none expected */
    uint32_t rail;
    uint64_t deadline_ns;       /* of the whole chunk; UINT64_MAX = only the attempts have one */
    const atomic_bool *cancel;
} k2i_chunk;

typedef struct k2i_chunk_result {
    uint64_t retries;
    uint32_t source; /* that gave the bytes */
} k2i_chunk_result;

/* All rounds over all sources, with pauses in between. */
k2_code k2i_chunk_read(k2_xfer *x, const k2i_chunk *c, k2i_chunk_result *result, k2_error *err);
/* Sleep until then in slices that notice `cancel`; false when canceled. */
bool k2i_pause(uint64_t until_ns, const atomic_bool *cancel);
void *k2i_worker_main(void *arg);
void k2i_object_add(k2_xfer *x, int n);

typedef struct k2i_worker_arg {
    k2_xfer *x;
    uint32_t rail;
} k2i_worker_arg;

#endif
