/* rollout_bench - tokens per second of the built-in engine: alone at batch 1 and 64, and behind HTTP with Server-Sent Events.
 *
 *   rollout_bench [config.json [tokens [threads]]]      CSV: name,value,unit,ratio,against
 *
 * "per core" figures divide by the processor time of the server process, so that they stand on a busy machine too. The HTTP
 * clients are another process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rollout/server_int.h"
#include "tests/support/model_dims.h"

enum { BATCH = 64, PROMPT = 24, NEW = 64, CONTEXT = 256 };

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static uint32_t threads = 1;

static k2i_engine_plan make_plan(uint32_t batch)
{
    return (k2i_engine_plan){.threads = threads,
                             .core = {.batch_max = batch,
                                      .prefill_chunk = 256,
                                      .requests_max = 4 * BATCH,
                                      .pages = 2048,
                                      .page_tokens = 16,
                                      .context_max = CONTEXT,
                                      .repetition = {1, 8, 0}}};
}

static k2i_engine *make_engine(k2_loop *loop, const k2_dims *dims, uint32_t batch)
{
    k2_error err;
    k2_model *m = k2_model_new(dims, K2_COMPUTE_F32, threads, &err);
    k2_model_init(m, 1, 0.2);
    k2i_engine_plan plan = make_plan(batch);
    return k2i_engine_new(loop, &plan, dims, &(k2i_weights){.model = m, .version = 1, .digest = {1, 1}});
}

/* ---- the engine alone ------------------------------------------------------------------------------------------------- */

typedef struct alone {
    k2_loop *loop;
    k2i_engine *engine;
    k2i_job jobs[BATCH];
    uint64_t tokens, target, trajectory;
    uint32_t batch, running;
} alone;

static void submit(alone *a, k2i_job *job)
{
    k2i_request *r = &job->req;
    r->trajectory = a->trajectory++;
    r->seed = 1;
    r->prompt_len = PROMPT;
    r->new_max = NEW;
    r->sampling = (k2i_sampling){.temperature = 1, .top_p = 1};
    for (uint32_t p = 0; p < PROMPT; p++) r->tokens[p] = (int32_t)((r->trajectory / 8 * 31 + p * 7) % 256);
    a->running++;
    k2_code code = k2i_engine_submit(a->engine, job);
    K2_ASSERT(code == K2_OK);
}

static void on_news(void *arg, k2i_job *job)
{
    alone *a = arg;
    if (job->finish == K2I_RUNNING) return;
    a->tokens += job->len - job->req.prompt_len;
    a->running--;
    if (a->tokens < a->target)
        submit(a, job);
    else if (a->running == 0)
        k2_loop_stop(a->loop);
}

static void bench_engine(const k2_dims *dims, uint32_t batch, uint64_t target)
{
    alone *a = k2_alloc(sizeof *a);
    a->loop = k2_loop_new();
    a->engine = make_engine(a->loop, dims, batch);
    a->batch = batch;
    a->target = target;
    double cpu = cpu_seconds();
    uint64_t begin = k2_now_ns();
    for (uint32_t i = 0; i < batch; i++) {
        k2i_job *job = &a->jobs[i];
        job->on_news = on_news;
        job->arg = a;
        job->req.tokens = k2_alloc_array(PROMPT + NEW, sizeof(int32_t));
        job->req.logps = k2_alloc_array(NEW, sizeof(float));
        submit(a, job);
    }
    k2_loop_run(a->loop);
    double seconds = (double)(k2_now_ns() - begin) / 1e9;
    cpu = cpu_seconds() - cpu;
    uint64_t model_ns, busy_ns;
    k2i_engine_times_get(a->engine, &model_ns, &busy_ns);
    printf("rollout_engine_batch%u,%.0f,tokens/s,,\n", batch, (double)a->tokens / seconds);
    printf("rollout_engine_batch%u_per_core,%.0f,tokens/s,%.3f,model share of engine time\n", batch, (double)a->tokens / cpu,
           (double)model_ns / (double)busy_ns);
    k2i_engine_stop(a->engine);
    k2_loop_free(a->loop);
    k2i_engine_free(a->engine);
    for (uint32_t i = 0; i < batch; i++) {
        k2_free(a->jobs[i].req.tokens);
        k2_free(a->jobs[i].req.logps);
    }
    k2_free(a);
}

/* ---- behind HTTP ------------------------------------------------------------------------------------------------------- */

typedef struct client {
    struct clients *all;
    uint64_t bytes;
} client;

typedef struct clients {
    k2_loop *loop;
    k2_http_client *http;
    char url[64];
    client list[BATCH];
    uint64_t requests, target, next;
    uint32_t running;
} clients;

static void ask(client *c);

static void on_data(void *arg, const char *data, size_t n)
{
    client *c = arg;
    (void)data;
    c->bytes += n;
}

static void on_done(void *arg, k2_code code, const char *text)
{
    client *c = arg;
    clients *all = c->all;
    if (code != K2_OK) {
        fprintf(stderr, "rollout_bench: client: %s\n", text);
        exit(1);
    }
    all->requests++;
    all->running--;
    if (all->next < all->target)
        ask(c);
    else if (all->running == 0)
        k2_loop_stop(all->loop);
}

static const k2_http_call_ops call_ops = {.on_data = on_data, .on_done = on_done};

static void ask(client *c)
{
    clients *all = c->all;
    k2_buf b;
    k2_buf_init(&b, 65536);
    uint64_t t = all->next++;
    k2_buf_puts(&b, "{\"model\":\"k2rl\",\"prompt\":[");
    for (uint32_t p = 0; p < PROMPT; p++) k2_buf_printf(&b, "%s%u", p ? "," : "", (unsigned)((t / 8 * 31 + p * 7) % 256));
    k2_buf_printf(&b,
                  "],\"max_tokens\":%d,\"stream\":true,\"logprobs\":1,\"ignore_eos\":true,"
                  "\"k2\":{\"trajectory\":%llu,\"seed\":1}}",
                  NEW, (unsigned long long)t);
    k2_error err;
    k2_http_call_spec spec = {.method = "POST", .url = all->url, .body = b.data, .body_bytes = b.len};
    if (!k2_http_request(all->http, &spec, &call_ops, c, &err)) {
        fprintf(stderr, "rollout_bench: client: %s\n", err.text);
        exit(1);
    }
    all->running++;
    k2_buf_fini(&b);
}

_Noreturn static void clients_main(uint16_t port, uint64_t requests)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    clients *all = k2_alloc(sizeof *all);
    all->loop = k2_loop_new();
    all->http = k2_http_client_new(all->loop, NULL);
    snprintf(all->url, sizeof all->url, "http://127.0.0.1:%u/v1/completions", port);
    all->target = requests;
    for (uint32_t i = 0; i < BATCH; i++) {
        all->list[i].all = all;
        ask(&all->list[i]);
    }
    k2_loop_run(all->loop);
    exit(0);
}

static void on_client_exit(void *arg)
{
    k2_loop *loop = arg;
    if (waitpid(-1, NULL, WNOHANG) > 0) k2_loop_stop(loop);
}

static void bench_http(const k2_dims *dims, uint64_t target)
{
    int ports[2];
    if (pipe(ports) != 0) exit(1);
    pid_t pid = fork(); /* before any thread is started */
    if (pid == 0) {
        uint16_t port;
        if (read(ports[0], &port, sizeof port) != sizeof port) exit(1);
        clients_main(port, target / NEW);
    }
    k2_loop *loop = k2_loop_new();
    k2_error err;
    k2i_server *server = k2i_server_new(loop, "127.0.0.1", 0, "k2rl", NULL, &err);
    K2_ASSERT(server);
    k2_tokenizer *tokenizer;
    k2_code code = k2_tokenizer_open("byte", NULL, &tokenizer, &err);
    K2_ASSERT(code == K2_OK);
    k2i_engine *engine = make_engine(loop, dims, BATCH);
    k2i_server_attach(
        server,
        &(k2i_served){
            .engine = engine, .tokenizer = tokenizer, .context_max = CONTEXT, .vocab = dims->vocab_size, .answer_max = NEW});
    uint16_t port = k2i_server_port(server);
    if (write(ports[1], &port, sizeof port) != sizeof port) exit(1);
    k2_timer *watch = k2_timer_start(loop, K2_NS_PER_MS, K2_NS_PER_MS, on_client_exit, loop);
    double cpu = cpu_seconds();
    uint64_t begin = k2_now_ns();
    k2_loop_run(loop);
    double seconds = (double)(k2_now_ns() - begin) / 1e9;
    cpu = cpu_seconds() - cpu;
    k2i_core_stats stats;
    uint64_t model_ns, busy_ns;
    k2i_engine_stats_get(engine, &stats);
    k2i_engine_times_get(engine, &model_ns, &busy_ns);
    printf("rollout_http_batch%d,%.0f,tokens/s,,\n", BATCH, (double)stats.generated / seconds);
    printf("rollout_http_batch%d_per_core,%.0f,tokens/s,%.3f,model share of engine time\n", BATCH,
           (double)stats.generated / cpu, (double)model_ns / (double)busy_ns);
    k2_timer_stop(watch);
    k2i_engine_stop(engine);
    k2i_server_free(server);
    k2_loop_free(loop);
    k2i_engine_free(engine);
    k2_tokenizer_close(tokenizer);
}

int main(int argc, char **argv)
{
    k2_dims dims = model_dims(MODEL_QUICKSTART);
    k2_error err;
    dims.max_position_embeddings = CONTEXT;
    if (argc > 1 && k2_weights_dims_load(argv[1], &dims, &err) != K2_OK) {
        fprintf(stderr, "rollout_bench: %s\n", err.text);
        return 2;
    }
    uint64_t tokens = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    if (argc > 3) threads = (uint32_t)strtoul(argv[3], NULL, 10);
    if (threads < 1 || threads > K2_TEAM_THREADS_MAX) {
        fprintf(stderr, "rollout_bench: threads: found \"%s\", expected 1 to %u\n", argv[3], K2_TEAM_THREADS_MAX);
        return 2;
    }
    bench_http(&dims, tokens);
    bench_engine(&dims, 1, tokens / 10);
    bench_engine(&dims, BATCH, tokens);
    return 0;
}
