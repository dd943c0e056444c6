/* base - what every other file of k2rl stands on: errors, assertions, memory, bytes, time, numbers drawn by counter.
 *
 * Nouns: an `k2_error` is a code and one line of text; an `k2_arena` is memory with one lifetime; a `k2_buf` is bytes that
 * grow up to a cap. Nothing here blocks, except the file functions, which say so.
 */
#ifndef K2_COMMON_BASE_H
#define K2_COMMON_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors ---------------------------------------------------------------------------------------------------- */

/* What the caller should do about an error. */
typedef enum k2_scope {
    K2_SCOPE_NONE, /* no error */
    K2_SCOPE_OP,   /* this operation failed; submit it again later */
    K2_SCOPE_PEER, /* the peer is at fault; replace it, we are sound */
    K2_SCOPE_DATA, /* the input is at fault; drop or correct it (exit code 2 when it came from the command line) */
    K2_SCOPE_SELF  /* we are at fault or out of means; stop cleanly */
} k2_scope;

/* code, scope, text */
#define K2_CODES(X)                                                      \
    X(OK, NONE, "ok")                                                    \
    X(AGAIN, OP, "try again")                                            \
    X(INCOMPLETE, OP, "more bytes are needed")                           \
    X(TIMEOUT, OP, "the deadline passed")                                \
    X(FULL, OP, "a bounded queue or pool is full")                       \
    X(CANCELED, OP, "canceled")                                          \
    X(BUSY, OP, "in use by another process")                             \
    X(NOT_FOUND, DATA, "not found")                                      \
    X(PEER_CLOSED, PEER, "the peer closed the connection")               \
    X(PEER_REFUSED, PEER, "the peer refused")                            \
    X(PEER_PROTOCOL, PEER, "the peer broke the protocol")                \
    X(FENCED, PEER, "an older incarnation spoke")                        \
    X(CORRUPT, DATA, "the digest does not match the bytes")              \
    X(BAD_INPUT, DATA, "bad input")                                      \
    X(LIMIT, DATA, "a stated limit is exceeded")                         \
    X(UNSUPPORTED, DATA, "not supported")                                \
    X(NOT_FINITE, DATA, "a value is NaN or infinite")                    \
    X(IO, SELF, "input or output failed")                                \
    X(NO_SPACE, SELF, "no space left")                                   \
    X(NO_MEMORY, SELF, "out of memory")                                  \
    X(INTERNAL, SELF, "internal error")

typedef enum k2_code {
#define K2_X(name, scope, text) K2_##name,
    K2_CODES(K2_X)
#undef K2_X
    K2_CODE_COUNT
} k2_code;

#define K2_ERROR_TEXT_MAX 512u /* bytes of one error line, with its terminator: fits a path and what was expected */

/* An error and the one line that a person reads. `text` is never multi-line; it names the place, what was found, what is expected. */
typedef struct k2_error {
    k2_code code;
    char text[K2_ERROR_TEXT_MAX];
} k2_error;

const char *k2_code_name(k2_code code);   /* "BAD_INPUT" */
const char *k2_code_text(k2_code code);   /* "bad input" */
k2_scope k2_code_scope(k2_code code);

/* k2_error_set - fill an error and give its code back, so that a function can `return k2_error_set(err, K2_X, "...")`.
 *
 * memory   err may be NULL: only the code is returned
 * errors   control characters in the text are replaced by '?', so that a hostile input cannot forge log lines
 */
k2_code k2_error_set(k2_error *err, k2_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same with ": strerror(errnum)" behind the text; the code is NO_SPACE, NO_MEMORY, NOT_FOUND or IO by errnum. */
k2_code k2_error_errno(k2_error *err, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Put "prefix: " in front of the text that is there. Returns err->code. */
k2_code k2_error_prefix(k2_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Exit status of a process that ends with this code: 0 for OK, 2 for scope DATA and for BUSY, 1 otherwise. */
int k2_code_exit(k2_code code);

/* Misuse by our own code. Stays in release builds; prints file, line and expression, then aborts. */
#define K2_ASSERT(cond) ((cond) ? (void)0 : k2_assert_fail(__FILE__, __LINE__, #cond))
_Noreturn void k2_assert_fail(const char *file, int line, const char *expr);

#define K2_MIN(a, b) ((a) < (b) ? (a) : (b))
#define K2_MAX(a, b) ((a) > (b) ? (a) : (b))
#define K2_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Allocation that does not return NULL: out of memory ends the process with one clear line. Zeroed. A size of 0 gives a
 * unique pointer. Inside k2_hot_begin/k2_hot_end (per thread) any of these aborts: hot phases must not allocate. */
void *k2_alloc(size_t bytes);
/* First call of a process: what is large goes back to the kernel when it is freed, always. By default the heap learns from the first
 * large block to keep such blocks, and what a process takes depends on the order in which blocks came. */
void k2_memory_begin(void);
void *k2_alloc_array(size_t count, size_t size);          /* overflow of count*size ends the process too */
void *k2_realloc_array(void *old, size_t count, size_t size); /* new bytes are not zeroed */
void *k2_alloc_aligned(size_t align, size_t bytes);       /* zeroed; align is a power of two >= 8; release with k2_free */
char *k2_strdup(const char *s);
char *k2_strndup(const char *s, size_t n);
char *k2_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void k2_free(void *p);
void k2_hot_begin(void);
void k2_hot_end(void);

/* Arena: memory with one lifetime. Allocation moves a pointer; reset gives all of it back at once. */
typedef struct k2_arena {
    unsigned char *base;
    size_t capacity, used, peak;
    bool sealed;
} k2_arena;
void k2_arena_init(k2_arena *a, size_t capacity);
void k2_arena_fini(k2_arena *a);
/* 64-byte aligned, not zeroed. Asserts that it fits and that the arena is not sealed. */
void *k2_arena_alloc(k2_arena *a, size_t bytes);
/* The same, but answers NULL where it does not fit. */
void *k2_arena_try(k2_arena *a, size_t bytes);
static inline size_t k2_arena_mark(const k2_arena *a) { return a->used; }
static inline void k2_arena_reset(k2_arena *a, size_t mark) { a->used = mark; }
static inline void k2_arena_seal(k2_arena *a) { a->sealed = true; }

/* ---- many numbered places ---------------------------------------------------------------------------------------- */

/* What an event may cost must not grow with the fleet: instead of looking at all of n places, ask one of these two. Both take all
 * their memory at new, both are a function of their content alone: of equals the lowest place comes first, in whatever order
 * they came in. Places are 0..places-1, places >= 1. */
#define K2_PLACE_NONE UINT32_MAX

/* Set of places: put, has and the next one in order cost three words, however many there are. places <= 262144. */
typedef struct k2_set k2_set;
k2_set *k2_set_new(uint32_t places);
void k2_set_free(k2_set *s);
void k2_set_put(k2_set *s, uint32_t place, bool in);
bool k2_set_has(const k2_set *s, uint32_t place);
uint32_t k2_set_next(const k2_set *s, uint32_t from); /* the least member >= from (which may be any number), or K2_PLACE_NONE */
uint32_t k2_set_count(const k2_set *s);

/* k2_least - a tournament: which place has the least key. A key is a pair of numbers; a place may be without one.
 *
 *              least of all            set: one match for each level on the way up, fewer where the winner stays
 *             /            \          first: the root
 *         0 or 1          2 or 3       first_but(p): the best of those that p meets on its way up
 *        /      \        /      \
 *       0        1      2        3
 *
 * memory   24 bytes a place
 * tests    tests/unit/base/place_test.c
 */
typedef struct k2_least k2_least;
k2_least *k2_least_new(uint32_t places);
void k2_least_free(k2_least *l);
void k2_least_set(k2_least *l, uint32_t place, uint64_t major, uint64_t minor);
void k2_least_drop(k2_least *l, uint32_t place); /* without a key from now on; it may be so already */
uint32_t k2_least_first(const k2_least *l);      /* K2_PLACE_NONE when no place has a key */
uint32_t k2_least_first_but(const k2_least *l, uint32_t place);
uint64_t k2_least_major(const k2_least *l, uint32_t place); /* UINT64_MAX without a key */
uint64_t k2_least_matches(const k2_least *l); /* played since new: for tests of what an event costs */

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

/* Growable bytes with a cap. Appending past the cap sets `overflow`, appends nothing and returns false; check it once at the end.
 * data is always terminated by a 0 byte that is not counted in len (data is NULL before the first append). */
typedef struct k2_buf {
    char *data;
    size_t len, capacity, cap_max;
    bool overflow;
} k2_buf;
void k2_buf_init(k2_buf *b, size_t cap_max);
void k2_buf_fini(k2_buf *b);
void k2_buf_clear(k2_buf *b);
bool k2_buf_append(k2_buf *b, const void *bytes, size_t n);
bool k2_buf_puts(k2_buf *b, const char *s);
bool k2_buf_printf(k2_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool k2_buf_json_string(k2_buf *b, const char *s, size_t n); /* quoted, escaped; what is not UTF-8 becomes U+FFFD */
void k2_buf_consume(k2_buf *b, size_t n);                    /* drop the first n bytes */

static inline uint32_t k2_load_u32le(const void *p)
{
    const unsigned char *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t k2_load_u64le(const void *p)
{
    return (uint64_t)k2_load_u32le(p) | (uint64_t)k2_load_u32le((const unsigned char *)p + 4) << 32;
}
static inline void k2_store_u32le(void *p, uint32_t v)
{
    unsigned char *b = p;
    for (int i = 0; i < 4; i++) b[i] = (unsigned char)(v >> (8 * i));
}
static inline void k2_store_u64le(void *p, uint64_t v)
{
    unsigned char *b = p;
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(v >> (8 * i));
}

/* ---- digests --------------------------------------------------------------------------------------------------- */

/* 128-bit XXH3: finds damage, not malice. Printed as 32 hex digits, high word first. */
typedef struct k2_digest {
    uint64_t hi, lo;
} k2_digest;
#define K2_DIGEST_HEX 33u /* 32 hex digits and the terminator */
k2_digest k2_digest_of(const void *bytes, size_t n);
uint64_t k2_hash64(const void *bytes, size_t n, uint64_t seed);
void k2_digest_hex(k2_digest d, char out[K2_DIGEST_HEX]);
bool k2_digest_parse(const char *hex, k2_digest *out); /* exactly 32 hex digits */
static inline bool k2_digest_equal(k2_digest a, k2_digest b) { return a.hi == b.hi && a.lo == b.lo; }
static inline bool k2_digest_zero(k2_digest d) { return d.hi == 0 && d.lo == 0; }
typedef struct k2_digest_stream k2_digest_stream;
k2_digest_stream *k2_digest_begin(void);
void k2_digest_update(k2_digest_stream *s, const void *bytes, size_t n);
k2_digest k2_digest_end(k2_digest_stream *s); /* frees s */
/* k2_hash64 with seed 0 of bytes that come piece by piece. */
typedef struct k2_hash64_stream k2_hash64_stream;
k2_hash64_stream *k2_hash64_begin(void);
void k2_hash64_update(k2_hash64_stream *s, const void *bytes, size_t n);
uint64_t k2_hash64_end(k2_hash64_stream *s); /* frees s */

/* ---- numbers drawn by counter ---------------------------------------------------------------------------------- */

/* Philox 4x32-10: four 32-bit words from a 128-bit counter and a 64-bit key; no state, so any draw can be repeated alone.
 * source   Salmon, Moraes, Dror, Shaw 2011, "Parallel Random Numbers: As Easy as 1, 2, 3" (known-answer vectors in the test)
 */
void k2_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

/* What draws are for. Two uses never share a stream, so that adding one does not move the others. */
typedef enum k2_stream {
    K2_STREAM_SAMPLE = 1,  /* a = trajectory id, b = position */
    K2_STREAM_INIT = 2,    /* a = tensor number, b = element */
    K2_STREAM_SHUFFLE = 3, /* a = epoch, b = index */
    K2_STREAM_TASK = 4,    /* a = item, b = draw */
    K2_STREAM_RETRY = 5,   /* jitter of retries: not part of a run's result */
    K2_STREAM_PROMPT = 6,  /* a = group */
    K2_STREAM_TEST = 99
} k2_stream;

uint64_t k2_rand_u64(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b);
double k2_rand_unit(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b);                /* [0,1), 53 bits */
uint64_t k2_rand_below(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b, uint64_t n); /* [0,n), n >= 1; no modulo bias beyond 2^-64*n */
double k2_rand_normal(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b);              /* mean 0, variance 1 (Box-Muller) */

/* ---- time ------------------------------------------------------------------------------------------------------ */

#define K2_NS_PER_MS 1000000ull
#define K2_NS_PER_S  1000000000ull
uint64_t k2_now_ns(void);  /* CLOCK_MONOTONIC; only the I/O halves may call it, cores get time in their events */
uint64_t k2_wall_us(void); /* microseconds since 1970; for logs and file stamps only */

/* ---- threads ---------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define K2_SANITIZED 1
#else
#define K2_SANITIZED 0
#endif

/* The first call of every thread of ours: signals get a stack of their own there, so that a thread whose stack runs over can still
 * report its crash. Calling it again costs nothing. */
void k2_thread_begin(void);

/* ---- files (these block; never on a loop thread after start) ---------------------------------------------------- */

/* Whole file into *data (terminated by an uncounted 0 byte; k2_free it). Files above max_bytes are LIMIT. */
k2_code k2_file_read(const char *path, size_t max_bytes, char **data, size_t *len, k2_error *err);
/* Opens a regular file to read, and says how long it is. Anything else in its place is BAD_INPUT and is not waited for. */
k2_code k2_file_open(const char *path, int *fd, uint64_t *bytes, k2_error *err);
/* A whole regular file in memory, read only; an empty one has no bytes to point to. */
typedef struct k2_mapping {
    const void *bytes; /* NULL: nothing, and no harm to unmap */
    uint64_t n;
} k2_mapping;
k2_code k2_file_map(const char *path, k2_mapping *out, k2_error *err);
void k2_file_unmap(const k2_mapping *m);
/* The pages of [at, at + n) that were read: the kernel may keep them, but they no longer count as this process's. What is asked for
 * again is read again. */
void k2_file_forget(const k2_mapping *m, const void *at, uint64_t n);
#define K2_FILE_PIECE_BYTES (16u << 20) /* whoever goes through a whole file forgets after so many */
/* The beginning of a file, at most n - 1 bytes, terminated; gives how many, 0 where it cannot be read. For /proc and its like, whose
 * files have no size. */
size_t k2_file_peek(const char *path, char *out, size_t n);
/* Temporary file, write, fsync, rename, fsync of the directory: after OK the new content is durable, before it the old one stands. */
k2_code k2_file_write_atomic(const char *path, const void *data, size_t len, k2_error *err);
/* k2_temp_name - "path.PID.tmp": where a process writes what shall stand at `path` when it is whole. k2_free it.
 *
 * k2_temp_clear removes what processes that died left under such names of the same path, file or directory: those whose number is nobody's
 * here and that nobody holds. k2_temp_hold holds one until the descriptor is closed, also by death; it matters where machines share a
 * directory, whose process numbers say nothing of one another.
 */
char *k2_temp_name(const char *path);
void k2_temp_hold(int fd);
void k2_temp_clear(const char *path);
/* A regular file's content under another name, written as k2_file_write_atomic does. */
k2_code k2_file_copy(const char *from, const char *to, k2_error *err);
/* Opens a file of lines to append to, makes it where there is none. What stands behind its last line's end is cut: half a line,
 * which a process left that died while it wrote. Where several processes append it would be the others' words: one writer only. */
k2_code k2_file_append_lines(const char *path, int *fd, k2_error *err);
k2_code k2_dir_make(const char *path, k2_error *err);    /* with parents; existing is OK */
k2_code k2_dir_remove(const char *path, k2_error *err);  /* recursively, never follows links; missing is OK */
bool k2_file_exists(const char *path);

/* ---- strings ---------------------------------------------------------------------------------------------------- */

bool k2_str_u64(const char *s, uint64_t *out);           /* whole string, decimal, no sign, no overflow */
/* The candidate nearest to `word` by edit distance, NULL when none is nearer than half of its length. For "did you mean". */
const char *k2_str_nearest(const char *word, const char *const *candidates, size_t count);
bool k2_utf8_valid(const char *s, size_t n);
#define K2_SIGNAL_NAME_MAX 24u
const char *k2_signal_name(int signum, char out[K2_SIGNAL_NAME_MAX]); /* "SIGSEGV"; "signal 63" for one without a name; gives out */
/* What is wrong with JSON text before a lenient parser sees it, as the rest of a sentence ("is not UTF-8"), or NULL: zero bytes,
 * U+0000 (it would cut a C string short), control characters inside strings, nesting deeper than depth_max. Not a parser: text
 * without such a fault may still not be JSON. */
const char *k2_json_fault(const char *s, size_t n, unsigned depth_max);
/* k2_json_sorted - append a JSON value in one form: no space, names of every object in the order of their code points.
 *
 *   What Python's json.dumps(sort_keys=True, separators=(",", ":"), ensure_ascii=False) makes of it: whole numbers stay as they
 *   stand, others get the shortest digits that give the same double.
 *
 * errors   false, and nothing appended: not JSON, not UTF-8, half of a surrogate pair, a name twice in an object, deeper than 64,
 *          or the buffer's cap
 * tests    tests/unit/base/json_test.c, tests/fuzz/base
 */
bool k2_json_sorted(const char *s, size_t n, k2_buf *out);
/* The text of an object's first member of that name, as it stands. False: there is none, or it is no JSON object. */
bool k2_json_member(const char *s, size_t n, const char *name, const char **value, size_t *value_n);

/* ---- command lines ---------------------------------------------------------------------------------------------- */

/* One option; exactly one of the places is set. */
typedef struct k2_option {
    const char *name; /* "--seed" */
    bool *flag;       /* takes no value */
    uint32_t *u32;
    uint64_t *u64;
    const char **text;
    k2_code (*take)(void *arg, const char *value, k2_error *err); /* called for each time that it is given, in order */
    void *arg;
} k2_option;

/* k2_args_parse - read the words behind a command's name.
 *
 *   Options may stand anywhere, as "--name value" or "--name=value"; "--" ends them; "-" is an operand. --help and -h set *help
 *   and end the parse.
 *
 * operands  their number; they are moved to the front of args. NULL: the command takes none
 * help      NULL: the command looks for it itself
 * errors    BAD_INPUT: an unknown option (with the nearest known one), a value missing or not a number; what `take` gives
 * tests     tests/unit/base/args_test.c
 */
k2_code k2_args_parse(char **args, int count, const k2_option *options, size_t option_count, int *operands, bool *help,
                      k2_error *err);

#endif
