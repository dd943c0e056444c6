/* sim: the virtual clock, processes, and what befalls them. See sim_int.h. */
#include <stdio.h>
#include <string.h>

#include "sim_int.h"

uint64_t sim_draw(sim *s, uint64_t n)
{
    return k2_rand_below(s->seed, K2_STREAM_TEST, 1, s->draw++, n);
}

bool sim_chance(sim *s, bool fault, uint32_t one_in)
{
    return fault && s->now_ns < s->faults_end_ns && sim_draw(s, one_in) == 0;
}

k2_digest sim_mix(k2_digest a, uint64_t b, uint64_t c)
{
    uint64_t words[4] = {a.hi, a.lo, b, c};
    return k2_digest_of(words, sizeof words);
}

float sim_logit(k2_digest weights, int32_t before, uint32_t position, uint32_t token)
{
    uint64_t words[4] = {weights.hi, weights.lo, (uint64_t)(uint32_t)before << 32 | position, token};
    return (float)(k2_hash64(words, sizeof words, 1) >> 40) / (float)(1u << 24) - 2.0f;
}

void sim_break(sim *s, const char *fmt, ...)
{
    if (s->broken[0]) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->broken, sizeof s->broken, fmt, ap);
    va_end(ap);
}

/* ---- the clock: a heap of events by time, then by the order in which they were made */

static bool before(const sim_event *a, const sim_event *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void swap(sim *s, size_t a, size_t b)
{
    sim_event *t = s->heap[a];
    s->heap[a] = s->heap[b];
    s->heap[b] = t;
}

sim_event *sim_at(sim *s, sim_kind kind, uint64_t delay_us)
{
    if (s->events == s->event_capacity) {
        s->event_capacity = s->event_capacity * 2 + 256;
        s->heap = k2_realloc_array(s->heap, s->event_capacity, sizeof(sim_event *));
    }
    sim_event *e = k2_alloc(sizeof *e);
    *e = (sim_event){.due_ns = s->now_ns + delay_us * 1000, .order = s->order++, .kind = kind};
    size_t at = s->events++;
    s->heap[at] = e;
    for (; at > 0 && before(s->heap[at], s->heap[(at - 1) / 2]); at = (at - 1) / 2) swap(s, at, (at - 1) / 2);
    return e;
}

static sim_event *take(sim *s)
{
    sim_event *e = s->heap[0];
    s->heap[0] = s->heap[--s->events];
    for (size_t at = 0;;) {
        size_t least = at;
        for (size_t k = 2 * at + 1; k <= 2 * at + 2; k++)
            if (k < s->events && before(s->heap[k], s->heap[least])) least = k;
        if (least == at) return e;
        swap(s, at, least);
        at = least;
    }
}

static void forget(sim_event *e)
{
    k2_msg_free(&e->msg);
    k2_free(e);
}

uint64_t sim_latency_us(sim *s)
{
    return 50 + sim_draw(s, 400) + (sim_chance(s, s->faults.delay, 10) ? sim_draw(s, 200000) : 0);
}

/* ---- processes */

sim_proc *sim_proc_find(sim *s, uint64_t serial)
{
    for (uint32_t i = 0; i < SIM_PROCS; i++)
        if (serial && s->procs[i].serial == serial) return &s->procs[i];
    return NULL;
}

bool sim_proc_runs(const sim *s, const sim_proc *p)
{
    return p->stopped_until_ns <= s->now_ns;
}

void sim_spawn(sim *s, uint32_t worker, uint64_t incarnation)
{
    sim_proc *p = NULL;
    for (uint32_t i = 0; i < SIM_PROCS && !p; i++)
        if (!s->procs[i].serial) p = &s->procs[i];
    K2_ASSERT(p);
    if (incarnation <= s->incarnation) sim_break(s, "incarnation %llu is given again", (unsigned long long)incarnation);
    s->incarnation = incarnation;
    *p = (sim_proc){.serial = ++s->serial,
                    .worker = worker,
                    .role = s->core->workers[worker].role,
                    .incarnation = incarnation,
                    .slow = sim_chance(s, s->faults.slow, 3) ? 10 : 1};
    p->state = p->role == K2M_TRAINER ? sim_trainer_new() : p->role == K2M_ROLLOUT ? sim_rollout_new() : sim_proxy_new();
    sim_at(s, SIM_HELLO, 1000 + sim_draw(s, 20000))->proc = p->serial;
}

void sim_proc_end(sim *s, sim_proc *p, int signal, bool told)
{
    if (told) {
        sim_event *e = sim_at(s, SIM_EXIT, 100 + sim_draw(s, 2000));
        e->life = s->life;
        e->worker = p->worker;
        e->incarnation = p->incarnation;
        e->finish = signal;
    }
    for (uint32_t i = 0; i < SIM_PROCS && p->role == K2M_ROLLOUT; i++)
        if (s->procs[i].serial && s->procs[i].role == K2M_PROXY) sim_proxy_peer_dead(s, &s->procs[i], p->serial);
    for (uint32_t i = 0; i < SIM_REQUESTS; i++) k2_msg_free(&p->requests[i].msg);
    k2_msg_free(&p->later);
    if (p->role == K2M_ROLLOUT)
        sim_rollout_free(p->state);
    else if (p->role == K2M_PROXY)
        sim_proxy_free(p->state);
    else
        k2_free(p->state);
    *p = (sim_proc){0};
}

static void hello(sim *s, sim_proc *p)
{
    char url[64];
    snprintf(url, sizeof url, "http://%llu", (unsigned long long)p->serial);
    p->heard_ns = s->now_ns;
    k2_msg m = {.type = K2_MSG_HELLO,
                .hello = {.role = k2m_role_name(p->role),
                          .index = s->core->workers[p->worker].index,
                          .pid = p->serial,
                          .nonce = p->incarnation,
                          .endpoint = p->role == K2M_TRAINER ? "" : url}};
    sim_request(s, p, &m);
    sim_at(s, SIM_BEAT, 20000)->proc = p->serial;
}

static void to_process(sim *s, sim_event *e)
{
    sim_proc *p = sim_proc_find(s, e->proc);
    if (!p) {
        if (e->kind == SIM_UPSTREAM || e->kind == SIM_CALL) { /* nobody listens there */
            sim_event *no = sim_at(s, e->kind == SIM_CALL ? SIM_ANSWER : SIM_BROKEN, sim_latency_us(s));
            no->life = s->life;
            no->proc = e->peer;
            no->attempt = e->attempt;
            no->id = e->id;
        }
        return;
    }
    if (!sim_proc_runs(s, p)) { /* it happens when the process goes on */
        sim_event *later = sim_at(s, e->kind, (p->stopped_until_ns - s->now_ns) / 1000 + 1);
        uint64_t due = later->due_ns, order = later->order;
        *later = *e;
        later->due_ns = due;
        later->order = order;
        e->msg = (k2_msg){0};
        return;
    }
    if (e->kind == SIM_UPSTREAM && sim_chance(s, s->faults.break_stream, 12)) {
        sim_event *no = sim_at(s, SIM_BROKEN, 20 * sim_latency_us(s));
        no->proc = e->peer;
        no->attempt = e->attempt;
    }
    switch (e->kind) {
    case SIM_HELLO: hello(s, p); break;
    case SIM_BEAT:
        sim_at(s, SIM_BEAT, 20000)->proc = p->serial;
        sim_beat(s, p);
        break;
    case SIM_TO_WORKER:
        if (e->life == s->life) sim_to_worker(s, p, &e->msg);
        break;
    case SIM_WORK:
        if (p->role == K2M_TRAINER)
            sim_trainer_work(s, p, e);
        else
            sim_rollout_happen(s, p, e);
        break;
    case SIM_ENGINE:
    case SIM_UPSTREAM:
    case SIM_UPSTREAM_END:
        if (p->role == K2M_ROLLOUT) sim_rollout_happen(s, p, e);
        break;
    default:
        if (p->role == K2M_PROXY) sim_proxy_happen(s, p, e);
        break;
    }
}

/* ---- misfortune */

static void chaos(sim *s)
{
    if (s->now_ns >= s->faults_end_ns) {
        for (uint32_t i = 0; i < SIM_PROCS; i++) {
            s->procs[i].deaf = s->procs[i].mute = false;
            s->procs[i].slow = 1;
            s->procs[i].stopped_until_ns = K2_MIN(s->procs[i].stopped_until_ns, s->now_ns);
        }
        return;
    }
    sim_at(s, SIM_CHAOS, 20000);
    if (sim_chance(s, s->faults.jump, 100)) s->now_ns += sim_draw(s, 2000) * K2_NS_PER_MS;
    if (sim_chance(s, s->faults.kill_master, 80)) {
        sim_master_kill(s);
        return;
    }
    for (uint32_t i = 0; i < SIM_PROCS; i++) {
        sim_proc *p = &s->procs[i];
        if (!p->serial) continue;
        bool kill = p->role == K2M_TRAINER   ? s->faults.kill_trainer
                    : p->role == K2M_ROLLOUT ? s->faults.kill_rollout
                                             : s->faults.kill_proxy;
        if (sim_chance(s, s->faults.stop, 200)) p->stopped_until_ns = s->now_ns + sim_draw(s, 2500) * K2_NS_PER_MS;
        if (sim_chance(s, s->faults.partition, 200)) p->deaf = true;
        if (sim_chance(s, s->faults.partition, 200)) p->mute = true;
        if (sim_chance(s, s->faults.partition, 40)) p->deaf = p->mute = false;
        if (sim_chance(s, kill, 120)) {
            s->deaths++;
            sim_proc_end(s, p, 9, true);
        }
    }
}

static void kill_due(sim *s, const sim_event *e)
{
    for (uint32_t i = 0; i < SIM_PROCS; i++) {
        sim_proc *p = &s->procs[i];
        if (!p->serial || p->worker != e->worker || p->incarnation != e->incarnation) continue;
        sim_proc_end(s, p, 9, true);
        return;
    }
}

/* Each fault is on in one seed of three; the first seeds have one each, so that a failure there names it. */
static void choose_faults(sim *s)
{
    bool *flags = (bool *)&s->faults;
    for (size_t i = 0; i < sizeof s->faults; i++)
        flags[i] = s->seed <= sizeof s->faults ? s->seed == i + 1 : sim_draw(s, 3) == 0;
    s->faults_end_ns = (100 + sim_draw(s, 4000)) * K2_NS_PER_MS;
}

/* ---- the run */

void sim_init(sim *s, uint64_t seed, const sim_truth *truth)
{
    *s = (sim){.seed = seed, .now_ns = 1000, .truth = truth, .poison = truth && truth->poison};
    k2_config *c = &s->config;
    k2_config_defaults(c);
    c->seed = 5;
    c->iterations = 6;
    c->run_checkpoint_every = truth ? 1 + seed % 4 : 3;
    c->run_checkpoints_kept = truth ? 1 + seed % 2 : 2;
    c->run_eval_every = 4;
    c->pretrain_steps = 15;
    c->trainer_ranks = truth ? 1 + seed % 3 : 2;
    c->rollout_workers = truth ? 1 + seed / 3 % 4 : 2;
    c->rollout_groups = 4;
    c->rollout_group_size = 3;
    c->rollout_budget_tokens = 6;
    c->rollout_max_tokens = 20;
    c->eval_max_tokens = 12;
    c->master_inflight_max = truth ? 1 + seed % 9 : 6;
    c->master_restarts_max = K2M_RESTARTS_KEPT;
    c->master_lease_ms = 1000;
    c->eval_prompts = 4;
    for (uint32_t i = 0; i < SIM_PROMPTS; i++) {
        s->lengths[i] = 1 + i % 5;
        s->prompts[i] = k2_alloc_array(s->lengths[i], sizeof **s->prompts);
        for (uint32_t k = 0; k < s->lengths[i]; k++) s->prompts[i][k] = (int32_t)((i * 3 + k) % SIM_VOCAB);
    }
    s->trained = k2_alloc_array(1u << 18, sizeof *s->trained);
    if (truth) choose_faults(s);
}

void sim_fini(sim *s)
{
    s->ended = true;
    for (uint32_t i = 0; i < SIM_PROCS; i++)
        if (s->procs[i].serial) sim_proc_end(s, &s->procs[i], 0, false);
    while (s->events) forget(take(s));
    k2_free(s->heap);
    sim_slots_clear(s);
    k2m_hold_fini(&s->hold);
    k2m_core_free(s->core);
    for (size_t i = 0; i < s->records; i++) k2_free(s->journal[i].bytes);
    k2_free(s->journal);
    for (uint32_t i = 0; i < SIM_PROMPTS; i++) k2_free(s->prompts[i]);
    k2_free(s->trained);
}

static void happen(sim *s, sim_event *e)
{
    switch (e->kind) {
    case SIM_TO_MASTER:
    case SIM_EXIT:
    case SIM_BATCH:
    case SIM_LATEST:
    case SIM_DURABLE:
    case SIM_MASTER_TICK:
    case SIM_ANSWER:
    case SIM_SCORED:
        if (e->life == s->life) sim_master_happen(s, e);
        break;
    case SIM_KILL: kill_due(s, e); break;
    case SIM_CHAOS: chaos(s); break;
    default: to_process(s, e); break;
    }
}

bool sim_run(sim *s)
{
    sim_master_start(s);
    sim_at(s, SIM_CHAOS, 20000);
    while (!s->ended && !s->broken[0]) {
        sim_event *e = take(s);
        s->now_ns = K2_MAX(s->now_ns, e->due_ns);
        happen(s, e);
        forget(e);
        sim_check(s);
        if (s->now_ns > s->faults_end_ns + SIM_LIFE_NS && !s->ended) {
            char owes[K2M_TEXT_MAX];
            k2m_core_owes(s->core, owes, sizeof owes);
            sim_break(s, "no end %llu s after the last fault: %s; last log: %s",
                      (unsigned long long)(SIM_LIFE_NS / K2_NS_PER_S), owes, s->last_log);
        }
    }
    if (!s->broken[0]) sim_check_end(s);
    return !s->broken[0];
}
