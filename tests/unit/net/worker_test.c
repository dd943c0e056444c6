/* A worker's life against a scripted master: welcome, commands, reports, refusal, fencing, silence. */
#include "common/net/net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD_NS (30 * K2_NS_PER_S)

typedef struct bench {
    k2_loop *loop;
    k2_timer *guard;
    char dir[32], url[K2_NET_URL_MAX];
    k2_net_server *server;
    k2_net_worker *worker;
    uint64_t lease_ms;
    k2_net_call *poll; /* the long poll in hand */
    size_t hellos, polls, dones;
    bool mute, fence, refuse, refuse_done, drop_done;
    uint64_t poll_cmd, done_cmd[16], done_code[16];
    char poll_phase[32], done_text[64];
    double gauge;
    /* the worker's side */
    size_t welcomes, commands, losses, flushes;
    uint64_t command_cmd[16];
    k2_code lost_why;
    char lost_text[256];
    bool close_in_callback;
} bench;

static void guard(void *arg)
{
    (void)arg;
    fail_msg("the test's loop did not end");
}

/* ---- the master's side ---------------------------------------------------------------------------------------------- */

static void on_hello(bench *b, k2_net_call *call, const k2_msg *msg)
{
    b->hellos++;
    assert_string_equal(msg->hello.role, "rollout");
    assert_int_equal(msg->hello.index, 3);
    assert_int_equal(msg->hello.nonce, 99);
    assert_string_equal(msg->hello.token, "secret");
    assert_string_equal(msg->hello.endpoint, "http://127.0.0.1:9");
    assert_true(msg->hello.pid > 0);
    if (b->refuse)
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = K2_BAD_INPUT, .text = "wrong token"}});
    else
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_WELCOME,
                                     .worker = 7,
                                     .incarnation = 11,
                                     .welcome = {.lease_ms = b->lease_ms, .run_id = "run", .config = "{}"}});
}

static void on_request(void *arg, k2_net_call *call, const k2_msg *msg)
{
    bench *b = arg;
    k2_loop_stop(b->loop);
    if (b->mute) return;
    if (msg->type == K2_MSG_HELLO) {
        on_hello(b, call, msg);
        return;
    }
    assert_true(msg->worker == 7 && msg->incarnation == 11);
    if (b->fence) {
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_FENCED, .fenced = {.text = "you are old"}});
    } else if (msg->type == K2_MSG_POLL) {
        b->polls++;
        b->poll_cmd = msg->cmd;
        snprintf(b->poll_phase, sizeof b->poll_phase, "%s", msg->poll.phase);
        if (msg->poll.gauges.count > 0) b->gauge = msg->poll.gauges.items[0].value;
        b->poll = call;
    } else {
        b->done_cmd[b->dones] = msg->cmd;
        b->done_code[b->dones] = msg->done.code;
        snprintf(b->done_text, sizeof b->done_text, "%s", msg->done.text);
        b->dones++;
        if (b->refuse_done)
            k2_net_reply(call, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = K2_FULL, .text = "later"}});
        else
            k2_net_reply(call, &(k2_msg){.type = K2_MSG_ACK});
    }
}

static void answer_poll(bench *b, k2_msg reply)
{
    while (!b->poll) k2_loop_run(b->loop);
    k2_net_reply(b->poll, &reply);
    b->poll = NULL;
}

/* ---- the worker's side ---------------------------------------------------------------------------------------------- */

static void maybe_close(bench *b)
{
    k2_loop_stop(b->loop);
    if (!b->close_in_callback) return;
    k2_net_worker_close(b->worker);
    b->worker = NULL;
}

static void on_welcome(void *arg, const k2_msg *msg)
{
    bench *b = arg;
    b->welcomes++;
    assert_string_equal(msg->welcome.config, "{}");
    assert_int_equal(k2_net_worker_id(b->worker), 7);
    assert_int_equal(k2_net_worker_incarnation(b->worker), 11);
    if (b->commands == 0) k2_loop_stop(b->loop);
}

static void on_command(void *arg, const k2_msg *msg)
{
    bench *b = arg;
    b->command_cmd[b->commands++] = msg->cmd;
    maybe_close(b);
}

static void on_lost(void *arg, k2_code why, const char *text)
{
    bench *b = arg;
    b->losses++;
    b->lost_why = why;
    snprintf(b->lost_text, sizeof b->lost_text, "%s", text);
    maybe_close(b);
}

static const k2_net_worker_ops ops = {.on_welcome = on_welcome, .on_command = on_command, .on_lost = on_lost};

static void on_flush(void *arg)
{
    bench *b = arg;
    b->flushes++;
    k2_loop_stop(b->loop);
}

static int setup(void **state)
{
    bench *b = k2_alloc(sizeof *b);
    b->loop = k2_loop_new();
    b->guard = k2_timer_start(b->loop, GUARD_NS, 0, guard, NULL);
    b->lease_ms = 10000;
    snprintf(b->dir, sizeof b->dir, "/tmp/k2_net_XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    k2_error err;
    assert_int_equal(k2_net_url_for_dir(b->dir, b->url, &err), K2_OK);
    b->server = k2_net_listen(b->loop, b->url, 8, on_request, b, &err);
    assert_non_null(b->server);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    k2_net_worker_close(b->worker);
    k2_net_worker_close(NULL);
    k2_net_server_close(b->server);
    k2_timer_stop(b->guard);
    k2_loop_free(b->loop);
    assert_int_equal(k2_dir_remove(b->dir, NULL), K2_OK);
    k2_free(b);
    return 0;
}

static void start(bench *b, uint64_t welcome_ms)
{
    k2_error err;
    b->worker = k2_net_worker_start(b->loop,
                                    &(k2_net_worker_config){.url = b->url,
                                                            .role = "rollout",
                                                            .endpoint = "http://127.0.0.1:9",
                                                            .token = "secret",
                                                            .index = 3,
                                                            .nonce = 99,
                                                            .welcome_ms = welcome_ms},
                                    &ops, b, &err);
    assert_non_null(b->worker);
    assert_int_equal(k2_net_worker_id(b->worker), 0);
}

static void until(bench *b, const size_t *count, size_t n)
{
    while (*count < n) k2_loop_run(b->loop);
}

/* ---- tests -------------------------------------------------------------------------------------------------------- */

static void a_whole_life(void **state)
{
    bench *b = *state;
    start(b, 0);
    until(b, &b->welcomes, 1);
    until(b, &b->polls, 1);
    assert_string_equal(b->poll_phase, "start");
    k2_net_worker_status(b->worker, "pull", &(k2_wire_metric){"queue", 2.5}, 1);
    answer_poll(b, (k2_msg){.type = K2_MSG_NOP});
    until(b, &b->polls, 2);
    assert_string_equal(b->poll_phase, "pull");
    assert_true(b->gauge == 2.5);

    /* Three commands while none is finished, one of them twice. */
    answer_poll(b, (k2_msg){.type = K2_MSG_PREPARE, .cmd = 1});
    answer_poll(b, (k2_msg){.type = K2_MSG_COMMIT, .cmd = 2});
    answer_poll(b, (k2_msg){.type = K2_MSG_COMMIT, .cmd = 2});
    answer_poll(b, (k2_msg){.type = K2_MSG_COMMIT, .cmd = 4});
    until(b, &b->commands, 3);
    while (!b->poll) k2_loop_run(b->loop);
    assert_int_equal(b->poll_cmd, 4);
    assert_true(b->command_cmd[0] == 1 && b->command_cmd[1] == 2 && b->command_cmd[2] == 4);

    k2_net_worker_done(b->worker, &(k2_msg){.type = K2_MSG_DONE, .cmd = 2, .done = {.code = K2_CORRUPT, .text = "a chunk"}});
    k2_net_worker_done(b->worker, &(k2_msg){.type = K2_MSG_DONE, .cmd = 1});
    k2_net_worker_flush(b->worker, on_flush, b);
    assert_int_equal(b->flushes, 0);
    until(b, &b->flushes, 1);
    assert_int_equal(b->dones, 2);
    assert_true(b->done_cmd[0] == 2 && b->done_cmd[1] == 1);
    assert_true(b->done_code[0] == K2_CORRUPT && b->done_code[1] == K2_OK);
    k2_net_worker_flush(b->worker, on_flush, b); /* nothing waits */
    until(b, &b->flushes, 2);

    b->fence = true;
    answer_poll(b, (k2_msg){.type = K2_MSG_NOP});
    until(b, &b->losses, 1);
    assert_int_equal(b->lost_why, K2_FENCED);
    assert_string_equal(b->lost_text, "you are old");
    k2_net_worker_done(b->worker, &(k2_msg){.type = K2_MSG_DONE, .cmd = 4}); /* too late, and harmless */
    assert_int_equal(b->hellos, 1);
}

static void a_report_is_repeated_until_it_is_taken(void **state)
{
    bench *b = *state;
    start(b, 0);
    answer_poll(b, (k2_msg){.type = K2_MSG_TRAIN, .cmd = 1});
    until(b, &b->commands, 1);
    b->refuse_done = true;
    k2_net_worker_done(b->worker, &(k2_msg){.type = K2_MSG_DONE, .cmd = 1, .done = {.text = "again"}});
    until(b, &b->dones, 3);
    b->refuse_done = false;
    k2_net_worker_flush(b->worker, on_flush, b);
    until(b, &b->flushes, 1);
    assert_int_equal(b->dones, 4);
    assert_string_equal(b->done_text, "again");
}

static void refusal_ends_it(void **state)
{
    bench *b = *state;
    b->refuse = true;
    start(b, 0);
    until(b, &b->losses, 1);
    assert_int_equal(b->lost_why, K2_PEER_REFUSED);
    assert_string_equal(b->lost_text, "wrong token");
    assert_int_equal(b->welcomes, 0);
}

static void no_welcome_ends_it(void **state)
{
    bench *b = *state;
    b->mute = true;
    start(b, 50);
    until(b, &b->losses, 1);
    assert_int_equal(b->lost_why, K2_TIMEOUT);
    assert_non_null(strstr(b->lost_text, "no welcome from ipc://"));
}

static void silence_for_a_lease_ends_it(void **state)
{
    bench *b = *state;
    b->lease_ms = 80;
    start(b, 0);
    until(b, &b->polls, 1);
    uint64_t start_ns = k2_now_ns();
    b->mute = true;
    until(b, &b->losses, 1);
    assert_int_equal(b->lost_why, K2_TIMEOUT);
    assert_non_null(strstr(b->lost_text, "for 80 ms"));
    assert_true(k2_now_ns() - start_ns < 20 * K2_NS_PER_S);
}

static void answers_keep_the_lease(void **state)
{
    bench *b = *state;
    b->lease_ms = 400;
    start(b, 0);
    uint64_t start_ns = k2_now_ns();
    while (k2_now_ns() - start_ns < 1000 * K2_NS_PER_MS) answer_poll(b, (k2_msg){.type = K2_MSG_NOP});
    assert_int_equal(b->losses, 0);
    assert_true(b->polls < 1000);          /* answered at once, yet it does not spin */
    while (!b->poll) k2_loop_run(b->loop); /* no answer is on its way when teardown closes: see k2i_net_close_bounded */
}

static void the_masters_death_ends_it(void **state)
{
    bench *b = *state;
    b->lease_ms = 80;
    start(b, 0);
    until(b, &b->polls, 1);
    k2_net_server_close(b->server);
    b->server = NULL;
    until(b, &b->losses, 1);
    assert_int_equal(b->lost_why, K2_TIMEOUT);
}

static void closing_inside_callbacks(void **state)
{
    bench *b = *state;
    b->close_in_callback = true;
    start(b, 0);
    answer_poll(b, (k2_msg){.type = K2_MSG_STOP, .cmd = 1});
    until(b, &b->commands, 1);
    assert_null(b->worker);
    b->refuse = true;
    start(b, 0);
    until(b, &b->losses, 1);
    assert_null(b->worker);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_whole_life),
        T(a_report_is_repeated_until_it_is_taken),
        T(refusal_ends_it),
        T(no_welcome_ends_it),
        T(silence_for_a_lease_ends_it),
        T(answers_keep_the_lease),
        T(the_masters_death_ends_it),
        T(closing_inside_callbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
