/* Pulling a segment from another process against the clock: CSV lines `name,value,unit,ratio,against`.
 *
 * shm stands against memcpy of as many bytes, tcp against a plain socket copy of them (one stream, no frames, no hashes). Every
 * turn runs all kinds one after the other, and a ratio is the median of the turns' ratios: a noisy machine then disturbs both
 * sides alike.
 */
#include "common/xfer/xfer.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)128 << 20) /* four times the largest cache we run on */
#define CHUNK ((size_t)1 << 20)
#define TURNS 25

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "xfer_bench: %s failed\n", what);
    exit(1);
}

/* ---- the owner: a process with the same bytes behind shm, tcp and a plain socket ------------------------------------ */

typedef struct offer {
    char shm[K2_XFER_LOCATOR_MAX], tcp[K2_XFER_LOCATOR_MAX];
    uint16_t plain_port;
} offer;

static void segment_fill(unsigned char *m)
{
    for (size_t i = 0; i < BYTES; i += 8) {
        uint64_t v = (i + 1) * 0x9E3779B97F4A7C15ull;
        memcpy(m + i, &v, sizeof v);
    }
}

static k2_xfer_segment *segment_offer(const char *transport, char locator[K2_XFER_LOCATOR_MAX])
{
    k2_xfer *x;
    k2_xfer_segment *s;
    k2_error err;
    must(k2_xfer_open(&(k2_xfer_config){.transport = transport}, &x, &err) == K2_OK, "opening an engine");
    must(k2_xfer_segment_create(x, BYTES, &s, &err) == K2_OK, "creating a segment");
    segment_fill(k2_xfer_segment_memory(s));
    snprintf(locator, K2_XFER_LOCATOR_MAX, "%s", k2_xfer_segment_locator(s));
    return s;
}

/* Sends the bytes whenever it gets one. */
static void plain_serve(int listener, const unsigned char *m)
{
    char byte;
    int fd = accept(listener, NULL, NULL);
    while (fd >= 0 && recv(fd, &byte, 1, 0) == 1)
        for (size_t at = 0; at < BYTES;) {
            ssize_t n = send(fd, m + at, BYTES - at, MSG_NOSIGNAL);
            if (n <= 0) break;
            at += (size_t)n;
        }
}

static void owner_main(int out)
{
    offer o = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    segment_offer("shm", o.shm);
    k2_xfer_segment *s = segment_offer("tcp", o.tcp);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 4) == 0, "listening");
    must(getsockname(listener, (struct sockaddr *)&at, &len) == 0, "getsockname");
    o.plain_port = ntohs(at.sin_port);
    must(write(out, &o, sizeof o) == sizeof o, "telling the locators");
    plain_serve(listener, k2_xfer_segment_memory(s));
    _exit(0);
}

/* ---- the reader ------------------------------------------------------------------------------------------------------ */

typedef struct reader {
    k2_xfer *x[2]; /* with one rail, with two */
    k2_xfer_remote *shm, *tcp[2];
    int plain;
    unsigned char *from, *to; /* from: the same bytes, private */
    uint64_t *hashes;
} reader;

typedef enum kind { MEMCPY, SHM_RAW, SHM_VERIFIED, PLAIN, TCP_1, TCP_2, KINDS } kind;

static void pull(k2_xfer *x, k2_xfer_remote *r, unsigned char *to, const uint64_t *hashes)
{
    k2_xfer_batch *b;
    k2_error err;
    k2_xfer_request q = {.sources = &r, .source_count = 1, .bytes = BYTES, .local = to, .chunk_bytes = CHUNK, .hashes = hashes};
    must(k2_xfer_batch_submit(x, &q, 1, &b, &err) == K2_OK, "submitting");
    must(k2_xfer_batch_wait(b, UINT64_MAX, &err) == K2_OK, err.text);
    k2_xfer_batch_close(b);
}

static void plain_pull(int fd, unsigned char *to)
{
    must(send(fd, "x", 1, MSG_NOSIGNAL) == 1, "asking the plain server");
    for (size_t at = 0; at < BYTES;) {
        ssize_t n = recv(fd, to + at, BYTES - at, 0);
        must(n > 0, "the plain copy");
        at += (size_t)n;
    }
}

static double seconds(reader *r, kind k)
{
    uint64_t start = k2_now_ns();
    switch (k) {
    case MEMCPY: memcpy(r->to, r->from, BYTES); break;
    case SHM_RAW: pull(r->x[0], r->shm, r->to, NULL); break;
    case SHM_VERIFIED: pull(r->x[0], r->shm, r->to, r->hashes); break;
    case PLAIN: plain_pull(r->plain, r->to); break;
    case TCP_1: pull(r->x[0], r->tcp[0], r->to, NULL); break;
    default: pull(r->x[1], r->tcp[1], r->to, NULL);
    }
    uint64_t ns = k2_now_ns() - start;
    must(memcmp(r->to + BYTES - 4096, r->from + BYTES - 4096, 4096) == 0, "comparing");
    memset(r->to + BYTES - 4096, 0, 4096);
    return (double)ns * 1e-9;
}

static void reader_open(reader *r, const offer *o)
{
    k2_error err;
    for (uint32_t i = 0; i < 2; i++) {
        must(k2_xfer_open(&(k2_xfer_config){.transport = "self", .rails = i + 1}, &r->x[i], &err) == K2_OK,
             "opening an engine");
        must(k2_xfer_remote_open(r->x[i], o->tcp, UINT64_MAX, &r->tcp[i], &err) == K2_OK, "reaching over tcp");
    }
    must(k2_xfer_remote_open(r->x[0], o->shm, UINT64_MAX, &r->shm, &err) == K2_OK, "reaching over shm");
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(o->plain_port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    r->plain = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(r->plain, (struct sockaddr *)&at, sizeof at) == 0, "connecting");
    r->from = k2_alloc_aligned(4096, BYTES);
    r->to = k2_alloc_aligned(4096, BYTES);
    memset(r->to, 1, BYTES);
    segment_fill(r->from);
    r->hashes = k2_alloc_array(BYTES / CHUNK, sizeof *r->hashes);
    for (size_t i = 0; i < BYTES / CHUNK; i++) r->hashes[i] = k2_hash64(r->from + i * CHUNK, CHUNK, 0);
}

static void reader_close(reader *r)
{
    k2_xfer_remote_close(r->shm);
    for (uint32_t i = 0; i < 2; i++) {
        k2_xfer_remote_close(r->tcp[i]);
        k2_xfer_close(r->x[i]);
    }
    close(r->plain);
    k2_free(r->from);
    k2_free(r->to);
    k2_free(r->hashes);
}

/* ---- figures --------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v)
{
    double sorted[TURNS];
    memcpy(sorted, v, sizeof sorted);
    qsort(sorted, TURNS, sizeof *sorted, by_value);
    return sorted[TURNS / 2];
}

static void print(const char *name, double t[KINDS][TURNS], kind k, kind against, const char *other)
{
    double ratio[TURNS];
    for (int i = 0; i < TURNS; i++) ratio[i] = t[against][i] / t[k][i];
    printf("%s,%.2f,GB/s,%.3f,%s\n", name, (double)BYTES * 1e-9 / median(t[k]), median(ratio), other);
}

int main(void)
{
    int up[2];
    static double t[KINDS][TURNS];
    must(pipe(up) == 0, "pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) owner_main(up[1]);
    offer o;
    must(read(up[0], &o, sizeof o) == sizeof o, "hearing the locators");
    reader r = {0};
    reader_open(&r, &o);
    for (kind k = MEMCPY; k < KINDS; k++) seconds(&r, k); /* pages and windows open */
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < KINDS; i++) { /* forwards, then backwards: nobody always follows the same other */
            kind k = (kind)(turn % 2 == 0 ? i : KINDS - 1 - i);
            t[k][turn] = seconds(&r, k);
        }
    print("xfer_shm_raw", t, SHM_RAW, MEMCPY, "memcpy");
    print("xfer_shm_verified", t, SHM_VERIFIED, MEMCPY, "memcpy");
    print("xfer_tcp_verified", t, TCP_1, PLAIN, "plain socket copy");
    print("xfer_tcp_verified_2_rails", t, TCP_2, PLAIN, "plain socket copy");
    reader_close(&r);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}
