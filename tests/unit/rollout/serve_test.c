/* serve - `k2rl rollout --model DIR` as a process: this program again is the server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/http/http.h"
#include "common/loop/loop.h"
#include "rollout/pull_int.h"
#include "rollout/rollout.h"
#include "tests/unit/rollout/tiny_int.h"

typedef struct program {
    pid_t pid;
    FILE *out, *err;
} program;

static char dir[32];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/k2_serve_XXXXXX");
    assert_non_null(mkdtemp(dir));
    k2_model *m = tiny_model(5, 1);
    size_t count;
    k2_error err;
    k2_weights_slot *slots = k2i_model_slots(m, &count);
    assert_int_equal(
        k2_weights_dir_save(dir, k2_model_dims(m), &(k2_weights_format){.dtype = K2_DTYPE_F32}, slots, count, &err), K2_OK);
    k2_free(slots);
    k2_model_free(m);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) != K2_OK;
}

static program start(const char *listen)
{
    int out[2], err[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    program p = {.pid = fork()};
    if (p.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        dup2(err[1], 2);
        execl("/proc/self/exe", "rollout", "--model", dir, "--listen", listen, "--name", "mine", "--set", "rollout.threads=1",
              NULL);
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    p.out = fdopen(out[0], "r");
    p.err = fdopen(err[0], "r");
    return p;
}

static int finish(program *p, char *text, size_t n)
{
    int status;
    size_t got = fread(text, 1, n - 1, p->err);
    text[got] = 0;
    fclose(p->out);
    fclose(p->err);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

typedef struct reply {
    k2_loop *loop;
    int status;
    char body[8192];
} reply;

static void on_fetched(void *arg, k2_code code, int status, const char *body, size_t n)
{
    reply *r = arg;
    r->status = code == K2_OK ? status : -1;
    snprintf(r->body, sizeof r->body, "%.*s", (int)n, body);
    k2_loop_stop(r->loop);
}

static void ask(reply *r, unsigned port, const char *path, const char *body)
{
    char url[128];
    memset(r, 0, sizeof *r);
    r->loop = k2_loop_new();
    k2_http_client *http = k2_http_client_new(r->loop, NULL);
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", port, path);
    k2_http_call_spec spec = {.method = body ? "POST" : "GET", .url = url, .body = body, .body_bytes = body ? strlen(body) : 0};
    assert_non_null(k2_http_fetch(http, &spec, 8000, on_fetched, r, NULL));
    k2_loop_run(r->loop);
    k2_http_client_close(http);
    k2_loop_free(r->loop);
}

static unsigned port_of(program *p)
{
    char line[512], *at;
    assert_non_null(fgets(line, sizeof line, p->out));
    assert_non_null(at = strstr(line, "http://127.0.0.1:"));
    return (unsigned)strtoul(at + strlen("http://127.0.0.1:"), NULL, 10);
}

static void test_serves_a_directory(void **state)
{
    (void)state;
    program p = start("127.0.0.1:0");
    unsigned port = port_of(&p);
    reply r;
    ask(&r, port, "/v1/models", NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"mine\""));
    ask(&r, port, "/v1/chat/completions",
        "{\"model\":\"mine\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":5}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"assistant\""));
    ask(&r, port, "/k2/score", "{\"items\":[]}");
    assert_int_equal(r.status, 404);

    /* A second one on the same port. */
    char address[32], text[2048];
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    program second = start(address);
    assert_int_equal(finish(&second, text, sizeof text), 2);
    assert_non_null(strstr(text, "in use"));

    assert_int_equal(kill(p.pid, SIGINT), 0);
    assert_int_equal(finish(&p, text, sizeof text), 0);
}

static void check_refused(const char *says)
{
    char text[2048];
    program p = start("127.0.0.1:0");
    int rc = finish(&p, text, sizeof text);
    if (rc != 2 || !strstr(text, says) || strchr(text, '\n') != text + strlen(text) - 1) fail_msg("%d: %s", rc, text);
}

static void test_faulty_directories(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, 5000), 0);
    check_refused("model.safetensors");
    assert_int_equal(unlink(path), 0);
    check_refused("model.safetensors");
    k2_dims dims = tiny_dims();
    dims.vocab_size = 100;
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(k2_weights_dims_write(&dims, path, NULL), K2_OK);
    check_refused("vocab_size: found 100, expected at least 264");
    assert_int_equal(unlink(path), 0);
    check_refused("config.json");
}

int main(int argc, char **argv)
{
    if (argc > 1) return k2_rollout_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_serves_a_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_faulty_directories, setup, teardown),
    };
    return cmocka_run_group_tests_name("rollout_serve", tests, NULL, NULL);
}
