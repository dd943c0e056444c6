/* cluster: see cluster.h. */
#include "cluster.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void happen(cluster *c, k2m_event *ev, cluster_op op);
static void proxy_step(cluster *c, k2i_px_event *ev, cluster_op op);

uint64_t cluster_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * K2_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void count(cluster *c, cluster_op op, uint64_t ns, uint64_t looks)
{
    cluster_cost *x = &c->cost[op];
    x->events++;
    x->ns += ns;
    x->looks += looks;
    x->ns_max = K2_MAX(x->ns_max, ns);
    x->looks_max = K2_MAX(x->looks_max, looks);
}

static void record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

static k2_digest weights_of(uint64_t version)
{
    return (k2_digest){version + 1, 0x5ca1e};
}

/* ---- what the master asks for
 * ------------------------------------------------------------------------------------------------ */

static void take_table(cluster *c, const k2_msg_engines *page)
{
    k2i_px_entry entries[K2_WIRE_ENGINES_MAX];
    for (uint32_t i = 0; i < page->engines.count; i++) {
        const k2_wire_engine *e = &page->engines.items[i];
        entries[i] = (k2i_px_entry){.id = e->id,
                                    .incarnation = e->incarnation,
                                    .url = e->url,
                                    .digest = e->digest,
                                    .ready = true,
                                    .gone = strcmp(e->state, "gone") == 0};
    }
    proxy_step(c, &(k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {entries, page->engines.count, .page = !page->anew}},
               PX_TABLE);
}

static void take_command(cluster *c, const k2m_action *a)
{
    const k2_msg *m = &a->msg;
    K2_ASSERT(c->command_count < c->command_max);
    cluster_command *x = &c->commands[c->command_count++];
    *x = (cluster_command){.worker = a->worker, .incarnation = a->incarnation, .cmd = m->cmd, .type = m->type};
    if (m->type == K2_MSG_PUBLISH) x->version = m->publish.version;
    if (m->type == K2_MSG_PREPARE) x->digest = m->prepare.digest;
    if (m->type == K2_MSG_COMMIT) x->digest = m->commit.digest;
    if (m->type == K2_MSG_ENGINES) take_table(c, &m->engines);
    if (m->type == K2_MSG_GATE)
        proxy_step(c, &(k2i_px_event){.kind = K2I_PX_GATE, .gate = {m->gate.version, m->gate.digest}}, PX_TABLE);
}

static void take_request(cluster *c, const k2m_action *a)
{
    uint32_t at = 0;
    while (at < CLUSTER_CALLS && c->calls[at].used) at++;
    K2_ASSERT(at < CLUSTER_CALLS);
    c->calls[at] =
        (cluster_call){.used = true, .id = a->id, .position = a->position, .max_tokens = a->max_tokens, .request = K2I_PX_NONE};
    proxy_step(c,
               &(k2i_px_event){.kind = K2I_PX_REQUEST,
                               .req = {.user = &c->calls[at],
                                       .prompt_tokens = 4,
                                       .max_tokens = a->max_tokens,
                                       .group = k2_replay_group_of(a->id),
                                       .has_group = true,
                                       .training = true,
                                       .has_digest = true,
                                       .digest = c->master->force_digest}},
               PX_ROUTE);
}

static void carry_out(cluster *c, const k2m_action *a)
{
    cluster_worker *w = &c->workers[a->worker];
    switch (a->type) {
    case K2M_ACT_LAUNCH:
        *w = (cluster_worker){.runs = true, .greets = true, .incarnation = a->incarnation};
        c->launches++;
        break;
    case K2M_ACT_KILL: K2_ASSERT(!"nobody is late here"); break;
    case K2M_ACT_COMMAND: take_command(c, a); break;
    case K2M_ACT_REQUEST: take_request(c, a); break;
    case K2M_ACT_SCORE:
        K2_ASSERT(c->score_requests < K2M_SCORES_MAX);
        memcpy(c->scores[c->score_requests], a->ids, a->count * sizeof *a->ids);
        c->score_counts[c->score_requests++] = a->count;
        break;
    case K2M_ACT_BATCH: c->batch_step = a->step; break;
    case K2M_ACT_LATEST: c->latest = true; break;
    case K2M_ACT_EXIT:
        c->ended = true;
        c->end_code = a->code;
        snprintf(c->end_text, sizeof c->end_text, "%s", a->text);
        break;
    case K2M_ACT_ADMIT:
    case K2M_ACT_REFUSE:
    case K2M_ACT_COMPACT:
    case K2M_ACT_REPORT:
    case K2M_ACT_LOG: break;
    default: break;
    }
}

static uint64_t master_looks(const cluster *c)
{
    return c->master->fleet.looks + k2_least_matches(c->master->fleet.due);
}

static void happen(cluster *c, k2m_event *ev, cluster_op op)
{
    ev->now_ns = c->now_ns;
    uint64_t looks = master_looks(c), ns = cluster_cpu_ns();
    const k2m_outbox *out = k2m_core_step(c->master, ev);
    ns = cluster_cpu_ns() - ns;
    count(c, op, ns, master_looks(c) - looks);
    for (uint32_t i = 0; i < out->count; i++) carry_out(c, &out->list[i]);
}

/* ---- the proxy -------------------------------------------------------------------------------------------------------------
 */

static void answer_failed(cluster *c, cluster_call *call)
{
    uint64_t id = call->id;
    uint32_t position = call->position;
    *call = (cluster_call){0};
    happen(c, &(k2m_event){.type = K2M_EV_ANSWER_FAILED, .id = id, .position = position, .text = "scale"}, OP_ANSWER);
}

static void proxy_acts(cluster *c)
{
    for (uint32_t i = 0; i < c->out.count; i++) {
        const k2i_px_action *a = &c->out.actions[i];
        cluster_call *call = a->user;
        switch (a->kind) {
        case K2I_PX_SEND:
            call->sent = true;
            call->request = a->request;
            call->engine = k2i_px_engine_at(c->proxy, a->engine)->id;
            break;
        case K2I_PX_HOLD: call->sent = false; break;
        case K2I_PX_FAIL:
            call->sent = false;
            call->failed = true;
            break;
        case K2I_PX_PROBE: c->probes[c->probe_count++] = a->engine; break;
        }
    }
}

static void proxy_step(cluster *c, k2i_px_event *ev, cluster_op op)
{
    for (bool more = true; more; ev = &(k2i_px_event){.kind = K2I_PX_TICK}) {
        ev->now_ns = c->now_ns;
        uint64_t looks = k2i_px_looks(c->proxy), ns = cluster_cpu_ns();
        k2i_px_step(c->proxy, ev, &c->out);
        ns = cluster_cpu_ns() - ns;
        count(c, op, ns, k2i_px_looks(c->proxy) - looks);
        more = c->out.more;
        proxy_acts(c);
    }
}

static const cluster_worker *engine_of(const cluster *c, uint32_t slot)
{
    const k2i_px_engine *e = k2i_px_engine_at(c->proxy, slot);
    const cluster_worker *w = &c->workers[e->id - 1];
    return w->runs && w->incarnation == e->incarnation ? w : NULL;
}

static void answer_probes(cluster *c)
{
    uint32_t n = c->probe_count;
    for (uint32_t i = 0; i < n; i++) {
        const cluster_worker *w = engine_of(c, c->probes[i]);
        k2i_px_event ev = {.kind = K2I_PX_HEALTH, .engine = c->probes[i], .health = {.ok = w != NULL, .refused = !w}};
        if (w) ev.health.digest = w->held;
        ev.health.has_digest = w != NULL;
        proxy_step(c, &ev, PX_PROBE);
        c->probes_answered++;
    }
    memmove(c->probes, c->probes + n, (c->probe_count - n) * sizeof *c->probes);
    c->probe_count -= n;
}

/* The engine has drawn all that was asked for: half of the answers end before. */
static void answer_calls(cluster *c)
{
    for (uint32_t i = 0; i < CLUSTER_CALLS; i++) {
        cluster_call call = c->calls[i];
        if (call.failed) answer_failed(c, &c->calls[i]);
        if (!call.used || !call.sent) continue;
        k2_replay_token tokens[16];
        uint32_t n = call.id % 2 ? K2_MIN(call.max_tokens, 3u) : call.max_tokens;
        for (uint32_t k = 0; k < n; k++) tokens[k] = (k2_replay_token){.id = 1, .logp = -1};
        proxy_step(c, &(k2i_px_event){.kind = K2I_PX_PROGRESS, .request = call.request, .progress = {n}}, PX_PROGRESS);
        proxy_step(c, &(k2i_px_event){.kind = K2I_PX_DONE, .request = call.request}, PX_DONE);
        c->calls[i] = (cluster_call){0};
        happen(c,
               &(k2m_event){.type = K2M_EV_ANSWER,
                            .id = call.id,
                            .position = call.position,
                            .tokens = tokens,
                            .count = n,
                            .digest = c->master->force_digest,
                            .finish = n < call.max_tokens ? K2_REPLAY_FINISH_STOP : K2_REPLAY_FINISH_LENGTH},
               OP_ANSWER);
    }
}

/* ---- workers
 * ------------------------------------------------------------------------------------------------------------------ */

static k2_digest result_of(const cluster *c, const cluster_command *x)
{
    switch (x->type) {
    case K2_MSG_INIT:
    case K2_MSG_SAVE: return weights_of(c->master->trainer_step);
    case K2_MSG_PUBLISH: return weights_of(x->version);
    default: return x->digest;
    }
}

static void answer_commands(cluster *c)
{
    static const char *const locator[] = {"tcp:10.0.0.1:7000:1:4096:12345"};
    uint32_t n = c->command_count;
    for (uint32_t i = 0; i < n; i++) {
        cluster_command x = c->commands[i];
        cluster_worker *w = &c->workers[x.worker];
        if (!w->runs || w->incarnation != x.incarnation) continue;
        bool weights = x.type == K2_MSG_PREPARE || x.type == K2_MSG_COMMIT || x.type == K2_MSG_PUBLISH;
        if (x.type == K2_MSG_PREPARE) w->prepared = x.digest;
        if (x.type == K2_MSG_COMMIT) w->held = w->prepared;
        k2_msg done = {.type = K2_MSG_DONE,
                       .worker = x.worker + 1,
                       .incarnation = x.incarnation,
                       .cmd = x.cmd,
                       .done = {.digest = result_of(c, &x), .locators = {locator, 1}}};
        happen(c, &(k2m_event){.type = K2M_EV_DONE, .worker = x.worker, .msg = &done}, weights ? OP_COMMIT : OP_OTHER);
        if (x.type != K2_MSG_STOP) continue;
        w->runs = false;
        happen(c, &(k2m_event){.type = K2M_EV_EXIT, .worker = x.worker, .incarnation = x.incarnation}, OP_EXIT);
    }
    memmove(c->commands, c->commands + n, (c->command_count - n) * sizeof *c->commands);
    c->command_count -= n;
}

static void greet(cluster *c, uint32_t worker)
{
    const k2m_worker *w = &c->master->workers[worker];
    char url[64] = "";
    if (w->role != K2M_TRAINER)
        snprintf(url, sizeof url, "http://10.%u.%u.%u:8000", worker >> 16, worker >> 8 & 255, worker & 255);
    k2_msg m = {.type = K2_MSG_HELLO,
                .hello = {.role = k2m_role_name(w->role),
                          .index = w->index,
                          .pid = 1000 + worker,
                          .nonce = c->workers[worker].incarnation,
                          .endpoint = url}};
    c->workers[worker].greets = false;
    happen(c, &(k2m_event){.type = K2M_EV_HELLO, .msg = &m}, OP_HELLO);
}

static void beat(cluster *c)
{
    uint32_t n = c->master->worker_count;
    for (uint32_t i = 0; i < n; i++)
        if (c->workers[i].greets) greet(c, i);
    for (uint32_t i = (uint32_t)(c->round % CLUSTER_BEATS); i < n; i += CLUSTER_BEATS)
        if (k2m_core_current(c->master, i + 1, c->workers[i].incarnation))
            happen(c, &(k2m_event){.type = K2M_EV_ALIVE, .worker = i},
                   c->master->phase == K2M_PHASE_GENERATE ? OP_ALIVE : OP_OTHER);
}

static void answer_scores(cluster *c)
{
    uint32_t n = c->score_requests;
    c->score_requests = 0;
    uint64_t ids[K2M_SCORES_MAX][K2M_SCORE_ITEMS];
    uint32_t counts[K2M_SCORES_MAX];
    memcpy(counts, c->score_counts, sizeof counts);
    memcpy(ids, c->scores, sizeof ids);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < counts[k]; i++)
            happen(c,
                   &(k2m_event){.type = K2M_EV_SCORED,
                                .id = ids[k][i],
                                .has_reward = true,
                                .reward = (double)(ids[k][i] % 2),
                                .text = "",
                                .ids = i + 1 == counts[k] ? ids[k] : NULL},
                   OP_ANSWER);
}

static cluster_op tick_op(const cluster *c)
{
    k2m_phase p = c->master->phase;
    return p == K2M_PHASE_START        ? OP_LAUNCH
           : p == K2M_PHASE_DISTRIBUTE ? OP_COMMIT
           : p == K2M_PHASE_GENERATE   ? OP_TICK
                                       : OP_OTHER;
}

void cluster_round(cluster *c)
{
    c->now_ns += CLUSTER_ROUND_NS;
    c->round++;
    uint64_t version = c->master->force_version;
    answer_probes(c);
    if (!c->quiet) answer_calls(c);
    answer_scores(c);
    answer_commands(c);
    if (c->batch_step) {
        uint64_t step = c->batch_step;
        c->batch_step = 0;
        happen(c, &(k2m_event){.type = K2M_EV_BATCH, .step = step, .locator = "b", .bytes = 1, .digest = {step, 1}}, OP_OTHER);
    }
    if (c->latest) {
        c->latest = false;
        happen(c, &(k2m_event){.type = K2M_EV_LATEST}, OP_OTHER);
    }
    beat(c);
    happen(c, &(k2m_event){.type = K2M_EV_TICK}, tick_op(c));
    for (int i = 0; i < 2; i++) proxy_step(c, &(k2i_px_event){.kind = K2I_PX_TICK}, PX_PROBE);
    c->versions += c->master->force_version != version;
}

void cluster_beats(cluster *c, uint32_t beats)
{
    c->quiet = true;
    for (uint32_t i = 0; i < 2 * CLUSTER_BEATS || c->master->phase != K2M_PHASE_GENERATE; i++) cluster_round(c);
    cluster_costs_clear(c);
    for (uint32_t i = 0; i < beats * CLUSTER_BEATS; i++) cluster_round(c);
    c->quiet = false;
}

/* ---- what the tests ask for
 * ------------------------------------------------------------------------------------------------------ */

static void config_make(cluster *c, uint32_t trainers, uint32_t engines)
{
    k2_config_defaults(&c->config);
    c->config.iterations = 1u << 20;
    c->config.run_checkpoint_every = 1000;
    c->config.run_eval_every = 0;
    c->config.eval_prompts = 0;
    c->config.pretrain_steps = 0;
    c->config.trainer_ranks = trainers;
    c->config.rollout_workers = engines;
    c->config.rollout_groups = 64;
    c->config.rollout_group_size = 8;
    c->config.rollout_budget_tokens = 8;
    c->config.rollout_max_tokens = 16;
    c->config.master_inflight_max = CLUSTER_CALLS;
    c->config.master_restarts_max = 60;
}

static void proxy_new(cluster *c)
{
    const k2_config *k = &c->config;
    c->slots = 2 * (uint32_t)k->rollout_workers + 16; /* as the proxy's process does */
    c->proxy = k2i_px_new(&(k2i_px_config){.engines_max = c->slots,
                                           .requests_max = (uint32_t)k->proxy_queue_max,
                                           .retries = (uint32_t)k->proxy_retries,
                                           .wait_ns = k->proxy_wait_ms * K2_NS_PER_MS,
                                           .health_ns = k->proxy_health_ms * K2_NS_PER_MS,
                                           .busy_ns = 50 * K2_NS_PER_MS});
    c->probe_count = 0;
}

static size_t allocated(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

cluster *cluster_new(uint32_t trainers, uint32_t engines)
{
    cluster *c = k2_alloc(sizeof *c);
    k2_error err;
    c->now_ns = K2_NS_PER_S;
    config_make(c, trainers, engines);
    for (uint32_t i = 0; i < CLUSTER_PROMPTS; i++) {
        c->prompts[i] = c->prompt_ids[i];
        c->lengths[i] = 4;
    }
    k2m_core_config cc = {.config = &c->config,
                          .prompts = {.ids = (const int32_t *const *)c->prompts,
                                      .lengths = c->lengths,
                                      .count = CLUSTER_PROMPTS,
                                      .length_max = 4},
                          .vocab = 264,
                          .checkpoints_dir = "/run/checkpoints",
                          .record = record};
    size_t before = allocated();
    K2_ASSERT(k2m_core_new(&cc, &c->master, &err) == K2_OK);
    c->master_bytes = allocated() - before;
    before = allocated();
    proxy_new(c);
    c->proxy_bytes = allocated() - before;
    uint32_t n = c->master->worker_count;
    c->workers = k2_alloc_array(n, sizeof *c->workers);
    c->command_max = 4 * n + 64;
    c->commands = k2_alloc_array(c->command_max, sizeof *c->commands);
    c->probes = k2_alloc_array(c->slots + 1, sizeof *c->probes);
    c->scores = k2_alloc_array(K2M_SCORES_MAX, sizeof *c->scores);
    return c;
}

void cluster_free(cluster *c)
{
    k2m_core_free(c->master);
    k2i_px_free(c->proxy);
    k2_free(c->workers);
    k2_free(c->commands);
    k2_free(c->probes);
    k2_free(c->scores);
    k2_free(c);
}

void cluster_begin(cluster *c)
{
    happen(c, &(k2m_event){.type = K2M_EV_BEGIN}, OP_LAUNCH);
    for (uint32_t i = 0; c->master->phase != K2M_PHASE_GENERATE; i++) {
        K2_ASSERT(i < 2000 && !c->ended);
        cluster_round(c);
    }
}

void cluster_kill(cluster *c, uint32_t engine)
{
    uint32_t worker = c->master->first_rollout + engine;
    cluster_worker *w = &c->workers[worker];
    if (!w->runs) return;
    w->runs = false;
    for (uint32_t i = 0; i < CLUSTER_CALLS; i++)
        if (c->calls[i].used && c->calls[i].sent && c->calls[i].engine == worker + 1)
            proxy_step(c,
                       &(k2i_px_event){.kind = K2I_PX_FAILED, .request = c->calls[i].request, .failed = {.why = K2I_PX_BROKEN}},
                       PX_FAILED);
    c->exits++;
    happen(c, &(k2m_event){.type = K2M_EV_EXIT, .worker = worker, .incarnation = w->incarnation, .signal = 9}, OP_EXIT);
}

void cluster_kill_proxy(cluster *c)
{
    uint32_t worker = c->master->proxy;
    c->workers[worker].runs = false;
    for (uint32_t i = 0; i < CLUSTER_CALLS; i++)
        if (c->calls[i].used) answer_failed(c, &c->calls[i]);
    k2i_px_free(c->proxy);
    proxy_new(c);
    happen(c, &(k2m_event){.type = K2M_EV_EXIT, .worker = worker, .incarnation = c->workers[worker].incarnation, .signal = 9},
           OP_EXIT);
}

void cluster_route(cluster *c, uint32_t requests, uint32_t open)
{
    cluster_call *calls = k2_alloc_array(open, sizeof *calls);
    for (uint32_t i = 0; i < requests + open; i++) {
        cluster_call *call = &calls[i % open];
        if (call->sent) {
            proxy_step(c, &(k2i_px_event){.kind = K2I_PX_PROGRESS, .request = call->request, .progress = {32}}, PX_PROGRESS);
            proxy_step(c, &(k2i_px_event){.kind = K2I_PX_DONE, .request = call->request}, PX_DONE);
        }
        *call = (cluster_call){.request = K2I_PX_NONE};
        if (i >= requests) continue;
        k2i_px_event ev = {.kind = K2I_PX_REQUEST,
                           .req = {.user = call,
                                   .prompt_tokens = 100 + i * 37 % 400,
                                   .max_tokens = 64,
                                   .group = 1000000 + i / 8,
                                   .has_group = true,
                                   .training = true,
                                   .has_digest = true,
                                   .digest = c->master->force_digest}};
        proxy_step(c, &ev, PX_ROUTE);
        K2_ASSERT(call->sent);
    }
    k2_free(calls);
}

void cluster_end(cluster *c)
{
    happen(c, &(k2m_event){.type = K2M_EV_STOP}, OP_OTHER);
    for (uint32_t i = 0; !c->ended; i++) {
        K2_ASSERT(i < 4000);
        cluster_round(c);
    }
}

void cluster_costs_clear(cluster *c)
{
    memset(c->cost, 0, sizeof c->cost);
    c->versions = c->launches = c->exits = c->probes_answered = 0;
}

void cluster_check(const cluster *c)
{
    const k2m_core *m = c->master;
    uint32_t known = 0;
    k2m_fleet_check(m);
    k2i_px_check(c->proxy);
    for (uint32_t i = 0; i < m->rollouts; i++) {
        const cluster_worker *w = &c->workers[m->first_rollout + i];
        K2_ASSERT(w->runs && k2_digest_equal(w->held, m->force_digest));
    }
    for (uint32_t s = 0; s < c->slots; s++) {
        const k2i_px_engine *e = k2i_px_engine_at(c->proxy, s);
        if (e->state == K2I_PX_FREE || e->leaving) continue;
        const cluster_worker *w = engine_of(c, s);
        K2_ASSERT(w && e->state == K2I_PX_READY && k2_digest_equal(e->digest, w->held));
        known++;
    }
    K2_ASSERT(known == m->rollouts);
}
