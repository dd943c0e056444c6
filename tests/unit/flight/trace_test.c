/* trace: which rank did not enter which collective; Chrome's JSON; summaries. */
#include "common/flight/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "rings.h"

enum { JOIN = K2_FLIGHT_COLL_JOIN, SUM = K2_FLIGHT_COLL_REDUCE_SCATTER, GATHER = K2_FLIGHT_COLL_ALL_GATHER };

static char *summary(const k2_flight_trace *t)
{
    static k2_buf out;
    k2_flight_collectives c;
    k2_buf_fini(&out);
    k2_buf_init(&out, 1 << 20);
    k2_flight_collectives_find(t, &c);
    k2_flight_summary_text(t, &c, &out);
    k2_flight_collectives_fini(&c);
    return out.data;
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("\"%s\" is not in:\n%s", part, text);
}

/* ---- collectives ------------------------------------------------------------------------------------------------------ */

static void the_rank_that_lags_is_named(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++) {
        rings_open("trainer", rank);
        k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text("TRAIN"), 0, 4, 3);
        rings_collective(9, 1, JOIN, 0, rank, 3, true);
        if (rank != 1) rings_collective(9, 2, SUM, 1200000, rank, 3, false);
    }
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    k2_flight_collectives c;
    k2_flight_collectives_find(t, &c);
    assert_int_equal(c.group_count, 1);
    assert_int_equal(c.mismatch_count, 0);
    const k2_flight_group *g = &c.groups[0];
    assert_int_equal(g->group, 9);
    assert_int_equal(g->seq, 2);
    assert_int_equal(g->op, SUM);
    assert_int_equal(g->bytes, 1200000);
    assert_int_equal(g->ranks, 3);
    assert_int_equal(g->behind, 1);
    assert_true(g->members[0].inside && !g->members[1].inside && g->members[2].inside);
    assert_int_equal(g->members[1].last->args[1], 1);
    k2_flight_collectives_fini(&c);
    const char *text = summary(t);
    has(text, "collective 2 (reduce_scatter_lanes, 1200.0 kB, group 9): ranks 0, 2 entered");
    has(text, "rank 1 did not");
    has(text, "rank 1: trainer-1, pid ");
    has(text, "the last it has done is 1 (join)");
    has(text, "last event 0.0 s ago: phase name=TRAIN iteration=4 version=3");
    k2_flight_trace_free(t);
}

static void a_rank_that_never_came_is_named(void **state)
{
    (void)state;
    rings_open("trainer", 0);
    rings_collective(4, 1, JOIN, 0, 0, 2, false);
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    has(summary(t), "rank 1: no ring of it is here");
    k2_flight_trace_free(t);
    rings_open("trainer", 1);
    k2_flight_mark(K2_FLIGHT_TEST, 5, 0, 0, 0);
    k2_flight_close();
    /* Its process came after the group's last event, so it was not there to come: begun anew, now with a ring of before. */
    assert_int_equal(rings_setup(NULL), 0);
    rings_open("trainer", 1);
    k2_flight_mark(K2_FLIGHT_TEST, 5, 0, 0, 0);
    rings_open("trainer", 0);
    rings_collective(4, 1, JOIN, 0, 0, 2, false);
    k2_flight_close();
    t = rings_load();
    has(summary(t), "none of this group's is in its ring; last event");
    k2_flight_trace_free(t);
}

static void ranks_that_do_different_things_are_named(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        rings_open("trainer", rank);
        rings_collective(5, 1, JOIN, 0, rank, 2, true);
        rings_collective(5, 2, rank == 0 ? SUM : GATHER, 4096, rank, 2, true);
        rings_collective(5, 3, SUM, 4096 + rank, rank, 2, true);
        rings_collective(5, 4, SUM, 4096, rank, 2, true);
    }
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    k2_flight_collectives c;
    k2_flight_collectives_find(t, &c);
    assert_int_equal(c.mismatch_count, 2);
    assert_int_equal(c.mismatches[0].seq, 2);
    assert_int_equal(c.mismatches[1].seq, 3);
    assert_int_equal(c.groups[0].behind, 0);
    k2_flight_collectives_fini(&c);
    const char *text = summary(t);
    has(text,
        "collective 2 of group 5 differs: rank 0 did reduce_scatter_lanes of 4096 bytes, rank 1 all_gather of 4096 bytes");
    has(text, "collective 4 (reduce_scatter_lanes, 4096 bytes, group 5): all 2 ranks entered it, 0 are still in it");
    k2_flight_trace_free(t);
}

/* The last collective is long gone from one ring, but that ring's last one is known to be behind. */
static void a_wrapped_ring_still_tells(void **state)
{
    (void)state;
    rings_open("trainer", 0);
    for (uint64_t seq = 1; seq <= 2000; seq++) rings_collective(6, seq, SUM, 64, 0, 2, true);
    rings_collective(6, 2001, SUM, 64, 0, 2, false);
    rings_open("trainer", 1);
    for (uint64_t seq = 1; seq <= 1999; seq++) rings_collective(6, seq, SUM, 64, 1, 2, true);
    rings_collective(6, 2000, SUM, 64, 1, 2, false); /* hangs in it, and then much else is recorded */
    for (int i = 0; i < 3000; i++) k2_flight_mark(K2_FLIGHT_TEST, 0, 0, 0, 0);
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    k2_flight_collectives c;
    k2_flight_collectives_find(t, &c);
    assert_int_equal(c.groups[0].seq, 2001);
    assert_int_equal(c.groups[0].behind, 1);
    assert_int_equal(c.groups[0].members[1].last->args[1], 2000);
    assert_true(c.groups[0].members[1].inside);
    k2_flight_collectives_fini(&c);
    has(summary(t), "the last it is still in is 2000");
    k2_flight_trace_free(t);
}

static void groups_stand_in_order_and_nonsense_is_left_out(void **state)
{
    (void)state;
    rings_open("trainer", 0);
    rings_collective(8, 1, JOIN, 0, 0, 1, true);
    rings_collective(3, 1, JOIN, 0, 0, 1, true);
    rings_collective(3, 2, 77, 0, 0, 1, true);
    rings_collective(2, 1, JOIN, 0, 9, 2, true);      /* rank 9 of 2 */
    rings_collective(2, 1, JOIN, 0, 9, 100000, true); /* more ranks than there can be */
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    k2_flight_collectives c;
    k2_flight_collectives_find(t, &c);
    assert_int_equal(c.group_count, 2);
    assert_int_equal(c.groups[0].group, 8);
    assert_int_equal(c.groups[1].group, 3);
    k2_flight_collectives_fini(&c);
    has(summary(t), "an unknown operation");
    k2_flight_trace_free(t);
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------- */

static bool append(void *arg, const void *bytes, size_t n)
{
    return k2_buf_append(arg, bytes, n);
}

static cJSON *chrome(const k2_flight_trace *t)
{
    k2_buf out;
    k2_buf_init(&out, 1 << 26);
    assert_true(k2_flight_chrome_write(t, append, &out));
    cJSON *root = cJSON_Parse(out.data);
    if (root == NULL) fail_msg("no JSON:\n%s", out.data);
    k2_buf_fini(&out);
    return root;
}

static const char *string(const cJSON *e, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(e, key);
    return cJSON_IsString(v) ? v->valuestring : "";
}

/* Events of one phase letter and name, the first one in *out. */
static int count(const cJSON *root, const char *ph, const char *name, const cJSON **out)
{
    int n = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, cJSON_GetObjectItemCaseSensitive(root, "traceEvents"))
    {
        if (strcmp(string(e, "ph"), ph) != 0 || (name != NULL && strcmp(string(e, "name"), name) != 0)) continue;
        if (n++ == 0 && out != NULL) *out = e;
    }
    return n;
}

static void chrome_has_processes_threads_spans_flows(void **state)
{
    (void)state;
    rings_open("proxy", 0);
    k2_flight_start(K2_FLIGHT_REQUEST, 1, 55, 0, 8, 0);
    k2_flight_mark(K2_FLIGHT_ROUTED, 55, 0, 1, 1);
    k2_flight_count(K2_FLIGHT_QUEUES, 3, 4, 0, 0);
    k2_flight_finish(K2_FLIGHT_REQUEST, 1, 55, 0, 8, 8);
    k2_flight_start(K2_FLIGHT_REQUEST, 2, K2_FLIGHT_NONE, K2_FLIGHT_NONE, 8, 0); /* does not end */
    k2_flight_finish(K2_FLIGHT_REQUEST, 3, 57, 0, 8, 8);                         /* its beginning was overwritten */
    rings_open("rollout", 0);
    k2_flight_mark(K2_FLIGHT_ADMITTED, 55, 0, 1, 1);
    k2_flight_end(k2_flight_begin(K2_FLIGHT_STEP, 1, 2, 3, 1ull << 60));
    (void)k2_flight_begin(K2_FLIGHT_PULL, 4, 0, 0, 0);
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    has(summary(t), "; 1 unfinished: request max_tokens=8 tokens=0 (");
    cJSON *root = chrome(t);
    const cJSON *e, *args;
    assert_int_equal(count(root, "M", "process_name", &e), 2);
    assert_non_null(strstr(string(cJSON_GetObjectItemCaseSensitive(e, "args"), "name"), "proxy-0 (pid "));
    assert_int_equal(count(root, "M", "thread_name", NULL), 4);
    assert_int_equal(count(root, "b", "request", NULL), 3);
    assert_int_equal(count(root, "e", "request", NULL), 3);
    assert_int_equal(count(root, "C", "requests", NULL), 1);
    assert_int_equal(count(root, "X", "engine_step", &e), 1);
    args = cJSON_GetObjectItemCaseSensitive(e, "args");
    assert_string_equal(string(args, "waiting"), "1152921504606846976"); /* as a string: above 2^53 */
    assert_int_equal(count(root, "X", "weights_pull", &e), 1);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(e, "args"), "unfinished")));
    const cJSON *from, *to;
    assert_int_equal(count(root, "s", "request", &from), 1);
    assert_int_equal(count(root, "f", "request", &to), 1);
    assert_string_equal(string(from, "id"), string(to, "id"));
    cJSON_Delete(root);
    k2_flight_trace_free(t);
}

static bool refuse(void *arg, const void *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    return --*(int *)arg > 0;
}

static void a_long_trace_comes_in_pieces(void **state)
{
    (void)state;
    rings_open("master", 0);
    for (int i = 0; i < 1000; i++) k2_flight_end(k2_flight_begin(K2_FLIGHT_RECORDS, UINT64_MAX - 1, 2, 3, 4));
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    cJSON *root = chrome(t);
    assert_int_equal(count(root, "X", "commit", NULL), (int)t->rings[0]->count);
    cJSON_Delete(root);
    int pieces = 2;
    assert_false(k2_flight_chrome_write(t, refuse, &pieces));
    assert_int_equal(pieces, 0); /* asked no more after it said no */
    k2_flight_trace_last(t, 1e-9);
    root = chrome(t);
    assert_true(count(root, "X", "commit", NULL) < 10);
    cJSON_Delete(root);
    k2_flight_trace_free(t);
}

static void the_summary_is_json_too(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        rings_open("trainer", rank);
        rings_collective(5, 1, rank ? GATHER : SUM, 8, rank, 2, true);
        if (rank == 0) rings_collective(5, 2, SUM, 8, rank, 2, false);
    }
    k2_flight_close();
    k2_flight_trace *t = rings_load();
    k2_flight_collectives c;
    k2_buf out;
    k2_buf_init(&out, 1 << 20);
    k2_flight_collectives_find(t, &c);
    k2_flight_summary_json(t, &c, &out);
    cJSON *root = cJSON_Parse(out.data);
    assert_non_null(root);
    const cJSON *g = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(root, "collectives"), 0);
    assert_int_equal(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(g, "missing"), 0)->valueint, 1);
    assert_int_equal(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(g, "entered"), 0)->valueint, 0);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "mismatches")), 1);
    const cJSON *p = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(root, "processes"), 0);
    assert_string_equal(string(p, "life"), "ended");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(p, "open")), 1);
    cJSON_Delete(root);
    k2_flight_collectives_fini(&c);
    k2_buf_fini(&out);
    k2_flight_trace_free(t);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(name, rings_setup)
    const struct CMUnitTest tests[] = {
        T(the_rank_that_lags_is_named),
        T(a_rank_that_never_came_is_named),
        T(ranks_that_do_different_things_are_named),
        T(a_wrapped_ring_still_tells),
        T(groups_stand_in_order_and_nonsense_is_left_out),
        T(chrome_has_processes_threads_spans_flows),
        T(a_long_trace_comes_in_pieces),
        T(the_summary_is_json_too),
    };
    return cmocka_run_group_tests(tests, NULL, rings_teardown);
}
