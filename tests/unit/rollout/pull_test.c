/* pull - weights through every transport, from sources that lie, break off, are gone, or hold something else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rollout/pull_int.h"
#include "tests/unit/rollout/tiny_int.h"

enum { CHUNK = 4096 };

static const char *const transports[] = {"self", "shm", "tcp"};

typedef struct world {
    k2_xfer *theirs, *ours;
    k2_model *trained, *staging;
    k2_digest digest;
    atomic_bool cancel;
} world;

static void world_open(world *w, const char *transport)
{
    memset(w, 0, sizeof *w);
    k2_error err;
    assert_int_equal(k2_xfer_open(&(k2_xfer_config){.transport = transport, .retries = 1}, &w->theirs, &err), K2_OK);
    assert_int_equal(k2_xfer_open(&(k2_xfer_config){.transport = transport, .retries = 1}, &w->ours, &err), K2_OK);
    w->trained = tiny_model(21, 1);
    w->staging = tiny_model(22, 1);
    size_t count;
    k2_weights_slot *slots = k2i_model_slots(w->trained, &count);
    w->digest = k2_weights_digest(slots, count);
    k2_free(slots);
}

static void world_close(world *w)
{
    k2_model_free(w->trained);
    k2_model_free(w->staging);
    k2_xfer_close(w->ours);
    k2_xfer_close(w->theirs);
}

/* The trainer's side: a segment with these weights. */
static k2_xfer_segment *publish(world *w, uint64_t version)
{
    k2_error err;
    size_t count;
    k2_weights_slot *slots = k2i_model_slots(w->trained, &count);
    k2_weights_manifest *m;
    k2_weights_segment layout;
    k2_xfer_segment *s;
    assert_int_equal(k2_weights_manifest_plan(slots, count, version, CHUNK, &m, &err), K2_OK);
    uint64_t bytes = k2_weights_segment_plan(m, &layout);
    assert_int_equal(k2_xfer_segment_create(w->theirs, bytes, &s, &err), K2_OK);
    k2_weights_segment_fill(m, slots, count, k2_xfer_segment_memory(s), bytes);
    k2_weights_manifest_free(m);
    k2_free(slots);
    return s;
}

static unsigned char *data_of(k2_xfer_segment *s)
{
    k2_weights_segment layout;
    unsigned char *p = k2_xfer_segment_memory(s);
    assert_int_equal(k2_weights_segment_decode(p, k2_xfer_segment_bytes(s), &layout, NULL), K2_OK);
    return p + layout.data_offset;
}

static k2_code pull(world *w, const char *const *sources, uint32_t count, k2i_pulled *out, k2_error *err)
{
    k2i_pull p = {.xfer = w->ours,
                  .sources = sources,
                  .source_count = count,
                  .digest = w->digest,
                  .deadline_ns = k2_now_ns() + 20 * K2_NS_PER_S,
                  .cancel = &w->cancel,
                  .model = w->staging};
    return k2i_pull_run(&p, out, err);
}

static void assert_weights_equal(const world *w)
{
    const k2_model_layout *l = k2_model_layout_of(w->trained);
    assert_memory_equal(k2_model_params(w->trained), k2_model_params(w->staging), l->floats * sizeof(float));
}

static void test_pull_and_pass_on(void **state)
{
    (void)state;
    for (size_t t = 0; t < K2_COUNT(transports); t++) {
        world w;
        world_open(&w, transports[t]);
        k2_xfer_segment *s = publish(&w, 7);
        const char *source = k2_xfer_segment_locator(s);
        k2i_pulled got, again;
        k2_error err;
        if (pull(&w, &source, 1, &got, &err) != K2_OK) fail_msg("%s: %s", transports[t], err.text);
        assert_weights_equal(&w);
        assert_int_equal(got.bytes, k2_xfer_segment_bytes(s));
        assert_memory_equal(k2_xfer_segment_memory(got.segment), k2_xfer_segment_memory(s), got.bytes);
        /* The trainer's copy is gone; who has pulled is a source now. */
        k2_xfer_segment_destroy(s);
        k2_model_free(w.staging);
        w.staging = tiny_model(23, 1);
        source = k2_xfer_segment_locator(got.segment);
        if (pull(&w, &source, 1, &again, &err) != K2_OK) fail_msg("%s: %s", transports[t], err.text);
        assert_weights_equal(&w);
        k2_xfer_segment_destroy(got.segment);
        k2_xfer_segment_destroy(again.segment);
        world_close(&w);
    }
}

static void test_damaged_source(void **state)
{
    (void)state;
    for (size_t t = 0; t < K2_COUNT(transports); t++) {
        world w;
        world_open(&w, transports[t]);
        k2_xfer_segment *bad = publish(&w, 7), *good = publish(&w, 7);
        data_of(bad)[10000] ^= 1;
        const char *sources[] = {k2_xfer_segment_locator(bad), k2_xfer_segment_locator(good)};
        k2i_pulled got;
        k2_error err;
        assert_int_equal(pull(&w, sources, 1, &got, &err), K2_CORRUPT);
        if (pull(&w, sources, 2, &got, &err) != K2_OK) fail_msg("%s: %s", transports[t], err.text);
        assert_weights_equal(&w);
        assert_true(got.elsewhere >= 1);
        k2_xfer_segment_destroy(got.segment);
        k2_xfer_segment_destroy(bad);
        k2_xfer_segment_destroy(good);
        world_close(&w);
    }
}

static void test_sources_that_are_of_no_use(void **state)
{
    (void)state;
    world w;
    world_open(&w, "shm");
    k2_xfer_segment *good = publish(&w, 7), *other = publish(&w, 8), *gone = publish(&w, 7), *empty, *small;
    k2_error err;
    assert_int_equal(k2_xfer_segment_create(w.theirs, 100000, &empty, &err), K2_OK);
    assert_int_equal(k2_xfer_segment_create(w.theirs, 100, &small, &err), K2_OK);
    char lost[K2_XFER_LOCATOR_MAX];
    snprintf(lost, sizeof lost, "%s", k2_xfer_segment_locator(gone));
    k2_xfer_segment_destroy(gone);
    const char *useless[] = {lost, k2_xfer_segment_locator(empty), k2_xfer_segment_locator(small), "nonsense"};
    k2i_pulled got;
    for (size_t i = 0; i < K2_COUNT(useless); i++) {
        assert_int_not_equal(pull(&w, &useless[i], 1, &got, &err), K2_OK);
        assert_true(err.text[0] != 0);
    }
    assert_int_equal(pull(&w, NULL, 0, &got, &err), K2_BAD_INPUT);
    /* Together with a good one they only cost a line in the log; and one of another version is left out. */
    const char *mixed[] = {lost, k2_xfer_segment_locator(empty), k2_xfer_segment_locator(good), k2_xfer_segment_locator(other),
                           "x"};
    if (pull(&w, mixed, K2_COUNT(mixed), &got, &err) != K2_OK) fail_msg("%s", err.text);
    assert_weights_equal(&w);
    k2_xfer_segment_destroy(got.segment);
    k2_xfer_segment_destroy(good);
    k2_xfer_segment_destroy(other);
    k2_xfer_segment_destroy(empty);
    k2_xfer_segment_destroy(small);
    world_close(&w);
}

/* Wherever in the list they stand, sources with other weights do not keep a good one out. */
static void test_other_weights_beside_good_ones(void **state)
{
    (void)state;
    for (size_t t = 0; t < K2_COUNT(transports); t++) {
        world w, old;
        world_open(&w, transports[t]);
        world_open(&old, transports[t]);
        k2_model_free(old.trained);
        old.trained = tiny_model(31, 1);
        k2_xfer_segment *good = publish(&w, 7), *other = publish(&old, 7), *torn = publish(&w, 7);
        ((unsigned char *)k2_xfer_segment_memory(torn))[300] ^= 1; /* its manifest */
        const char *g = k2_xfer_segment_locator(good), *o = k2_xfer_segment_locator(other), *b = k2_xfer_segment_locator(torn);
        const char *orders[][4] = {{o, b, g, o}, {b, o, o, g}, {g, o, o, b}};
        for (size_t i = 0; i < K2_COUNT(orders); i++) {
            k2i_pulled got;
            k2_error err;
            if (pull(&w, orders[i], 4, &got, &err) != K2_OK) fail_msg("%s, order %zu: %s", transports[t], i, err.text);
            assert_weights_equal(&w);
            k2_xfer_segment_destroy(got.segment);
            k2_model_free(w.staging);
            w.staging = tiny_model(22, 1);
        }
        k2_xfer_segment_destroy(good);
        k2_xfer_segment_destroy(other);
        k2_xfer_segment_destroy(torn);
        world_close(&old);
        world_close(&w);
    }
}

static void test_what_is_not_wanted(void **state)
{
    (void)state;
    world w;
    world_open(&w, "self");
    k2_xfer_segment *s = publish(&w, 7);
    const char *source = k2_xfer_segment_locator(s);
    k2i_pulled got;
    k2_error err;
    w.digest.lo ^= 1;
    assert_int_equal(pull(&w, &source, 1, &got, &err), K2_CORRUPT);
    assert_non_null(strstr(err.text, "expected"));
    w.digest.lo ^= 1;
    atomic_store(&w.cancel, true);
    assert_int_equal(pull(&w, &source, 1, &got, &err), K2_CANCELED);
    atomic_store(&w.cancel, false);
    /* Weights of another model. */
    k2_dims dims = tiny_dims();
    dims.num_hidden_layers = 3;
    k2_model_free(w.staging);
    w.staging = k2_model_new(&dims, K2_COMPUTE_F32, 1, &err);
    assert_int_equal(pull(&w, &source, 1, &got, &err), K2_BAD_INPUT);
    /* A manifest that was changed on its way. */
    ((unsigned char *)k2_xfer_segment_memory(s))[300] ^= 1;
    assert_int_equal(pull(&w, &source, 1, &got, &err), K2_CORRUPT);
    k2_xfer_segment_destroy(s);
    world_close(&w);
}

static const k2_xfer_ops *quick;
static atomic_bool pause_next;

/* The delay is the fault itself: a transfer longer than a look of the pull, which nothing outside of it can see. */
static k2_code slow_read(void *r, k2_xfer_io *io, k2_error *err)
{
    bool first = io->want_hash && atomic_exchange(&pause_next, false); /* chunks have hashes, header and manifest have none */
    if (first) nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
    return quick->remote_read(r, io, err);
}

/* A transfer that takes longer than the pull's looks whether it is to be ended is no failure, and nothing says that it is one.
 */
static void test_slow_source(void **state)
{
    (void)state;
    for (int immediate = 0; immediate < 2; immediate++) {
        quick = k2_xfer_builtin()[0];
        k2_xfer_ops slow = *quick;
        slow.remote_read = slow_read;
        slow.caps.immediate = immediate;
        const k2_xfer_ops *list[] = {&slow, NULL};
        world w;
        k2_error err = {0};
        world_open(&w, quick->name);
        k2_xfer_close(w.ours);
        assert_int_equal(k2_xfer_open(&(k2_xfer_config){.transport = quick->name, .ops = list}, &w.ours, &err), K2_OK);
        k2_xfer_segment *s = publish(&w, 7);
        const char *source = k2_xfer_segment_locator(s);
        k2i_pulled got;
        atomic_store(&pause_next, true);
        if (pull(&w, &source, 1, &got, &err) != K2_OK) fail_msg("%s", err.text);
        assert_int_equal(err.code, K2_OK);
        assert_false(atomic_load(&pause_next));
        assert_weights_equal(&w);
        k2_xfer_segment_destroy(got.segment);
        k2_xfer_segment_destroy(s);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_source),
        cmocka_unit_test(test_pull_and_pass_on),
        cmocka_unit_test(test_damaged_source),
        cmocka_unit_test(test_sources_that_are_of_no_use),
        cmocka_unit_test(test_other_weights_beside_good_ones),
        cmocka_unit_test(test_what_is_not_wanted),
    };
    return cmocka_run_group_tests_name("rollout_pull", tests, NULL, NULL);
}
