/* sim: the virtual clock, processes, and what befalls them. See sim_int.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_int.h"

uint64_t sim_draw(sim *s, uint64_t n)
{
    return k2_rand_below(s->seed, K2_STREAM_TEST, 1, s->draw++, n);
}

static int by_key(const void *key, const void *hit)
{
    uint64_t a = *(const uint64_t *)key, b = sim_hit_key(hit);
    return a < b ? -1 : a > b;
}

bool sim_fault(sim *s, sim_fault_kind kind, uint32_t who)
{
    sim_hit h = {.kind = (uint8_t)kind, .who = (uint8_t)who, .nth = s->chances[kind][who]++};
    uint64_t key = sim_hit_key(&h);
    if (s->now_ns >= s->faults_end_ns) return false;
    if (s->script) {
        if (!bsearch(&key, s->script, s->script_count, sizeof *s->script, by_key)) return false;
    } else {
        uint32_t chance = s->chance[kind];
        if (chance == 0 || k2_rand_below(s->seed, K2_STREAM_TEST, 2, key, chance) != 0) return false;
    }
    s->fault_key = key;
    s->fault_draws = 0;
    h.at_ms = (uint32_t)(s->now_ns / K2_NS_PER_MS);
    if (s->outcome->hit_count < SIM_HITS_MAX) s->outcome->hits[s->outcome->hit_count++] = h;
    return true;
}

uint64_t sim_fault_draw(sim *s, uint64_t n)
{
    return k2_rand_below(s->seed, K2_STREAM_TEST, 3 + s->fault_draws++, s->fault_key, n);
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

void sim_break(sim *s, sim_check_kind check, const char *fmt, ...)
{
    if (s->broken) return;
    s->broken = true;
    s->outcome->check = check;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->outcome->text, sizeof s->outcome->text, fmt, ap);
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

uint64_t sim_latency_us(sim *s, uint32_t who)
{
    return 50 + sim_draw(s, 400) + (sim_fault(s, SIM_DELAY, who) ? sim_fault_draw(s, 200000) : 0);
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
    if (incarnation <= s->incarnation)
        sim_break(s, SIM_CHECK_FENCE, "incarnation %llu is given again", (unsigned long long)incarnation);
    s->incarnation = incarnation;
    *p = (sim_proc){.serial = ++s->serial,
                    .worker = worker,
                    .role = s->core->workers[worker].role,
                    .incarnation = incarnation,
                    .slow = sim_fault(s, SIM_SLOW, worker) ? 10 + (uint32_t)sim_fault_draw(s, 50) : 1};
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
        sim_trainer_free(p->state);
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
    sim_at(s, SIM_BEAT, SIM_TICK_US)->proc = p->serial;
}

/* What is asked of a process that is gone: nobody listens there. */
static void refused(sim *s, const sim_event *e)
{
    if (e->kind != SIM_UPSTREAM && e->kind != SIM_CALL) return;
    sim_event *no = sim_at(s, e->kind == SIM_CALL ? SIM_ANSWER : SIM_BROKEN, sim_latency_us(s, SIM_MASTER));
    no->life = s->life;
    no->proc = e->peer;
    no->attempt = e->attempt;
    no->id = e->id;
}

/* A request comes in whose connection will break. */
static void break_connection(sim *s, const sim_proc *p, const sim_event *e)
{
    if (e->kind == SIM_UPSTREAM && sim_fault(s, SIM_BREAK_STREAM, p->worker)) {
        sim_event *no = sim_at(s, SIM_BROKEN, 20 * sim_latency_us(s, p->worker));
        no->proc = e->peer;
        no->attempt = e->attempt;
    }
    if (e->kind == SIM_CALL && sim_fault(s, SIM_BREAK_CALL, p->worker)) {
        uint64_t us = 10 * sim_latency_us(s, p->worker);
        sim_event *no = sim_at(s, SIM_CALL_END, us);
        no->proc = p->serial;
        no->attempt = e->attempt;
        no = sim_at(s, SIM_ANSWER, us);
        no->life = s->life;
        no->attempt = e->attempt;
        no->id = e->id;
    }
}

static void to_process(sim *s, sim_event *e)
{
    sim_proc *p = sim_proc_find(s, e->proc);
    if (!p) {
        refused(s, e);
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
    break_connection(s, p, e);
    switch (e->kind) {
    case SIM_HELLO: hello(s, p); break;
    case SIM_BEAT:
        sim_at(s, SIM_BEAT, SIM_TICK_US)->proc = p->serial;
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

static void calm(sim *s)
{
    s->disk_full_until_ns = K2_MIN(s->disk_full_until_ns, s->now_ns);
    for (uint32_t i = 0; i < SIM_PROCS; i++) {
        sim_proc *p = &s->procs[i];
        p->deaf_until_ns = p->mute_until_ns = 0;
        p->slow = 1;
        p->stopped_until_ns = K2_MIN(p->stopped_until_ns, s->now_ns);
    }
}

static uint64_t up_to_ms(sim *s, uint64_t ms)
{
    return s->now_ns + sim_fault_draw(s, ms) * K2_NS_PER_MS;
}

static void befall(sim *s, sim_proc *p, bool dies)
{
    sim_fault_kind kill = p->role == K2M_TRAINER   ? SIM_KILL_TRAINER
                          : p->role == K2M_ROLLOUT ? SIM_KILL_ROLLOUT
                                                   : SIM_KILL_PROXY;
    if (sim_fault(s, SIM_STOP, p->worker)) p->stopped_until_ns = up_to_ms(s, 2500);
    if (sim_fault(s, SIM_DEAF, p->worker)) p->deaf_until_ns = up_to_ms(s, 2000);
    if (sim_fault(s, SIM_MUTE, p->worker)) p->mute_until_ns = up_to_ms(s, 2000);
    if (!sim_fault(s, kill, p->worker) && !dies) return;
    s->outcome->deaths++;
    sim_proc_end(s, p, 9, true);
}

static void chaos(sim *s)
{
    if (s->now_ns >= s->faults_end_ns) {
        calm(s);
        return;
    }
    sim_at(s, SIM_CHAOS, SIM_TICK_US);
    if (sim_fault(s, SIM_CLOCK_JUMP, SIM_MASTER)) s->now_ns = up_to_ms(s, 2000);
    if (sim_fault(s, SIM_DISK_FULL, SIM_MASTER)) {
        s->disk_full_until_ns = up_to_ms(s, 600);
        s->disk_was_full = true;
    }
    if (!s->down && sim_fault(s, SIM_KILL_MASTER, SIM_MASTER)) {
        s->dying = true;
        return;
    }
    bool host = !s->down && sim_fault(s, SIM_KILL_HOST, SIM_MASTER);
    for (uint32_t i = 0; i < SIM_PROCS; i++)
        if (s->procs[i].serial) befall(s, &s->procs[i], host && s->procs[i].role != K2M_PROXY);
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

/* Each fault is on in one seed of three, in a third of these four times as often; the first seeds have one each, so that a
 * failure there names it. */
static void choose_faults(sim *s)
{
    bool on[SIM_FAULT_KINDS];
    for (uint32_t i = 0; i < SIM_FAULT_KINDS; i++) on[i] = s->seed <= SIM_FAULT_KINDS ? s->seed == i + 1 : sim_draw(s, 3) == 0;
    on[SIM_CRASH_WRITING] |= s->seed == SIM_TAIL_KEPT + 1; /* it needs a death of the master */
    on[SIM_STOP] |= s->seed == SIM_LATE_KILL + 1;          /* and this one a process that is replaced */
    on[SIM_STALL_STREAM] |= s->seed == SIM_HALF_OPEN + 1;  /* and this one a request that is given up */
    for (uint32_t i = 0; i < SIM_FAULT_KINDS; i++) {
        uint32_t chance = sim_fault_chance((sim_fault_kind)i), often = sim_draw(s, 3) == 0 ? 4 : 1;
        s->chance[i] = on[i] ? (chance + often - 1) / often : 0;
    }
    s->faults_end_ns = (100 + sim_draw(s, 4000)) * K2_NS_PER_MS;
}

/* ---- the run */

sim_world sim_seed_world(uint64_t seed)
{
    return (sim_world){.sync = seed % 5 == 4, .poison = seed % 4 == 0, .priority = seed % 3 == 2, .refill = seed % 7 % 4 == 1};
}

uint32_t sim_world_number(sim_world world)
{
    return (uint32_t)(world.sync + 2 * world.poison + 4 * world.priority + 8 * world.refill);
}

static void configure(k2_config *c, uint64_t seed, sim_world world, bool calm)
{
    k2_config_defaults(c);
    c->seed = 5;
    snprintf(c->mode, sizeof c->mode, "%s", world.sync ? "sync" : "partial");
    snprintf(c->data_sampling, sizeof c->data_sampling, "%s", world.priority ? "priority" : "epochs");
    c->data_priority_after = world.sync; /* an epoch in order before it, or none */
    c->iterations = 9;
    c->run_checkpoint_every = calm ? 3 : 1 + seed % 4;
    c->run_checkpoints_kept = calm ? 2 : 1 + seed % 2;
    c->run_eval_every = 4;
    c->pretrain_steps = 15;
    c->trainer_ranks = calm ? 2 : 1 + seed % 3;
    c->rollout_workers = calm ? 2 : 1 + seed / 3 % 4;
    c->rollout_groups = 4;
    c->rollout_group_size = 3;
    c->rollout_refill_max = world.refill ? 2 : 0;
    c->rollout_budget_tokens = 6;
    c->rollout_max_tokens = 20;
    c->eval_max_tokens = 12;
    c->master_inflight_max = calm ? 6 : 1 + seed % 12;
    c->master_restarts_max = K2M_RESTARTS_KEPT;
    c->master_lease_ms = 1000;
    c->eval_prompts = 4;
}

void sim_init(sim *s, uint64_t seed, sim_world world, const sim_truth *truth, sim_outcome *out)
{
    *out = (sim_outcome){.seed = seed};
    *s = (sim){.seed = seed, .now_ns = 1000, .truth = truth, .outcome = out, .world = world};
    configure(&s->config, seed, world, truth == NULL);
    for (uint32_t i = 0; i < SIM_PROMPTS; i++) {
        s->lengths[i] = 1 + i % 5;
        s->prompts[i] = k2_alloc_array(s->lengths[i], sizeof **s->prompts);
        for (uint32_t k = 0; k < s->lengths[i]; k++) s->prompts[i][k] = (int32_t)((i * 3 + k) % SIM_VOCAB);
    }
    s->trained = k2_alloc_array(1u << 18, sizeof *s->trained);
    s->told = k2_alloc_array(1u << 18, sizeof *s->told);
    s->prompt_of = k2_alloc_array(1u << 16, sizeof *s->prompt_of);
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
    k2_free(s->steps);
    k2_free(s->trained);
    k2_free(s->told);
    k2_free(s->prompt_of);
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
    case SIM_START:
        if (e->life == s->life) sim_master_start(s);
        break;
    case SIM_KILL: kill_due(s, e); break;
    case SIM_CHAOS: chaos(s); break;
    default: to_process(s, e); break;
    }
}

/* The master is gone: it was killed, or it ended because the disk was full. The same command is given again. */
static void mourn(sim *s)
{
    bool full = s->ended && s->end_code == K2_NO_SPACE && s->disk_was_full;
    if (full && (!s->end_text[0] || strchr(s->end_text, '\n')))
        sim_break(s, SIM_CHECK_ENDS, "a full disk ends the run with '%s'", s->end_text);
    if (!full && !s->dying) return;
    uint64_t us = full ? (K2_MAX(s->disk_full_until_ns, s->now_ns) - s->now_ns) / 1000 + sim_draw(s, 50000) : 1;
    sim_master_lose(s);
    sim_at(s, SIM_START, us)->life = s->life;
}

static void check_progress(sim *s)
{
    uint64_t ticks = SIM_TICKS + (s->world.poison ? SIM_ILL_TICKS : 0);
    if (s->now_ns <= s->faults_end_ns + ticks * SIM_TICK_US * 1000 || s->ended) return;
    char owes[K2M_TEXT_MAX] = "no master";
    if (!s->down) k2m_core_owes(s->core, owes, sizeof owes);
    sim_break(s, SIM_CHECK_PROGRESS, "no end %llu ticks after the last fault: %s; last log: %s", (unsigned long long)ticks,
              owes, s->last_log);
}

bool sim_run(sim *s)
{
    sim_outcome *o = s->outcome;
    sim_master_start(s);
    sim_at(s, SIM_CHAOS, SIM_TICK_US);
    for (; !s->ended && !s->broken; o->events++) {
        sim_event *e = take(s);
        s->now_ns = K2_MAX(s->now_ns, e->due_ns);
        o->end_ns = s->now_ns;
        happen(s, e);
        forget(e);
        mourn(s);
        sim_check(s);
        check_progress(s);
    }
    if (!s->broken) sim_check_end(s);
    o->ok = !s->broken;
    o->after_ns = s->now_ns > s->faults_end_ns ? s->now_ns - s->faults_end_ns : 0;
    return o->ok;
}
