/* serve - `k2rl rollout --model DIR`: one model directory behind the OpenAI interface, without a master. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/weights/weights.h"
#include "rollout/options_int.h"
#include "rollout/plan_int.h"
#include "rollout/pull_int.h"
#include "rollout/server_int.h"

#define DRAIN_NS      (30 * K2_NS_PER_S) /* how long requests may take to their end after the first Ctrl-C */
#define DRAIN_TICK_NS (20 * K2_NS_PER_MS)

typedef struct alone {
    k2_loop *loop;
    k2_log *log;
    k2_tokenizer *tokenizer;
    k2i_engine *engine;
    k2i_server *server;
    k2_dims dims;
    k2i_engine_plan plan;
    k2_model *model; /* until the engine has it */
    k2_digest digest;
    k2_signal *signals[2];
    k2_timer *drain;
    uint64_t drain_until_ns;
} alone;

static void on_drain_tick(void *arg)
{
    alone *a = arg;
    if (k2i_server_open(a->server) == 0 || k2_loop_now_ns(a->loop) >= a->drain_until_ns) k2_loop_stop(a->loop);
}

static void on_signal(void *arg, int signum)
{
    alone *a = arg;
    (void)signum;
    if (a->drain) {
        k2_loop_stop(a->loop);
        return;
    }
    K2_LOG_INFO(a->log, "shutting down running=%u", k2i_server_open(a->server));
    k2i_server_drain(a->server);
    a->drain_until_ns = k2_loop_now_ns(a->loop) + DRAIN_NS;
    a->drain = k2_timer_start(a->loop, 0, DRAIN_TICK_NS, on_drain_tick, a);
}

static void take(void *model, size_t tensor, const float *elements)
{
    k2_model_param_take(model, tensor, elements);
}

static k2_code load(alone *a, const k2i_options *o, k2_error *err)
{
    char *path = k2_asprintf("%s/config.json", o->model);
    k2_code code = k2_weights_dims_load(path, &a->dims, err);
    k2_free(path);
    if (code != K2_OK) return code;
    const k2_tokenizer_spec spec = {.kind = o->config.tokenizer_kind,
                                    .path = k2_config_tokenizer_path(&o->config, o->model),
                                    .pattern = o->config.tokenizer_pattern};
    code = k2_tokenizer_load(&spec, &a->tokenizer, err);
    if (code != K2_OK) return code;
    if (a->dims.vocab_size < k2_tokenizer_vocab(a->tokenizer))
        return k2_error_set(err, K2_BAD_INPUT,
                            "%s/config.json: vocab_size: found %u, expected at least %u of the tokenizer \"%s\"", o->model,
                            a->dims.vocab_size, k2_tokenizer_vocab(a->tokenizer), o->config.tokenizer_kind);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    code = k2i_plan_engine(&o->config, &a->dims, 1, (uint32_t)K2_MAX(1L, cores), &a->plan, err);
    if (code == K2_OK) code = k2i_plan_check(&a->plan, &a->dims, 1, false, k2i_memory_available(), err);
    if (code != K2_OK) return code;
    a->model = k2_model_new(&a->dims, a->plan.compute, a->plan.threads, err);
    if (!a->model) return err->code;
    size_t count;
    k2_weights_slot *slots = k2i_model_slots(a->model, &count);
    code = k2_weights_dir_each(o->model, slots, count, take, a->model, &a->digest, err);
    k2_free(slots);
    return code;
}

static k2_code start(alone *a, const k2i_options *o, k2_error *err)
{
    a->loop = k2_loop_new();
    k2_loop_raise_fd_limit();
    a->server =
        k2i_server_new(a->loop, o->host, o->port, o->name, a->log, err); /* a port in use is known before weights are read */
    if (!a->server) return err->code;
    k2_code code = load(a, o, err);
    if (code != K2_OK) return code;
    a->engine = k2i_engine_new(a->loop, &a->plan, &a->dims, &(k2i_weights){.model = a->model, .digest = a->digest});
    a->model = NULL;
    k2i_server_attach(a->server, &(k2i_served){.engine = a->engine,
                                               .tokenizer = a->tokenizer,
                                               .context_max = a->plan.core.context_max,
                                               .vocab = a->dims.vocab_size,
                                               .answer_max = a->plan.core.context_max,
                                               .repetition = a->plan.core.repetition.count > 0});
    a->signals[0] = k2_loop_signal(a->loop, SIGINT, on_signal, a);
    a->signals[1] = k2_loop_signal(a->loop, SIGTERM, on_signal, a);
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(a->digest, hex);
    printf("serving %s as %s on http://%s:%u weights_digest=%s\n", o->model, o->name, o->host, k2i_server_port(a->server), hex);
    fflush(stdout);
    return K2_OK;
}

int k2i_serve_run(const k2i_options *o)
{
    alone *a = k2_alloc(sizeof *a);
    k2_error err = {0};
    int rc = 0;
    a->log = k2_log_open(NULL, "rollout", -1, K2_LOG_INFO, &err);
    if (start(a, o, &err) == K2_OK) {
        k2_loop_run(a->loop);
    } else {
        fprintf(stderr, "k2rl rollout: %s\n", err.text);
        rc = k2_code_exit(err.code);
    }
    for (size_t i = 0; i < K2_COUNT(a->signals); i++) k2_signal_stop(a->signals[i]);
    k2_timer_stop(a->drain);
    k2i_engine_stop(a->engine);
    k2i_server_free(a->server);
    k2_loop_free(a->loop);
    k2i_engine_free(a->engine);
    k2_model_free(a->model);
    k2_tokenizer_close(a->tokenizer);
    k2_log_close(a->log);
    k2_free(a);
    return rc;
}
