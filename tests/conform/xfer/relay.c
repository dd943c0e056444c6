/* The relay: one thread, poll over all connections. A fault happens once per plan. */
#include "tests/conform/xfer/relay_int.h"

#include "common/base/base.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS_MAX 16

typedef struct pair {
    int client, server; /* -1 = free slot */
    bool stalled;
} pair;

struct relay {
    pthread_t thread;
    int listener, wake;
    uint16_t port, to_port;
    pair pairs[PAIRS_MAX];
    pthread_mutex_t lock; /* the plan */
    relay_fault fault;
    uint64_t at, passed;
    atomic_uint hits;
};

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static void pair_close(pair *p)
{
    close(p->client);
    close(p->server);
    p->client = p->server = -1;
}

static bool send_whole(int fd, const unsigned char *data, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        data += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Apply the plan to n bytes that come back; gives how many of them go on, and whether the connection then ends. */
static size_t spoil(relay *r, pair *p, unsigned char *data, size_t n, bool *end)
{
    pthread_mutex_lock(&r->lock);
    size_t go = n;
    if (r->fault != RELAY_PASS && r->at < r->passed + n) {
        size_t i = (size_t)(r->at - r->passed);
        if (r->fault == RELAY_FLIP) data[i] ^= 0x20;
        if (r->fault != RELAY_FLIP) go = i;
        *end = r->fault == RELAY_CUT;
        p->stalled = r->fault == RELAY_STALL;
        r->fault = RELAY_PASS;
        atomic_fetch_add(&r->hits, 1);
    }
    r->passed += go;
    pthread_mutex_unlock(&r->lock);
    return go;
}

static void forward(relay *r, pair *p, bool back)
{
    unsigned char data[16384];
    int from = back ? p->server : p->client, to = back ? p->client : p->server;
    ssize_t n = recv(from, data, sizeof data, 0);
    bool end = n <= 0;
    size_t go = end ? 0 : (size_t)n;
    if (!end && back) go = spoil(r, p, data, go, &end);
    if (go > 0 && !send_whole(to, data, go)) end = true;
    if (end) pair_close(p);
}

static void pair_open(relay *r)
{
    int client = accept(r->listener, NULL, NULL);
    if (client < 0) return;
    struct sockaddr_in to = loopback(r->to_port);
    int server = socket(AF_INET, SOCK_STREAM, 0);
    size_t i = 0;
    while (i < PAIRS_MAX && r->pairs[i].client >= 0) i++;
    K2_ASSERT(i < PAIRS_MAX);
    r->pairs[i] = (pair){.client = client, .server = server};
    if (connect(server, (struct sockaddr *)&to, sizeof to) != 0) pair_close(&r->pairs[i]);
}

static void *relay_main(void *arg)
{
    relay *r = arg;
    for (;;) {
        struct pollfd p[2 + 2 * PAIRS_MAX] = {{.fd = r->wake, .events = POLLIN}, {.fd = r->listener, .events = POLLIN}};
        for (size_t i = 0; i < PAIRS_MAX; i++) {
            const pair *q = &r->pairs[i];
            p[2 + 2 * i] = (struct pollfd){.fd = q->client, .events = POLLIN};
            p[3 + 2 * i] = (struct pollfd){.fd = q->stalled ? -1 : q->server, .events = POLLIN};
        }
        if (poll(p, K2_COUNT(p), -1) < 0) continue;
        if (p[0].revents) return NULL;
        for (size_t i = 0; i < PAIRS_MAX; i++) {
            if (p[2 + 2 * i].revents && r->pairs[i].client >= 0) forward(r, &r->pairs[i], false);
            if (p[3 + 2 * i].revents && r->pairs[i].client >= 0) forward(r, &r->pairs[i], true);
        }
        if (p[1].revents) pair_open(r);
    }
}

relay *relay_start(uint16_t to_port)
{
    relay *r = k2_alloc(sizeof *r);
    struct sockaddr_in at = loopback(0);
    socklen_t len = sizeof at;
    r->to_port = to_port;
    for (size_t i = 0; i < PAIRS_MAX; i++) r->pairs[i].client = r->pairs[i].server = -1;
    pthread_mutex_init(&r->lock, NULL);
    r->wake = eventfd(0, 0);
    r->listener = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = bind(r->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(r->listener, 16) == 0 &&
              getsockname(r->listener, (struct sockaddr *)&at, &len) == 0;
    K2_ASSERT(ok);
    r->port = ntohs(at.sin_port);
    int rc = pthread_create(&r->thread, NULL, relay_main, r);
    K2_ASSERT(rc == 0);
    return r;
}

uint16_t relay_port(const relay *r)
{
    return r->port;
}

void relay_plan(relay *r, relay_fault fault, uint64_t at)
{
    pthread_mutex_lock(&r->lock);
    r->fault = fault;
    r->at = at;
    r->passed = 0;
    atomic_store(&r->hits, 0);
    pthread_mutex_unlock(&r->lock);
}

unsigned relay_hits(const relay *r)
{
    return atomic_load(&r->hits);
}

void relay_stop(relay *r)
{
    uint64_t one = 1;
    ssize_t n = write(r->wake, &one, sizeof one);
    K2_ASSERT(n == sizeof one);
    pthread_join(r->thread, NULL);
    for (size_t i = 0; i < PAIRS_MAX; i++)
        if (r->pairs[i].client >= 0) pair_close(&r->pairs[i]);
    close(r->listener);
    close(r->wake);
    pthread_mutex_destroy(&r->lock);
    k2_free(r);
}
