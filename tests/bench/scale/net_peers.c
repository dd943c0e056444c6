/* net_peers: see net_peers.h. */
#include "net_peers.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/net.h"

typedef struct bench {
    k2_loop *loop;
    uint32_t waiting, peers;
} bench;

static void on_request(void *arg, k2_net_call *call, const k2_msg *msg)
{
    bench *b = arg;
    (void)call, (void)msg; /* never answered: each POLL waits at us */
    if (++b->waiting == b->peers) k2_loop_stop(b->loop);
}

static void on_reply(void *arg, k2_code code, const k2_msg *reply)
{
    (void)arg, (void)code, (void)reply;
}

/* The child: clients until it is killed. `go` tells that the server listens. */
static _Noreturn void clients(const char *url, uint32_t peers, int go)
{
    char byte;
    k2_error err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(go, &byte, 1) != 1) _exit(1);
    k2_loop_raise_fd_limit();
    k2_loop *loop = k2_loop_new();
    for (uint32_t i = 0; i < peers; i++) {
        k2_net_client *c = k2_net_dial(loop, url, &err);
        k2_msg m = {.type = K2_MSG_POLL, .worker = i + 1, .incarnation = 1, .poll = {.phase = "serving"}};
        if (!c || k2_net_request(c, &m, 600 * K2_NS_PER_S, on_reply, NULL) != K2_OK) _exit(1);
    }
    k2_loop_run(loop);
    _exit(0);
}

static size_t allocated(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

size_t net_peers_bytes(uint32_t peers)
{
    char dir[] = "/tmp/k2_scale_XXXXXX", url[64];
    int go[2];
    k2_error err = {0};
    K2_ASSERT(mkdtemp(dir) && pipe(go) == 0);
    snprintf(url, sizeof url, "ipc://%s/m.sock", dir);
    pid_t child = fork();
    K2_ASSERT(child >= 0);
    if (child == 0) clients(url, peers, go[0]);
    k2_loop_raise_fd_limit();
    bench b = {.loop = k2_loop_new(), .peers = peers};
    size_t before = allocated();
    k2_net_server *server = k2_net_listen(b.loop, url, peers, on_request, &b, &err);
    K2_ASSERT(server && write(go[1], "g", 1) == 1);
    k2_loop_run(b.loop);
    size_t each = (allocated() - before) / peers;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    k2_net_server_close(server);
    k2_loop_free(b.loop);
    (void)k2_dir_remove(dir, NULL);
    close(go[0]);
    close(go[1]);
    return each;
}
