/* repeat - a prompt that ended its engines, or an answer whose reward failed, again: in a child process, since it may end it.
 */
#include "rollout/rollout.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/config/config.h"
#include "common/http/http.h"
#include "common/loop/loop.h"
#include "rollout/reward_int.h"

#define FILE_BYTES_MAX (64u << 20)
#define SAID_MAX       8192u /* bytes of the child's stdout that are kept */
#define SETTINGS       8u    /* of the engine */

typedef struct repeat {
    k2_config config;
    const k2_quarantine_note *note;
    k2_loop *loop;
    k2_child *child;
    k2_http_client *http;
    k2_timer *deadline;
    char *body; /* of the request; NULL: nothing is asked, the child knows what to do */
    size_t body_len;
    bool asked, answered, dead, late, over;
    int exit_code, term_signal;
    char said[SAID_MAX], how[K2_ERROR_TEXT_MAX];
    size_t said_len;
} repeat;

static void stop(repeat *r)
{
    if (r->over) return;
    r->over = true;
    k2_loop_stop(r->loop);
}

/* ---- the child ---- */

static void on_exit_of(void *arg, int exit_code, int term_signal)
{
    repeat *r = arg;
    r->child = NULL;
    r->dead = true;
    r->exit_code = exit_code;
    r->term_signal = term_signal;
    stop(r);
}

static void on_answer(void *arg, k2_code code, int status, const char *body, size_t n)
{
    repeat *r = arg;
    if (code == K2_PEER_CLOSED || r->over) return; /* its end is being told */
    r->answered = code == K2_OK;
    snprintf(r->how, sizeof r->how, "it answered %d: %.*s", status, (int)K2_MIN(n, 200u), body);
    stop(r);
}

/* The child says where it listens: "serving DIR as NAME on http://127.0.0.1:4711 weights_digest=..." */
static void ask(repeat *r)
{
    static const k2_http_header json = {"Content-Type", "application/json"};
    const char *at = strstr(r->said, "http://");
    if (r->asked || !r->body || !at || !strchr(at, '\n')) return;
    char url[256];
    snprintf(url, sizeof url, "%.*s/v1/completions", (int)K2_MIN(strcspn(at, " \n"), 200u), at);
    uint64_t patience = r->config.master_step_timeout_ms * K2_NS_PER_MS;
    k2_http_call_spec spec = {.method = "POST",
                              .url = url,
                              .headers = &json,
                              .header_count = 1,
                              .body = r->body,
                              .body_bytes = r->body_len,
                              .first_byte_ns = patience,
                              .idle_ns = patience};
    k2_error err;
    r->asked = true;
    if (k2_http_fetch(r->http, &spec, FILE_BYTES_MAX, on_answer, r, &err)) return;
    snprintf(r->how, sizeof r->how, "%.200s", err.text);
    stop(r);
}

static void on_read(void *arg, const char *data, size_t n)
{
    repeat *r = arg;
    size_t take = K2_MIN(n, sizeof r->said - 1 - r->said_len);
    memcpy(r->said + r->said_len, data, take);
    r->said_len += take;
    ask(r);
}

static void on_close(void *arg, k2_code why, const char *text)
{
    (void)arg, (void)why, (void)text;
}

static void on_deadline(void *arg)
{
    repeat *r = arg;
    r->late = true;
    stop(r);
}

static const k2_stream_ops child_io = {.on_read = on_read, .on_close = on_close};

/* Until the child has ended, has answered, or the deadline of a step has passed. */
static k2_code run(repeat *r, const char *const *argv, k2_error *err)
{
    const k2_child_spec spec = {.argv = argv, .io = &child_io, .io_arg = r, .on_exit = on_exit_of, .arg = r};
    r->loop = k2_loop_new();
    r->http = k2_http_client_new(r->loop, NULL);
    r->child = k2_child_spawn(r->loop, &spec, err);
    if (r->child) {
        r->deadline = k2_timer_start(r->loop, r->config.master_step_timeout_ms * K2_NS_PER_MS, 0, on_deadline, r);
        k2_loop_run(r->loop);
    }
    k2_code code = r->child || r->dead ? K2_OK : err->code;
    k2_timer_stop(r->deadline);
    k2_child_abandon(r->child);
    k2_http_client_close(r->http);
    k2_loop_free(r->loop);
    return code;
}

/* ---- telling it ---- */

static void describe(repeat *r)
{
    if (r->term_signal)
        snprintf(r->how, sizeof r->how, "its process was ended by signal %d (%s)", r->term_signal, strsignal(r->term_signal));
    else if (r->dead && r->exit_code)
        snprintf(r->how, sizeof r->how, "its process exited with %d", r->exit_code);
    else if (r->late)
        snprintf(r->how, sizeof r->how, "it did not end within %llu ms (master.step_timeout_ms)",
                 (unsigned long long)r->config.master_step_timeout_ms);
    else if (r->dead && !r->body)
        snprintf(r->how, sizeof r->how, "%.*s", (int)strcspn(r->said, "\n"), r->said);
}

static int tell(repeat *r, bool reproduced, bool json)
{
    const char *kind = k2_quarantine_kind_name(r->note->kind);
    unsigned long long id = r->note->number;
    if (json) {
        k2_buf b;
        k2_buf_init(&b, 1 << 16);
        k2_buf_printf(&b, "{\"kind\": \"%s\", \"trajectory\": \"%llu\", \"error\": ", kind, id);
        k2_buf_json_string(&b, r->note->error, strlen(r->note->error));
        k2_buf_puts(&b, ", \"now\": ");
        k2_buf_json_string(&b, r->how, strlen(r->how));
        k2_buf_printf(&b, ", \"reproduced\": %s}\n", reproduced ? "true" : "false");
        fputs(b.data, stdout);
        k2_buf_fini(&b);
    } else {
        printf("%s of trajectory %llu: %s\nnow: %s\n%s\n", kind, id, r->note->error, r->how,
               reproduced ? "reproduced" : "NOT reproduced");
    }
    fflush(stdout);
    return reproduced ? 0 : 1;
}

static int refuse(const k2_error *err)
{
    fprintf(stderr, "k2rl replay-step: %s\n", err->text);
    return 2;
}

static k2_code config_of(const char *dir, k2_config *out, k2_error *err)
{
    char *path = k2_quarantine_path(dir, "config.json");
    k2_config_defaults(out);
    k2_code code = k2_config_load(out, path, err);
    k2_free(path);
    return code;
}

static k2_code read_in(const char *dir, const char *name, char **text, size_t *len, k2_error *err)
{
    char *path = k2_quarantine_path(dir, name);
    k2_code code = k2_file_read(path, FILE_BYTES_MAX, text, len, err);
    k2_free(path);
    return code;
}

/* ---- a prompt ---- */

/* What makes the engine the one of the run. */
static void settings_of(const k2_config *c, char settings[SETTINGS][64])
{
    const struct {
        const char *key;
        uint64_t value;
    } list[] = {{"threads", c->rollout_threads},
                {"page_tokens", c->rollout_page_tokens},
                {"cache_tokens", c->rollout_cache_tokens},
                {"batch_max", c->rollout_batch_max},
                {"prefill_chunk", c->rollout_prefill_chunk},
                {"repetition.min_period", c->rollout_repetition_min_period},
                {"repetition.max_period", c->rollout_repetition_max_period},
                {"repetition.count", c->rollout_repetition_count}};
    _Static_assert(K2_COUNT(list) == SETTINGS, "one for each");
    for (size_t i = 0; i < SETTINGS; i++)
        snprintf(settings[i], 64, "--set=rollout.%s=%llu", list[i].key, (unsigned long long)list[i].value);
}

int k2_rollout_repeat_prompt(const char *dir, const k2_quarantine_note *note, const char *model_dir, bool json)
{
    repeat r = {.note = note};
    k2_error err = {0};
    char settings[SETTINGS][64], *texts[4] = {NULL};
    const char *argv[8 + SETTINGS + K2_COUNT(texts)] = {"/proc/self/exe", "rollout",  "--model",
                                                        model_dir,        "--listen", "127.0.0.1:0"};
    k2_code code = config_of(dir, &r.config, &err);
    if (code == K2_OK) code = read_in(dir, "request.json", &r.body, &r.body_len, &err);
    if (code == K2_OK) {
        settings_of(&r.config, settings);
        for (size_t i = 0; i < SETTINGS; i++) argv[6 + i] = settings[i];
        texts[0] = k2_asprintf("--set=tokenizer.kind=%s", r.config.tokenizer_kind);
        texts[1] = k2_asprintf("--set=tokenizer.path=%s", r.config.tokenizer_path);
        texts[2] = k2_asprintf("--set=tokenizer.pattern=%s", r.config.tokenizer_pattern);
        texts[3] = k2_asprintf("--set=model.compute=%s", r.config.model_compute);
        for (size_t i = 0; i < K2_COUNT(texts); i++) argv[6 + SETTINGS + i] = texts[i];
        code = run(&r, argv, &err);
    }
    if (code == K2_OK && !r.asked && !r.late)
        code = k2_error_set(&err, K2_BAD_INPUT, "%s: the engine did not start: %s", dir, r.dead ? "see above" : r.how);
    if (code == K2_OK) describe(&r);
    k2_free(r.body);
    for (size_t i = 0; i < K2_COUNT(texts); i++) k2_free(texts[i]);
    return code == K2_OK ? tell(&r, r.dead, json) : refuse(&err);
}

/* ---- a reward ---- */

int k2_rollout_repeat_reward(const char *dir, const k2_quarantine_note *note, bool json)
{
    repeat r = {.note = note};
    k2_error err = {0};
    const char *argv[] = {"/proc/self/exe", "replay-step", dir, "--here", NULL};
    k2_code code = config_of(dir, &r.config, &err);
    if (code == K2_OK) code = run(&r, argv, &err);
    if (code == K2_OK && r.dead && r.exit_code == 2)
        code = k2_error_set(&err, K2_BAD_INPUT, "%s: it could not be repeated; see above", dir);
    if (code != K2_OK) return refuse(&err);
    describe(&r);
    bool ended = r.dead && (r.term_signal || r.exit_code);
    bool failed = strncmp(r.said, "no reward", 9) == 0;
    return tell(&r, note->deaths > 0 ? ended : failed || r.late, json);
}

typedef struct scoring {
    k2_loop *loop;
    k2i_score_batch batch;
} scoring;

static void scored(void *arg)
{
    k2_loop_stop(((scoring *)arg)->loop);
}

static k2_code item_read(const char *dir, k2i_score_batch *out, k2_error *err)
{
    char *item = NULL;
    size_t len;
    k2_openai_error e;
    k2_code code = read_in(dir, "item.json", &item, &len, err);
    if (code != K2_OK) return code;
    char *body = k2_asprintf("{\"items\":[%s]}", item);
    if (!k2i_score_parse(body, strlen(body), out, &e))
        code = k2_error_set(err, K2_BAD_INPUT, "%s/item.json: %.200s", dir, e.message);
    k2_free(body);
    k2_free(item);
    return code;
}

int k2_rollout_reward_here(const char *dir)
{
    k2_config config;
    scoring s = {0};
    k2_error err = {0};
    k2_code code = config_of(dir, &config, &err);
    if (code == K2_OK) code = item_read(dir, &s.batch, &err);
    if (code != K2_OK) return refuse(&err);
    s.loop = k2_loop_new();
    k2i_rewarder *rewarder = k2i_rewarder_new(s.loop, &config, NULL);
    code = k2i_rewarder_score(rewarder, &s.batch, scored, &s);
    K2_ASSERT(code == K2_OK); /* one item cannot fill its queue */
    if (strcmp(config.reward_kind, "command") == 0) k2_loop_run(s.loop);
    const k2i_score *x = s.batch.scores;
    if (x->ok)
        printf("reward %.9g\n", x->reward);
    else
        printf("no reward: %s\n", x->detail);
    fflush(stdout);
    k2i_rewarder_free(rewarder);
    k2_loop_free(s.loop);
    k2i_score_batch_fini(&s.batch);
    return 0;
}
