/* The proxy as a process: its command line, its life under a master, its end. The master and the engine are here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/net.h"
#include "stub.h"

#define PROGRAM K2_BINARY_DIR "/proxy_alone"

static k2_loop *loop;
static char dir[] = "/tmp/k2rl-proxy-test.XXXXXX";
static char out_path[64], err_path[64];
static int exit_code, exit_signal;
static bool exited;

static void on_exit_child(void *arg, int code, int signum)
{
    (void)arg;
    exit_code = code;
    exit_signal = signum;
    exited = true;
    k2_loop_stop(loop);
}

static k2_child *start(const char *const *argv, const char *const *env)
{
    k2_error err;
    remove(out_path);
    remove(err_path);
    exited = false;
    k2_child *c = k2_child_spawn(
        loop,
        &(k2_child_spec){.argv = argv, .env = env, .stdout_path = out_path, .stderr_path = err_path, .on_exit = on_exit_child},
        &err);
    if (!c) fail_msg("%s", err.text);
    return c;
}

static char *read_all(const char *path)
{
    char *text = NULL;
    size_t n;
    k2_error err;
    if (k2_file_read(path, 1 << 20, &text, &n, &err) != K2_OK) return k2_strdup("");
    return text;
}

static void stop_loop(void *arg)
{
    (void)arg;
    k2_loop_stop(loop);
}

static void turn(void)
{
    k2_timer *t = k2_timer_start(loop, K2_NS_PER_MS, 0, stop_loop, NULL);
    k2_loop_run(loop);
    k2_timer_stop(t);
}

static void wait_exit(void)
{
    while (!exited) k2_loop_run(loop);
}

/* The address that a stand-alone proxy prints. */
static void wait_address(char url[128])
{
    for (url[0] = 0; !url[0] && !exited; turn()) {
        char *text = read_all(out_path);
        if (strchr(text, '\n')) sscanf(text, "listening on %127s", url);
        k2_free(text);
    }
    assert_true(url[0]);
}

/* ---- command line
 * -------------------------------------------------------------------------------------------------------------- */

static void command_line(void **state)
{
    (void)state;
    static const struct {
        const char *argv[8];
        int code;
        const char *out, *err;
    } cases[] = {
        {{PROGRAM, "--help"}, 0, "usage: k2rl proxy", ""},
        {{PROGRAM}, 2, "", "expected --master URL, or --engine URL"},
        {{PROGRAM, "--engin", "http://x"}, 2, "", "did you mean --engine?"},
        {{PROGRAM, "--engine"}, 2, "", "--engine: a value is missing"},
        {{PROGRAM, "--engine", "https://x"}, 2, "", "--engine: URL \"https://x\""},
        {{PROGRAM, "--engine", "http://x/v1"}, 2, "", "has a path"},
        {{PROGRAM, "--engine", "http://x", "--listen", "nowhere"}, 2, "", "HOST:PORT"},
        {{PROGRAM, "--engine", "http://x", "--set", "proxy.queue_mx=1"}, 2, "", "proxy.queue_max"},
        {{PROGRAM, "--engine", "http://x", "--set", "proxy.queue_max=0"}, 2, "", "proxy.queue_max"},
        {{PROGRAM, "--engine", "http://x", "--master", "ipc:///x"}, 2, "", "not together"},
        {{PROGRAM, "--master", "nonsense"}, 2, "", "nonsense"},
        {{PROGRAM, "--master", "ipc:///x", "--index", "-1"}, 2, "", "--index: found \"-1\""},
    };
    loop = k2_loop_new();
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        start(cases[i].argv, NULL);
        wait_exit();
        char *out = read_all(out_path), *err = read_all(err_path);
        if (exit_code != cases[i].code || !strstr(out, cases[i].out) || !strstr(err, cases[i].err))
            fail_msg("case %zu: code %d\nout: %s\nerr: %s", i, exit_code, out, err);
        char *newline = strchr(err, '\n');
        assert_true(!newline || newline[1] == 0); /* one line */
        k2_free(out);
        k2_free(err);
    }
    k2_loop_free(loop);
}

/* ---- alone
 * ----------------------------------------------------------------------------------------------------------------------- */

static k2_http_client *client;
static stub engine;
static int fetched, fetch_status;
static char fetch_body[4096];

static void on_fetched(void *arg, k2_code code, int status, const char *body, size_t n)
{
    (void)arg, (void)code, (void)n;
    fetched++;
    fetch_status = status;
    snprintf(fetch_body, sizeof fetch_body, "%s", body);
    k2_loop_stop(loop);
}

static void ask(const char *url, const char *path, const char *body)
{
    char full[512];
    k2_error err;
    snprintf(full, sizeof full, "%s%s", url, path);
    k2_http_call_spec spec = {
        .method = body ? "POST" : "GET", .url = full, .body = body, .body_bytes = body ? strlen(body) : 0};
    fetched = 0;
    assert_non_null(k2_http_fetch(client, &spec, 1 << 20, on_fetched, NULL, &err));
}

static void wait_fetched(void)
{
    while (!fetched) k2_loop_run(loop);
}

static void begin(void)
{
    loop = k2_loop_new();
    client = k2_http_client_new(loop, NULL);
    memset(&engine, 0, sizeof engine);
    engine.has_digest = true;
    engine.digest = (k2_digest){4, 5};
    stub_start(&engine, loop, 0);
}

static void end(void)
{
    k2_http_client_close(client);
    stub_stop(&engine);
    k2_loop_free(loop);
}

static void alone_and_ended_by_a_signal(void **state)
{
    (void)state;
    char url[128];
    begin();
    const char *argv[] = {PROGRAM, "--listen", "127.0.0.1:0", "--engine", engine.url, "--set", "proxy.health_ms=20", NULL};
    k2_child *c = start(argv, NULL);
    wait_address(url);
    ask(url, "/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":5}");
    wait_fetched();
    assert_int_equal(fetch_status, 200);
    ask(url, "/k2/engines", NULL);
    wait_fetched();
    assert_non_null(strstr(fetch_body, "\"digest\":\"00000000000000040000000000000005\"")); /* learnt by a probe */

    /* The same port again. */
    const char *again[] = {PROGRAM, "--listen", strstr(url, "127."), "--engine", engine.url, NULL};
    start(again, NULL);
    wait_exit();
    assert_int_equal(exit_code, 2);
    char *err = read_all(err_path);
    assert_non_null(strstr(err, "in use"));
    k2_free(err);

    /* What runs is finished, then it ends. */
    exited = false;
    ask(url, "/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":200}");
    while (engine.tokens < 20) turn();
    k2_child_kill(c, SIGTERM);
    wait_fetched();
    assert_int_equal(fetch_status, 200);
    assert_non_null(strstr(fetch_body, "\"completion_tokens\":200"));
    wait_exit();
    assert_true(exit_code == 0 && exit_signal == 0);
    end();
}

/* ---- under a master
 * ---------------------------------------------------------------------------------------------------------------- */

static k2_net_server *master;
static k2_net_call *held; /* a POLL without a command yet */
static char endpoint[256], token[64], phase[64];
static uint64_t hellos, done_cmd, lease_ms;
static k2_msg done_msg;

static void on_request(void *arg, k2_net_call *call, const k2_msg *msg)
{
    (void)arg;
    k2_loop_stop(loop);
    if (msg->type == K2_MSG_HELLO) {
        hellos++;
        assert_string_equal(msg->hello.role, "proxy");
        assert_int_equal(msg->hello.index, 3);
        assert_int_equal(msg->hello.nonce, 77);
        snprintf(endpoint, sizeof endpoint, "%s", msg->hello.endpoint);
        snprintf(token, sizeof token, "%s", msg->hello.token);
        k2_net_reply(call,
                     &(k2_msg){.type = K2_MSG_WELCOME,
                               .worker = 9,
                               .incarnation = 2,
                               .welcome = {.lease_ms = lease_ms, .run_id = "r", .config = "{\"proxy\":{\"health_ms\":20}}"}});
    } else if (msg->type == K2_MSG_POLL) {
        snprintf(phase, sizeof phase, "%s", msg->poll.phase);
        if (held) k2_net_reply(held, &(k2_msg){.type = K2_MSG_NOP});
        held = call;
    } else {
        assert_int_equal(msg->type, K2_MSG_DONE);
        done_cmd = msg->cmd;
        k2_msg_free(&done_msg);
        k2_msg_copy(&done_msg, msg);
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_ACK});
    }
}

static void command(k2_msg msg, uint64_t cmd)
{
    while (!held) k2_loop_run(loop);
    k2_net_call *call = held;
    held = NULL;
    msg.cmd = cmd;
    k2_net_reply(call, &msg);
    while (done_cmd != cmd) k2_loop_run(loop);
    assert_int_equal(done_msg.done.code, msg.type == K2_MSG_TRAIN ? K2_UNSUPPORTED : K2_OK);
}

static void enlist(char url[K2_NET_URL_MAX])
{
    k2_error err;
    hellos = done_cmd = 0;
    held = NULL;
    snprintf(url, K2_NET_URL_MAX, "ipc://%s/m.sock", dir);
    master = k2_net_listen(loop, url, 8, on_request, NULL, &err);
    assert_non_null(master);
}

static void worker_of_a_master(void **state)
{
    (void)state;
    char url[K2_NET_URL_MAX];
    begin();
    lease_ms = 60000;
    enlist(url);
    const char *argv[] = {PROGRAM, "--master", url, "--index", "3", "--nonce", "77", NULL},
               *env[] = {"K2RL_TOKEN=secret", NULL};
    start(argv, env);
    while (!held) k2_loop_run(loop);
    assert_string_equal(token, "secret");
    assert_int_equal(strncmp(endpoint, "http://127.0.0.1:", 17), 0);

    k2_wire_engine e = {.id = 1, .incarnation = 1, .url = engine.url, .digest = engine.digest, .state = "up"};
    command((k2_msg){.type = K2_MSG_ENGINES, .engines = {{&e, 1}, .anew = 1}}, 1);
    ask(endpoint, "/v1/completions", "{\"prompt\":[1],\"max_tokens\":3,\"k2\":{\"train\":true}}");
    assert_int_equal(engine.requests, 0); /* the gate is shut */
    command((k2_msg){.type = K2_MSG_GATE, .gate = {7, engine.digest}}, 2);
    wait_fetched();
    assert_int_equal(fetch_status, 200);
    ask(endpoint, "/k2/engines", NULL);
    wait_fetched();
    assert_non_null(strstr(fetch_body, "{\"gate\":{\"version\":7,"));
    command((k2_msg){.type = K2_MSG_TRAIN, .train = {.locator = ""}}, 3);
    assert_string_equal(phase, "serving");
    e.state = "gone";
    command((k2_msg){.type = K2_MSG_ENGINES, .engines = {{&e, 1}}}, 4);
    ask(endpoint, "/health", NULL);
    wait_fetched();
    assert_int_equal(fetch_status, 503);
    command((k2_msg){.type = K2_MSG_STOP, .stop = {.text = "end"}}, 5);
    wait_exit();
    assert_int_equal(exit_code, 0);
    k2_msg_free(&done_msg);
    k2_net_server_close(master);
    end();
}

static void ends_with_its_master(void **state)
{
    (void)state;
    char url[K2_NET_URL_MAX];
    begin();
    lease_ms = 200;
    enlist(url);
    const char *argv[] = {PROGRAM, "--master", url, "--index", "3", "--nonce", "77", NULL};
    start(argv, NULL);
    while (!held) k2_loop_run(loop);
    k2_net_server_close(master);
    wait_exit();
    if (exit_code != 1 || exit_signal != 0) {
        char *text = read_all(err_path);
        fail_msg("the proxy ended with code %d, signal %d: %s", exit_code, exit_signal, text);
    }
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(command_line), cmocka_unit_test(alone_and_ended_by_a_signal),
                                       cmocka_unit_test(worker_of_a_master), cmocka_unit_test(ends_with_its_master)};
    if (!mkdtemp(dir)) return 1;
    snprintf(out_path, sizeof out_path, "%s/out", dir);
    snprintf(err_path, sizeof err_path, "%s/err", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    k2_dir_remove(dir, NULL);
    return rc;
}
