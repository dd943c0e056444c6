/* main.c - the proxy as a process: its command line, the master's commands, signals, and its end. */
#include "proxy/proxy.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "common/net/net.h"
#include "proxy/io_int.h"

#define STANDALONE_MAX 64u                /* --engine options */
#define DRAIN_NS       (10 * K2_NS_PER_S) /* for what runs when a signal or STOP comes */
#define STATUS_NS      (250 * K2_NS_PER_MS)

typedef struct options {
    const char *master, *listen;
    uint64_t index, nonce;
    const char *engines[STANDALONE_MAX];
    size_t engine_count;
    k2_config config;
    bool help;
} options;

typedef struct proxy {
    options *o;
    k2_loop *loop;
    k2_log *log;
    k2i_px_io *io;
    k2_net_worker *worker;
    k2_signal *signals[2];
    k2_timer *drain, *status;
    uint64_t stop_cmd, drain_until_ns;
    bool stopping;
    int exit_code;
} proxy;

static const char help[] =
    "usage: k2rl proxy --engine URL [--engine URL ...] [--listen HOST:PORT] [--set PATH=VALUE ...]\n"
    "       k2rl proxy --master URL --index I [--nonce N] [--listen HOST:PORT]\n"
    "\n"
    "One OpenAI-compatible endpoint in front of all engines.\n"
    "\n"
    "  --listen HOST:PORT   address for clients; port 0 takes any free one (default 127.0.0.1:0)\n"
    "  --engine URL         an engine's base URL, such as http://127.0.0.1:8000; may be given up to 64 times\n"
    "  --set PATH=VALUE     one key of the configuration, such as proxy.queue_max=100\n"
    "  --master URL         run as a worker of this master; engines and configuration come from it\n"
    "  --index I            number of this proxy among the master's (default 0)\n"
    "  --nonce N            number that the launcher gave this start (default 0)\n"
    "  --help               this text\n"
    "\n"
    "Endpoints: POST /v1/completions, /v1/chat/completions, /k2/score; GET /v1/models, /health, /metrics, /k2/engines, "
    "/k2/requests.\n";

/* ---- command line ----------------------------------------------------------------------------------------------------------
 */

static k2_code take_engine(void *arg, const char *value, k2_error *err)
{
    options *o = arg;
    k2_url url;
    k2_code code = k2_url_parse(value, &url, err);
    if (code != K2_OK) return k2_error_prefix(err, "--engine");
    if (strcmp(url.target, "/") != 0)
        return k2_error_set(err, K2_BAD_INPUT, "--engine: \"%.200s\" has a path; expected http://HOST:PORT", value);
    if (strlen(value) >= K2I_PX_URL_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "--engine: longer than %u bytes", K2I_PX_URL_MAX);
    if (o->engine_count == STANDALONE_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "--engine: given more than %u times", STANDALONE_MAX);
    o->engines[o->engine_count++] = value;
    return K2_OK;
}

static k2_code take_set(void *arg, const char *value, k2_error *err)
{
    options *o = arg;
    return k2_config_set(&o->config, value, err);
}

static k2_code parse_options(int argc, char **argv, options *o, k2_error *err)
{
    const k2_option list[] = {
        {.name = "--master", .text = &o->master},
        {.name = "--index", .u64 = &o->index},
        {.name = "--nonce", .u64 = &o->nonce},
        {.name = "--listen", .text = &o->listen},
        {.name = "--engine", .take = take_engine, .arg = o},
        {.name = "--set", .take = take_set, .arg = o},
    };
    k2_config_defaults(&o->config);
    k2_code code = k2_args_parse(argv + 1, argc - 1, list, K2_COUNT(list), NULL, &o->help, err);
    if (code != K2_OK || o->help) return code;
    if (o->master && o->engine_count) return k2_error_set(err, K2_BAD_INPUT, "--engine: not together with --master");
    if (!o->master && !o->engine_count)
        return k2_error_set(err, K2_BAD_INPUT, "expected --master URL, or --engine URL at least once (--help tells more)");
    return K2_OK;
}

/* ---- ending
 * ------------------------------------------------------------------------------------------------------------------ */

static void loop_end(void *arg)
{
    proxy *p = arg;
    k2_loop_stop(p->loop);
}

static void drained(proxy *p)
{
    k2_timer_stop(p->drain);
    p->drain = NULL;
    if (!p->worker || !p->stop_cmd) {
        k2_loop_stop(p->loop);
        return;
    }
    k2_msg done = {.type = K2_MSG_DONE, .cmd = p->stop_cmd};
    k2_net_worker_done(p->worker, &done);
    k2_net_worker_flush(p->worker, loop_end, p);
}

static void drain_look(void *arg)
{
    proxy *p = arg;
    if (k2i_px_io_open(p->io) == 0 || k2_loop_now_ns(p->loop) >= p->drain_until_ns) drained(p);
}

static void phase_tell(const char *phase)
{
    k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text(phase), 0, K2_FLIGHT_NONE, K2_FLIGHT_NONE);
}

static void drain_begin(proxy *p)
{
    if (p->stopping) return;
    p->stopping = true;
    phase_tell("stopping");
    p->drain_until_ns = k2_loop_now_ns(p->loop) + DRAIN_NS;
    k2i_px_io_drain(p->io);
    p->drain = k2_timer_start(p->loop, 0, 10 * K2_NS_PER_MS, drain_look, p);
}

static void on_signal(void *arg, int signum)
{
    proxy *p = arg;
    if (p->worker && signum == SIGINT) return; /* Ctrl-C reaches all processes at once, and the master decides: it sends STOP */
    K2_LOG_INFO(p->log, "signal %d: %s", signum, p->stopping ? "ending at once" : "finishing what runs");
    if (p->stopping) k2_loop_stop(p->loop);
    drain_begin(p);
}

/* ---- configuration ---------------------------------------------------------------------------------------------------------
 */

/* Twice as many slots as engines: one that has died keeps its own until the probe that is out has been given up. */
static k2i_px_io_config io_config(const k2_config *c, uint64_t engines)
{
    return (k2i_px_io_config){.engines_max = (uint32_t)engines * 2 + 16,
                              .queue_max = (uint32_t)c->proxy_queue_max,
                              .retries = (uint32_t)c->proxy_retries,
                              .health_ms = c->proxy_health_ms,
                              .connect_ms = c->proxy_connect_ms,
                              .stall_ms = c->proxy_stall_ms,
                              .wait_ms = c->proxy_wait_ms};
}

/* ---- the master's commands -------------------------------------------------------------------------------------------------
 */

static void set_engines(proxy *p, const k2_msg_engines *page, k2_msg_done *done)
{
    k2i_px_entry entries[K2_WIRE_ENGINES_MAX];
    k2i_px_stats before, after;
    for (uint32_t i = 0; i < page->engines.count; i++) {
        const k2_wire_engine *e = &page->engines.items[i];
        entries[i] = (k2i_px_entry){.id = e->id,
                                    .incarnation = e->incarnation,
                                    .url = e->url,
                                    .digest = e->digest,
                                    .ready = true,
                                    .gone = strcmp(e->state, "gone") == 0,
                                    .drain = strcmp(e->state, "up") != 0};
    }
    k2i_px_event ev = {.kind = K2I_PX_ENGINES, .engines = {entries, page->engines.count, .page = !page->anew}};
    k2i_px_stats_get(p->io->core, &before);
    k2i_px_io_step(p->io, &ev);
    k2i_px_stats_get(p->io->core, &after);
    if (after.engines_dropped != before.engines_dropped) { /* a page does not come again: better to begin anew */
        done->code = K2_FULL;
        done->text = "there are more engines than slots";
    }
    K2_LOG_INFO(p->log, "engines told=%u known=%u", page->engines.count, after.engines);
}

static void on_command(void *arg, const k2_msg *msg)
{
    proxy *p = arg;
    k2_msg done = {.type = K2_MSG_DONE, .cmd = msg->cmd};
    if (msg->type == K2_MSG_ENGINES) {
        set_engines(p, &msg->engines, &done.done);
    } else if (msg->type == K2_MSG_GATE) {
        k2i_px_event ev = {.kind = K2I_PX_GATE, .gate = {msg->gate.version, msg->gate.digest}};
        k2i_px_io_step(p->io, &ev);
        k2_flight_mark(K2_FLIGHT_GATE, msg->gate.version, 0, 0, 0);
        done.done.version = msg->gate.version;
        done.done.digest = msg->gate.digest;
    } else if (msg->type == K2_MSG_STOP) {
        p->stop_cmd = msg->cmd;
        drain_begin(p);
        return;
    } else {
        done.done.code = K2_UNSUPPORTED;
        done.done.text = "a proxy knows ENGINES, GATE and STOP";
    }
    k2_net_worker_done(p->worker, &done);
}

static void die(proxy *p, const k2_error *err)
{
    fprintf(stderr, "k2rl proxy: %s\n", err->text);
    K2_LOG_ERROR(p->log, "%s", err->text);
    p->exit_code = k2_code_exit(err->code);
    k2_loop_stop(p->loop);
}

static k2_code listen_at(proxy *p, const char *address, uint16_t *port, char host[K2_HTTP_HOST_MAX], k2_error *err)
{
    k2_code code = k2_hostport_parse(address, host, port, err);
    if (code == K2_OK) code = k2i_px_io_listen(p->io, host, *port, port, err);
    return code;
}

static void tell_status(void *arg)
{
    proxy *p = arg;
    k2i_px_stats s;
    if (!p->io->ready) return;
    k2i_px_stats_get(p->io->core, &s);
    k2_flight_count(K2_FLIGHT_QUEUES, s.queued, s.running, 0, 0);
    const k2_wire_metric gauges[] = {
        {"running", s.running},       {"queued", s.queued},           {"outstanding_tokens", (double)s.outstanding},
        {"engines_ready", s.ready},   {"retried", (double)s.retried}, {"moved", (double)s.moved},
        {"failed", (double)s.failed}, {"done", (double)s.done}};
    k2_net_worker_status(p->worker, p->stopping ? "stopping" : "serving", gauges, K2_COUNT(gauges));
}

static void log_address(proxy *p, const char *host, uint16_t port)
{
    K2_LOG_INFO(p->log, strchr(host, ':') ? "listening url=http://[%s]:%u" : "listening url=http://%s:%u", host, port);
}

/* The configuration comes after we had to tell an address, so the one that it names is a second one. */
static void on_welcome(void *arg, const k2_msg *msg)
{
    proxy *p = arg;
    k2_error err;
    k2_config *c = &p->o->config;
    char host[K2_HTTP_HOST_MAX];
    uint16_t port;
    if (k2_config_parse(c, msg->welcome.config, strlen(msg->welcome.config), "WELCOME", &err) != K2_OK) {
        die(p, &err);
        return;
    }
    k2_net_worker_record(p->worker, c->run_dir, msg->welcome.run_id, c->run_flight_kib);
    phase_tell("serving");
    bool own = strcmp(c->proxy_listen, "127.0.0.1:0") != 0 && !p->o->listen;
    if (own && listen_at(p, c->proxy_listen, &port, host, &err) != K2_OK) {
        k2_error_prefix(&err, "proxy.listen");
        die(p, &err);
        return;
    }
    if (own) log_address(p, host, port);
    k2i_px_io_config config = io_config(c, c->rollout_workers);
    k2i_px_io_configure(p->io, &config);
    tell_status(p);
    k2_log_level level;
    if (k2_log_level_parse(c->log_level, &level)) k2_log_set_level(p->log, level);
    K2_LOG_INFO(p->log, "welcome worker=%llu", (unsigned long long)k2_net_worker_id(p->worker));
}

static void on_lost(void *arg, k2_code why, const char *text)
{
    proxy *p = arg;
    K2_LOG_ERROR(p->log, "the master is lost: %s: %s", k2_code_name(why), text);
    p->exit_code = 1;
    k2_loop_stop(p->loop);
}

static const k2_net_worker_ops worker_ops = {.on_welcome = on_welcome, .on_command = on_command, .on_lost = on_lost};

/* ---- life
 * ---------------------------------------------------------------------------------------------------------------------- */

static k2_code join_master(proxy *p, const char *host, uint16_t port, k2_error *err)
{
    char endpoint[K2_HTTP_HOST_MAX + 32];
    snprintf(endpoint, sizeof endpoint, strchr(host, ':') ? "http://[%s]:%u" : "http://%s:%u", host, port);
    k2_net_worker_config config = {.url = p->o->master,
                                   .role = "proxy",
                                   .endpoint = endpoint,
                                   .token = getenv("K2RL_TOKEN"),
                                   .index = p->o->index,
                                   .nonce = p->o->nonce,
                                   .log = p->log};
    p->worker = k2_net_worker_start(p->loop, &config, &worker_ops, p, err);
    if (!p->worker) return err->code;
    p->status = k2_timer_start(p->loop, 0, STATUS_NS, tell_status, p);
    return K2_OK;
}

static void stand_alone(proxy *p, const char *host, uint16_t port)
{
    k2i_px_entry entries[STANDALONE_MAX];
    char urls[STANDALONE_MAX][K2I_PX_URL_MAX];
    for (size_t i = 0; i < p->o->engine_count; i++) {
        snprintf(urls[i], sizeof urls[i], "%s", p->o->engines[i]);
        size_t n = strlen(urls[i]);
        if (urls[i][n - 1] == '/') urls[i][n - 1] = 0;
        entries[i] = (k2i_px_entry){.id = i, .url = urls[i]};
    }
    k2i_px_io_config config = io_config(&p->o->config, p->o->engine_count);
    k2i_px_io_configure(p->io, &config);
    k2i_px_event ev = {.kind = K2I_PX_ENGINES, .engines = {entries, p->o->engine_count}};
    k2i_px_io_step(p->io, &ev);
    printf(strchr(host, ':') ? "listening on http://[%s]:%u\n" : "listening on http://%s:%u\n", host, port);
    fflush(stdout);
}

static k2_code run(proxy *p, k2_error *err)
{
    char host[K2_HTTP_HOST_MAX];
    uint16_t port;
    const char *address = p->o->listen ? p->o->listen : p->o->master ? "127.0.0.1:0" : p->o->config.proxy_listen;
    p->io = k2i_px_io_new(p->loop, p->log);
    k2_code code = listen_at(p, address, &port, host, err);
    if (code == K2_OK && p->o->master) code = join_master(p, host, port, err);
    if (code == K2_OK) {
        log_address(p, host, port);
        p->signals[0] = k2_loop_signal(p->loop, SIGINT, on_signal, p);
        p->signals[1] = k2_loop_signal(p->loop, SIGTERM, on_signal, p);
        if (!p->o->master) stand_alone(p, host, port);
        k2_loop_run(p->loop);
    }
    for (size_t i = 0; i < K2_COUNT(p->signals); i++) k2_signal_stop(p->signals[i]);
    k2_timer_stop(p->drain);
    k2_timer_stop(p->status);
    k2_net_worker_close(p->worker);
    k2i_px_io_close(p->io);
    k2_loop_free(p->loop);
    k2i_px_io_free(p->io);
    return code;
}

int k2_proxy_main(int argc, char **argv)
{
    k2_error err = {0};
    options *o = k2_alloc(sizeof *o);
    proxy p = {.o = o};
    k2_code code = parse_options(argc, argv, o, &err);
    if (code == K2_OK && o->help) {
        fputs(help, stdout);
        k2_free(o);
        return 0;
    }
    k2_log_level level = K2_LOG_INFO;
    k2_log_level_parse(o->config.log_level, &level);
    if (code == K2_OK) p.log = k2_log_open(NULL, "proxy", o->master ? (int)o->index : -1, level, &err);
    if (code == K2_OK) {
        p.loop = k2_loop_new();
        k2_loop_raise_fd_limit();
        code = run(&p, &err);
        k2_log_close(p.log);
    }
    if (code != K2_OK) {
        fprintf(stderr, "k2rl proxy: %s\n", err.text);
        p.exit_code = k2_code_exit(code);
    }
    k2_free(o);
    return p.exit_code;
}
