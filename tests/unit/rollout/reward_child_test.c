/* reward_child - the user's command as a real process that answers, hangs, ends, and talks nonsense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rollout/reward_int.h"

/* What the command does is in the text of each item; it is a shell script, so that nothing but a shell is needed. */
static const char *const script = "while read -r line; do\n"
                                  "  t=${line#*'\"trajectory\":'}; t=${t%%,*}\n"
                                  "  case $line in\n"
                                  "  *'\"text\":\"hang\"'*) sleep 1000;;\n"
                                  "  *'\"text\":\"exit\"'*) exit 3;;\n"
                                  "  *'\"text\":\"once\"'*) [ -e \"$1/once\" ] || { : > \"$1/once\"; exit 4; }; echo "
                                  "\"{\\\"trajectory\\\":$t,\\\"reward\\\":4}\";;\n"
                                  "  *'\"text\":\"kill\"'*) kill -9 $$;;\n"
                                  "  *'\"text\":\"garbage\"'*) echo 'Traceback (most recent call last):';;\n"
                                  "  *'\"text\":\"wrong\"'*) echo '{\"trajectory\":99999,\"reward\":1}';;\n"
                                  "  *'\"text\":\"twice\"'*) echo \"{\\\"trajectory\\\":$t,\\\"reward\\\":1}\"; echo more;;\n"
                                  "  *'\"text\":\"close\"'*) exec 1>&-; exec 0<&-; sleep 1000;;\n"
                                  "  *'\"text\":\"long\"'*) head -c 100000 /dev/zero | tr '\\0' x; sleep 1000;;\n"
                                  "  *'\"text\":\"env\"'*) echo \"{\\\"trajectory\\\":$t,\\\"reward\\\":${K2RL_TOKEN:-7}}\";;\n"
                                  "  *) echo \"{\\\"trajectory\\\":$t,\\\"reward\\\":0.$t}\";;\n"
                                  "  esac\n"
                                  "done\n";

typedef struct bench {
    k2_loop *loop;
    k2i_rewarder *r;
    k2_log *log;
    char dir[32];
    int done, want;
} bench;

static void setup(bench *b, uint64_t timeout_ms)
{
    memset(b, 0, sizeof *b);
    strcpy(b->dir, "/tmp/k2_reward_XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    b->loop = k2_loop_new();
    k2_config *c = k2_alloc(sizeof *c);
    k2_config_defaults(c);
    strcpy(c->reward_kind, "command");
    c->reward_timeout_ms = timeout_ms;
    char path[64];
    snprintf(path, sizeof path, "%s/reward.sh", b->dir);
    assert_int_equal(k2_file_write_atomic(path, script, strlen(script), NULL), K2_OK);
    const char *const argv[] = {"sh", path, b->dir};
    c->reward_command.count = 3;
    for (int i = 0; i < 3; i++) strcpy(c->reward_command.item[i], argv[i]);
    b->log = k2_log_open("/dev/null", "rollout", 0, K2_LOG_INFO, NULL);
    b->r = k2i_rewarder_new(b->loop, c, b->log);
    k2_free(c);
}

static void teardown(bench *b)
{
    k2i_rewarder_free(b->r);
    k2_loop_free(b->loop);
    k2_log_close(b->log);
    assert_int_equal(k2_dir_remove(b->dir, NULL), K2_OK);
}

static void on_done(void *arg)
{
    bench *b = arg;
    if (++b->done == b->want) k2_loop_stop(b->loop);
}

static void make(k2i_score_batch *batch, const char *const *texts, uint32_t count, uint64_t first)
{
    *batch = (k2i_score_batch){.count = count,
                               .items = k2_alloc_array(count, sizeof *batch->items),
                               .scores = k2_alloc_array(count, sizeof *batch->scores)};
    for (uint32_t i = 0; i < count; i++) {
        batch->items[i] = (k2i_score_item){.trajectory = first + i,
                                           .prompt = k2_strdup("p\n\"q\""),
                                           .text = k2_strdup(texts[i]),
                                           .answer = k2_strdup(""),
                                           .meta = k2_strdup("null")};
        batch->scores[i].trajectory = first + i;
    }
}

static void run(bench *b, k2i_score_batch *batch)
{
    b->done = 0;
    b->want = 1;
    assert_int_equal(k2i_rewarder_score(b->r, batch, on_done, b), K2_OK);
    if (!b->done) k2_loop_run(b->loop);
}

static void test_answers_in_order_whatever_the_batching(void **state)
{
    (void)state;
    const char *texts[9] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    for (uint32_t cut = 1; cut <= 9; cut += 4) {
        bench b;
        setup(&b, 60000);
        k2i_score_batch batches[9];
        uint32_t count = 0;
        for (uint32_t at = 0; at < 9; at += cut) make(&batches[count++], texts + at, K2_MIN(cut, 9 - at), 1 + at);
        b.want = (int)count;
        for (uint32_t i = 0; i < count; i++) assert_int_equal(k2i_rewarder_score(b.r, &batches[i], on_done, &b), K2_OK);
        k2_loop_run(b.loop);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t k = 0; k < batches[i].count; k++) {
                assert_true(batches[i].scores[k].ok);
                assert_true(batches[i].scores[k].reward == (double)(1 + i * cut + k) / 10);
            }
            k2i_score_batch_fini(&batches[i]);
        }
        teardown(&b);
    }
}

static void test_faults_cost_one_item_only(void **state)
{
    (void)state;
    static const struct {
        const char *text, *detail; /* detail NULL: it has a reward */
        double reward;
    } cases[] = {
        {"fine", NULL, 0.1},
        {"exit", "ended with status 3", 0},
        {"fine", NULL, 0.3},
        {"kill", "ended by signal 9", 0},
        {"garbage", "found \"Traceback", 0},
        {"fine", NULL, 0.6},
        {"once", NULL, 4},
        {"wrong", "found the trajectory 99999, expected 8", 0},
        {"close", "ended", 0},
        {"long", "too long", 0},
        {"twice", NULL, 1},
        {"env", NULL, 7},
    };
    bench b;
    setup(&b, 60000);
    setenv("K2RL_TOKEN", "5", 1);
    const char *texts[K2_COUNT(cases)];
    for (size_t i = 0; i < K2_COUNT(cases); i++) texts[i] = cases[i].text;
    k2i_score_batch batch;
    make(&batch, texts, K2_COUNT(cases), 1);
    run(&b, &batch);
    unsetenv("K2RL_TOKEN");
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        const k2i_score *s = &batch.scores[i];
        if (cases[i].detail) {
            if (s->ok || !strstr(s->detail, cases[i].detail)) fail_msg("%s: found \"%s\"", cases[i].text, s->detail);
        } else if (!s->ok || s->reward != cases[i].reward) {
            fail_msg("%s (%zu): found %d %g \"%s\"", cases[i].text, i, s->ok, s->reward, s->detail);
        }
    }
    k2i_score_batch_fini(&batch);
    teardown(&b);
}

static void test_hang_is_killed(void **state)
{
    (void)state;
    bench b;
    setup(&b, 300);
    const char *texts[] = {"hang"};
    k2i_score_batch batch;
    k2i_rewarder_state s;
    k2_buf lines;
    make(&batch, texts, 1, 1);
    run(&b, &batch);
    k2i_rewarder_state_get(b.r, &s);
    assert_true(!s.busy && s.waiting == 0);
    k2_buf_init(&lines, 1 << 20);
    k2_log_tail(b.log, &lines); /* who was waited for, and which process */
    assert_non_null(strstr(lines.data, "wait: deadline passed: trajectory 1 for its reward: the reward command pid="));
    assert_null(strstr(lines.data, "for its reward: the reward command pid=0"));
    k2_buf_fini(&lines);
    assert_false(batch.scores[0].ok);
    assert_string_equal(batch.scores[0].detail, "the reward command gave no answer within 300 ms");
    k2i_score_batch_fini(&batch);
    teardown(&b);
}

static void test_caller_that_goes_away(void **state)
{
    (void)state;
    bench b;
    setup(&b, 60000);
    const char *texts[] = {"a", "b"};
    k2i_score_batch gone, stays;
    make(&gone, texts, 2, 1);
    make(&stays, texts, 2, 5);
    b.want = 1;
    assert_int_equal(k2i_rewarder_score(b.r, &gone, on_done, &b), K2_OK);
    assert_int_equal(k2i_rewarder_score(b.r, &stays, on_done, &b), K2_OK);
    k2i_rewarder_cancel(b.r, &gone);
    k2i_score_batch_fini(&gone);
    k2_loop_run(b.loop);
    assert_true(stays.scores[0].ok && stays.scores[0].reward == 0.5);
    assert_true(stays.scores[1].ok && stays.scores[1].reward == 0.6);
    k2i_score_batch_fini(&stays);
    teardown(&b);
}

static void test_program_that_is_not_there(void **state)
{
    (void)state;
    k2_loop *loop = k2_loop_new();
    k2_config *c = k2_alloc(sizeof *c);
    k2_config_defaults(c);
    strcpy(c->reward_kind, "command");
    c->reward_command.count = 1;
    strcpy(c->reward_command.item[0], "/nonexistent/reward");
    bench b = {.loop = loop, .r = k2i_rewarder_new(loop, c, NULL)};
    k2_free(c);
    const char *texts[] = {"a", "b"};
    k2i_score_batch batch;
    make(&batch, texts, 2, 1);
    run(&b, &batch);
    for (int i = 0; i < 2; i++) {
        assert_false(batch.scores[i].ok);
        assert_non_null(strstr(batch.scores[i].detail, "/nonexistent/reward"));
    }
    k2i_score_batch_fini(&batch);
    k2i_rewarder_free(b.r);
    k2_loop_free(loop);
}

static void test_queue_is_bounded(void **state)
{
    (void)state;
    bench b;
    setup(&b, 60000);
    const char **texts = k2_alloc_array(K2I_SCORE_QUEUE_MAX, sizeof *texts);
    for (uint32_t i = 0; i < K2I_SCORE_QUEUE_MAX; i++) texts[i] = "hang";
    k2i_score_batch full, more;
    make(&full, texts, K2I_SCORE_QUEUE_MAX, 1);
    make(&more, texts, 1, 1);
    assert_int_equal(k2i_rewarder_score(b.r, &full, on_done, &b), K2_OK);
    assert_int_equal(k2i_rewarder_score(b.r, &more, on_done, &b), K2_FULL);
    k2i_rewarder_cancel(b.r, &full);
    k2i_score_batch_fini(&full);
    k2i_score_batch_fini(&more);
    k2_free(texts);
    teardown(&b);
}

static void test_matches_need_no_process(void **state)
{
    (void)state;
    bench b;
    setup(&b, 1000);
    k2_config *c = k2_alloc(sizeof *c);
    k2_config_defaults(c);
    strcpy(c->reward_kind, "numeric");
    k2i_rewarder_free(b.r);
    b.r = k2i_rewarder_new(b.loop, c, NULL);
    k2_free(c);
    const char *texts[] = {"it is 7", "8"};
    k2i_score_batch batch;
    make(&batch, texts, 2, 1);
    k2_free(batch.items[0].answer);
    batch.items[0].answer = k2_strdup("7");
    run(&b, &batch);
    assert_true(batch.scores[0].ok && batch.scores[0].reward == 1);
    assert_false(batch.scores[1].ok);
    k2i_score_batch_fini(&batch);
    teardown(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_in_order_whatever_the_batching),
        cmocka_unit_test(test_faults_cost_one_item_only),
        cmocka_unit_test(test_hang_is_killed),
        cmocka_unit_test(test_caller_that_goes_away),
        cmocka_unit_test(test_program_that_is_not_there),
        cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_matches_need_no_process),
    };
    return cmocka_run_group_tests_name("rollout_reward_child", tests, NULL, NULL);
}
