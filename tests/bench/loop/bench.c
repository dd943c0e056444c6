/* The loop against plain sockets: CSV lines `name,value,unit,ratio,against`.
 *
 * Round trips and bytes go through the same loopback TCP, once between two conns of one loop and a loop in a thread, once
 * between two threads with blocking sockets; both take turns, and a ratio is the median of the turns' ratios.
 */
#include "common/loop/loop.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TURNS = 7, TRIPS = 4000, SMALL = 100, BULK = 64 << 20, CHUNK = 65536, IDLE = 8000, POSTS = 400000 };

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "loop_bench: %s failed\n", what);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, TURNS, sizeof *v, by_value);
    return v[TURNS / 2];
}

static double seconds_since(uint64_t start)
{
    return (double)(k2_now_ns() - start) * 1e-9;
}

/* ---- a server that sends back what it gets, in a thread: with a loop, or with blocking calls ------------------------- */

typedef struct server {
    k2_loop *loop;
    k2_listener *listener;
    int fd;
    uint16_t port;
    bool swallow; /* read all, answer with one byte at the end */
    pthread_t thread;
} server;

typedef struct peer {
    server *s;
    k2_conn *c;
    size_t got;
} peer;

static void echo_read(void *arg, const char *data, size_t n)
{
    peer *p = arg;
    p->got += n;
    if (!p->s->swallow)
        must(k2_conn_write(p->c, data, n) == K2_OK, "write");
    else if (p->got % BULK == 0)
        must(k2_conn_write(p->c, "!", 1) == K2_OK, "write");
}

static void echo_close(void *arg, k2_code why, const char *text)
{
    (void)why;
    (void)text;
    k2_free(arg);
}

static const k2_stream_ops echo_ops = {.on_read = echo_read, .on_close = echo_close};

static void echo_accept(void *arg, k2_conn *c)
{
    peer *p = k2_alloc(sizeof *p);
    *p = (peer){.s = arg, .c = c};
    k2_conn_attach(c, &echo_ops, p);
}

static void *loop_thread(void *arg)
{
    k2_loop_run(((server *)arg)->loop);
    return NULL;
}

static void *plain_thread(void *arg)
{
    server *s = arg;
    static char buf[CHUNK];
    int fd, one = 1;
    while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        size_t got = 0;
        for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;) {
            got += (size_t)n;
            if (!s->swallow)
                must(write(fd, buf, (size_t)n) == n, "write");
            else if (got % BULK == 0)
                must(write(fd, "!", 1) == 1, "write");
        }
        close(fd);
    }
    return NULL;
}

static void server_start(server *s, bool with_loop)
{
    k2_error err;
    if (with_loop) {
        s->loop = k2_loop_new();
        s->listener = k2_listen(s->loop, "127.0.0.1", 0, 4096, echo_accept, s, &err);
        must(s->listener != NULL, "listen");
        s->port = k2_listener_port(s->listener);
    } else {
        struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof addr;
        s->fd = socket(AF_INET, SOCK_STREAM, 0);
        must(bind(s->fd, (struct sockaddr *)&addr, n) == 0 && listen(s->fd, 16) == 0, "listen");
        must(getsockname(s->fd, (struct sockaddr *)&addr, &n) == 0, "getsockname");
        s->port = ntohs(addr.sin_port);
    }
    must(pthread_create(&s->thread, NULL, with_loop ? loop_thread : plain_thread, s) == 0, "thread");
}

static void server_stop(server *s)
{
    if (s->loop)
        k2_loop_stop(s->loop);
    else
        shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    k2_loop_free(s->loop);
    if (!s->loop) close(s->fd);
}

/* ---- clients ------------------------------------------------------------------------------------------------------ */

typedef struct client {
    k2_loop *loop;
    k2_conn *c;
    size_t trips, got, sent;
    char *bytes;
} client;

static void trip_read(void *arg, const char *data, size_t n)
{
    client *c = arg;
    (void)data;
    c->got += n;
    if (c->got < SMALL) return;
    c->got = 0;
    if (++c->trips == TRIPS)
        k2_loop_stop(c->loop);
    else
        must(k2_conn_write(c->c, c->bytes, SMALL) == K2_OK, "write");
}

static void bulk_read(void *arg, const char *data, size_t n)
{
    (void)data;
    (void)n;
    k2_loop_stop(((client *)arg)->loop);
}

static void bulk_more(void *arg)
{
    client *c = arg;
    while (c->sent < BULK && k2_conn_write_ref(c->c, c->bytes, CHUNK, NULL, NULL) == K2_OK) c->sent += CHUNK;
}

static void client_close(void *arg, k2_code why, const char *text)
{
    (void)arg;
    must(why == K2_OK || why == K2_CANCELED, text);
}

static const k2_stream_ops trip_ops = {.on_read = trip_read, .on_close = client_close};
static const k2_stream_ops bulk_ops = {.on_read = bulk_read, .on_drain = bulk_more, .on_close = client_close};

static double run_loop(const server *s, bool bulk)
{
    client c = {.loop = k2_loop_new(), .bytes = k2_alloc(CHUNK)};
    c.c = k2_conn_dial(c.loop, "127.0.0.1", s->port, bulk ? &bulk_ops : &trip_ops, &c, 0);
    uint64_t start = k2_now_ns();
    if (bulk)
        bulk_more(&c);
    else
        must(k2_conn_write(c.c, c.bytes, SMALL) == K2_OK, "write");
    k2_loop_run(c.loop);
    double seconds = seconds_since(start);
    k2_conn_close(c.c);
    k2_loop_free(c.loop);
    k2_free(c.bytes);
    return seconds;
}

static double run_plain(const server *s, bool bulk)
{
    static char buf[CHUNK];
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    must(connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    uint64_t start = k2_now_ns();
    if (bulk) {
        for (size_t sent = 0; sent < BULK; sent += CHUNK) must(write(fd, buf, CHUNK) == CHUNK, "write");
        must(read(fd, buf, 1) == 1, "read");
    } else {
        for (int i = 0; i < TRIPS; i++) {
            must(write(fd, buf, SMALL) == SMALL, "write");
            must(recv(fd, buf, SMALL, MSG_WAITALL) == SMALL, "read");
        }
    }
    double seconds = seconds_since(start);
    close(fd);
    return seconds;
}

static void compare(bool bulk)
{
    server ours = {.swallow = bulk}, plain = {.swallow = bulk};
    server_start(&ours, true);
    server_start(&plain, false);
    double rate[TURNS], ratio[TURNS];
    for (int t = 0; t < TURNS; t++) {
        double a = run_loop(&ours, bulk), b = run_plain(&plain, bulk);
        rate[t] = bulk ? BULK / a * 1e-6 : TRIPS / a;
        ratio[t] = b / a;
    }
    server_stop(&ours);
    server_stop(&plain);
    if (bulk)
        printf("loop_tcp_bulk,%.0f,MB/s,%.2f,blocking sockets\n", median(rate), median(ratio));
    else
        printf("loop_tcp_round_trips,%.0f,1/s,%.2f,blocking sockets\n", median(rate), median(ratio));
}

/* ---- memory of an idle connection, and the inbox --------------------------------------------------------------------- */

static size_t resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    must(f && fscanf(f, "%*d %ld", &pages) == 1, "/proc/self/statm");
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void idle_connected(void *arg, k2_conn *c)
{
    client *all = arg;
    (void)c;
    if (++all->trips == all->got) k2_loop_stop(all->loop);
}

static const k2_stream_ops idle_ops = {.on_connect = idle_connected, .on_read = bulk_read, .on_close = client_close};

static void idle_conns(void)
{
    size_t n = K2_MIN((size_t)IDLE, (size_t)(k2_loop_raise_fd_limit() / 2 - 64));
    server s = {0};
    server_start(&s, true);
    client all = {.loop = k2_loop_new(), .got = n};
    size_t before = resident_bytes();
    for (size_t i = 0; i < n; i++) k2_conn_dial(all.loop, "127.0.0.1", s.port, &idle_ops, &all, 0);
    k2_loop_run(all.loop);
    size_t after = resident_bytes();
    k2_loop_free(all.loop);
    server_stop(&s);
    printf("loop_idle_conn,%.0f,bytes,,\n", (double)(after - before) / (2.0 * (double)n)); /* both ends are ours */
}

static void count_post(void *arg)
{
    client *c = arg;
    if (++c->got == POSTS) k2_loop_stop(c->loop);
}

static void *poster(void *arg)
{
    client *c = arg;
    for (int i = 0; i < POSTS; i++)
        while (k2_loop_post(c->loop, count_post, c) != K2_OK) usleep(50);
    return NULL;
}

static void posts(void)
{
    client c = {.loop = k2_loop_new()};
    pthread_t thread;
    uint64_t start = k2_now_ns();
    must(pthread_create(&thread, NULL, poster, &c) == 0, "thread");
    k2_loop_run(c.loop);
    printf("loop_posts,%.0f,1/s,,\n", POSTS / seconds_since(start));
    pthread_join(thread, NULL);
    k2_loop_free(c.loop);
}

int main(void)
{
    printf("name,value,unit,ratio,against\n");
    compare(false);
    compare(true);
    posts();
    idle_conns();
    return 0;
}
