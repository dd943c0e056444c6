/* io: the loop around the core. */
#include "master/io_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/flight/flight.h"
#include "common/stack/stack.h"

/* ---- write-ahead: records first, then actions --------------------------------------------------------------------------- */

/* A quarter of the map: the records until the next checkpoint, its snapshot, and both of the one before still fit. */
static void weigh(k2m_io *io, uint32_t type, size_t len)
{
    if (type == K2M_REC_STATE) io->journal_bytes = 0;
    io->journal_bytes += len + 64;
    io->core->journal_pressed = io->journal_bytes > io->run->config.run_journal_mb * (1u << 20) / 4;
}

static void record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    k2m_io *io = arg;
    k2_error err;
    if (k2_journal_append(io->journal, type, bytes, len, NULL, &err) != K2_OK) {
        /* Without the record nothing may go on. It is told when this step's actions are looked at. */
        if (io->write_error.code == K2_OK) io->write_error = err;
        return;
    }
    if (type == K2M_REC_STATE) io->state_seq = k2_journal_next_seq(io->journal) - 1;
    weigh(io, type, len);
}

static void end(k2m_io *io, const k2m_action *a)
{
    io->ended = true;
    io->exit_code = a->code;
    snprintf(io->exit_text, sizeof io->exit_text, "%s", a->text);
    k2_loop_stop(io->loop);
}

void k2m_io_carry_out(k2m_io *io, const k2m_action *a)
{
    if (a->type == K2M_ACT_LAUNCH)
        k2m_workers_launch(io, a);
    else
        k2m_workers_kill(io, a);
}

static void perform(k2m_io *io, k2m_held *h)
{
    const k2m_action *a = &h->action;
    switch (a->type) {
    case K2M_ACT_LAUNCH:
    case K2M_ACT_KILL:
        if (!k2m_snapshot_keeps(io, a)) k2m_io_carry_out(io, a);
        break;
    case K2M_ACT_STACKS: k2m_snapshot_take(io, a); break;
    case K2M_ACT_ADMIT:
    case K2M_ACT_REFUSE: k2m_workers_admit(io, a, h->call); break;
    case K2M_ACT_COMMAND: k2m_workers_command(io, a); break;
    case K2M_ACT_BATCH: k2m_batch_make(io, a->step); break;
    case K2M_ACT_REQUEST: k2m_call_request(io, a); break;
    case K2M_ACT_SCORE: k2m_call_score(io, a); break;
    case K2M_ACT_LATEST: k2m_latest_write(io, a->step); break;
    case K2M_ACT_COMPACT: io->compact_before = io->state_seq; break; /* with the next write */
    case K2M_ACT_QUARANTINE: k2m_put_aside(io, a); break;
    case K2M_ACT_REPORT: k2m_reporter_report(io->reporter, &a->report); break;
    case K2M_ACT_LOG:
        k2_log_write(io->log, (k2_log_level)a->level, "%s", a->text);
        k2m_reporter_line(io->reporter, a->level, a->text);
        break;
    case K2M_ACT_EXIT: end(io, a); break;
    }
}

static void release(k2m_io *io)
{
    if (io->releasing) return;
    io->releasing = true;
    k2m_held h;
    while (!io->ended && k2m_hold_take(&io->hold, k2_journal_durable_seq(io->journal), &h)) {
        perform(io, &h);
        k2m_held_free(&h);
    }
    io->releasing = false;
}

static void write_work(void *arg)
{
    k2m_io *io = arg;
    k2_journal_batch *batch = io->writing;
    k2_flight_thread("pool");
    k2_code code = batch ? k2_journal_write(io->journal, batch, &io->writer_error) : K2_OK;
    if (code == K2_OK && io->compacting > 0) (void)k2_journal_truncate_before(io->journal, io->compacting, &io->writer_error);
}

static void pump_journal(k2m_io *io);

/* On the loop again: what the writer met is ours to look at now. */
static void write_done(void *arg)
{
    k2m_io *io = arg;
    io->write_busy = false;
    if (io->write_error.code == K2_OK) io->write_error = io->writer_error;
    pump_journal(io);
    release(io);
}

static void fault(k2m_io *io)
{
    if (io->fault_told) return;
    io->fault_told = true;
    io->ended = true; /* nothing that is not durable may show: no action is carried out any more */
    io->exit_code = io->write_error.code;
    snprintf(io->exit_text, sizeof io->exit_text, "%.250s%s", io->write_error.text,
             io->exit_code == K2_NO_SPACE ? " (run.journal_mb, or the disk)" : "");
    K2_LOG_ERROR(io->log, "%s", io->write_error.text);
    k2_loop_stop(io->loop);
}

/* One write at a time; what is appended meanwhile goes with the next: group commit. */
static void pump_journal(k2m_io *io)
{
    if (io->write_error.code != K2_OK) {
        fault(io);
        return;
    }
    if (io->write_busy || (k2_journal_pending(io->journal) == 0 && io->compact_before == 0)) return;
    io->writing = k2_journal_seal(io->journal);
    io->compacting = io->compact_before;
    io->compact_before = 0;
    io->write_busy = true;
    k2_loop_work_surely(io->loop, write_work, write_done, io);
}

static void hold(k2m_io *io, const k2m_action *a, uint64_t needs)
{
    bool answers = a->type == K2M_ACT_ADMIT || a->type == K2M_ACT_REFUSE;
    k2m_hold_put(&io->hold, a, needs, answers ? io->hello : NULL);
    if (answers) io->hello = NULL;
}

void k2m_io_event(k2m_io *io, k2m_event *ev)
{
    if (io->ended) return;
    ev->now_ns = k2_loop_now_ns(io->loop);
    const k2m_outbox *out = k2m_core_step(io->core, ev);
    if (io->phase_told != io->core->phase) { /* log.level debug: what a fault hit can be read from the log */
        io->phase_told = io->core->phase;
        const char *phase = k2m_phase_name(io->phase_told);
        K2_LOG_DEBUG(io->log, "phase %s", phase);
        k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text(phase), k2_flight_text_at(phase, 8), io->core->iteration + 1,
                        io->core->force_version);
    }
    uint64_t needs = k2_journal_next_seq(io->journal) - 1;
    for (uint32_t i = 0; i < out->count; i++) hold(io, &out->list[i], needs);
    pump_journal(io);
    release(io);
}

/* ---- the loop's own events -------------------------------------------------------------------------------------------------
 */

static void on_tick(void *arg)
{
    k2m_io *io = arg;
    uint64_t now = k2_loop_now_ns(io->loop);
    k2m_workers_tick(io, now);
    k2m_ask_tick(io, now);
    k2m_snapshot_tick(io, now);
    k2m_io_event(io, &(k2m_event){.type = K2M_EV_TICK});
    if (!io->ended) k2m_reporter_tick(io->reporter, io->core, now);
}

static void on_signal(void *arg, int signum)
{
    (void)signum;
    k2m_io_event(arg, &(k2m_event){.type = K2M_EV_STOP});
}

/* ---- start and end ----------------------------------------------------------------------------------------------------------
 */

static bool apply_record(void *arg, const k2_journal_record *r)
{
    k2m_io *io = arg;
    weigh(io, r->type, r->len);
    return k2m_core_apply(io->core, r->type, r->bytes, r->len, &io->write_error) == K2_OK;
}

static k2_code recover(k2m_io *io, k2_error *err)
{
    const k2m_run *run = io->run;
    char *checkpoints = k2_asprintf("%s/checkpoints", run->config.run_dir);
    io->checkpoints_dir = checkpoints;
    k2m_core_config cc = {.config = &run->config,
                          .prompts = {.ids = (const int32_t *const *)run->train.ids,
                                      .lengths = run->train.lengths,
                                      .easy_first = run->train.easy_first,
                                      .difficulty = run->train.difficulty,
                                      .count = run->train.count,
                                      .length_max = run->train.length_max},
                          .heldout = run->heldout.count,
                          .vocab = run->dims.vocab_size,
                          .pid = (uint64_t)getpid(),
                          .checkpoints_dir = checkpoints,
                          .record = record,
                          .record_arg = io};
    k2_code code = k2m_core_new(&cc, &io->core, err);
    if (code == K2_OK) code = k2_journal_read(io->journal, 0, apply_record, io, err);
    if (code == K2_OK && io->write_error.code != K2_OK) {
        *err = io->write_error;
        code = err->code;
    }
    return code;
}

static k2_code open_parts(k2m_io *io, k2_error *err)
{
    const k2_config *c = &io->run->config;
    char url[K2_NET_URL_MAX];
    k2_code code = K2_OK;
    if (c->master_listen[0])
        snprintf(url, sizeof url, "%.200s", c->master_listen);
    else
        code = k2_net_url_for_dir(c->run_dir, url, err);
    if (code != K2_OK) return code;
    k2_net_token_make(io->token);
    io->config_json = k2_config_json(c);
    io->slots = k2_alloc_array(io->core->worker_count, sizeof *io->slots);
    io->polls = k2_least_new(io->core->worker_count);
    io->eval = k2_alloc_array(K2M_EVAL_MAX, sizeof *io->eval);
    io->server = k2_net_listen(io->loop, url, io->core->worker_count, k2m_workers_request, io, err);
    if (!io->server) return err->code;
    io->launch = k2_launch_open(io->loop, "local", io->log, err);
    if (!io->launch) return err->code;
    io->http = k2_http_client_new(io->loop, NULL);
    io->list_http = k2_http_client_new(io->loop, NULL);
    k2_xfer_config xc = {.transport = c->xfer_transport,
                         .chunk_bytes = c->xfer_chunk_bytes,
                         .retries = (uint32_t)c->xfer_retries,
                         .deadline_ns = c->xfer_deadline_ms * K2_NS_PER_MS};
    return k2_xfer_open(&xc, &io->xfer, err);
}

static void close_parts(k2m_io *io)
{
    k2_timer_stop(io->tick);
    k2m_workers_fini(io);
    k2m_snapshot_fini(io);
    k2_launch_close(io->launch);
    k2m_calls_drop(io);
    if (io->http) k2_http_client_close(io->http);
    if (io->list_http) k2_http_client_close(io->list_http);
    k2_net_server_close(io->server);
    k2_loop_free(io->loop); /* the last write ends here */
    k2_xfer_segment_destroy(io->segment);
    k2_xfer_close(io->xfer);
    for (uint32_t i = 0; i < io->eval_count; i++) k2_free(io->eval[i].ids);
    k2m_hold_fini(&io->hold);
    k2_free(io->eval);
    k2_free(io->slots);
    k2_least_free(io->polls);
    k2_free(io->config_json);
    k2m_reporter_close(io->reporter);
    k2m_core_free(io->core);
    k2_free(io->checkpoints_dir);
}

static k2_code open_log(k2m_io *io, k2_error *err)
{
    k2_log_level level = K2_LOG_INFO;
    (void)k2_log_level_parse(io->run->config.log_level, &level);
    char *path = k2_asprintf("%s/logs/master-0.log", io->run->config.run_dir);
    io->log = k2_log_open(path, "master", 0, level, err);
    k2_stack_report_to(path);
    k2_free(path);
    return io->log ? K2_OK : err->code;
}

static void record_flight(const k2m_io *io)
{
    const k2_config *c = &io->run->config;
    k2_error err;
    k2_flight_config config = {.dir = c->run_dir, .role = "master", .run_id = io->run->id, .kib = c->run_flight_kib};
    if (k2_flight_open(&config, &err) != K2_OK) K2_LOG_WARN(io->log, "the flight recorder stays off: %s", err.text);
    k2_flight_thread("loop");
}

int k2m_io_run(k2m_run *run, k2_journal *journal)
{
    k2_error err = {0};
    k2m_plan plan;
    k2m_io io = {.run = run, .journal = journal};
    k2_code code = open_log(&io, &err);
    if (code == K2_OK) record_flight(&io);
    if (code == K2_OK) code = recover(&io, &err);
    if (code == K2_OK) {
        io.loop = k2_loop_new();
        code = k2m_reporter_open(run, io.loop, io.log, &io.reporter, &err);
    }
    if (code == K2_OK) code = open_parts(&io, &err);
    if (code == K2_OK && io.core->finished && io.core->iteration >= run->config.iterations) {
        K2_LOG_INFO(io.log, "the run has ended before");
        k2m_reporter_summary(io.reporter, io.core, K2_OK, "the run has ended before; nothing was left to do");
    } else if (code == K2_OK) {
        k2_signal *signals[] = {k2_loop_signal(io.loop, SIGINT, on_signal, &io),
                                k2_loop_signal(io.loop, SIGTERM, on_signal, &io)};
        io.tick = k2_timer_start(io.loop, K2M_TICK_NS, K2M_TICK_NS, on_tick, &io);
        K2_LOG_INFO(io.log, "run %s starts at iteration %llu, control at %s", run->id, (unsigned long long)io.core->iteration,
                    k2_net_server_url(io.server));
        k2m_io_event(&io, &(k2m_event){.type = K2M_EV_BEGIN});
        k2_loop_run(io.loop);
        k2m_plan_make(run, &plan);
        k2_log_memory(io.log, "master", plan.master_bytes);
        for (size_t i = 0; i < K2_COUNT(signals); i++) k2_signal_stop(signals[i]);
        code = io.exit_code;
        snprintf(err.text, sizeof err.text, "%s", io.exit_text);
        k2m_reporter_summary(io.reporter, io.core, code, io.exit_text);
    }
    if (code != K2_OK) fprintf(stderr, "k2rl master: %s\n", err.text);
    if (io.loop)
        close_parts(&io);
    else {
        k2m_reporter_close(io.reporter);
        k2m_core_free(io.core);
        k2_free(io.checkpoints_dir);
    }
    k2_journal_close(journal);
    k2_log_close(io.log);
    return k2_code_exit(code);
}
