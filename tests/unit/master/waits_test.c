/* Who is blocking: in every phase the process that says nothing is named, and the chain goes from the step down to it. */
#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void all_speak(sim *s)
{
    for (uint32_t i = 0; i < s->core->worker_count; i++) s->core->workers[i].owes_poll_ns = 0;
}

/* Parents stand before their children; exactly the first line is the top; texts are whole. */
static void check_shape(const k2m_core *m, const k2m_waits *w)
{
    char text[K2M_TEXT_MAX];
    assert_true(w->count >= 1 && w->count <= K2M_WAITS_MAX && w->culprit <= w->count);
    for (uint32_t i = 0; i < w->count; i++) {
        assert_true(i == 0 ? w->list[i].parent == 0 : w->list[i].parent >= 1 && w->list[i].parent <= i);
        assert_true(w->list[i].what[0] && w->list[i].owner[0]);
        k2m_wait_text(w, i, m->now_ns, text, sizeof text);
        assert_true(strstr(text, w->list[i].owner) && (strstr(text, "culprit") != NULL) == (w->culprit == i + 1));
    }
}

/* The worker has a line that says for how long it has been silent. It is the culprit, unless nobody waits for it and somebody
 * for another one that is silent or not there. */
static void check_named(const k2m_waits *waits, const char *name)
{
    bool named = false, idle = false;
    for (uint32_t i = 0; i < waits->count; i++) {
        if (strcmp(waits->list[i].owner, name) != 0 || waits->list[i].silent_ns <= K2_NS_PER_S) continue;
        named = true;
        idle |= strstr(waits->list[i].what, "nobody waits for it yet") != NULL;
    }
    if (!named) fail_msg("%s is not named", name);
    assert_true(waits->culprit > 0);
    const k2m_wait *culprit = &waits->list[waits->culprit - 1];
    if (!idle) assert_string_equal(culprit->owner, name);
    assert_true(culprit->silent_ns > 0 || strstr(culprit->what, "process"));
}

enum { TRAINER, ROLLOUT, PROXY, ROLES };
static const char *const role_names[ROLES] = {"trainer", "rollout", "proxy"};

static int role_of(const k2m_core *m, uint32_t worker)
{
    return worker == m->proxy                                                      ? PROXY
           : worker >= m->first_rollout && worker < m->first_rollout + m->rollouts ? ROLLOUT
                                                                                   : TRAINER;
}

/* Every worker in turn owes its POLL; the youngest silence must lose against the oldest. Notes which roles were there. */
static void silent_is_named(sim *s, bool met[ROLES])
{
    k2m_core *m = s->core;
    for (uint32_t i = 0; i < m->worker_count; i++) {
        k2m_worker *w = &m->workers[i], *other = &m->workers[(i + 1) % m->worker_count];
        char name[K2_WIRE_NAME_MAX];
        k2m_waits waits;
        if (w->state != K2M_UP) continue;
        all_speak(s);
        w->owes_poll_ns = m->now_ns + 1;
        other->owes_poll_ns = m->now_ns + K2_NS_PER_S;
        k2m_core_waits(m, m->now_ns + 2 * K2_NS_PER_S, &waits);
        check_shape(m, &waits);
        k2m_worker_name(w, name);
        check_named(&waits, name);
        met[role_of(m, i)] = true;
    }
    all_speak(s);
}

static void named_in_every_phase(void **state)
{
    (void)state;
    bool met[K2M_PHASE_COUNT][ROLES] = {{false}};
    for (uint64_t seed = 1; seed < 9; seed++) {
        sim s;
        sim_init(&s, seed);
        s.config.trainer_ranks = 2;
        s.config.rollout_workers = 3;
        sim_start_master(&s);
        for (bool ended = false; !ended;) {
            ended = sim_run(&s, 1);
            if (ended) break;
            silent_is_named(&s, met[s.core->phase]);
        }
        assert_int_equal(s.end_code, K2_OK);
        sim_fini(&s);
    }
    for (k2m_phase p = K2M_PHASE_START; p < K2M_PHASE_END; p++)
        for (int r = 0; r < ROLES; r++)
            if (!met[p][r]) fail_msg("no %s was up in phase %s", role_names[r], k2m_phase_name(p));
}

static void until(sim *s, k2m_phase phase)
{
    for (uint32_t n = 0; n < 100000 && (s->core->phase != phase || s->core->inflight == 0); n++)
        if (sim_run(s, 1)) fail_msg("the run ended before phase %s", k2m_phase_name(phase));
}

/* step > group > trajectory > proxy > engine, and the deadline is that of the request. */
static void chain_of_generation(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    sim_start_master(&s);
    until(&s, K2M_PHASE_GENERATE);
    all_speak(&s);
    k2m_core *m = s.core;
    k2m_worker *engine = &m->workers[m->first_rollout];
    engine->owes_poll_ns = m->now_ns + 1;
    k2m_waits w;
    k2m_core_waits(m, m->now_ns + K2_NS_PER_S, &w);
    const k2m_wait *l = &w.list[w.culprit - 1];
    static const char *const words[] = {"process", "process", "trajectory", "group", "iteration"};
    for (size_t i = 0; i < K2_COUNT(words); i++) {
        assert_non_null(strstr(l->what, words[i]));
        if (strcmp(words[i], "trajectory") == 0)
            assert_true(l->deadline_ns == l->since_ns + m->c.config->master_step_timeout_ms * K2_NS_PER_MS);
        if (i + 1 < K2_COUNT(words)) l = &w.list[l->parent - 1];
    }
    assert_int_equal(l->parent, 0);
    /* All speak: nobody is accused but the oldest answer's own line. */
    all_speak(&s);
    k2m_core_waits(m, m->now_ns + K2_NS_PER_S, &w);
    assert_true(strstr(w.list[w.culprit - 1].what, "trajectory") || m->workers[m->proxy].cmd_type != K2_MSG_NONE ||
                engine->cmd_type != K2_MSG_NONE || engine->state != K2M_UP);
    sim_fini(&s);
}

/* A process that is gone is named, and so is a command that takes long. */
static void gone_and_late(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 6);
    sim_start_master(&s);
    until(&s, K2M_PHASE_GENERATE);
    all_speak(&s);
    k2m_core *m = s.core;
    k2m_waits w;
    k2m_worker *proxy = &m->workers[m->proxy];
    proxy->state = K2M_DOWN;
    k2m_core_waits(m, m->now_ns + K2_NS_PER_S, &w);
    assert_string_equal(w.list[w.culprit - 1].owner, "proxy-0");
    assert_int_equal(w.list[w.culprit - 1].pid, 0);
    proxy->state = K2M_UP;
    for (uint32_t i = 0; i < m->worker_count; i++) m->workers[i].cmd_type = K2_MSG_NONE;
    proxy->cmd_type = K2_MSG_GATE;
    proxy->cmd_since_ns = m->now_ns;
    k2m_core_waits(m, m->now_ns + K2_NS_PER_S, &w);
    assert_string_equal(w.list[w.culprit - 1].owner, "proxy-0");
    assert_non_null(strstr(w.list[w.culprit - 1].what, "GATE"));
    sim_fini(&s);
}

static void no_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

/* The list is bounded; who is silent is in it all the same. */
static void many_workers(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 7);
    k2_config config = s.config;
    config.rollout_workers = 500;
    k2m_core *m;
    k2_error err;
    k2m_core_config cc = {.config = &config, .checkpoints_dir = "", .record = no_record};
    assert_int_equal(k2m_core_new(&cc, &m, &err), K2_OK);
    for (uint32_t i = 0; i < m->worker_count; i++) m->workers[i].state = K2M_UP;
    m->phase = K2M_PHASE_GENERATE;
    m->workers[m->first_rollout + 499].owes_poll_ns = 1;
    k2m_waits w;
    k2m_core_waits(m, 10 * K2_NS_PER_S, &w);
    check_shape(m, &w);
    assert_string_equal(w.list[w.culprit - 1].owner, "rollout-499");
    k2m_core_free(m);
    sim_fini(&s);
}

/* A lease that runs out leaves the chain in the log, with the name. */
static void deadline_is_logged(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 8);
    sim_start_master(&s);
    until(&s, K2M_PHASE_GENERATE);
    all_speak(&s);
    k2m_core *m = s.core;
    m->workers[m->first_rollout].owes_poll_ns = m->now_ns + 1;
    for (uint32_t i = 0; i < m->worker_count; i++) m->workers[i].lease_ns = UINT64_MAX;
    m->workers[m->first_rollout].lease_ns = m->now_ns + K2_NS_PER_S;
    k2m_touch(m, &m->workers[m->first_rollout]); /* earlier than is known */
    k2m_event tick = {.type = K2M_EV_TICK, .now_ns = m->now_ns + 2 * K2_NS_PER_S};
    const k2m_outbox *out = k2m_core_step(m, &tick);
    uint32_t lines = 0, culprits = 0, traces = 0;
    for (uint32_t i = 0; i < out->count; i++) {
        const k2m_action *a = &out->list[i];
        if (a->type == K2M_ACT_LOG) traces += strstr(a->text, "k2rl trace ") != NULL; /* the command that tells more */
        if (a->type != K2M_ACT_LOG || strncmp(a->text, "wait ", 5) != 0) continue;
        lines++;
        culprits += strstr(a->text, "rollout-0") && strstr(a->text, "culprit");
    }
    assert_true(lines >= 3);
    assert_int_equal(culprits, 1);
    assert_int_equal(traces, 1);
    sim_fini(&s);
}

static uint64_t running(const k2m_core *m)
{
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(m->replay, 0, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            if (k2_replay_find(m->replay, k2_replay_id(group, k), &info) == K2_OK && info.state == K2_REPLAY_RUNNING)
                return info.id;
        }
    fail_msg("no trajectory runs");
    return 0;
}

/* Lines of the chain that this event leaves in the log. */
static uint32_t chain_lines(k2m_core *m, k2m_event ev)
{
    uint32_t lines = 0;
    const k2m_outbox *out = k2m_core_step(m, &ev);
    for (uint32_t i = 0; i < out->count; i++)
        lines += out->list[i].type == K2M_ACT_LOG && strncmp(out->list[i].text, "wait ", 5) == 0;
    return lines;
}

static void worker_due(k2m_core *m, k2m_worker *w)
{
    for (uint32_t i = 0; i < m->worker_count; i++) m->workers[i].lease_ns = UINT64_MAX;
    k2m_touch(m, w);
}

/* Deadlines that the core keeps itself. */
static void own_deadlines_are_logged(void **state)
{
    (void)state;
    for (int which = 0; which < 5; which++) {
        sim s;
        sim_init(&s, 8);
        sim_start_master(&s);
        until(&s, K2M_PHASE_GENERATE);
        all_speak(&s);
        k2m_core *m = s.core;
        k2m_worker *w = &m->workers[m->first_rollout];
        uint64_t late = m->now_ns + m->c.config->master_start_timeout_ms * K2_NS_PER_MS + K2_NS_PER_S;
        worker_due(m, w);
        if (which == 0) { /* the start */
            w->state = K2M_STARTING;
            w->start_ns = m->now_ns;
            w->restarts_total = 1;
        } else if (which == 1) { /* a command */
            w->cmd_type = K2_MSG_PREPARE;
            w->cmd_since_ns = m->now_ns;
            w->cmd_deadline_ns = m->now_ns + 1;
        } else if (which == 2) { /* a lease */
            w->lease_ns = m->now_ns + 1;
        } else if (which == 3) { /* nothing moves */
            late = m->now_ns + m->c.config->master_step_timeout_ms * K2_NS_PER_MS;
        } else { /* the end */
            (void)chain_lines(m, (k2m_event){.type = K2M_EV_FAULT, .now_ns = m->now_ns, .code = K2_IO, .text = "test"});
            late = m->now_ns + K2M_STOP_NS;
        }
        k2m_touch(m, w);
        if (chain_lines(m, (k2m_event){.type = K2M_EV_TICK, .now_ns = late}) < 2) fail_msg("deadline %d is not logged", which);
        sim_fini(&s);
    }
}

/* Deadlines of others, which the core hears of: of transfers and collectives with DONE, of requests with their failure. */
static void others_deadlines_are_logged(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++)
        for (int passed = 0; passed < 2; passed++) {
            sim s;
            sim_init(&s, 8);
            sim_start_master(&s);
            until(&s, K2M_PHASE_GENERATE);
            all_speak(&s);
            k2m_core *m = s.core;
            m->fleet.chain_logged_ns = 0;
            uint64_t id = running(m);
            k2_replay_info info;
            assert_int_equal(k2_replay_find(m->replay, id, &info), K2_OK);
            k2m_worker *w = &m->workers[m->first_rollout];
            k2_msg done = {.type = K2_MSG_DONE, .cmd = w->cmd, .done = {.code = passed ? K2_TIMEOUT : K2_IO, .text = "test"}};
            k2m_event ev = {.now_ns = m->now_ns, .code = passed ? K2_TIMEOUT : K2_PEER_REFUSED, .text = "test"};
            if (which == 0) {
                ev.type = K2M_EV_DONE;
                ev.worker = m->first_rollout;
                ev.msg = &done;
                w->cmd_type = K2_MSG_PREPARE;
                k2m_touch(m, w);
            } else if (which == 1) {
                ev.type = K2M_EV_ANSWER_FAILED;
                ev.id = id;
                ev.position = info.generated;
            } else if (which == 2) {
                ev.type = K2M_EV_SCORE_FAILED;
                ev.ids = &id;
                ev.count = 1;
                m->scores_inflight = 1;
            } else { /* often: once is enough */
                m->fleet.chain_logged_ns = m->now_ns;
                ev.type = K2M_EV_ANSWER_FAILED;
                ev.id = id;
                ev.position = info.generated;
            }
            uint32_t lines = chain_lines(m, ev);
            if ((lines >= 2) != (passed && which < 3)) fail_msg("event %d, passed %d: %u lines", which, passed, lines);
            sim_fini(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_in_every_phase),
        cmocka_unit_test(chain_of_generation),
        cmocka_unit_test(gone_and_late),
        cmocka_unit_test(many_workers),
        cmocka_unit_test(deadline_is_logged),
        cmocka_unit_test(own_deadlines_are_logged),
        cmocka_unit_test(others_deadlines_are_logged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
