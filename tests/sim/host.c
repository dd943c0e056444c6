/* host: the master's process. As in its I/O half, an action waits until the records before it are in the journal; a crash takes
 * the records that are not, and all children with it. */
#include <stdio.h>
#include <string.h>

#include "sim_int.h"

/* ---- journal */

static uint64_t written(const sim *s)
{
    return s->records_gone + s->records;
}

static void journal_append(void *arg, uint32_t type, const void *bytes, size_t len)
{
    sim *s = arg;
    if (s->records == s->record_capacity) {
        s->record_capacity = s->record_capacity * 2 + 256;
        s->journal = k2_realloc_array(s->journal, s->record_capacity, sizeof *s->journal);
    }
    sim_record *r = &s->journal[s->records++];
    *r = (sim_record){.type = type, .len = len, .bytes = k2_alloc(len + 8)};
    if (len) memcpy(r->bytes, bytes, len);
    if (type == K2M_REC_STATE) s->state_at = written(s) - 1;
}

/* Records before the last STATE go, once it is durable itself. */
static void compact(sim *s)
{
    if (s->compact_to <= s->records_gone || s->compact_to >= s->durable) return;
    uint64_t gone = s->compact_to - s->records_gone;
    for (uint64_t i = 0; i < gone; i++) k2_free(s->journal[i].bytes);
    memmove(s->journal, s->journal + gone, (s->records - gone) * sizeof *s->journal);
    s->records -= gone;
    s->records_gone += gone;
}

static void commit_later(sim *s)
{
    if (s->committing || s->durable >= written(s)) return;
    s->committing = written(s);
    uint64_t us = 50 + sim_draw(s, 3000);
    if (sim_fault(s, SIM_DISK_SLOW, SIM_MASTER)) us += sim_fault_draw(s, 600000);
    sim_event *e = sim_at(s, SIM_DURABLE, us);
    e->life = s->life;
    e->id = s->committing;
}

/* The end of one step of the core: a transaction never ends elsewhere. */
static void step_end(sim *s)
{
    if (s->step_count == s->step_capacity) {
        s->step_capacity = s->step_capacity * 2 + 256;
        s->steps = k2_realloc_array(s->steps, s->step_capacity, sizeof *s->steps);
    }
    s->steps[s->step_count++] = written(s);
}

static void durable_to(sim *s, uint64_t record)
{
    s->durable = record;
    size_t n = 0;
    while (n < s->step_count && s->steps[n] <= record) n++;
    memmove(s->steps, s->steps + n, (s->step_count - n) * sizeof *s->steps);
    s->step_count -= n;
}

/* ---- actions */

static uint64_t call_new(sim *s, uint64_t id, uint32_t position)
{
    for (uint32_t i = 0; i < SIM_CALLS; i++) {
        if (s->calls[i].used) continue;
        s->calls[i].used = true;
        s->calls[i].attempt = ++s->attempt;
        s->calls[i].id = id;
        s->calls[i].since_ns = s->now_ns;
        s->calls[i].position = position;
        return s->attempt;
    }
    K2_ASSERT(!"more calls than the master may have");
    return 0;
}

static sim_proc *proxy_now(sim *s)
{
    const k2m_worker *w = &s->core->workers[s->core->proxy];
    for (uint32_t i = 0; i < SIM_PROCS; i++)
        if (s->procs[i].serial && s->procs[i].worker == s->core->proxy && s->procs[i].incarnation == w->incarnation)
            return &s->procs[i];
    return NULL;
}

static void request(sim *s, const k2m_action *a)
{
    bool eval = (a->id & K2M_EVAL_BIT) != 0;
    const sim_proc *p = proxy_now(s);
    uint64_t attempt = call_new(s, a->id, a->position);
    sim_event *e = sim_at(s, SIM_CALL, sim_latency_us(s, s->core->proxy));
    e->proc = p ? p->serial : 0;
    e->attempt = attempt;
    e->id = a->id;
    e->position = a->position;
    e->max_tokens = a->max_tokens;
    e->alone = a->alone;
    e->training = true;
    e->digest = s->core->force_digest;
    if (eval) {
        e->tokens.count = 1;
        e->tokens.ids[0] = 1 + (int32_t)((a->id & ~K2M_EVAL_BIT) % (SIM_VOCAB - 1));
        return;
    }
    e->tokens.count = k2_replay_prompt_tokens(s->core->replay, k2_replay_group_of(a->id), 0, e->tokens.ids, SIM_TOKENS);
    k2_replay_token tokens[SIM_TOKENS];
    uint32_t n = k2_replay_tokens(s->core->replay, a->id, 0, tokens, a->position);
    for (uint32_t i = 0; i < n; i++) e->tokens.ids[e->tokens.count++] = tokens[i].id;
}

/* A reward follows from the answer: another answer would show in it. */
static bool reward(sim *s, uint64_t id)
{
    k2_replay_token tokens[SIM_TOKENS];
    int32_t ids[SIM_TOKENS];
    uint32_t n = 0;
    if (id & K2M_EVAL_BIT) {
        const sim_tokens *t = &s->eval[(id & ~K2M_EVAL_BIT) % SIM_EVAL];
        n = t->count;
        memcpy(ids, t->ids, n * sizeof *ids);
    } else {
        n = k2_replay_tokens(s->core->replay, id, 0, tokens, SIM_TOKENS);
        for (uint32_t i = 0; i < n; i++) ids[i] = tokens[i].id;
    }
    return k2_hash64(ids, n * sizeof *ids, id) % 2;
}

static void score(sim *s, const k2m_action *a)
{
    const sim_proc *p = proxy_now(s);
    sim_event *e = sim_at(s, SIM_SCORED, 4 * sim_latency_us(s, s->core->proxy));
    e->life = s->life;
    e->ok = p && sim_proc_runs(s, p) && !sim_fault(s, SIM_LOSE_SCORE, SIM_MASTER);
    e->count = a->count;
    memcpy(e->ids, a->ids, a->count * sizeof *a->ids);
    for (uint32_t i = 0; i < a->count; i++) e->rewards |= (uint64_t)reward(s, a->ids[i]) << i;
}

static void latest(sim *s, uint64_t number)
{
    if (!s->checkpoints[number].ready)
        sim_break(s, SIM_CHECK_CHECKPOINT, "step_%llu is named latest, it is not whole", (unsigned long long)number);
    uint32_t kept = 0; /* the master's rule: of those up to the latest, the youngest stay */
    for (uint64_t i = number + 1; i-- > 0;)
        if (s->checkpoints[i].ready && kept++ >= K2_MAX(s->config.run_checkpoints_kept, 2)) s->checkpoints[i].ready = false;
}

static void carry_out(sim *s, const k2m_action *a)
{
    sim_event *e;
    sim_check_told(s, a);
    switch (a->type) {
    case K2M_ACT_LAUNCH:
        sim_slot_clear(s, a->worker);
        sim_spawn(s, a->worker, a->incarnation);
        break;
    case K2M_ACT_KILL:
        e = sim_at(s, SIM_KILL, sim_fault(s, SIM_LATE_KILL, a->worker) ? sim_fault_draw(s, 3000000) : 100);
        e->worker = a->worker;
        e->incarnation = a->incarnation;
        break;
    case K2M_ACT_COMMAND: sim_queue_command(s, a); break;
    case K2M_ACT_REQUEST: request(s, a); break;
    case K2M_ACT_SCORE: score(s, a); break;
    case K2M_ACT_LATEST:
        if (s->disk_full_until_ns <= s->now_ns) latest(s, a->step);
        e = sim_at(s, SIM_LATEST, 100 + sim_draw(s, 5000));
        e->life = s->life;
        e->id = a->step;
        e->ok = s->disk_full_until_ns <= s->now_ns;
        break;
    case K2M_ACT_BATCH:
        e = sim_at(s, SIM_BATCH, 100 + sim_draw(s, 40000));
        e->life = s->life;
        e->id = a->step;
        break;
    case K2M_ACT_QUARANTINE: break;                           /* a note for people */
    case K2M_ACT_COMPACT: s->compact_to = s->state_at; break; /* with the next write */
    case K2M_ACT_LOG:
        snprintf(s->last_log, sizeof s->last_log, "%s", a->text);
        if (s->trace) printf("%10.3f ms  %s\n", (double)s->now_ns / 1e6, a->text);
        break;
    case K2M_ACT_EXIT:
        s->ended = true;
        s->end_code = a->code;
        snprintf(s->end_text, sizeof s->end_text, "%s", a->text);
        break;
    case K2M_ACT_STACKS: break; /* processes here have none */
    case K2M_ACT_REPORT: break; /* looked at when it was made */
    case K2M_ACT_ADMIT:
    case K2M_ACT_REFUSE: break; /* answered where the HELLO came in */
    }
}

static void release(sim *s)
{
    k2m_held h;
    while (!s->dying && k2m_hold_take(&s->hold, s->durable, &h)) {
        carry_out(s, &h.action);
        k2m_held_free(&h);
    }
}

void sim_master_event(sim *s, k2m_event *ev)
{
    if (s->ended || s->dying) return;
    uint64_t before = written(s);
    ev->now_ns = s->now_ns;
    const k2m_outbox *out = k2m_core_step(s->core, ev);
    k2m_fleet_check(s->core);
    sim_check_step(s, out);
    for (uint32_t i = 0; i < out->count; i++) k2m_hold_put(&s->hold, &out->list[i], written(s), NULL);
    if (written(s) > before) {
        step_end(s);
        if (sim_fault(s, SIM_CRASH_AT, SIM_MASTER)) {
            durable_to(s, written(s));
            s->dying = true;
            return;
        }
    }
    commit_later(s);
    release(s);
}

/* ---- life */

void sim_master_start(sim *s)
{
    k2_error err = {0};
    k2m_core_free(s->core);
    s->core = NULL;
    k2m_core_config cc = {
        .config = &s->config,
        .prompts = {.ids = (const int32_t *const *)s->prompts, .lengths = s->lengths, .count = SIM_PROMPTS, .length_max = 5},
        .heldout = SIM_EVAL,
        .vocab = SIM_VOCAB,
        .checkpoints_dir = "/run/checkpoints",
        .record = journal_append,
        .record_arg = s};
    s->life++;
    s->outcome->masters++;
    s->down = false;
    s->disk_was_full = s->disk_full_until_ns > s->now_ns;
    k2_code code = k2m_core_new(&cc, &s->core, &err);
    for (size_t i = 0; code == K2_OK && i < s->records; i++) {
        if (s->journal[i].type == K2M_REC_STATE) s->state_at = s->records_gone + i;
        code = k2m_core_apply(s->core, s->journal[i].type, s->journal[i].bytes, s->journal[i].len, &err);
    }
    if (code != K2_OK) {
        sim_break(s, SIM_CHECK_DURABLE, "recovery: %s", err.text);
        return;
    }
    sim_check_restart(s);
    sim_event *e = sim_at(s, SIM_MASTER_TICK, 1000);
    e->life = s->life;
    sim_master_event(s, &(k2m_event){.type = K2M_EV_BEGIN});
}

/* Where the journal ends: behind the last write that had ended, or, if that went well too, behind one that was under way. */
static uint64_t journal_end(sim *s)
{
    uint64_t end = K2_MAX(s->durable, s->records_gone);
    if (s->step_count > 0 && !s->ended && sim_fault(s, SIM_TAIL_KEPT, SIM_MASTER))
        end = s->steps[sim_fault_draw(s, s->step_count)];
    return end;
}

void sim_master_lose(sim *s)
{
    s->outcome->deaths++;
    uint64_t end = journal_end(s);
    for (uint64_t i = end - s->records_gone; i < s->records; i++) k2_free(s->journal[i].bytes);
    s->records = (size_t)(end - s->records_gone);
    s->durable = end;
    s->committing = s->compact_to = s->step_count = 0;
    s->life++;
    s->down = true;
    s->ended = s->dying = false;
    k2m_hold_fini(&s->hold);
    sim_slots_clear(s);
    memset(s->calls, 0, sizeof s->calls);
    for (uint32_t i = 0; i < SIM_PROCS; i++)
        if (s->procs[i].serial) sim_proc_end(s, &s->procs[i], 9, false);
}

/* ---- what happens to it */

static void answered(sim *s, const sim_event *e)
{
    static const k2_replay_finish finishes[] = {K2_REPLAY_FINISH_NONE, K2_REPLAY_FINISH_STOP, K2_REPLAY_FINISH_LENGTH,
                                                K2_REPLAY_FINISH_REPETITION};
    uint32_t at = 0;
    while (at < SIM_CALLS && !(s->calls[at].used && s->calls[at].attempt == e->attempt)) at++;
    if (at == SIM_CALLS) return;
    s->calls[at].used = false;
    uint32_t position = s->calls[at].position;
    if (e->ok && (e->id & K2M_EVAL_BIT)) s->eval[(e->id & ~K2M_EVAL_BIT) % SIM_EVAL] = e->tokens;
    if (!e->ok) {
        sim_master_event(s, &(k2m_event){.type = K2M_EV_ANSWER_FAILED,
                                         .id = e->id,
                                         .position = position,
                                         .text = "sim",
                                         .lost = e->lost,
                                         .lost_count = e->lost_count});
        return;
    }
    k2_replay_token tokens[SIM_TOKENS];
    for (uint32_t i = 0; i < e->tokens.count; i++)
        tokens[i] =
            (k2_replay_token){.id = e->tokens.ids[i], .logp = e->tokens.logps[i], .version = (uint32_t)s->core->force_version};
    sim_master_event(s, &(k2m_event){.type = K2M_EV_ANSWER,
                                     .id = e->id,
                                     .position = position,
                                     .tokens = tokens,
                                     .count = e->tokens.count,
                                     .digest = e->digest,
                                     .finish = e->finish <= 3 ? finishes[e->finish] : K2_REPLAY_FINISH_LENGTH});
}

static void scored(sim *s, const sim_event *e)
{
    if (!e->ok) {
        sim_master_event(s, &(k2m_event){.type = K2M_EV_SCORE_FAILED, .ids = e->ids, .count = e->count, .text = "sim"});
        return;
    }
    for (uint32_t i = 0; i < e->count; i++)
        sim_master_event(s, &(k2m_event){.type = K2M_EV_SCORED,
                                         .id = e->ids[i],
                                         .has_reward = true,
                                         .reward = (double)(e->rewards >> i & 1),
                                         .text = "sim",
                                         .ids = i + 1 == e->count ? e->ids : NULL});
}

static void tick(sim *s)
{
    sim_at(s, SIM_MASTER_TICK, SIM_TICK_US)->life = s->life;
    sim_slots_tick(s);
    const sim_proc *proxy = proxy_now(s);
    for (uint32_t i = 0; i < SIM_CALLS; i++) {
        bool late = s->now_ns - s->calls[i].since_ns > (proxy ? 3000u : 20u) * K2_NS_PER_MS;
        if (!s->calls[i].used || !late) continue;
        s->calls[i].used = false;
        if (proxy) {
            sim_event *e = sim_at(s, SIM_CALL_END, sim_latency_us(s, proxy->worker));
            e->proc = proxy->serial;
            e->attempt = s->calls[i].attempt;
        }
        sim_master_event(
            s,
            &(k2m_event){.type = K2M_EV_ANSWER_FAILED, .id = s->calls[i].id, .position = s->calls[i].position, .text = "late"});
    }
    sim_master_event(s, &(k2m_event){.type = K2M_EV_TICK});
}

/* A write has ended. Where it found no room nothing of it is there, and the run ends: no action is carried out any more. */
static void durable(sim *s, uint64_t record)
{
    if (s->disk_full_until_ns > s->now_ns) {
        s->ended = true;
        s->end_code = K2_NO_SPACE;
        snprintf(s->end_text, sizeof s->end_text, "journal: no space left");
        return;
    }
    if (sim_fault(s, SIM_CRASH_WRITING, SIM_MASTER)) {
        s->dying = true;
        return;
    }
    durable_to(s, record);
    s->committing = 0;
    compact(s);
    release(s);
    commit_later(s);
}

void sim_master_happen(sim *s, sim_event *e)
{
    if (s->ended || s->down) return;
    k2_digest d;
    switch (e->kind) {
    case SIM_TO_MASTER: sim_to_master(s, e); break;
    case SIM_DURABLE: durable(s, e->id); break;
    case SIM_EXIT:
        sim_master_event(s, &(k2m_event){.type = K2M_EV_EXIT,
                                         .worker = e->worker,
                                         .incarnation = e->incarnation,
                                         .signal = e->finish,
                                         .exit_code = e->finish ? 0 : 1});
        break;
    case SIM_BATCH:
        d = sim_batch_digest(s, e->id);
        sim_check_batch(s, e->id, d);
        sim_master_event(s, &(k2m_event){.type = K2M_EV_BATCH, .step = e->id, .locator = "b", .bytes = 1, .digest = d});
        break;
    case SIM_LATEST:
        sim_master_event(s, e->ok ? &(k2m_event){.type = K2M_EV_LATEST, .step = e->id}
                                  : &(k2m_event){.type = K2M_EV_FAULT, .code = K2_NO_SPACE, .text = "latest: no space left"});
        break;
    case SIM_ANSWER: answered(s, e); break;
    case SIM_SCORED: scored(s, e); break;
    case SIM_MASTER_TICK: tick(s); break;
    default: break;
    }
}
