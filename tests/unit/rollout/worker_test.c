/* worker - the whole process: a child is this program again and runs k2_rollout_main; this side plays the master, the trainer
 * and the proxy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/config/config.h"
#include "common/http/http.h"
#include "common/http/openai.h"
#include "common/net/net.h"
#include "rollout/pull_int.h"
#include "rollout/rollout.h"
#include "tests/unit/rollout/tiny_int.h"

typedef struct master {
    char dir[32], url[K2_NET_URL_MAX], endpoint[128];
    pid_t pid;
    k2_loop *loop;
    k2_net_server *net;
    k2_http_client *http;
    k2_xfer *xfer;
    k2_config config;
    k2_net_call *poll; /* waits for a command */
    k2_msg command;    /* to be sent with the next POLL */
    bool has_command, has_done;
    uint64_t cmd;
    k2_msg done;
    k2_timer *deadline; /* a test that hangs fails instead */
} master;

static void give_command(master *m)
{
    if (!m->poll || !m->has_command) return;
    m->has_command = false;
    k2_net_call *call = m->poll;
    m->poll = NULL;
    k2_net_reply(call, &m->command);
}

static void on_request(void *arg, k2_net_call *call, const k2_msg *msg)
{
    master *m = arg;
    if (msg->type == K2_MSG_HELLO) {
        assert_string_equal(msg->hello.role, "rollout");
        snprintf(m->endpoint, sizeof m->endpoint, "%s", msg->hello.endpoint);
        char *text = k2_config_json(&m->config);
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_WELCOME,
                                     .worker = 3,
                                     .incarnation = 1,
                                     .welcome = {.lease_ms = 60000, .run_id = "test", .config = text}});
        k2_free(text);
    } else if (msg->type == K2_MSG_POLL) {
        if (m->poll) k2_net_reply(m->poll, &(k2_msg){.type = K2_MSG_NOP});
        m->poll = call;
        give_command(m);
    } else {
        assert_int_equal(msg->type, K2_MSG_DONE);
        k2_msg_free(&m->done);
        k2_msg_copy(&m->done, msg);
        m->has_done = true;
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_ACK});
        k2_loop_stop(m->loop);
    }
}

static void on_deadline(void *arg)
{
    (void)arg;
    fprintf(stderr, "worker_test: nothing happened for 30 s\n");
    abort();
}

static void config_fill(master *m)
{
    k2_config_defaults(&m->config);
    snprintf(m->config.model_config, sizeof m->config.model_config, "%s/config.json", m->dir);
    m->config.rollout_threads = 1;
    m->config.rollout_cache_tokens = 4096;
    m->config.rollout_queue_max = 64;
}

static void master_open(master *m)
{
    memset(m, 0, sizeof *m);
    strcpy(m->dir, "/tmp/k2_worker_XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    snprintf(m->url, sizeof m->url, "ipc://%s/m.sock", m->dir);
    k2_dims dims = tiny_dims();
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    assert_int_equal(k2_weights_dims_write(&dims, path, NULL), K2_OK);
    config_fill(m);
    m->pid = fork();
    if (m->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "rollout", "--master", m->url, "--index", "0", NULL); /* main below is both programs */
        _exit(127);
    }
    k2_error err;
    m->loop = k2_loop_new();
    m->net = k2_net_listen(m->loop, m->url, 8, on_request, m, &err);
    assert_non_null(m->net);
    m->http = k2_http_client_new(m->loop, NULL);
    assert_int_equal(k2_xfer_open(&(k2_xfer_config){.transport = "shm"}, &m->xfer, &err), K2_OK);
    m->deadline = k2_timer_start(m->loop, 30 * K2_NS_PER_S, 0, on_deadline, m);
}

static void master_close(master *m)
{
    k2_timer_stop(m->deadline);
    k2_http_client_close(m->http);
    k2_net_server_close(m->net);
    k2_loop_free(m->loop);
    k2_xfer_close(m->xfer);
    k2_msg_free(&m->done);
    assert_int_equal(k2_dir_remove(m->dir, NULL), K2_OK);
}

static int exit_status(master *m)
{
    int status;
    assert_int_equal(waitpid(m->pid, &status, 0), m->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Give a command, wait for its DONE. */
static const k2_msg *order(master *m, k2_msg command)
{
    command.cmd = ++m->cmd;
    m->command = command;
    m->has_command = true;
    m->has_done = false;
    give_command(m);
    while (!m->has_done) k2_loop_run(m->loop);
    assert_int_equal(m->done.cmd, m->cmd);
    return &m->done;
}

typedef struct reply {
    master *m;
    int status;
    char body[65536];
} reply;

static void on_fetched(void *arg, k2_code code, int status, const char *body, size_t n)
{
    reply *r = arg;
    r->status = code == K2_OK ? status : -1;
    snprintf(r->body, sizeof r->body, "%.*s", (int)n, body);
    k2_loop_stop(r->m->loop);
}

static reply *ask(master *m, const char *path, const char *body)
{
    static reply r;
    char url[256];
    memset(&r, 0, sizeof r);
    r.m = m;
    snprintf(url, sizeof url, "%s%s", m->endpoint, path);
    k2_http_call_spec spec = {.method = body ? "POST" : "GET", .url = url, .body = body, .body_bytes = body ? strlen(body) : 0};
    assert_non_null(k2_http_fetch(m->http, &spec, 65000, on_fetched, &r, NULL));
    while (r.status == 0) k2_loop_run(m->loop);
    return &r;
}

static k2_xfer_segment *publish(master *m, uint64_t seed, uint64_t version, k2_digest *digest)
{
    k2_error err;
    size_t count;
    k2_model *model = tiny_model(seed, 1);
    k2_weights_slot *slots = k2i_model_slots(model, &count);
    k2_weights_manifest *manifest;
    k2_weights_segment layout;
    k2_xfer_segment *s;
    assert_int_equal(k2_weights_manifest_plan(slots, count, version, 65536, &manifest, &err), K2_OK);
    uint64_t bytes = k2_weights_segment_plan(manifest, &layout);
    assert_int_equal(k2_xfer_segment_create(m->xfer, bytes, &s, &err), K2_OK);
    k2_weights_segment_fill(manifest, slots, count, k2_xfer_segment_memory(s), bytes);
    *digest = manifest->digest;
    k2_weights_manifest_free(manifest);
    k2_free(slots);
    k2_model_free(model);
    return s;
}

static k2_msg prepare(uint64_t version, k2_digest digest, const char *const *sources, uint32_t count)
{
    return (k2_msg){.type = K2_MSG_PREPARE,
                    .prepare = {.version = version, .digest = digest, .sources = {.items = sources, .count = count}}};
}

static void put_weights(master *m, uint64_t seed, uint64_t version, k2_digest *digest)
{
    k2_xfer_segment *s = publish(m, seed, version, digest);
    const char *source = k2_xfer_segment_locator(s);
    const k2_msg *d = order(m, prepare(version, *digest, &source, 1));
    if (d->done.code != K2_OK) fail_msg("PREPARE: %s", d->done.text);
    assert_true(k2_digest_equal(d->done.digest, *digest) && d->done.version == version);
    assert_int_equal(d->done.locators.count, 1);
    assert_true(d->done.metrics.count > 0);
    /* What the worker offers is the same segment. */
    k2_xfer_remote *r;
    k2_error err;
    assert_int_equal(k2_xfer_remote_open(m->xfer, d->done.locators.items[0], k2_now_ns() + K2_NS_PER_S, &r, &err), K2_OK);
    assert_int_equal(k2_xfer_remote_bytes(r), k2_xfer_segment_bytes(s));
    assert_memory_equal(k2_xfer_remote_map(r), k2_xfer_segment_memory(s), k2_xfer_segment_bytes(s));
    k2_xfer_remote_close(r);
    d = order(m, (k2_msg){.type = K2_MSG_COMMIT, .commit = {.version = version, .digest = *digest}});
    if (d->done.code != K2_OK) fail_msg("COMMIT: %s", d->done.text);
    assert_true(k2_digest_equal(d->done.digest, *digest));
    k2_xfer_segment_destroy(s);
}

static void test_life(void **state)
{
    (void)state;
    master m;
    k2_digest one, two;
    master_open(&m);
    /* A command that makes no sense yet also tells that the worker is up. */
    const k2_msg *d = order(&m, (k2_msg){.type = K2_MSG_COMMIT, .commit = {.version = 1, .digest = {1, 1}}});
    assert_int_equal(d->done.code, K2_NOT_FOUND);
    assert_int_equal(ask(&m, "/health", NULL)->status, 503);
    assert_int_equal(ask(&m, "/v1/completions", "{\"prompt\":\"a\"}")->status, 503);
    d = order(&m, (k2_msg){.type = K2_MSG_GATE, .gate = {.version = 1}});
    assert_int_equal(d->done.code, K2_UNSUPPORTED);

    put_weights(&m, 5, 1, &one);
    char hex[K2_DIGEST_HEX], body[512];
    k2_digest_hex(one, hex);
    reply *r = ask(&m, "/health", NULL);
    assert_int_equal(r->status, 200);
    assert_non_null(strstr(r->body, hex));
    snprintf(body, sizeof body,
             "{\"prompt\":[65,66],\"max_tokens\":8,\"ignore_eos\":true,\"k2\":{\"trajectory\":1,\"seed\":2,"
             "\"digest\":\"%s\",\"train\":true}}",
             hex);
    r = ask(&m, "/v1/completions", body);
    assert_int_equal(r->status, 200);
    assert_non_null(strstr(r->body, "\"version\":1"));

    put_weights(&m, 6, 2, &two);
    r = ask(&m, "/v1/completions", body);
    assert_int_equal(r->status, 409);
    r = ask(&m, "/k2/score", "{\"items\":[{\"trajectory\":1,\"text\":\"7\",\"answer\":\"7\"}]}");
    assert_int_equal(r->status, 200);

    /* The same weights under the next version: nothing is pulled. */
    const char *nowhere = "shm:1:1:10:00000000000000000000000000000000";
    d = order(&m, prepare(3, two, &nowhere, 1));
    assert_int_equal(d->done.code, K2_OK);
    assert_int_equal(d->done.locators.count, 1);
    d = order(&m, (k2_msg){.type = K2_MSG_COMMIT, .commit = {.version = 3, .digest = two}});
    assert_int_equal(d->done.code, K2_OK);
    assert_non_null(strstr(ask(&m, "/health", NULL)->body, "\"version\":3"));

    /* A source that is not there. */
    d = order(&m, prepare(4, one, &nowhere, 1));
    assert_int_not_equal(d->done.code, K2_OK);
    assert_true(d->done.text[0] != 0);

    d = order(&m, (k2_msg){.type = K2_MSG_STOP});
    assert_int_equal(d->done.code, K2_OK);
    assert_int_equal(exit_status(&m), 0);
    master_close(&m);
}

static int on_exit_of_child(master *m)
{
    int status = 0;
    while (waitpid(m->pid, &status, WNOHANG) == 0) k2_loop_run(m->loop);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void look_again(void *arg)
{
    master *m = arg;
    k2_loop_stop(m->loop);
}

/* A configuration that cannot work ends the worker with exit code 2. */
static void check_refused(void (*spoil)(master *m))
{
    master m;
    master_open(&m);
    spoil(&m);
    k2_timer *t = k2_timer_start(m.loop, K2_NS_PER_MS, K2_NS_PER_MS, look_again, &m);
    assert_int_equal(on_exit_of_child(&m), 2);
    k2_timer_stop(t);
    master_close(&m);
}

static void no_model(master *m)
{
    strcpy(m->config.model_config, "/nonexistent/config.json");
}
static void too_large(master *m)
{
    m->config.rollout_cache_tokens = 1ull << 30;
    m->config.rollout_page_tokens = 4096;
}

static void test_refused(void **state)
{
    (void)state;
    check_refused(no_model);
    check_refused(too_large);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        k2_net_process_begin();
        k2_net_process_end(k2_rollout_main(argc, argv));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("rollout_worker", tests, NULL, NULL);
}
