/* trainer_io - the process around the trainer: messages to events, actions to work on a pool thread, results to DONE. */
#include "trainer/trainer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/flight/flight.h"
#include "common/inputs/inputs.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/net/net.h"
#include "trainer/trainer_core_int.h"
#include "trainer/work_int.h"

typedef struct arguments {
    const char *master;
    uint64_t index, nonce;
    bool help;
} arguments;

#define INDEX_NONE UINT64_MAX /* --index was not given */

typedef struct trainer_io {
    arguments args;
    k2_loop *loop;
    k2_net_worker *worker;
    k2_log *log;
    k2_timer *status;
    k2i_trainer_core core;
    k2i_work work;
    bool work_open, work_running, work_done;
    k2_msg command;    /* the running one, copied: the work reads its fields */
    k2i_result result; /* of the last command that finished */
    int exit_status;
} trainer_io;

static void actions_do(trainer_io *io, const k2i_trainer_outbox *out);

/* ---- work on the pool ---- */

static void work_run(void *arg)
{
    trainer_io *io = arg;
    const k2_msg *m = &io->command;
    k2i_work *w = &io->work;
    uint64_t step = m->type == K2_MSG_TRAIN ? m->train.step : m->type == K2_MSG_PRETRAIN ? m->pretrain.from : K2_FLIGHT_NONE;
    k2_flight_thread("work");
    uint32_t span = k2_flight_begin(K2_FLIGHT_COMMAND, k2_flight_text(k2_msg_name(m->type)), m->cmd, step, K2_FLIGHT_NONE);
    io->work_done = true;
    switch (m->type) {
    case K2_MSG_JOIN: k2i_work_join(w, &io->result); break;
    case K2_MSG_INIT:
        k2i_work_init(w, m->init.locators.items, m->init.locators.count, m->init.source, m->init.step, &io->result);
        break;
    case K2_MSG_PRETRAIN: k2i_work_pretrain(w, m->pretrain.from, m->pretrain.to, &io->result); break;
    case K2_MSG_TRAIN: k2i_work_train(w, m->train.step, m->train.locator, m->train.bytes, m->train.digest, &io->result); break;
    case K2_MSG_PUBLISH: k2i_work_publish(w, m->publish.version, &io->result); break;
    case K2_MSG_SAVE: k2i_work_save(w, m->save.dir, m->save.step, &io->result); break;
    default: memset(&io->result, 0, sizeof(io->result)); break; /* STOP: nothing to do but to answer */
    }
    k2_flight_end_with(span, 3, io->result.error.code);
}

/* What the flight recorder shows as the state of this process. */
static void phase_tell(const trainer_io *io)
{
    const char *phase = io->work_running ? k2_msg_name(io->command.type) : "idle";
    k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text(phase), k2_flight_text_at(phase, 8), K2_FLIGHT_NONE, K2_FLIGHT_NONE);
}

static void work_finished(void *arg)
{
    trainer_io *io = arg;
    io->work_running = false;
    phase_tell(io);
    if (!io->work_done) return; /* the loop ended before it began */
    const k2i_result *r = &io->result;
    if (r->error.code != K2_OK)
        K2_LOG_ERROR(io->log, "%s failed cmd=%llu: %s", k2_msg_name(io->command.type), (unsigned long long)io->command.cmd,
                     r->error.text);
    k2i_trainer_event event = {.kind = K2I_ON_FINISHED,
                               .code = r->error.code,
                               .unchanged = r->unchanged,
                               .step = r->step,
                               .pretrain_step = r->pretrain_step};
    k2i_trainer_outbox out;
    k2i_trainer_step(&io->core, &event, &out);
    actions_do(io, &out);
}

static void work_start(trainer_io *io)
{
    io->work_running = true;
    io->work_done = false;
    phase_tell(io);
    k2_code code = k2_loop_work(io->loop, work_run, work_finished, io);
    K2_ASSERT(code == K2_OK); /* one work at a time: the pool's queue cannot be full of ours */
}

/* ---- answers ---- */

static void answer(trainer_io *io, uint64_t cmd)
{
    const k2i_result *r = &io->result;
    k2_wire_metric *metrics = k2_alloc_array(r->metrics.count, sizeof(*metrics));
    const char *locator = r->locator;
    for (uint32_t i = 0; i < r->metrics.count; i++)
        metrics[i] = (k2_wire_metric){.name = r->metrics.items[i].name, .value = r->metrics.items[i].value};
    k2_msg done = {.type = K2_MSG_DONE,
                   .cmd = cmd,
                   .done = {.code = r->error.code,
                            .text = r->error.code == K2_OK ? "" : r->error.text,
                            .version = r->version,
                            .digest = r->digest,
                            .locators = {.items = &locator, .count = r->has_locator},
                            .bytes = r->bytes,
                            .metrics = {.items = metrics, .count = r->metrics.count}}};
    k2_net_worker_done(io->worker, &done);
    k2_free(metrics);
}

static void refuse(trainer_io *io, uint64_t cmd, const k2_error *error)
{
    K2_LOG_WARN(io->log, "refused cmd=%llu: %s", (unsigned long long)cmd, error->text);
    k2_msg done = {.type = K2_MSG_DONE, .cmd = cmd, .done = {.code = error->code, .text = error->text}};
    k2_net_worker_done(io->worker, &done);
}

static void loop_end(void *arg)
{
    trainer_io *io = arg;
    k2_loop_stop(io->loop);
}

/* A work that runs cannot be stopped from outside, and after the master is gone its result is nobody's. Memory that others read
 * goes with the process, so the fast end leaves nothing behind. */
static void end(trainer_io *io, int status)
{
    io->exit_status = status;
    if (io->work_running) k2_net_process_end(status);
    if (status == 0)
        k2_net_worker_flush(io->worker, loop_end, io);
    else
        k2_loop_stop(io->loop);
}

static void actions_do(trainer_io *io, const k2i_trainer_outbox *out)
{
    for (uint32_t i = 0; i < out->count; i++) {
        const k2i_trainer_action *a = &out->actions[i];
        switch (a->kind) {
        case K2I_DO_RUN: work_start(io); break;
        case K2I_DO_ANSWER: answer(io, a->id); break;
        case K2I_DO_REFUSE: refuse(io, a->id, &a->error); break;
        case K2I_DO_EXIT: end(io, a->status); break;
        }
    }
}

/* ---- messages ---- */

static bool command_read(const k2_msg *m, k2i_command *out)
{
    *out = (k2i_command){.id = m->cmd};
    switch (m->type) {
    case K2_MSG_JOIN: out->kind = K2I_JOIN; return true;
    case K2_MSG_INIT: out->kind = K2I_INIT; return true;
    case K2_MSG_PRETRAIN:
        out->kind = K2I_PRETRAIN;
        out->from = m->pretrain.from;
        out->to = m->pretrain.to;
        return true;
    case K2_MSG_TRAIN:
        out->kind = K2I_TRAIN;
        out->step = m->train.step;
        return true;
    case K2_MSG_PUBLISH:
        out->kind = K2I_PUBLISH;
        out->step = m->publish.version;
        return true;
    case K2_MSG_SAVE:
        out->kind = K2I_SAVE;
        out->step = m->save.step;
        return true;
    case K2_MSG_STOP: out->kind = K2I_STOP; return true;
    default: return false;
    }
}

static void on_command(void *arg, const k2_msg *m)
{
    trainer_io *io = arg;
    k2i_trainer_event event = {.kind = K2I_ON_COMMAND};
    k2i_trainer_outbox out;
    if (!command_read(m, &event.command)) {
        k2_error err;
        k2_error_set(&err, K2_UNSUPPORTED, "%s is no command for a trainer", k2_msg_name(m->type));
        refuse(io, m->cmd, &err);
        return;
    }
    k2i_trainer_step(&io->core, &event, &out);
    if (out.count > 0 && out.actions[0].kind == K2I_DO_RUN) {
        k2_msg_free(&io->command);
        k2_msg_copy(&io->command, m);
    }
    actions_do(io, &out);
}

static void lost(trainer_io *io)
{
    k2i_trainer_event event = {.kind = K2I_ON_LOST};
    k2i_trainer_outbox out;
    k2i_trainer_step(&io->core, &event, &out);
    actions_do(io, &out);
}

static void on_lost(void *arg, k2_code why, const char *text)
{
    trainer_io *io = arg;
    K2_LOG_ERROR(io->log, "the master is lost: %s (%s)", text, k2_code_name(why));
    lost(io);
}

static void on_status(void *arg)
{
    trainer_io *io = arg;
    k2_wire_metric gauges[] = {{.name = "steps", .value = (double)atomic_load(&io->work.progress)},
                               {.name = "tokens", .value = (double)atomic_load(&io->work.tokens)}};
    const char *phase = io->work_running ? k2_msg_name(io->command.type) : "idle";
    k2_net_worker_status(io->worker, phase, gauges, K2_COUNT(gauges));
}

static void on_welcome(void *arg, const k2_msg *m)
{
    trainer_io *io = arg;
    k2_config config;
    k2_error err;
    k2_log_level level;
    k2_config_defaults(&config);
    k2_code code = k2_config_parse(&config, m->welcome.config, strlen(m->welcome.config), "WELCOME", &err);
    if (code == K2_OK && io->args.index >= config.trainer_ranks)
        code = k2_error_set(&err, K2_BAD_INPUT, "--index: found %llu, expected below trainer.ranks (%llu)",
                            (unsigned long long)io->args.index, (unsigned long long)config.trainer_ranks);
    if (code == K2_OK) k2_net_worker_record(io->worker, config.run_dir, m->welcome.run_id, config.run_flight_kib);
    const k2_inputs masters = {.model = m->welcome.model, .tokenizer = m->welcome.tokenizer};
    if (code == K2_OK) code = k2_inputs_check(&config, &masters, &err);
    if (code == K2_OK) code = k2i_work_open(&io->work, &config, (uint32_t)io->args.index, io->log, &err);
    if (code != K2_OK) {
        K2_LOG_ERROR(io->log, "cannot start: %s", err.text);
        lost(io);
        io->exit_status = k2_code_exit(code);
        return;
    }
    io->work_open = true;
    phase_tell(io);
    if (k2_log_level_parse(config.log_level, &level)) k2_log_set_level(io->log, level);
    io->status = k2_timer_start(io->loop, 0, 500 * K2_NS_PER_MS, on_status, io);
    K2_LOG_INFO(io->log, "admitted worker=%llu rank=%u ranks=%u threads=%u", (unsigned long long)k2_net_worker_id(io->worker),
                io->work.rank, io->work.ranks, k2_budget_trainer_threads(&config));
}

/* ---- the process ---- */

static const char help[] = "usage: k2rl trainer --master URL --index I [--nonce N]\n"
                           "\n"
                           "One trainer rank: forward, backward, optimizer, weights for the rollout workers. The master starts "
                           "it; configuration and data\n"
                           "come from there.\n"
                           "\n"
                           "  --master URL   control address of the master\n"
                           "  --index I      number of this rank, from 0\n"
                           "  --nonce N      number that the master knows this start by (default 0)\n"
                           "  --help         this text\n";

static k2_code arguments_read(int argc, char **argv, arguments *out, k2_error *err)
{
    const k2_option options[] = {
        {.name = "--master", .text = &out->master},
        {.name = "--index", .u64 = &out->index},
        {.name = "--nonce", .u64 = &out->nonce},
    };
    *out = (arguments){.index = INDEX_NONE};
    k2_code code = k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), NULL, &out->help, err);
    if (code != K2_OK || out->help) return code;
    if (!out->master || out->index == INDEX_NONE)
        return k2_error_set(err, K2_BAD_INPUT, "expected --master URL --index I [--nonce N]");
    return K2_OK;
}

static void io_free(trainer_io *io)
{
    k2_timer_stop(io->status);
    k2_net_worker_close(io->worker);
    k2_loop_free(io->loop);
    const k2i_work *w = &io->work;
    if (w->learner) k2_log_memory(io->log, "trainer", k2_budget_trainer(&w->config, &w->dims, w->rank, w->ranks).total);
    if (io->work_open) k2i_work_close(&io->work);
    k2_msg_free(&io->command);
    k2_log_close(io->log);
    k2_free(io);
}

int k2_trainer_main(int argc, char **argv)
{
    static const k2_net_worker_ops ops = {.on_welcome = on_welcome, .on_command = on_command, .on_lost = on_lost};
    arguments args;
    k2_error err;
    if (arguments_read(argc, argv, &args, &err) != K2_OK) {
        fprintf(stderr, "k2rl trainer: %s\n", err.text);
        return 2;
    }
    if (args.help) {
        fputs(help, stdout);
        return 0;
    }
    signal(SIGINT, SIG_IGN); /* Ctrl-C reaches the whole terminal group; the master drains and says STOP */
    trainer_io *io = k2_alloc(sizeof(*io));
    io->args = args;
    io->loop = k2_loop_new();
    io->log = k2_log_open(NULL, "trainer", (int)args.index, K2_LOG_INFO, &err);
    k2_net_worker_config config = {.url = args.master,
                                   .role = "trainer",
                                   .token = getenv("K2RL_TOKEN"),
                                   .index = args.index,
                                   .nonce = args.nonce,
                                   .log = io->log};
    io->worker = io->log ? k2_net_worker_start(io->loop, &config, &ops, io, &err) : NULL;
    int status = 2;
    if (io->worker) {
        k2_loop_run(io->loop);
        status = io->exit_status;
    } else {
        fprintf(stderr, "k2rl trainer: %s\n", err.text);
        status = k2_code_exit(err.code);
    }
    io_free(io);
    return status;
}
