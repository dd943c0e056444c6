/* xfer - bytes move by one-sided reads: a process offers memory, others read it when they like, every chunk is verified.
 *
 * Nouns: a `k2_xfer` is an engine with one transport for the memory it offers; a `k2_xfer_segment` is memory offered for
 * reading, found by its locator (a string with a 128-bit nonce; who does not know it is refused); a `k2_xfer_remote` is a
 * segment of some process, opened by locator; a `k2_xfer_batch` is a list of reads, cut into chunks, on its way.
 *
 * An engine opens locators of every transport it knows, whatever it offers itself: a list of sources may mix shm and tcp.
 * Lifetime: the engine outlives its segments, remotes and batches; a remote outlives the batches that name it.
 *
 * Locators: `self:<id>:<bytes>:<nonce>`, `shm:<pid>:<fd>:<bytes>:<nonce>`, `tcp:<address>:<port>:<id>:<bytes>:<nonce>`;
 * nonce is 32 hex digits; an IPv6 address stands in brackets. A locator lets its reader in: hand it on over trusted ways
 * only and keep it out of logs.
 *
 * Times: `deadline_ns` parameters are absolute (k2_now_ns); fields of the config are lengths of time.
 * "hash" is always k2_hash64(bytes, n, 0).
 */
#ifndef K2_COMMON_XFER_H
#define K2_COMMON_XFER_H

#include "common/base/base.h"

#include <stdatomic.h>

#define K2_XFER_LOCATOR_MAX    192u         /* bytes of a locator with its terminator: IPv6 address, four numbers, nonce */
#define K2_XFER_CHUNK_BYTES    (1ull << 20) /* default chunk: two of them fit a core's level 2 cache on what we run on */
#define K2_XFER_CHUNK_MIN      4096ull      /* below this the header of a chunk is no longer small against it */
#define K2_XFER_CHUNK_MAX      (64ull << 20) /* largest single read: bounds what a peer can ask for in one reply */
#define K2_XFER_SEGMENT_MAX    (1ull << 46) /* bytes of one segment */
#define K2_XFER_SEGMENTS_MAX   256u         /* segments one engine offers at a time */
#define K2_XFER_SOURCES_MAX    16u          /* remotes that may hold the same bytes */
#define K2_XFER_REQUESTS_MAX   65536u       /* reads in one batch: tensors of the largest model's shard and room */
#define K2_XFER_BATCHES_MAX    64u          /* batches in flight on one engine */
#define K2_XFER_RAILS_MAX      8u           /* parallel connections to one remote, and threads that move chunks */
#define K2_XFER_SERVERS_MAX    8u           /* threads that answer readers (tcp) */
#define K2_XFER_CONNS_MAX      1024u        /* connections one engine answers (tcp); more are closed at once and counted */
#define K2_XFER_RETRIES_MAX    100u

typedef struct k2_xfer k2_xfer;
typedef struct k2_xfer_segment k2_xfer_segment;
typedef struct k2_xfer_remote k2_xfer_remote;
typedef struct k2_xfer_batch k2_xfer_batch;
typedef struct k2_xfer_ops k2_xfer_ops;

/* ---- the engine ------------------------------------------------------------------------------------------------ */

typedef struct k2_xfer_config {
    const char *transport; /* "self", "shm" or "tcp": how this engine's own segments are offered */
    const char *host;      /* tcp: numeric address to listen on and to put into locators; NULL = 127.0.0.1 */
    uint16_t port;         /* tcp: 0 = any free one */
    uint32_t rails;        /* threads that move chunks, and tcp connections to one remote; 0 = 1 */
    uint32_t servers;      /* tcp: threads that answer readers; 0 = 1 */
    uint64_t chunk_bytes;  /* K2_XFER_CHUNK_MIN .. K2_XFER_CHUNK_MAX; 0 = K2_XFER_CHUNK_BYTES */
    uint32_t retries;      /* rounds over all sources of a chunk after the first one; 0 = none */
    uint64_t deadline_ns;  /* one attempt at one chunk, and connecting; 0 = 10 s */
    uint64_t backoff_ns;   /* pause after the first failed round, doubled each time up to 100 times itself; 0 = 5 ms */
    const k2_xfer_ops *const *ops; /* ends with NULL; instead of the built-in list: how tests put a wrapper in between */
} k2_xfer_config;

/* k2_xfer_open - start an engine: its threads, and for tcp its listening socket.
 *
 * errors   BAD_INPUT names the field: unknown transport, a host that is no address of this machine, numbers out of range;
 *          IO
 * threads  every function of this header may be called from any thread, except where one object is being closed
 */
k2_code k2_xfer_open(const k2_xfer_config *config, k2_xfer **out, k2_error *err);
/* Stops the threads. Segments, remotes and batches must be gone: asserted. NULL is fine. */
void k2_xfer_close(k2_xfer *x);

/* What the engine has served and refused since it was opened. self and shm readers come without asking: they count nothing
 * here. */
typedef struct k2_xfer_stats {
    uint64_t served_bytes, served_chunks;
    uint64_t refused;        /* requests with an unknown segment or a wrong nonce */
    uint64_t protocol_errors; /* connections dropped because of malformed requests */
    uint64_t conns_accepted, conns_refused, conns_now;
} k2_xfer_stats;
void k2_xfer_stats_get(k2_xfer *x, k2_xfer_stats *out);

/* ---- segments: memory that others read ------------------------------------------------------------------------- */

/* k2_xfer_segment_create - offer `bytes` of new, zeroed memory, aligned to 4096.
 *
 * memory   the engine's; it lives until k2_xfer_segment_destroy, and for readers that hold a mapping (self, shm) until
 *          they let go
 * keeps    the caller may write at any time; readers see torn bytes while it does. So write first and hand the locator out
 *          afterwards, or give readers a word to wait for (k2_xfer_segment_signal)
 * errors   LIMIT (bytes of 0 or above K2_XFER_SEGMENT_MAX), FULL, NO_MEMORY, NO_SPACE, IO
 */
k2_code k2_xfer_segment_create(k2_xfer *x, uint64_t bytes, k2_xfer_segment **out, k2_error *err);
void *k2_xfer_segment_memory(const k2_xfer_segment *s);
uint64_t k2_xfer_segment_bytes(const k2_xfer_segment *s);
/* Lives as long as the segment. Ask for it after the segment is written: who got it from this call sees everything written
 * before. */
const char *k2_xfer_segment_locator(const k2_xfer_segment *s);
/* k2_xfer_segment_signal - store `value` into the u64 at `offset` after everything written before, and wake who waits for it.
 *
 * keeps    one writer per word; values only grow (waiters ask for "at least")
 * errors   none; an offset that is outside or not a multiple of 8 is asserted
 */
void k2_xfer_segment_signal(k2_xfer_segment *s, uint64_t offset, uint64_t value);
/* Withdraw the memory at once. New readers, and tcp readers in between chunks, get PEER_REFUSED; who has it mapped keeps
 * it. NULL is fine. */
void k2_xfer_segment_destroy(k2_xfer_segment *s);

/* ---- remotes: segments opened by locator ----------------------------------------------------------------------- */

/* k2_xfer_remote_open - parse a locator, reach its owner and prove that it is the very segment (size and nonce).
 *
 * errors   BAD_INPUT (malformed locator), UNSUPPORTED (unknown transport), PEER_REFUSED (not that segment any more),
 *          PEER_CLOSED (owner is gone), TIMEOUT. Texts never contain the nonce
 */
k2_code k2_xfer_remote_open(k2_xfer *x, const char *locator, uint64_t deadline_ns, k2_xfer_remote **out, k2_error *err);
void k2_xfer_remote_close(k2_xfer_remote *r); /* NULL is fine */
uint64_t k2_xfer_remote_bytes(const k2_xfer_remote *r);
const char *k2_xfer_remote_name(const k2_xfer_remote *r); /* the locator without its nonce: for errors and logs */
/* The bytes themselves, read-only, where the transport maps them (self, shm); NULL elsewhere. Valid until the remote is
 * closed. */
const void *k2_xfer_remote_map(const k2_xfer_remote *r);

/* k2_xfer_remote_wait - until the u64 at `offset` is at least `value`. Everything the owner wrote before its signal is
 * then visible.
 *
 * memory   *seen (may be NULL) gets the word that ended the wait
 * errors   TIMEOUT; PEER_CLOSED as soon as the owner is known to be dead; PEER_REFUSED; BAD_INPUT (outside, or not a
 *          multiple of 8)
 */
k2_code k2_xfer_remote_wait(k2_xfer_remote *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen,
                            k2_error *err);

typedef struct k2_xfer_remote_stats {
    uint64_t bytes, chunks; /* verified */
    uint64_t retries;       /* attempts that followed a failed one of the same chunk */
    uint64_t failures;      /* attempts that failed, for any reason */
    uint64_t corrupt;       /* of these: the hash did not match */
} k2_xfer_remote_stats;
void k2_xfer_remote_stats_get(const k2_xfer_remote *r, k2_xfer_remote_stats *out);

/* ---- batches: reads on their way ------------------------------------------------------------------------------- */

/* One read: `bytes` at `offset` of any of the sources, which must all hold the same bytes there, into `local`. */
typedef struct k2_xfer_request {
    k2_xfer_remote *const *sources; /* tried in this order; a chunk that fails at one is read from the next */
    uint32_t source_count;          /* 1 .. K2_XFER_SOURCES_MAX */
    uint64_t offset, bytes;         /* bytes of 0 is a request that is done at once */
    void *local;                    /* undefined content until its chunk is counted as done */
    uint64_t chunk_bytes;           /* 0 = the engine's; with `hashes` it is the chunk size they were made for */
    const uint64_t *hashes;         /* expected hash of each chunk (the last may be short). NULL: the transport's own check,
                                     * a hash of every chunk in tcp, none in self and shm, which copy within one memory */
} k2_xfer_request;

/* Where a batch stands. Only verified bytes are counted. */
typedef struct k2_xfer_progress {
    uint64_t bytes, done_bytes;
    uint64_t retries;  /* attempts that followed a failed one */
    uint64_t elsewhere; /* chunks that came from another source than the first of their request */
    bool finished;
    k2_code code; /* of the batch, once finished */
} k2_xfer_progress;

/* k2_xfer_batch_submit - start reading.
 *
 * memory   requests and their lists of sources are copied; `hashes` and `local` must stay until the batch is finished
 * errors   BAD_INPUT (a request outside its remote, no source, chunk size out of range), LIMIT (too many requests), FULL
 *          (batches)
 * threads  the chunks are moved on the engine's threads; the first error stops the batch
 */
k2_code k2_xfer_batch_submit(k2_xfer *x, const k2_xfer_request *requests, size_t count, k2_xfer_batch **out, k2_error *err);
/* Never blocks; true when finished. `out` may be NULL. */
bool k2_xfer_batch_poll(k2_xfer_batch *b, k2_xfer_progress *out);
/* k2_xfer_batch_wait - until the batch is finished or the deadline has passed.
 *
 * keeps    the waiting thread moves chunks itself where that is mere copying (self, shm)
 * errors   OK only when every byte of every request is verified. TIMEOUT: it goes on; wait again, cancel or close it.
 *          Otherwise the error that ended it: it names the request, the bytes and the last source that failed, and for
 *          CORRUPT both hashes
 */
k2_code k2_xfer_batch_wait(k2_xfer_batch *b, uint64_t deadline_ns, k2_error *err);
/* Ask it to stop; it then finishes with CANCELED, unless it had finished already. */
void k2_xfer_batch_cancel(k2_xfer_batch *b);
/* Cancel, wait until no thread writes to `local` any more, free. NULL is fine. */
void k2_xfer_batch_close(k2_xfer_batch *b);

/* k2_xfer_read - one read on the calling thread, with the engine's retries: for headers and other small things.
 *
 * errors   as k2_xfer_batch_wait; TIMEOUT here is final
 */
k2_code k2_xfer_read(k2_xfer_remote *r, uint64_t offset, uint64_t bytes, void *local, const uint64_t *hash,
                     uint64_t deadline_ns, k2_error *err);

/* k2_xfer_copy_hash - copy and hash in one pass over memory: the copy is hashed piece by piece while it is still in the cache.
 *
 *   result = k2_hash64(to, bytes, 0) after memcpy(to, from, bytes)
 */
uint64_t k2_xfer_copy_hash(void *to, const void *from, size_t bytes);

/* ---- transports: for those who write one ------------------------------------------------------------------------ */

typedef struct k2_xfer_nonce {
    unsigned char bytes[16];
} k2_xfer_nonce;

/* A locator taken apart. Fields that a transport has no use for are 0. */
typedef struct k2_xfer_locator {
    char transport[8];
    char host[48]; /* numeric address, without brackets */
    uint16_t port;
    int32_t pid, fd;
    uint64_t id, bytes;
    k2_xfer_nonce nonce;
} k2_xfer_locator;
/* Strict: exactly the forms above, no leading zeros or signs, nothing behind. BAD_INPUT says what is wrong, without the
 * nonce. */
k2_code k2_xfer_locator_parse(const char *text, k2_xfer_locator *out, k2_error *err);
void k2_xfer_locator_format(const k2_xfer_locator *l, bool with_nonce, char out[K2_XFER_LOCATOR_MAX]);

/* What a transport can do; the engine and the conformance suite go by it, never by its name. */
typedef struct k2_xfer_caps {
    bool between_processes;
    bool between_hosts;
    bool maps;          /* k2_xfer_remote_map gives the bytes; a reader outlives the owner */
    bool immediate;     /* a read is a copy that waits for nobody: whoever waits for a batch may as well do some of it */
    bool verifies;      /* read checks a hash of its own, so bytes without a caller's hash are checked too */
    uint64_t read_max;  /* bytes of one read */
} k2_xfer_caps;

/* One attempt at one chunk. */
typedef struct k2_xfer_io {
    uint64_t offset, bytes;
    void *local;
    uint32_t rail;              /* 0 .. rails-1: reads with different rails may run at the same time */
    uint64_t deadline_ns;
    const atomic_bool *cancel;  /* looked at least every 20 ms of waiting; NULL = never */
    bool want_hash;             /* fill `hash` with the hash of the bytes that now stand in `local` */
    uint64_t hash;
} k2_xfer_io;

/* A transport. `t`, `s` and `r` are its own objects; the engine checks ranges and owns retries, sources, chunks and
 * statistics. */
struct k2_xfer_ops {
    const char *name; /* prefix of its locators */
    k2_xfer_caps caps;
    /* State of one engine, made when it is first needed. `offers` says whether segments will be made (tcp then listens). */
    k2_code (*open)(const k2_xfer_config *config, bool offers, void **t, k2_error *err);
    void (*close)(void *t);
    void (*stats)(void *t, k2_xfer_stats *out);
    /* New zeroed memory, and the locator's fields by which it is found. The nonce is given. */
    k2_code (*segment_create)(void *t, uint64_t bytes, const k2_xfer_nonce *nonce, void **s, k2_xfer_locator *where,
                              k2_error *err);
    void *(*segment_memory)(void *s);
    void (*segment_signal)(void *s, uint64_t offset, uint64_t value);
    void (*segment_destroy)(void *s);
    /* Reach the owner and prove size and nonce before the deadline. */
    k2_code (*remote_open)(void *t, const k2_xfer_locator *where, uint64_t deadline_ns, void **r, k2_error *err);
    const void *(*remote_map)(void *r);
    /* Fill io->local, or fail; after a failure its content is undefined. Must be callable again after any failure. */
    k2_code (*remote_read)(void *r, k2_xfer_io *io, k2_error *err);
    k2_code (*remote_wait)(void *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err);
    void (*remote_close)(void *r);
};

/* The built-in transports: self, shm, tcp, NULL. */
const k2_xfer_ops *const *k2_xfer_builtin(void);

#endif
