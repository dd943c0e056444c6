/* The stub engine as a process:
 *     proxy_stub [PORT [at-once] [die-after=N] [stall-after=N] [status=N] [times=N] [stop-every=N]]
 * It prints "listening on http://127.0.0.1:PORT" and serves until it is killed or its standard input ends. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stub.h"

static stub engine = {.has_digest = true, .digest = {1, 2}};
static k2_loop *loop;

/* The parent holds the other end of standard input: when it ends, however it ends, so do we. */
static void look_at_parent(void *arg)
{
    (void)arg;
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;
    if (poll(&p, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0) k2_loop_stop(loop);
}

static void option(const char *text)
{
    const struct {
        const char *name;
        uint32_t *value;
    } numbers[] = {{"die-after=", &engine.die_after},
                   {"stall-after=", &engine.stall_after},
                   {"error-after=", &engine.error_after},
                   {"times=", &engine.fail_times},
                   {"stop-every=", &engine.stop_every}};
    for (size_t i = 0; i < K2_COUNT(numbers); i++)
        if (strncmp(text, numbers[i].name, strlen(numbers[i].name)) == 0)
            *numbers[i].value = (uint32_t)atoi(text + strlen(numbers[i].name));
    if (strncmp(text, "status=", 7) == 0) engine.status = atoi(text + 7);
    if (strcmp(text, "at-once") == 0) engine.at_once = true;
}

int main(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) option(argv[i]);
    loop = k2_loop_new();
    stub_start(&engine, loop, argc > 1 ? (uint16_t)atoi(argv[1]) : 0);
    printf("listening on %s\n", engine.url);
    fflush(stdout);
    k2_timer *t = k2_timer_start(loop, 200 * K2_NS_PER_MS, 200 * K2_NS_PER_MS, look_at_parent, NULL);
    k2_loop_run(loop);
    k2_timer_stop(t);
    stub_stop(&engine);
    k2_loop_free(loop);
    return 0;
}
