/* How processes ended, which end came first, and the file of it; all pure. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sim.h"

static k2m_exits x;
static k2m_incident in;

static k2m_exit *ended(const char *name, uint64_t at_ms, int code, int signum)
{
    k2m_exit *e = k2m_exits_add(&x, name, x.count + 1, at_ms * K2_NS_PER_MS);
    e->over = true;
    e->exit_code = code;
    e->signal = signum;
    return e;
}

static int clear(void **state)
{
    (void)state;
    memset(&x, 0, sizeof x);
    return 0;
}

static const char *order(void)
{
    static char text[256];
    text[0] = 0;
    k2m_exits_incident(&x, &in);
    for (uint32_t i = 0; i < in.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", in.list[i]->name);
    return text;
}

static void the_earliest_is_the_cause(void **state)
{
    (void)state;
    assert_string_equal(order(), "");
    ended("trainer-1", 1000, 0, SIGSEGV);
    ended("trainer-0", 3000, 1, 0);
    ended("rollout-0", 9000, 1, 0);
    assert_string_equal(order(), "trainer-1 trainer-0 rollout-0");
}

/* Reaped in one go, or noticed by a peer before the crash has written its report. */
static void of_close_ones_the_crash_is_the_cause(void **state)
{
    (void)state;
    ended("trainer-0", 1000, 1, 0);
    ended("trainer-1", 1050, 0, SIGBUS);
    ended("trainer-2", 1060, 1, 0);
    assert_string_equal(order(), "trainer-1 trainer-0 trainer-2");
    clear(NULL);
    ended("trainer-0", 1000, 1, 0);
    ended("trainer-1", 1501, 0, SIGBUS); /* too late to be the cause */
    assert_string_equal(order(), "trainer-0 trainer-1");
    clear(NULL);
    ended("rollout-0", 1000, 0, SIGKILL);
    ended("trainer-1", 1200, 0, SIGABRT);
    assert_string_equal(order(), "trainer-1 rollout-0");
    clear(NULL);
    ended("trainer-0", 1000, 1, 0);
    snprintf(k2m_exits_add(&x, "rollout-0", 9, 1010 * K2_NS_PER_MS)->killed, 8, "said");
    assert_string_equal(order(), "rollout-0 trainer-0");
}

static void an_incident_ends_with_a_gap(void **state)
{
    (void)state;
    ended("trainer-0", 1000, 0, SIGKILL);
    ended("trainer-1", 1000 + K2M_EXIT_GAP_NS / K2_NS_PER_MS + 1, 1, 0);
    ended("proxy-0", 12000, 0, 0)->expected = true; /* it was told to */
    assert_string_equal(order(), "trainer-1");
    clear(NULL);
    for (uint32_t i = 0; i < 3 * K2M_EXITS_KEPT; i++) ended(i == 2 * K2M_EXITS_KEPT ? "rollout-3" : "rollout-2", i, 1, 0);
    k2m_exits_incident(&x, &in);
    assert_int_equal(in.count, K2M_EXITS_KEPT);
    assert_string_equal(in.list[0]->name, "rollout-3");
    assert_null(k2m_exits_find(&x, 1));
    assert_non_null(k2m_exits_find(&x, 3 * K2M_EXITS_KEPT));
}

static void texts_say_all(void **state)
{
    (void)state;
    char text[K2M_EXIT_TEXT_MAX];
    k2m_exit *e = ended("trainer-1", 1000, 0, SIGKILL);
    e->pid = 4711;
    e->lived_ns = 12300 * K2_NS_PER_MS;
    e->oom_kills = 1;
    snprintf(e->last, sizeof e->last, "reading the batch");
    k2m_exit_text(e, text, sizeof text);
    assert_string_equal(
        text, "trainer-1 (incarnation 1, pid 4711) was ended by SIGKILL after 12.3 s; its cgroup counts 1 more kill for "
              "lack of memory: reading the batch");
    assert_false(k2m_exit_crashed(e));
    e->oom_kills = 0;
    e->last[0] = 0;
    snprintf(e->killed, sizeof e->killed, "said nothing for 2000 ms (its lease)");
    k2m_exit_text(e, text, sizeof text);
    assert_string_equal(
        text,
        "trainer-1 (incarnation 1, pid 4711) was ended by the master: it said nothing for 2000 ms (its lease) after 12.3 s");
    e->signal = SIGSEGV;
    k2m_exit_text(e, text, sizeof text);
    assert_non_null(strstr(text, "; in the end by SIGSEGV after"));
    e->killed[0] = 0;
    assert_true(k2m_exit_crashed(e));
    e->signal = 0;
    e->exit_code = 3;
    k2m_exit_how(e, text, sizeof text);
    assert_string_equal(text, "exited with 3");
}

static void a_line_comes_back(void **state)
{
    (void)state;
    k2m_exit *e = ended("rollout-7", 1790000000123, 0, SIGABRT), back; /* milliseconds since 1970 */
    e->pid = 99;
    e->lived_ns = 5 * K2_NS_PER_S;
    e->oom_kills = 2;
    e->expected = true;
    snprintf(e->killed, sizeof e->killed, "did not stop");
    snprintf(e->last, sizeof e->last, "a \"quoted\"\n\xff line");
    k2_buf b;
    k2_buf_init(&b, 8192);
    k2m_exit_json(e, &b);
    assert_null(strchr(b.data, '\n'));
    assert_true(k2m_exit_parse(b.data, b.len, &back));
    assert_string_equal(back.name, e->name);
    assert_string_equal(back.killed, e->killed);
    assert_string_equal(back.last, "a \"quoted\"\n\xef\xbf\xbd line");
    assert_true(back.at_ns == e->at_ns && back.lived_ns == e->lived_ns && back.pid == 99 && back.oom_kills == 2);
    assert_true(back.signal == SIGABRT && back.exit_code == 0 && back.expected && back.over);
    for (size_t n = 0; n < b.len; n++) assert_false(k2m_exit_parse(b.data, n, &back)); /* a torn line is none */
    static const char *const bad[] = {"", "null", "[]", "{}", "{\"at_us\": -1}", "{\"at_us\": \"1\"}"};
    for (size_t i = 0; i < K2_COUNT(bad); i++) assert_false(k2m_exit_parse(bad[i], strlen(bad[i]), &back));
    k2_buf_fini(&b);
}

/* ---- in the core ---------------------------------------------------------------------------------------------------- */

static void goes_down(sim *s, uint32_t worker, int code, int signum)
{
    s->workers[worker].running = false;
    sim_event(s, &(k2m_event){.type = K2M_EV_EXIT,
                              .worker = worker,
                              .incarnation = s->core->workers[worker].incarnation,
                              .exit_code = code,
                              .signal = signum,
                              .pid = 100 + worker,
                              .text = "its last line"});
}

static void the_end_of_a_run_names_the_first_cause(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 3);
    s.config.trainer_ranks = 2;
    s.config.master_restarts_max = 0;
    sim_start_master(&s);
    while (s.core->phase != K2M_PHASE_GENERATE && !sim_run(&s, 1)) continue;
    uint32_t before = s.stacks;
    k2m_exit *e = k2m_exits_add(&s.core->exits, "trainer-1", 999, s.now_ns); /* as if it had restarts left */
    e->over = true;
    e->signal = SIGSEGV;
    goes_down(&s, 0, 1, 0);
    assert_true(sim_run(&s, 100000));
    assert_non_null(strstr(s.end_text, "trainer-0 died 1 times"));
    assert_non_null(strstr(s.end_text, "; first cause: trainer-1 was ended by SIGSEGV"));
    assert_int_equal(s.stacks, before); /* an exit status is no crash */
    sim_fini(&s);
}

/* The crash was first, but was still writing its report when the peer that it broke ended the run. */
static void a_crash_that_is_told_late_is_the_cause(void **state)
{
    (void)state;
    for (int crash = 0; crash < 2; crash++) {
        sim s;
        sim_init(&s, 5);
        s.config.trainer_ranks = 2;
        s.config.master_restarts_max = 0;
        sim_start_master(&s);
        while (s.core->phase != K2M_PHASE_GENERATE && !sim_run(&s, 1)) continue;
        goes_down(&s, 0, 1, 0);
        goes_down(&s, 1, crash ? 0 : 1, crash ? SIGSEGV : 0);
        assert_true(sim_run(&s, 100000));
        assert_non_null(strstr(s.end_text, "trainer-0 died 1 times"));
        assert_true((strstr(s.end_text, "first cause: trainer-1 was ended by SIGSEGV") != NULL) == crash);
        sim_fini(&s);
    }
}

static void a_crash_and_a_missed_deadline_ask_for_stacks(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 4);
    sim_start_master(&s);
    while (s.core->phase != K2M_PHASE_GENERATE && !sim_run(&s, 1)) continue;
    uint32_t before = s.stacks;
    goes_down(&s, s.core->first_rollout, 0, SIGSEGV);
    assert_int_equal(s.stacks, before + 1);
    const k2m_exit *e = k2m_exits_find(&s.core->exits, s.core->workers[s.core->first_rollout].incarnation);
    assert_non_null(e);
    assert_true(e->over && e->pid == 100 + s.core->first_rollout && strcmp(e->last, "its last line") == 0);

    s.workers[s.core->proxy].silent_until_ns = UINT64_MAX; /* until its lease has passed and it is killed */
    uint64_t proxy = s.core->workers[s.core->proxy].incarnation;
    while (s.stacks == before + 1 && !sim_run(&s, 1)) continue;
    e = k2m_exits_find(&s.core->exits, proxy);
    assert_non_null(e);
    assert_non_null(strstr(e->killed, "its lease"));
    s.workers[s.core->proxy].silent_until_ns = 0;
    assert_true(sim_run(&s, 1000000));
    assert_int_equal(s.end_code, K2_OK);
    assert_true(e->over && e->signal == SIGKILL);
    sim_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_earliest_is_the_cause, clear),
        cmocka_unit_test_setup(of_close_ones_the_crash_is_the_cause, clear),
        cmocka_unit_test_setup(an_incident_ends_with_a_gap, clear),
        cmocka_unit_test_setup(texts_say_all, clear),
        cmocka_unit_test_setup(a_line_comes_back, clear),
        cmocka_unit_test(the_end_of_a_run_names_the_first_cause),
        cmocka_unit_test(a_crash_that_is_told_late_is_the_cause),
        cmocka_unit_test(a_crash_and_a_missed_deadline_ask_for_stacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
