/* replay under random walks: a driver runs iterations over the buffer with chunks of random sizes, repeated reports and random
 * order; then the process "dies" after every single record, recovers, and goes on. Whatever happened, the same batches come
 * out, every trajectory is consumed or dropped once, and the state after recovery is the state before.
 *
 * A failure names the seed; the walk is a function of it.
 */
#include "replay/replay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GROUPS     5u /* in work */
#define SIZE       3u
#define BUDGET     6u
#define TOKENS     20u /* longest trajectory */
#define ITERATIONS 7u

static const k2_replay_config config = {.groups_max = 64,
                                        .group_size_max = SIZE,
                                        .trajectory_tokens_max = TOKENS,
                                        .prompt_tokens_max = 8,
                                        .tokens_max = 64 * 64 * (SIZE + 1)};

typedef struct stored {
    uint32_t type;
    size_t len;
    void *bytes;
    k2_digest state; /* after it */
} stored;

typedef struct journal {
    k2_replay *r;
    stored *list;
    size_t count, capacity, stop_after; /* stop_after: the process dies when so many records are durable */
    bool keep_states;
    jmp_buf death;
} journal;

typedef struct walk {
    uint64_t seed, draw;
    journal *j;
    uint64_t batches[ITERATIONS + 1][GROUPS * 4 + 1]; /* what each step took, 0-ended ids + 1 */
} walk;

static void keep(void *arg, uint32_t type, const void *bytes, size_t len)
{
    journal *j = arg;
    if (j->count == j->stop_after) longjmp(j->death, 1);
    if (j->count == j->capacity) {
        j->capacity = j->capacity * 2 + 64;
        j->list = k2_realloc_array(j->list, j->capacity, sizeof *j->list);
    }
    stored *s = &j->list[j->count++];
    *s = (stored){.type = type, .len = len, .bytes = k2_alloc(len + 8)};
    memcpy(s->bytes, bytes, len);
}

static uint64_t draw(walk *w, uint64_t n)
{
    return k2_rand_below(w->seed, K2_STREAM_TEST, 7, w->draw++, n);
}

/* What a trajectory is, whoever computes it and when. */
static uint32_t length_of(const walk *w, uint64_t id)
{
    return (uint32_t)k2_rand_below(w->seed, K2_STREAM_TEST, 8, id, TOKENS) + 1;
}

static bool fails(const walk *w, uint64_t id)
{
    return k2_rand_below(w->seed, K2_STREAM_TEST, 9, id, 11) == 0;
}

static k2_replay_token token_of(uint64_t id, uint32_t position, uint32_t version)
{
    return (k2_replay_token){.id = (int32_t)(id * 7 + position), .logp = -(float)(id + position), .version = version};
}

static void report(walk *w, uint64_t id, uint32_t from, uint32_t to, uint32_t version)
{
    k2_replay_token t[TOKENS];
    for (uint32_t i = from; i < to; i++) t[i - from] = token_of(id, i, version);
    k2_code code = k2_replay_chunk(w->j->r, id, from, t, to - from, NULL);
    assert_true(code == K2_OK || code == K2_CANCELED);
}

/* One segment: chunks of random sizes, now and then one twice or with a bit of the one before. */
static void run_segment(walk *w, uint64_t id, uint64_t iteration, uint32_t generated, uint32_t until)
{
    k2_replay *r = w->j->r;
    uint32_t length = length_of(w, id), segment = generated, version = (uint32_t)iteration;
    while (generated < K2_MIN(until, length)) {
        uint32_t to = generated + 1 + (uint32_t)draw(w, 4);
        to = K2_MIN(to, K2_MIN(until, length));
        uint32_t from = draw(w, 3) == 0 && generated > segment ? generated - 1 : generated;
        report(w, id, from, to, version);
        if (draw(w, 4) == 0) report(w, id, generated, to, version);
        generated = to;
    }
    if (length > until) {
        assert_int_equal(k2_replay_cut(r, id, NULL), K2_OK);
        return;
    }
    assert_int_equal(k2_replay_finish_as(r, id, K2_REPLAY_FINISH_STOP, NULL), K2_OK);
    if (draw(w, 3) == 0) assert_int_equal(k2_replay_finish_as(r, id, K2_REPLAY_FINISH_STOP, NULL), K2_CANCELED);
}

static void score_all(walk *w)
{
    k2_replay *r = w->j->r;
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(r, 0, &at, &group, &size);)
        for (uint32_t m = 0; m < size; m++) {
            k2_replay_info info;
            uint64_t id = k2_replay_id(group, m);
            assert_int_equal(k2_replay_find(r, id, &info), K2_OK);
            if (info.state != K2_REPLAY_FINISHED) continue;
            if (fails(w, id))
                assert_int_equal(k2_replay_drop(r, id, "reward failed", NULL), K2_OK);
            else
                assert_int_equal(k2_replay_score(r, id, (double)(id % 2), NULL), K2_OK);
        }
}

static void note_batch(walk *w, uint64_t step)
{
    uint64_t group;
    uint32_t size, i = 0, at = 0;
    while (k2_replay_group_next(w->j->r, step, &at, &group, &size)) w->batches[step][i++] = group + 1;
    w->batches[step][i] = 0;
}

static void generate(walk *w, uint64_t iteration)
{
    k2_replay *r = w->j->r;
    while (k2_replay_groups_open(r) < GROUPS) {
        static const int32_t prompt[] = {1, 2, 3};
        uint64_t g = k2_replay_count(r).next_group;
        assert_int_equal(k2_replay_add_group(r, g, g, SIZE, prompt, 3, NULL), K2_OK);
    }
    struct {
        k2_replay_work work;
        uint32_t until;
    } open[GROUPS * SIZE];
    size_t n = 0;
    for (;;) { /* start a few, run some of those in random order */
        k2_replay_work work;
        bool more = n < K2_COUNT(open) && k2_replay_next(r, iteration, &work) == K2_OK;
        if (more && (n == 0 || draw(w, 2) == 0)) {
            uint32_t until = work.until ? work.until : K2_MIN(work.generated + BUDGET, TOKENS);
            assert_int_equal(k2_replay_start(r, work.id, iteration, until, NULL), K2_OK);
            open[n].work = work;
            open[n++].until = until;
        } else if (n > 0) {
            size_t i = (size_t)draw(w, n);
            uint64_t id = open[i].work.id;
            uint32_t generated = open[i].work.generated, until = open[i].until;
            open[i] = open[--n];
            run_segment(w, id, iteration, generated, until);
        } else {
            break;
        }
    }
}

/* Go on from whatever state the buffer is in. */
static void drive(walk *w)
{
    k2_replay *r = w->j->r;
    if (setjmp(w->j->death) != 0) return;
    for (;;) {
        k2_replay_counts c = k2_replay_count(r);
        uint64_t step = c.step_consumed + 1;
        if (c.step_taken < step) {
            if (step > ITERATIONS) return;
            generate(w, step);
            score_all(w);
            assert_int_equal(k2_replay_take(r, step, 1000, NULL, NULL), K2_OK);
        }
        note_batch(w, step);
        assert_int_equal(k2_replay_consume(r, step, NULL), K2_OK);
        if (step % 3 == 0) {
            assert_int_equal(k2_replay_release(r, step - 1, NULL), K2_OK);
            if (draw(w, 2) == 0) k2_replay_snapshot(r);
        }
    }
}

static void open_journal(journal *j)
{
    k2_error err = {0};
    if (k2_replay_new(&config, &j->r, &err) != K2_OK) fail_msg("%s", err.text);
}

static void close_journal(journal *j)
{
    for (size_t i = 0; i < j->count; i++) k2_free(j->list[i].bytes);
    k2_free(j->list);
    k2_replay_free(j->r);
}

/* A new process: the durable records, then recovery. */
static void recover(journal *to, const stored *list, size_t count)
{
    k2_error err = {0};
    open_journal(to);
    for (size_t i = 0; i < count; i++)
        if (k2_replay_apply(to->r, list[i].type, list[i].bytes, list[i].len, &err) != K2_OK)
            fail_msg("record %zu: %s", i, err.text);
    k2_replay_sink_set(to->r, (k2_replay_sink){.record = keep, .arg = to});
}

static void check_all_consumed_once(walk *w, uint64_t seed)
{
    uint64_t expected = 1; /* every group of which a member was ever consumed is in exactly one batch */
    char seen[512] = {0};
    for (uint32_t s = 1; s <= ITERATIONS; s++)
        for (uint32_t i = 0; w->batches[s][i]; i++) {
            uint64_t g = w->batches[s][i] - 1;
            assert_in_range(g, 0, sizeof seen - 1);
            if (seen[g]++) fail_msg("seed %llu: group %llu was taken twice", (unsigned long long)seed, (unsigned long long)g);
            expected = K2_MAX(expected, g + 1);
        }
    k2_replay_counts c = k2_replay_count(w->j->r);
    uint64_t held = k2_replay_groups_open(w->j->r), taken = 0;
    for (uint64_t g = 0; g < c.next_group; g++) taken += (uint64_t)seen[g];
    assert_int_equal(taken + held, c.groups_total); /* nothing lost */
    assert_int_equal(c.groups_total, c.next_group); /* no prompt skipped */
}

static void check_tokens(walk *w)
{
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(w->j->r, 0, &at, &group, &size);)
        for (uint32_t m = 0; m < size; m++) {
            uint64_t id = k2_replay_id(group, m);
            k2_replay_token t[TOKENS];
            uint32_t n = k2_replay_tokens(w->j->r, id, 0, t, TOKENS);
            for (uint32_t k = 0; k < n; k++) {
                k2_replay_token want = token_of(id, k, t[k].version);
                assert_memory_equal(&t[k], &want, sizeof want);
            }
        }
}

static void crash_after_every_record(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        journal first = {.stop_after = SIZE_MAX};
        open_journal(&first);
        k2_replay_sink_set(first.r, (k2_replay_sink){.record = keep, .arg = &first});
        walk reference = {.seed = seed, .j = &first};
        drive(&reference);
        check_all_consumed_once(&reference, seed);
        assert_true(first.count > 300);
        k2_replay_counts rc = k2_replay_count(first.r);
        assert_true(rc.cut_total > 10 && rc.resumed_total > 10 && rc.dropped_total > 0 && rc.duplicates > 10);
        for (size_t n = 0; n < first.count; n += 1 + (seed - 1)) {
            journal second = {.stop_after = SIZE_MAX};
            recover(&second, first.list, n);
            walk w = {.seed = seed, .draw = n * 1000, .j = &second};
            memcpy(w.batches, reference.batches, sizeof w.batches);
            uint64_t consumed = k2_replay_count(second.r).step_consumed;
            memset(w.batches[consumed + 1], 0, (ITERATIONS - consumed) * sizeof w.batches[0]);
            if (n > 0 && (first.list[n - 1].type < 13 || first.list[n - 1].type == 16))
                k2_replay_recover(second.r);
            else if (n > 0) { /* died inside a snapshot: its records are one transaction, so this prefix does not occur */
                close_journal(&second);
                continue;
            }
            drive(&w);
            if (memcmp(w.batches, reference.batches, sizeof w.batches) != 0)
                fail_msg("seed %llu, crash after record %zu: other batches", (unsigned long long)seed, n);
            check_all_consumed_once(&w, seed);
            check_tokens(&w);
            close_journal(&second);
        }
        close_journal(&first);
    }
}

/* Several deaths in one run; and at every record the recovered state is equal to the one that was lost. */
static void state_after_is_state_before(void **state)
{
    (void)state;
    for (uint64_t seed = 10; seed < 30; seed++) {
        journal j = {.stop_after = SIZE_MAX};
        open_journal(&j);
        k2_replay_sink_set(j.r, (k2_replay_sink){.record = keep, .arg = &j});
        walk w = {.seed = seed, .j = &j};
        size_t lives = 0;
        do {
            j.stop_after = j.count + 1 + (size_t)draw(&w, 200);
            drive(&w);
            k2_digest lost = {0};
            bool died = j.count == j.stop_after;
            while (j.count > 0 && j.list[j.count - 1].type >= 13 && j.list[j.count - 1].type <= 15)
                k2_free(j.list[--j.count].bytes); /* a snapshot is one transaction: whole or not at all */
            journal next = {.stop_after = SIZE_MAX};
            recover(&next, j.list, j.count);
            if (!died) lost = k2_replay_digest(j.r);
            if (!died) assert_true(k2_digest_equal(k2_replay_digest(next.r), lost));
            k2_replay_free(j.r);
            j.r = next.r;
            k2_replay_sink_set(j.r, (k2_replay_sink){.record = keep, .arg = &j});
            j.stop_after = SIZE_MAX;
            k2_replay_recover(j.r);
            lives++;
            if (!died) break;
        } while (lives < 1000);
        assert_true(lives > 2);
        /* Snapshot into a fresh buffer: the same state. */
        journal copy = {.stop_after = SIZE_MAX}, fresh = {.stop_after = SIZE_MAX};
        k2_replay_sink_set(j.r, (k2_replay_sink){.record = keep, .arg = &copy});
        k2_replay_snapshot(j.r);
        recover(&fresh, copy.list, copy.count);
        assert_true(k2_digest_equal(k2_replay_digest(fresh.r), k2_replay_digest(j.r)));
        copy.r = fresh.r;
        close_journal(&copy);
        close_journal(&j);
    }
}

/* Each record alone: a second buffer that follows record by record has the same digest at each of them. */
typedef struct follow {
    k2_replay *leader, *follower;
    size_t checked;
} follow;

static void follow_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    follow *f = arg;
    k2_error err = {0};
    void *copy = k2_alloc(len + 8);
    memcpy(copy, bytes, len);
    if (k2_replay_apply(f->follower, type, copy, len, &err) != K2_OK) fail_msg("%s", err.text);
    k2_free(copy);
    if (type >= 13) return; /* inside a snapshot the follower is incomplete, and the leader's scratch is in use */
    assert_true(k2_digest_equal(k2_replay_digest(f->leader), k2_replay_digest(f->follower)));
    f->checked++;
}

static void follower_is_equal_at_every_record(void **state)
{
    (void)state;
    journal j = {.stop_after = SIZE_MAX}, other = {.stop_after = SIZE_MAX};
    open_journal(&j);
    open_journal(&other);
    follow f = {.leader = j.r, .follower = other.r};
    k2_replay_sink_set(j.r, (k2_replay_sink){.record = follow_record, .arg = &f});
    walk w = {.seed = 77, .j = &j};
    drive(&w);
    assert_true(f.checked > 300);
    close_journal(&j);
    close_journal(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(crash_after_every_record),
                                       cmocka_unit_test(state_after_is_state_before),
                                       cmocka_unit_test(follower_is_equal_at_every_record)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
