/* replay: order of work, exactly-once rules, spans, caps, malformed records. */
#include "replay/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

static const k2_replay_config small = {
    .groups_max = 4, .group_size_max = 3, .trajectory_tokens_max = 150, .prompt_tokens_max = 70, .tokens_max = 4 * 64 * 11};
static const int32_t prompt[] = {256, 10, 11, 12};

static k2_replay *make(const k2_replay_config *c)
{
    k2_replay *r = NULL;
    k2_error err = {0};
    if (k2_replay_new(c, &r, &err) != K2_OK) fail_msg("%s", err.text);
    return r;
}

static k2_replay_token token(uint64_t id, uint32_t position, uint32_t version)
{
    return (k2_replay_token){
        .id = (int32_t)((id * 31 + position) % 256), .logp = -(float)(position + 1) / 8, .version = version};
}

static k2_code chunk(k2_replay *r, uint64_t id, uint32_t from, uint32_t count, uint32_t version)
{
    k2_replay_token t[200];
    for (uint32_t i = 0; i < count; i++) t[i] = token(id, from + i, version);
    return k2_replay_chunk(r, id, from, t, count, NULL);
}

static uint64_t next_id(k2_replay *r, uint64_t iteration)
{
    k2_replay_work w;
    return k2_replay_next(r, iteration, &w) == K2_OK ? w.id : UINT64_MAX;
}

/* The i-th group of a step, 0 = of all. */
static bool group_at(const k2_replay *r, uint64_t step, uint32_t i, uint64_t *group)
{
    uint32_t at = 0, size;
    for (uint32_t k = 0; k <= i; k++)
        if (!k2_replay_group_next(r, step, &at, group, &size)) return false;
    return true;
}

static void resumed_first_then_new(void **state)
{
    (void)state;
    k2_replay *r = make(&small);
    assert_int_equal(k2_replay_add_group(r, 0, 5, 2, prompt, 4, NULL), K2_OK);
    assert_int_equal(k2_replay_add_group(r, 1, 6, 2, prompt, 4, NULL), K2_OK);
    assert_int_equal(next_id(r, 1), 0);
    assert_int_equal(k2_replay_start(r, 0, 1, 10, NULL), K2_OK);
    assert_int_equal(next_id(r, 1), 1);
    assert_int_equal(k2_replay_start(r, 1, 1, 10, NULL), K2_OK);
    assert_int_equal(next_id(r, 1), 1024);
    assert_int_equal(k2_replay_start(r, 1024, 1, 10, NULL), K2_OK);
    assert_int_equal(chunk(r, 1024, 0, 10, 0), K2_OK);
    assert_int_equal(k2_replay_cut(r, 1024, NULL), K2_OK);
    assert_int_equal(next_id(r, 1), 1025); /* 1024 had its segment */
    assert_int_equal(next_id(r, 2), 1024); /* in the next iteration it goes before the new one */
    assert_int_equal(k2_replay_start(r, 1024, 1, 20, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_replay_start(r, 1024, 2, 10, NULL), K2_BAD_INPUT); /* no room for a token */
    assert_int_equal(k2_replay_start(r, 1024, 2, 20, NULL), K2_OK);
    assert_int_equal(chunk(r, 1024, 10, 4, 1), K2_OK);
    assert_int_equal(k2_replay_requeue(r, 1024, NULL), K2_OK);
    k2_replay_work w;
    assert_int_equal(k2_replay_next(r, 2, &w), K2_OK);
    assert_int_equal(w.id, 1024);
    assert_int_equal(w.generated, 14);
    assert_int_equal(w.until, 20); /* the interrupted segment goes on to its end, whatever the budget is now */
    assert_int_equal(k2_replay_start(r, 1024, 2, 30, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_replay_start(r, 1024, 2, 20, NULL), K2_OK);
    assert_int_equal(chunk(r, 1024, 14, 6, 1), K2_OK);
    k2_replay_span spans[4];
    assert_int_equal(k2_replay_spans(r, 1024, spans, 4), 2);
    assert_int_equal(spans[0].end, 10);
    assert_int_equal(spans[1].version, 1);
    assert_int_equal(spans[1].start, 10);
    assert_int_equal(spans[1].end, 20);
    assert_int_equal(k2_replay_spans(r, 1024, spans, 1), 2);
    int32_t ids[8];
    assert_int_equal(k2_replay_prompt_tokens(r, 1, 1, ids, 8), 3);
    assert_memory_equal(ids, prompt + 1, 12);
    k2_replay_free(r);
}

static void exactly_once(void **state)
{
    (void)state;
    k2_replay *r = make(&small);
    assert_int_equal(k2_replay_add_group(r, 0, 5, 1, prompt, 4, NULL), K2_OK);
    assert_int_equal(k2_replay_add_group(r, 0, 5, 1, prompt, 4, NULL), K2_CANCELED);
    assert_int_equal(chunk(r, 0, 0, 3, 0), K2_BAD_INPUT); /* does not run */
    assert_int_equal(k2_replay_start(r, 0, 1, 20, NULL), K2_OK);
    assert_int_equal(k2_replay_start(r, 0, 1, 20, NULL), K2_BAD_INPUT);
    assert_int_equal(chunk(r, 0, 0, 5, 3), K2_OK);
    assert_int_equal(chunk(r, 0, 0, 5, 3), K2_CANCELED);
    assert_int_equal(chunk(r, 0, 2, 3, 3), K2_CANCELED);
    assert_int_equal(chunk(r, 0, 6, 3, 3), K2_BAD_INPUT);  /* gap */
    assert_int_equal(chunk(r, 0, 3, 4, 3), K2_OK);         /* the new half is taken */
    assert_int_equal(chunk(r, 0, 7, 2, 2), K2_BAD_INPUT);  /* older version */
    assert_int_equal(chunk(r, 0, 7, 14, 3), K2_BAD_INPUT); /* past the segment's end */
    k2_error err = {0};
    k2_replay_token wrong = token(0, 6, 3);
    wrong.id ^= 1;
    assert_int_equal(k2_replay_chunk(r, 0, 6, &wrong, 1, &err), K2_CORRUPT);
    assert_non_null(strstr(err.text, "token 6 came twice and differs"));
    assert_int_equal(k2_replay_cut(r, 0, NULL), K2_BAD_INPUT); /* not at the end */
    assert_int_equal(k2_replay_score(r, 0, 1, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_replay_take(r, 1, 9, NULL, NULL), K2_OK); /* empty */
    assert_int_equal(k2_replay_consume(r, 1, NULL), K2_OK);
    assert_int_equal(k2_replay_finish_as(r, 0, K2_REPLAY_FINISH_STOP, NULL), K2_OK);
    assert_int_equal(k2_replay_finish_as(r, 0, K2_REPLAY_FINISH_STOP, NULL), K2_CANCELED);
    assert_int_equal(k2_replay_score(r, 0, NAN, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_replay_score(r, 0, 0.5, NULL), K2_OK);
    assert_int_equal(k2_replay_score(r, 0, 0.5, NULL), K2_CANCELED);
    assert_int_equal(k2_replay_consume(r, 2, NULL), K2_BAD_INPUT);
    uint32_t taken = 0;
    assert_int_equal(k2_replay_take(r, 3, 9, &taken, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_replay_take(r, 2, 9, &taken, NULL), K2_OK);
    assert_int_equal(taken, 1);
    assert_int_equal(k2_replay_take(r, 2, 9, &taken, NULL), K2_CANCELED);
    assert_int_equal(k2_replay_drop(r, 0, "late", NULL), K2_BAD_INPUT); /* the batch is fixed */
    assert_int_equal(k2_replay_release(r, 2, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_replay_consume(r, 2, NULL), K2_OK);
    assert_int_equal(k2_replay_consume(r, 2, NULL), K2_CANCELED);
    assert_int_equal(k2_replay_count(r).consumed_total, 1);
    uint64_t group;
    assert_true(group_at(r, 2, 0, &group)); /* kept until a checkpoint covers it */
    assert_int_equal(k2_replay_release(r, 2, NULL), K2_OK);
    assert_int_equal(k2_replay_release(r, 2, NULL), K2_CANCELED);
    assert_false(group_at(r, 0, 0, &group));
    assert_int_equal(k2_replay_add_group(r, 0, 5, 1, prompt, 4, NULL), K2_BAD_INPUT); /* ids are never used again */
    k2_replay_counts c = k2_replay_count(r);
    assert_int_equal(c.tokens, 0);
    assert_int_equal(c.generated_total, 7);
    assert_int_equal(c.duplicates, 8);
    assert_true(c.refused >= 12);
    k2_replay_free(r);
}

static void whole_groups_only(void **state)
{
    (void)state;
    k2_replay *r = make(&small);
    for (uint64_t g = 0; g < 3; g++) assert_int_equal(k2_replay_add_group(r, g, g, 2, prompt, 4, NULL), K2_OK);
    for (uint64_t g = 0; g < 3; g++)
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t id = k2_replay_id(g, i);
            assert_int_equal(k2_replay_start(r, id, 1, 9, NULL), K2_OK);
            if (g == 0 && i == 1) continue; /* group 0 stays unfinished */
            assert_int_equal(chunk(r, id, 0, 2, 0), K2_OK);
            assert_int_equal(k2_replay_finish_as(r, id, K2_REPLAY_FINISH_REPETITION, NULL), K2_OK);
            if (g == 2 && i == 0)
                assert_int_equal(k2_replay_drop(r, id, "reward failed", NULL), K2_OK);
            else
                assert_int_equal(k2_replay_score(r, id, 1, NULL), K2_OK);
        }
    assert_int_equal(k2_replay_groups_ready(r), 2);
    assert_int_equal(k2_replay_groups_open(r), 3);
    uint32_t taken = 0;
    uint64_t group;
    assert_int_equal(k2_replay_take(r, 1, 1, &taken, NULL), K2_OK);
    assert_true(group_at(r, 1, 0, &group) && group == 1);
    assert_int_equal(k2_replay_consume(r, 1, NULL), K2_OK);
    assert_int_equal(k2_replay_take(r, 2, 9, &taken, NULL), K2_OK);
    assert_true(group_at(r, 2, 0, &group) && group == 2);
    assert_false(group_at(r, 2, 1, &group));
    assert_int_equal(k2_replay_consume(r, 2, NULL), K2_OK);
    k2_replay_info info;
    assert_int_equal(k2_replay_find(r, k2_replay_id(2, 0), &info), K2_OK);
    assert_int_equal(info.state, K2_REPLAY_DROPPED);
    assert_string_equal(info.reason, "reward failed");
    assert_int_equal(k2_replay_count(r).repetition_total, 5);
    k2_replay_free(r);
}

static void give(k2_replay *r, uint64_t group, uint32_t i, double reward)
{
    uint64_t id = k2_replay_id(group, i);
    assert_int_equal(k2_replay_start(r, id, 1, 9, NULL), K2_OK);
    assert_int_equal(chunk(r, id, 0, 2, 0), K2_OK);
    assert_int_equal(k2_replay_finish_as(r, id, K2_REPLAY_FINISH_STOP, NULL), K2_OK);
    assert_int_equal(k2_replay_score(r, id, reward, NULL), K2_OK);
}

/* Of equal rewards, once all are in; what was dropped is no difference, and neither is one that no float can hold. */
static void flat_groups(void **state)
{
    (void)state;
    k2_replay *r = make(&small);
    for (uint64_t g = 0; g < 3; g++) assert_int_equal(k2_replay_add_group(r, g, g, 3, prompt, 4, NULL), K2_OK);
    give(r, 0, 0, 0.5);
    give(r, 0, 2, 0.5 + 1e-12);
    assert_false(k2_replay_group_flat(r, 0));
    assert_int_equal(k2_replay_drop(r, k2_replay_id(0, 1), "", NULL), K2_OK);
    assert_true(k2_replay_group_flat(r, 0));
    for (uint32_t i = 0; i < 3; i++) give(r, 1, i, i == 1);
    assert_false(k2_replay_group_flat(r, 1));
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(k2_replay_drop(r, k2_replay_id(2, i), "", NULL), K2_OK);
    assert_true(k2_replay_group_flat(r, 2));
    assert_false(k2_replay_group_flat(r, 3));
    assert_int_equal(k2_replay_groups_flat(r), 2);
    assert_int_equal(k2_replay_take(r, 1, 1, NULL, NULL), K2_OK);
    assert_int_equal(k2_replay_groups_flat(r), 1);
    assert_int_equal(k2_replay_consume(r, 1, NULL), K2_OK);
    assert_true(k2_replay_group_flat(r, 0)); /* as long as it is held: a batch may be made again */
    k2_replay_free(r);
}

static void caps(void **state)
{
    (void)state;
    k2_error err = {0};
    k2_replay *r = NULL;
    k2_replay_config c = small;
    c.group_size_max = 2000;
    assert_int_equal(k2_replay_new(&c, &r, &err), K2_LIMIT);
    assert_non_null(strstr(err.text, "group_size_max is 2000"));
    c = small;
    c.tokens_max = 100;
    assert_int_equal(k2_replay_new(&c, &r, &err), K2_LIMIT);
    c.tokens_max = 2 * 64 * 11; /* two whole groups: 2 blocks of prompt, 3 members of 3 blocks */
    r = make(&c);
    static const int32_t long_prompt[70];
    assert_int_equal(k2_replay_add_group(r, 0, 0, 3, long_prompt, 70, &err), K2_OK);
    assert_int_equal(k2_replay_add_group(r, 1, 0, 4, long_prompt, 70, &err), K2_BAD_INPUT);
    assert_int_equal(k2_replay_add_group(r, K2_REPLAY_GROUP_ID_MAX, 0, 1, prompt, 4, &err),
                     K2_BAD_INPUT); /* ids would overflow */
    assert_int_equal(k2_replay_add_group(r, 1, 0, 3, long_prompt, 70, &err), K2_OK);
    assert_int_equal(k2_replay_add_group(r, 2, 0, 1, prompt, 4, &err), K2_FULL);
    /* What was promised is there: every member can grow to its end. */
    for (uint64_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(k2_replay_start(r, k2_replay_id(g, i), 1, 150, &err), K2_OK);
            assert_int_equal(chunk(r, k2_replay_id(g, i), 0, 150, 0), K2_OK);
        }
    /* Short answers give back what they did not need. */
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(k2_replay_drop(r, i, "", &err), K2_OK);
    assert_int_equal(k2_replay_add_group(r, 2, 0, 1, prompt, 4, &err), K2_FULL);
    assert_int_equal(k2_replay_take(r, 1, 9, NULL, &err), K2_OK);
    assert_int_equal(k2_replay_consume(r, 1, &err), K2_OK);
    assert_int_equal(k2_replay_release(r, 1, &err), K2_OK);
    assert_int_equal(k2_replay_add_group(r, 2, 0, 3, prompt, 4, &err), K2_OK);
    k2_replay_free(r);
}

static void keep_last(void *arg, uint32_t type, const void *bytes, size_t len)
{
    k2_buf *b = arg;
    k2_buf_clear(b);
    k2_buf_append(b, &type, sizeof type);
    k2_buf_append(b, bytes, len);
}

static void hostile_records(void **state)
{
    (void)state;
    k2_replay *r = make(&small);
    k2_error err = {0};
    _Alignas(8) unsigned char bytes[512];
    for (uint32_t round = 0; round < 20000; round++) {
        size_t len = k2_rand_below(1, K2_STREAM_TEST, round, 0, 200);
        for (size_t i = 0; i < len; i++)
            bytes[i] = k2_rand_below(1, K2_STREAM_TEST, round, 1000 + i, 4)
                           ? 0
                           : (unsigned char)k2_rand_u64(1, K2_STREAM_TEST, round, i + 1);
        uint32_t type = (uint32_t)k2_rand_below(1, K2_STREAM_TEST, round, 999, 20);
        k2_code code = k2_replay_apply(r, type, bytes, len, &err);
        assert_true(code == K2_OK || code == K2_CORRUPT || code == K2_BAD_INPUT);
    }
    k2_replay_free(r);
    /* Every shorter and longer form of a true record is refused. */
    r = make(&small);
    k2_replay *other = make(&small);
    k2_buf last;
    k2_buf_init(&last, 1 << 20);
    k2_replay_sink_set(r, (k2_replay_sink){.record = keep_last, .arg = &last});
    assert_int_equal(k2_replay_add_group(r, 0, 5, 1, prompt, 4, NULL), K2_OK);
    for (size_t n = 0; n < last.len + 12; n++) {
        if (n == last.len - 4) continue;
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, last.data + 4, K2_MIN(n, last.len - 4));
        assert_int_equal(k2_replay_apply(other, 1, bytes, n, &err), K2_CORRUPT);
    }
    k2_buf_fini(&last);
    k2_replay_free(other);
    k2_replay_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(resumed_first_then_new),
                                       cmocka_unit_test(exactly_once),
                                       cmocka_unit_test(whole_groups_only),
                                       cmocka_unit_test(flat_groups),
                                       cmocka_unit_test(caps),
                                       cmocka_unit_test(hostile_records)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
