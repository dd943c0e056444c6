/* Whatever a client sends, the server of the tcp transport answers whole frames or hangs up, and goes on serving. No parser, so
 * it has a target of its own.
 *
 * The first byte says how the rest is cut into sends and whether the frames in it get the real segment and nonce, which no
 * fuzzer would guess.
 */
#include "common/xfer/xfer_int.h"

#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEGMENT = 4096, INPUT_MAX = 4096, END = 2 * K2I_REQUEST_BYTES };

static k2_xfer *engine;
static k2_xfer_segment *segment;
static k2_xfer_locator where;

static void start(void)
{
    k2_error err;
    k2_code code = k2_xfer_open(&(k2_xfer_config){.transport = "tcp"}, &engine, &err);
    if (code == K2_OK) code = k2_xfer_segment_create(engine, SEGMENT, &segment, &err);
    if (code == K2_OK) code = k2_xfer_locator_parse(k2_xfer_segment_locator(segment), &where, &err);
    K2_ASSERT(code == K2_OK);
    k2_xfer_segment_signal(segment, 0, 1000);
}

static int dial(void)
{
    struct sockaddr_storage at;
    socklen_t len;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = k2i_sockaddr(where.host, where.port, &at, &len) && connect(fd, (struct sockaddr *)&at, len) == 0;
    K2_ASSERT(ok);
    /* With the server closing first (see below) and this end by a reset, none of the thousands of connections a second stays in
     * TIME_WAIT. */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    return fd;
}

static void answers_check(int fd)
{
    unsigned char frame[K2I_REPLY_BYTES], payload[SEGMENT];
    for (;;) {
        ssize_t n = recv(fd, frame, sizeof frame, MSG_WAITALL);
        if (n <= 0) return;
        k2i_tcp_reply a;
        k2_code code = k2i_tcp_reply_decode(frame, (size_t)n, &a, NULL);
        if (code == K2_INCOMPLETE) return; /* cut by a reset, because of what came behind the request */
        K2_ASSERT(code == K2_OK && a.bytes <= SEGMENT);
        if (a.bytes == 0) continue;
        n = recv(fd, payload, a.bytes, MSG_WAITALL);
        if (n != (ssize_t)a.bytes) return;
        K2_ASSERT(a.hash == k2_hash64(payload, a.bytes, 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char bytes[INPUT_MAX + END];
    if (size < 1 || size > INPUT_MAX) return 0;
    if (engine == NULL) start();
    unsigned how = data[0];
    memcpy(bytes, data + 1, --size);
    for (size_t at = 0; (how & 1) != 0 && at + K2I_REQUEST_BYTES <= size; at += K2I_REQUEST_BYTES) {
        k2_store_u64le(bytes + at + 8, where.id);
        memcpy(bytes + at + 16, where.nonce.bytes, sizeof where.nonce.bytes);
        bytes[at + 48] &= 15; /* long polls of milliseconds */
        memset(bytes + at + 49, 0, 3);
    }
    /* No frame begins so: whatever came before, the server ends it here. */
    memset(bytes + size, 0xff, END);
    size += END;
    int fd = dial();
    size_t piece = how >> 1 == 0 ? size : how >> 1;
    for (size_t at = 0; at < size; at += piece) {
        size_t n = K2_MIN(piece, size - at);
        if (send(fd, bytes + at, n, MSG_NOSIGNAL) != (ssize_t)n) break;
    }
    answers_check(fd);
    close(fd);
    return 0;
}
