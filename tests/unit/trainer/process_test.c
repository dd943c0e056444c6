/* The trainer as a process, under a master made of a dozen lines: admitted, commanded, refused, stopped, left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/net.h"
#include "common/weights/weights.h"
#include "tests/unit/trainer/fixture.h"
#include "trainer/trainer.h"

/* Commands in order; each is sent when the one before has been answered. */
typedef struct script {
    k2_loop *loop;
    const k2_msg *commands;
    uint32_t count, sent, answered;
    k2_net_call *poll; /* waits for the next command */
    char *config;
    uint64_t lease_ms;
    bool then_silent; /* after the last answer: no word any more */
    k2_msg done[8];
    char locator[K2_XFER_LOCATOR_MAX]; /* JOIN's answer, which INIT repeats */
    k2_digest published;
} script;

static void send_next(script *s)
{
    if (!s->poll || s->sent > s->answered || s->sent == s->count) return;
    k2_msg m = s->commands[s->sent++];
    const char *locator = s->locator;
    m.cmd = s->sent;
    if (m.type == K2_MSG_INIT) m.init.locators = (k2_wire_strs){.items = &locator, .count = 1};
    k2_net_reply(s->poll, &m);
    s->poll = NULL;
}

static void on_done(script *s, k2_net_call *call, const k2_msg *m)
{
    k2_msg ack = {.type = K2_MSG_ACK};
    assert_int_equal(m->cmd, s->answered + 1);
    if (m->done.locators.count == 1) snprintf(s->locator, sizeof(s->locator), "%s", m->done.locators.items[0]);
    k2_msg_copy(&s->done[s->answered++], m);
    k2_net_reply(call, &ack);
    if (s->answered < s->count)
        send_next(s);
    else
        k2_loop_stop(s->loop);
}

static void on_request(void *arg, k2_net_call *call, const k2_msg *m)
{
    script *s = arg;
    k2_msg welcome = {.type = K2_MSG_WELCOME,
                      .worker = 3,
                      .incarnation = 7,
                      .welcome = {.lease_ms = s->lease_ms, .run_id = "test", .config = s->config}};
    switch (m->type) {
    case K2_MSG_HELLO:
        assert_string_equal(m->hello.role, "trainer");
        k2_net_reply(call, &welcome);
        break;
    case K2_MSG_POLL:
        s->poll = call;
        send_next(s);
        break;
    case K2_MSG_DONE: on_done(s, call, m); break;
    default: fail_msg("unexpected %s", k2_msg_name(m->type));
    }
}

/* This very program again, as the trainer: the network library does not live through a fork. */
static pid_t self_start(char *const *argv, const char *log)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDERR_FILENO);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static int exit_status(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Run a script against one trainer; its exit status. */
static int play(script *s, const k2_config *config, const char *dir)
{
    char *url = k2_asprintf("ipc://%s/master.sock", dir), *log = k2_asprintf("%s/trainer.log", dir);
    char *argv[] = {"process_test", "trainer", "--master", url, "--index", "0", NULL};
    pid_t pid = self_start(argv, log);
    k2_error err;
    s->loop = k2_loop_new();
    s->config = k2_config_json(config);
    k2_net_server *server = k2_net_listen(s->loop, url, 8, on_request, s, &err);
    assert_non_null(server);
    k2_loop_run(s->loop);
    if (s->then_silent) k2_net_server_close(server);
    int status = exit_status(pid);
    if (!s->then_silent) k2_net_server_close(server);
    k2_loop_free(s->loop);
    k2_free(s->config);
    k2_free(log);
    k2_free(url);
    return status;
}

static k2_config config_make(const char *dir)
{
    k2_config c = fixture_config();
    k2_dims dims = fixture_dims();
    snprintf(c.model_config, sizeof(c.model_config), "%s/config.json", dir);
    snprintf(c.run_dir, sizeof(c.run_dir), "%s", dir);
    assert_int_equal(k2_weights_dims_write(&dims, c.model_config, NULL), K2_OK);
    return c;
}

static void script_end(script *s)
{
    for (uint32_t i = 0; i < s->answered; i++) k2_msg_free(&s->done[i]);
}

static void test_life(void **state)
{
    (void)state;
    char *dir = fixture_dir(), *checkpoint = k2_asprintf("%s/checkpoints/step_0000000", dir);
    k2_config config = config_make(dir);
    const k2_msg commands[] = {
        {.type = K2_MSG_TRAIN, .train = {.step = 1}}, /* too early */
        {.type = K2_MSG_JOIN},
        {.type = K2_MSG_INIT, .init = {.source = "fresh"}},
        {.type = K2_MSG_PUBLISH},
        {.type = K2_MSG_SAVE, .save = {.dir = checkpoint}},
        {.type = K2_MSG_GATE}, /* not for trainers */
        {.type = K2_MSG_STOP},
    };
    script s = {.commands = commands, .count = K2_COUNT(commands), .lease_ms = 20000};
    assert_int_equal(play(&s, &config, dir), 0);
    assert_int_equal(s.done[0].done.code, K2_BAD_INPUT);
    assert_string_equal(s.done[0].done.text, "TRAIN: expected after JOIN and INIT");
    for (uint32_t i = 1; i <= 4; i++)
        if (s.done[i].done.code != K2_OK) fail_msg("%s", s.done[i].done.text);
    assert_true(s.done[2].done.metrics.count >= 5);
    assert_true(s.done[3].done.locators.count == 1 && s.done[3].done.bytes > 0);
    assert_true(k2_digest_equal(s.done[2].done.digest, s.done[3].done.digest));
    assert_true(k2_digest_equal(s.done[3].done.digest, s.done[4].done.digest));
    assert_int_equal(s.done[5].done.code, K2_UNSUPPORTED);
    assert_int_equal(s.done[6].done.code, K2_OK);
    k2_dims dims;
    char *path = k2_asprintf("%s/config.json", checkpoint);
    assert_int_equal(k2_weights_dims_load(path, &dims, NULL), K2_OK);
    k2_free(path);
    script_end(&s);
    k2_free(checkpoint);
    fixture_dir_end(dir);
}

/* The master falls silent: the trainer ends by itself, within its lease. */
static void test_lost_master(void **state)
{
    (void)state;
    char *dir = fixture_dir();
    k2_config config = config_make(dir);
    const k2_msg commands[] = {{.type = K2_MSG_JOIN}};
    script s = {.commands = commands, .count = 1, .lease_ms = 300, .then_silent = true};
    assert_int_equal(play(&s, &config, dir), 1);
    script_end(&s);
    fixture_dir_end(dir);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    static char *const bad[][7] = {{"process_test", "trainer", NULL},
                                   {"process_test", "trainer", "--master", "ipc:///tmp/x", NULL},
                                   {"process_test", "trainer", "--master", "ipc:///tmp/x", "--index", "one", NULL},
                                   {"process_test", "trainer", "--what", NULL}};
    for (size_t i = 0; i < K2_COUNT(bad); i++) assert_int_equal(exit_status(self_start(bad[i], "/dev/null")), 2);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "trainer") == 0) {
        k2_net_process_begin();
        k2_net_process_end(k2_trainer_main(argc - 1, argv + 1));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_lost_master),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
