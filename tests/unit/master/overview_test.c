/* `k2rl top`: the overview of the core, and the text that is made of it, for a few workers and for ten thousand. */
#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct picture {
    k2m_overview v;
    const char *names[K2_WIRE_ROWS_MAX], *states[K2_WIRE_ROWS_MAX];
    uint64_t u[5][K2_WIRE_ROWS_MAX];
    k2_msg_overview msg;
    k2_buf text;
} picture;

/* As the wire carries it. */
static void take(picture *p, const k2m_core *m, const k2m_told *told, uint64_t now_ns)
{
    k2m_core_overview(m, told, now_ns, &p->v);
    uint32_t n = p->v.row_count;
    for (uint32_t i = 0; i < n; i++) {
        const k2m_row *r = &p->v.rows[i];
        const uint64_t values[5] = {r->pid, r->lease_ms, r->silent_ms, r->requests, r->tokens_per_s};
        p->names[i] = r->name;
        p->states[i] = r->state;
        for (size_t k = 0; k < 5; k++) p->u[k][i] = values[k];
    }
    p->msg = (k2_msg_overview){.run_id = "run",
                               .mode = "partial",
                               .phase = k2m_phase_name(m->phase),
                               .waits = p->v.waits,
                               .numbers = {p->v.numbers, p->v.number_count},
                               .names = {p->names, n},
                               .states = {p->states, n},
                               .pids = {p->u[0], n},
                               .lease_ms = {p->u[1], n},
                               .silent_ms = {p->u[2], n},
                               .requests = {p->u[3], n},
                               .tokens_per_s = {p->u[4], n}};
    assert_true(k2m_top_whole(&p->msg));
    /* It must fit into a message. */
    k2_buf bytes;
    k2_error err;
    k2_buf_init(&bytes, K2_WIRE_BYTES_MAX);
    assert_int_equal(k2_wire_encode(&(k2_msg){.type = K2_MSG_OVERVIEW, .overview = p->msg}, &bytes, &err), K2_OK);
    k2_buf_fini(&bytes);
}

static void render(picture *p, uint32_t width, uint32_t height)
{
    k2_buf_clear(&p->text);
    k2m_top_text(&p->msg, width, height, &p->text);
    uint32_t lines = 0;
    for (const char *line = p->text.data, *end; line && (end = strchr(line, '\n')); line = end + 1, lines++)
        if (width) assert_true((uint32_t)(end - line) <= width);
    if (height) assert_true(lines <= height);
}

static picture *picture_new(void)
{
    picture *p = k2_alloc(sizeof *p);
    k2_buf_init(&p->text, 1 << 22);
    return p;
}

static void picture_free(picture *p)
{
    k2_buf_fini(&p->text);
    k2_free(p);
}

static double number(const picture *p, const char *name)
{
    for (uint32_t i = 0; i < p->v.number_count; i++)
        if (strcmp(p->v.numbers[i].name, name) == 0) return p->v.numbers[i].value;
    fail_msg("no number %s", name);
    return 0;
}

/* At every moment of a run: whole, bounded, and the numbers are those of the core. */
static void all_of_a_run(void **state)
{
    (void)state;
    picture *p = picture_new();
    sim s;
    sim_init(&s, 3);
    s.config.trainer_ranks = 2;
    s.config.rollout_workers = 3;
    snprintf(s.config.data_sampling, sizeof s.config.data_sampling, "priority");
    s.config.rollout_refill_max = 3;
    sim_start_master(&s);
    const k2m_told told = {.start_ns = 1, .trained = true, .reward = 0.25, .held = 3};
    k2m_waits w;
    for (bool ended = false; !ended;) {
        ended = sim_run(&s, 7);
        take(p, s.core, &told, s.core->now_ns);
        render(p, 79, 23);
        assert_int_equal(p->v.row_count, 6);
        assert_true(number(p, "iteration") == (double)s.core->iteration && number(p, "held_actions") == 3);
        assert_true(number(p, "running") == k2_replay_count(s.core->replay).running);
        assert_non_null(strstr(p->v.waits, k2m_phase_name(s.core->phase)));
        k2m_core_waits(s.core, s.core->now_ns, &w);
        for (uint32_t i = 0; i < w.count; i++)
            assert_true((strcmp(w.list[i].owner, "master-0") == 0) == (w.list[i].pid == SIM_MASTER_PID));
        assert_null(strstr(p->v.waits, "pid 0"));
        assert_true(number(p, "share") >= 0 && number(p, "share") <= 1 && number(p, "left_seconds") >= 0);
    }
    assert_int_equal(s.end_code, K2_OK);
    assert_true(number(p, "prompts") == 40 && number(p, "prompts_seen") > 5 && number(p, "success_mean") > 0);
    assert_non_null(strstr(p->text.data, " of 40 seen, "));
    assert_non_null(strstr(p->text.data, "have equal rewards (up to 3 are replaced)"));
    k2_buf_clear(&p->text);
    k2m_top_json(&p->msg, &p->text);
    assert_non_null(strstr(p->text.data, "\"reward\": 0.25, \"train_tokens_per_s\": 0"));
    assert_non_null(strstr(p->text.data, "\"rows\": [{\"name\": \"trainer-0\""));
    assert_ptr_equal(strchr(p->text.data, '\n'), p->text.data + p->text.len - 1);
    sim_fini(&s);
    picture_free(p);
}

static void no_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

/* Ten thousand workers: who says nothing and who is not there come first, and those that have no room are counted. */
static void ten_thousand(void **state)
{
    (void)state;
    picture *p = picture_new();
    sim s;
    sim_init(&s, 7);
    k2_config config = s.config;
    config.rollout_workers = 10000;
    k2m_core *m;
    k2_error err;
    k2m_core_config cc = {.config = &config, .checkpoints_dir = "", .record = no_record};
    assert_int_equal(k2m_core_new(&cc, &m, &err), K2_OK);
    for (uint32_t i = 0; i < m->worker_count; i++) {
        m->workers[i].state = K2M_UP;
        m->workers[i].lease_ns = 20 * K2_NS_PER_S;
        m->workers[i].gauges.tokens_per_s = m->workers[i].role == K2M_ROLLOUT ? 100 : 0;
        snprintf(m->workers[i].phase, sizeof m->workers[i].phase, "\033[2Jserving");
    }
    m->phase = K2M_PHASE_GENERATE;
    m->workers[m->first_rollout + 9876].owes_poll_ns = 1;
    m->workers[m->first_rollout + 5432].state = K2M_DOWN;
    take(p, m, &(k2m_told){.start_ns = 1}, 10 * K2_NS_PER_S);
    assert_int_equal(p->v.row_count, K2_WIRE_ROWS_MAX);
    assert_string_equal(p->v.rows[0].name, "rollout-9876");
    assert_string_equal(p->v.rows[1].name, "rollout-5432");
    assert_string_equal(p->v.rows[1].state, "down");
    assert_true(number(p, "rollout_tokens_per_s") == 999900 && number(p, "rollouts_up") == 9999 && number(p, "silent") == 1);
    assert_non_null(strstr(p->v.waits, "rollout-9876"));
    char more[64];
    snprintf(more, sizeof more, "... %u workers more\n", m->worker_count - K2_WIRE_ROWS_MAX);
    render(p, 0, 0);
    assert_non_null(strstr(p->text.data, more));
    assert_null(strchr(p->text.data, '\033'));
    for (uint32_t height = 1; height < 60; height++)
        for (uint32_t width = 5; width < 200; width += 39) render(p, width, height);
    render(p, 100, 24);
    const char *last = strstr(p->text.data, "workers more\n");
    assert_true(last && last[13] == 0); /* the last line of the screen */
    k2m_core_free(m);
    sim_fini(&s);
    picture_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_of_a_run), cmocka_unit_test(ten_thousand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
