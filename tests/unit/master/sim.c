/* sim: see sim.h. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

#define PROMPTS 40u
#define HELDOUT 6u

static uint64_t draw(sim *s, uint64_t n)
{
    return k2_rand_below(s->seed, K2_STREAM_TEST, 1, s->draw++, n);
}

static bool chance(sim *s, uint32_t one_in)
{
    return one_in > 0 && draw(s, one_in) == 0;
}

static k2_digest mix(k2_digest a, uint64_t b, uint64_t c)
{
    uint64_t words[4] = {a.hi, a.lo, b, c};
    return k2_digest_of(words, sizeof words);
}

/* ---- what the world computes, whoever asks and when */

static uint32_t length_of(const sim *s, uint64_t id)
{
    return 1 + (uint32_t)k2_rand_below(s->config.seed, K2_STREAM_TEST, 2, id, s->config.rollout_max_tokens + 4);
}

/* A token depends on the weights that drew it, so that a wrong version shows in the end. */
static k2_replay_token token_of(k2_digest weights, uint64_t version, uint64_t id, uint32_t position)
{
    k2_digest d = mix(weights, id, position);
    return (k2_replay_token){.id = (int32_t)(d.lo % 256), .logp = -(float)(d.hi % 1000) / 100, .version = (uint32_t)version};
}

static double reward_of(const sim *s, uint64_t id)
{
    uint64_t group = k2_replay_group_of(id);
    if (s->faults.equal && k2_hash64(&group, sizeof group, 4) % s->faults.equal == 0) return 1;
    return (double)(k2_hash64(&id, sizeof id, 3) % 2);
}

static k2_digest fresh_weights(const sim *s)
{
    return mix((k2_digest){1, 2}, s->config.seed, 0);
}

static k2_digest batch_digest(sim *s, uint64_t step)
{
    k2_digest_stream *d = k2_digest_begin();
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, step, &at, &group, &size);)
        for (uint32_t k = 0; k < size && !k2m_batch_leaves_out(s->core, group); k++) {
            k2_replay_info info;
            (void)k2_replay_find(s->core->replay, k2_replay_id(group, k), &info);
            if (info.state == K2_REPLAY_DROPPED) continue;
            k2_replay_token tokens[64];
            uint32_t n = k2_replay_tokens(s->core->replay, info.id, 0, tokens, 64);
            k2_digest_update(d, &info.id, sizeof info.id);
            k2_digest_update(d, &info.prompt, sizeof info.prompt);
            k2_digest_update(d, &info.reward, sizeof info.reward);
            k2_digest_update(d, tokens, n * sizeof *tokens);
        }
    return k2_digest_end(d);
}

/* ---- journal */

static void record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    sim *s = arg;
    if (s->records == s->record_capacity) {
        s->record_capacity = s->record_capacity * 2 + 256;
        s->journal = k2_realloc_array(s->journal, s->record_capacity, sizeof *s->journal);
    }
    sim_record *r = &s->journal[s->records++];
    *r = (sim_record){.type = type, .len = len, .bytes = k2_alloc(len + 8)};
    if (len) memcpy(r->bytes, bytes, len);
    if (type == K2M_REC_STATE) s->state_at = s->records - 1;
}

static void truncate(sim *s)
{
    for (size_t i = 0; i < s->state_at; i++) k2_free(s->journal[i].bytes);
    memmove(s->journal, s->journal + s->state_at, (s->records - s->state_at) * sizeof *s->journal);
    s->records -= s->state_at;
    s->durable = s->records;
    s->state_at = 0;
}

/* ---- life */

void sim_init(sim *s, uint64_t seed)
{
    *s = (sim){.seed = seed, .now_ns = 1000};
    k2_config_defaults(&s->config);
    s->config.seed = 5;
    s->config.iterations = 9;
    s->config.run_checkpoint_every = 3;
    s->config.run_eval_every = 4;
    s->config.pretrain_steps = 25;
    s->config.trainer_ranks = 2;
    s->config.rollout_workers = 2;
    s->config.rollout_groups = 5;
    s->config.rollout_group_size = 3;
    s->config.rollout_budget_tokens = 7;
    s->config.rollout_max_tokens = 20;
    s->config.master_inflight_max = 6;
    s->config.master_restarts_max = 60;
    s->config.eval_prompts = 4;
    s->prompts = k2_alloc_array(PROMPTS, sizeof *s->prompts);
    s->lengths = k2_alloc_array(PROMPTS, sizeof *s->lengths);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        s->lengths[i] = 1 + i % 5;
        s->prompts[i] = k2_alloc_array(s->lengths[i], sizeof **s->prompts);
        for (uint32_t k = 0; k < s->lengths[i]; k++) s->prompts[i][k] = (int32_t)(i + k);
    }
}

static void free_records(sim *s)
{
    for (size_t i = 0; i < s->records; i++) k2_free(s->journal[i].bytes);
}

void sim_fini(sim *s)
{
    k2m_core_free(s->core);
    free_records(s);
    k2_free(s->journal);
    k2_free(s->pending);
    for (uint32_t i = 0; i < PROMPTS; i++) k2_free(s->prompts[i]);
    k2_free(s->prompts);
    k2_free(s->lengths);
}

/* A master process: the durable records, and workers that are all new (the old ones died with the old master). */
void sim_start_master(sim *s)
{
    k2_error err = {0};
    k2m_core_free(s->core);
    s->core = NULL;
    k2m_core_config cc = {.config = &s->config,
                          .prompts = {.ids = (const int32_t *const *)s->prompts,
                                      .lengths = s->lengths,
                                      .easy_first = s->easy_first,
                                      .difficulty = s->difficulty,
                                      .count = PROMPTS,
                                      .length_max = 5},
                          .heldout = HELDOUT,
                          .vocab = 264,
                          .pid = SIM_MASTER_PID,
                          .checkpoints_dir = "/run/checkpoints",
                          .record = record,
                          .record_arg = s};
    if (strcmp(s->config.mode, "pretrain") == 0) cc.prompts = (k2m_prompts){0};
    k2_code code = k2m_core_new(&cc, &s->core, &err);
    for (size_t i = 0; code == K2_OK && i < s->records; i++)
        code = k2m_core_apply(s->core, s->journal[i].type, s->journal[i].bytes, s->journal[i].len, &err);
    if (code != K2_OK) {
        fprintf(stderr, "recovery: %s\n", err.text);
        K2_ASSERT(!"recovery");
    }
    memset(s->workers, 0, sizeof s->workers);
    s->pending_count = 0;
    s->masters++;
    s->stop_sent = false;
    sim_event(s, &(k2m_event){.type = K2M_EV_BEGIN});
}

static void kill_master(sim *s, bool lose_last)
{
    if (lose_last) { /* the last step's records did not reach the disk; none of its actions was carried out */
        for (size_t i = s->durable; i < s->records; i++) k2_free(s->journal[i].bytes);
        s->records = s->durable;
    }
    s->deaths++;
    sim_start_master(s);
}

/* ---- actions */

static void later(sim *s, const k2m_action *a)
{
    if (s->pending_count == s->pending_capacity) {
        s->pending_capacity = s->pending_capacity * 2 + 64;
        s->pending = k2_realloc_array(s->pending, s->pending_capacity, sizeof *s->pending);
    }
    sim_pending *p = &s->pending[s->pending_count++];
    *p = (sim_pending){.action = *a, .due_ns = s->now_ns + (1 + draw(s, 40)) * K2_NS_PER_MS};
    if (a->type == K2M_ACT_COMMAND && a->msg.type == K2_MSG_INIT) {
        snprintf(p->strings[0], sizeof p->strings[0], "%s", a->msg.init.source);
        p->action.msg.init.locators.count = 0;
    }
    if (a->type == K2M_ACT_COMMAND && a->msg.type == K2_MSG_PREPARE) /* sources die with the step */
        p->action.msg.prepare.sources = (k2_wire_strs){0};
    if (a->type == K2M_ACT_COMMAND && a->msg.type == K2_MSG_SAVE)
        snprintf(p->strings[0], sizeof p->strings[0], "%s", a->msg.save.dir);
}

static void carry_out(sim *s, const k2m_action *a)
{
    sim_worker *w = &s->workers[a->worker];
    switch (a->type) {
    case K2M_ACT_LAUNCH:
        K2_ASSERT(a->incarnation > s->incarnation); /* never twice, whichever master gives it */
        s->incarnation = a->incarnation;
        *w = (sim_worker){.running = true, .incarnation = a->incarnation};
        later(s, a);
        break;
    case K2M_ACT_KILL:
        if (w->incarnation == a->incarnation && w->running) {
            w->running = false;
            later(s, a);
        }
        break;
    case K2M_ACT_ADMIT: w->greeted = true; break;
    case K2M_ACT_COMMAND:
    case K2M_ACT_REQUEST:
    case K2M_ACT_SCORE:
    case K2M_ACT_LATEST:
    case K2M_ACT_BATCH: later(s, a); break;
    case K2M_ACT_STACKS: s->stacks++; break;
    case K2M_ACT_COMPACT: truncate(s); break;
    case K2M_ACT_REPORT:
        s->reports[a->report.kind]++;
        if (a->report.kind == K2M_REPORT_ITERATION && a->report.trained) s->trains++;
        break;
    case K2M_ACT_LOG: snprintf(s->last_log, sizeof s->last_log, "%s", a->text); break;
    case K2M_ACT_EXIT:
        s->ended = true;
        s->end_code = a->code;
        snprintf(s->end_text, sizeof s->end_text, "%s", a->text);
        break;
    case K2M_ACT_QUARANTINE: s->put_aside++; break;
    case K2M_ACT_REFUSE: break;
    }
}

void sim_event(sim *s, k2m_event *ev)
{
    ev->now_ns = s->now_ns;
    s->durable = s->records;
    const k2m_outbox *out = k2m_core_step(s->core, ev);
    k2m_fleet_check(s->core);
    if (s->masters > 0 && ev->type != K2M_EV_BEGIN && chance(s, s->faults.kill_master)) {
        kill_master(s, draw(s, 2) == 0);
        return;
    }
    s->durable = s->records;
    for (uint32_t i = 0; i < out->count; i++) carry_out(s, &out->list[i]);
}

/* ---- workers */

static void hello(sim *s, uint32_t worker)
{
    const k2m_worker *w = &s->core->workers[worker];
    k2_msg m = {.type = K2_MSG_HELLO,
                .hello = {.role = k2m_role_name(w->role),
                          .index = w->index,
                          .pid = 100 + worker,
                          .nonce = s->workers[worker].incarnation,
                          .endpoint = "http://127.0.0.1:1"}};
    sim_event(s, &(k2m_event){.type = K2M_EV_HELLO, .msg = &m});
}

static void death(sim *s, uint32_t worker, int signal)
{
    sim_worker *w = &s->workers[worker];
    uint64_t incarnation = w->incarnation;
    w->running = false;
    s->deaths++;
    sim_event(s, &(k2m_event){.type = K2M_EV_EXIT, .worker = worker, .incarnation = incarnation, .signal = signal});
}

static k2_code trainer_command(sim *s, sim_worker *w, const sim_pending *p, k2_msg *done)
{
    const k2_msg *m = &p->action.msg;
    switch (m->type) {
    case K2_MSG_JOIN:
        w->joined = true;
        w->model.ready = false;
        return K2_OK;
    case K2_MSG_INIT:
        if (!w->joined) return K2_BAD_INPUT;
        if (strcmp(p->strings[0], "fresh") == 0) {
            w->model = (sim_model){.ready = true, .digest = fresh_weights(s)};
        } else {
            uint64_t number = 0;
            sscanf(p->strings[0], "/run/checkpoints/step_%llu", (unsigned long long *)&number);
            w->model = s->checkpoints[number % SIM_CHECKPOINTS];
        }
        w->joined = false;
        done->done.digest = w->model.digest;
        return w->model.ready && w->model.step == m->init.step ? K2_OK : K2_BAD_INPUT;
    case K2_MSG_PRETRAIN:
        if (!w->model.ready || m->pretrain.from != w->model.pretrain) return K2_BAD_INPUT;
        for (; w->model.pretrain < m->pretrain.to; w->model.pretrain++)
            w->model.digest = mix(w->model.digest, 7, w->model.pretrain);
        return K2_OK;
    case K2_MSG_TRAIN:
        if (!w->model.ready || m->train.step != w->model.step + 1) return K2_BAD_INPUT;
        w->model.step++;
        w->model.digest = mix(w->model.digest, m->train.digest.hi, m->train.digest.lo);
        return K2_OK;
    case K2_MSG_PUBLISH:
        done->done.digest = w->model.digest;
        return w->model.ready && m->publish.version == w->model.step ? K2_OK : K2_BAD_INPUT;
    case K2_MSG_SAVE: {
        uint64_t number = 0;
        sscanf(p->strings[0], "/run/checkpoints/step_%llu", (unsigned long long *)&number);
        s->checkpoints[number % SIM_CHECKPOINTS] = w->model;
        done->done.digest = w->model.digest;
        return w->model.ready ? K2_OK : K2_BAD_INPUT;
    }
    default: return K2_OK;
    }
}

static k2_code rollout_command(sim_worker *w, const k2_msg *m, k2_msg *done)
{
    if (m->type == K2_MSG_PREPARE) w->prepared = m->prepare.digest;
    if (m->type == K2_MSG_COMMIT) {
        if (!k2_digest_equal(w->prepared, m->commit.digest)) return K2_BAD_INPUT;
        w->held = w->prepared;
    }
    done->done.digest = m->type == K2_MSG_PREPARE ? w->prepared : w->held;
    return K2_OK;
}

static void command(sim *s, const sim_pending *p)
{
    static const char *const locator[] = {"self:1"};
    const k2m_action *a = &p->action;
    sim_worker *w = &s->workers[a->worker];
    if (!w->running || w->incarnation != a->incarnation || w->silent_until_ns > s->now_ns) return;
    k2_msg done = {.type = K2_MSG_DONE, .worker = a->worker + 1, .incarnation = a->incarnation, .cmd = a->msg.cmd};
    k2m_role role = s->core->workers[a->worker].role;
    k2_code code = K2_OK;
    if (role == K2M_TRAINER) {
        code = trainer_command(s, w, p, &done);
        done.done.locators = (k2_wire_strs){.items = locator, .count = 1};
        K2_ASSERT(code == K2_OK); /* the master must never ask for what is out of order */
        bool fails = s->faults.fail_step > 0 && a->msg.train.step == s->faults.fail_step;
        if (a->msg.type == K2_MSG_TRAIN && (fails || chance(s, s->faults.fail_command))) {
            code = K2_TIMEOUT; /* a collective failed: the rank is of no use until JOIN */
            w->model.ready = false;
        }
        if (a->msg.type == K2_MSG_SAVE && chance(s, s->faults.fail_save)) code = K2_IO;
    } else if (role == K2M_ROLLOUT) {
        if (a->msg.type == K2_MSG_PREPARE && chance(s, s->faults.fail_command))
            code = K2_CORRUPT;
        else
            code = rollout_command(w, &a->msg, &done);
        K2_ASSERT(code == K2_OK || a->msg.type == K2_MSG_PREPARE);
    } else if (a->msg.type == K2_MSG_GATE) {
        w->gate = a->msg.gate.digest;
    }
    done.done.code = (uint64_t)code;
    done.done.text = "sim";
    if (chance(s, s->faults.repeat)) sim_event(s, &(k2m_event){.type = K2M_EV_DONE, .worker = a->worker, .msg = &done});
    uint32_t masters = s->masters;
    if (s->workers[a->worker].incarnation == a->incarnation && k2m_core_current(s->core, a->worker + 1, a->incarnation))
        sim_event(s, &(k2m_event){.type = K2M_EV_DONE, .worker = a->worker, .msg = &done});
    if (a->msg.type == K2_MSG_STOP && masters == s->masters) {
        w->running = false;
        sim_event(s, &(k2m_event){.type = K2M_EV_EXIT, .worker = a->worker, .incarnation = a->incarnation});
    }
}

/* ---- answers and rewards */

static sim_worker *any_engine(sim *s, k2_digest digest)
{
    for (uint32_t i = 0; i < s->core->rollouts; i++) {
        sim_worker *w = &s->workers[s->core->first_rollout + i];
        if (w->running && w->silent_until_ns <= s->now_ns && k2_digest_equal(w->held, digest)) return w;
    }
    return NULL;
}

static bool proxy_lives(sim *s)
{
    const sim_worker *p = &s->workers[s->core->proxy];
    return p->running && p->silent_until_ns <= s->now_ns;
}

static void answer(sim *s, const k2m_action *a)
{
    k2_digest gate = s->workers[s->core->proxy].gate;
    sim_worker *engine = any_engine(s, gate);
    if (!proxy_lives(s) || !engine || chance(s, s->faults.lose_answer)) {
        sim_event(s, &(k2m_event){.type = K2M_EV_ANSWER_FAILED, .id = a->id, .position = a->position, .text = "lost"});
        return;
    }
    if (chance(s, s->faults.refuse)) {
        sim_event(
            s,
            &(k2m_event){
                .type = K2M_EV_ANSWER_FAILED, .id = a->id, .position = a->position, .code = K2_BAD_INPUT, .text = "no room"});
        return;
    }
    k2_replay_token tokens[64];
    uint32_t n = 0, length = length_of(s, a->id), position = a->position;
    while (n < a->max_tokens && position < length) {
        tokens[n++] = token_of(engine->held, s->core->force_version, a->id, position);
        position++;
    }
    k2m_event ev = {.type = K2M_EV_ANSWER,
                    .id = a->id,
                    .position = a->position,
                    .tokens = tokens,
                    .count = n,
                    .digest = engine->held,
                    .finish = position >= length ? K2_REPLAY_FINISH_STOP : K2_REPLAY_FINISH_LENGTH};
    if (chance(s, s->faults.other_weights)) ev.digest.lo ^= 1;
    if (chance(s, s->faults.no_tokens)) {
        ev.count = 0;
        ev.finish = K2_REPLAY_FINISH_LENGTH;
    }
    uint32_t masters = s->masters;
    sim_event(s, &ev);
    if (masters == s->masters && chance(s, s->faults.repeat)) sim_event(s, &ev);
}

static void score(sim *s, const k2m_action *a)
{
    if (!proxy_lives(s) || chance(s, s->faults.lose_score)) {
        sim_event(s, &(k2m_event){.type = K2M_EV_SCORE_FAILED, .ids = a->ids, .count = a->count, .text = "lost"});
        return;
    }
    uint32_t masters = s->masters;
    for (uint32_t i = 0; i < a->count && masters == s->masters; i++) {
        bool bad = s->faults.bad_reward && a->ids[i] % s->faults.bad_reward == 0;
        sim_event(s, &(k2m_event){.type = K2M_EV_SCORED,
                                  .id = a->ids[i],
                                  .has_reward = !bad,
                                  .reward = reward_of(s, a->ids[i]),
                                  .text = "sim",
                                  .ids = i + 1 == a->count ? a->ids : NULL});
    }
}

/* ---- time ---- */

static void happen(sim *s, sim_pending *p)
{
    const k2m_action *a = &p->action;
    switch (a->type) {
    case K2M_ACT_LAUNCH:
        if (s->workers[a->worker].running && s->workers[a->worker].incarnation == a->incarnation) hello(s, a->worker);
        break;
    case K2M_ACT_KILL:
        sim_event(s, &(k2m_event){.type = K2M_EV_EXIT, .worker = a->worker, .incarnation = a->incarnation, .signal = 9});
        break;
    case K2M_ACT_COMMAND: command(s, p); break;
    case K2M_ACT_REQUEST: answer(s, a); break;
    case K2M_ACT_SCORE: score(s, a); break;
    case K2M_ACT_LATEST:
        s->latest = a->step;
        sim_event(s, &(k2m_event){.type = K2M_EV_LATEST, .step = a->step});
        break;
    case K2M_ACT_BATCH:
        s->batch = batch_digest(s, a->step);
        sim_event(s, &(k2m_event){.type = K2M_EV_BATCH, .step = a->step, .locator = "self:2", .bytes = 1, .digest = s->batch});
        break;
    default: break;
    }
}

static void heartbeat(sim *s)
{
    uint32_t masters = s->masters;
    for (uint32_t i = 0; i < s->core->worker_count && masters == s->masters; i++) {
        sim_worker *w = &s->workers[i];
        if (w->running && w->silent_until_ns <= s->now_ns && k2m_core_current(s->core, i + 1, w->incarnation))
            sim_event(s, &(k2m_event){.type = K2M_EV_ALIVE, .worker = i});
    }
}

static void misfortune(sim *s)
{
    for (uint32_t i = 0; i < s->core->worker_count; i++) {
        k2m_role role = s->core->workers[i].role;
        uint32_t one_in = role == K2M_TRAINER   ? s->faults.kill_trainer
                          : role == K2M_ROLLOUT ? s->faults.kill_rollout
                                                : s->faults.kill_proxy;
        if (!s->workers[i].running || s->core->phase >= K2M_PHASE_STOP) continue;
        if (chance(s, one_in)) {
            death(s, i, 9);
            return;
        }
        if (chance(s, s->faults.silence)) s->workers[i].silent_until_ns = UINT64_MAX;
    }
}

/* One thing happens: the one that is due first, or time passes. */
static void step(sim *s)
{
    size_t first = s->pending_count;
    for (size_t i = 0; i < s->pending_count; i++)
        if (first == s->pending_count || s->pending[i].due_ns < s->pending[first].due_ns) first = i;
    uint64_t tick = s->now_ns + 50 * K2_NS_PER_MS;
    if (first < s->pending_count && s->pending[first].due_ns <= tick) {
        sim_pending p = s->pending[first];
        s->pending[first] = s->pending[--s->pending_count];
        s->now_ns = K2_MAX(s->now_ns, p.due_ns);
        happen(s, &p);
    } else {
        s->now_ns = tick;
    }
    if (draw(s, 8) == 0 && !s->ended) {
        heartbeat(s);
        sim_event(s, &(k2m_event){.type = K2M_EV_TICK});
    }
    if (!s->ended) misfortune(s);
    if (s->stop_at_iteration && !s->stop_sent && s->core->iteration >= s->stop_at_iteration && !s->ended) {
        s->stop_sent = true;
        sim_event(s, &(k2m_event){.type = K2M_EV_STOP});
    }
}

bool sim_run(sim *s, uint32_t events)
{
    for (uint32_t i = 0; i < events && !s->ended; i++) step(s);
    return s->ended;
}

k2_digest sim_weights(const sim *s)
{
    return k2m_digest_of(s->core, k2_replay_count(s->core->replay).step_consumed);
}
