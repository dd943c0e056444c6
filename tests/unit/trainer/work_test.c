/* A trainer's whole life without its process: group, pretraining, steps, publishing, checkpoints; one rank and two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "common/data/data.h"
#include "tests/unit/trainer/fixture.h"
#include "trainer/trainer.h"
#include "trainer/work_int.h"

enum { PRETRAIN = 6, STEPS = 3 };

/* A directory with a config.json and a corpus of counting documents. */
typedef struct place {
    char *dir;
    k2_config config;
} place;

static void corpus_write(const char *prefix)
{
    k2_idx_builder *b;
    int32_t tokens[40];
    assert_int_equal(k2_idx_builder_begin(prefix, K2_IDX_UINT16, &b, NULL), K2_OK);
    for (uint64_t d = 0; d < 50; d++) {
        uint64_t count = k2_rand_below(1, K2_STREAM_TEST, d, 0, 40), from = k2_rand_below(1, K2_STREAM_TEST, d, 1, 40);
        for (uint64_t t = 0; t < count; t++) tokens[t] = (int32_t)((from + t) % 40);
        for (uint64_t t = 0; t < count; t += 16) /* documents of several sequences too */
            assert_int_equal(k2_idx_builder_add(b, tokens + t, K2_MIN(count - t, 16ull), NULL), K2_OK);
        k2_idx_builder_document_end(b);
    }
    assert_int_equal(k2_idx_builder_commit(b, NULL), K2_OK);
}

static bool muon; /* all commands under MuonClip instead of AdamW */

static int with_muon(void **state)
{
    (void)state;
    muon = true;
    return 0;
}

static int without_muon(void **state)
{
    (void)state;
    muon = false;
    return 0;
}

static place place_make(uint32_t ranks)
{
    place p = {.dir = fixture_dir(), .config = fixture_config()};
    k2_dims dims = fixture_dims();
    snprintf(p.config.model_config, sizeof(p.config.model_config), "%s/config.json", p.dir);
    snprintf(p.config.data_corpus, sizeof(p.config.data_corpus), "%s/corpus", p.dir);
    snprintf(p.config.run_dir, sizeof(p.config.run_dir), "%s/run", p.dir);
    if (muon) snprintf(p.config.trainer_optimizer, sizeof(p.config.trainer_optimizer), "muon");
    p.config.trainer_qk_clip = muon ? 0.5 : 0; /* a bound that heads of such a model do pass */
    p.config.trainer_ranks = ranks;
    p.config.model_init_std = 0.2;
    p.config.xfer_deadline_ms = 20000;
    assert_int_equal(k2_weights_dims_write(&dims, p.config.model_config, NULL), K2_OK);
    corpus_write(p.config.data_corpus);
    return p;
}

/* ---- a group of ranks, and one command at a time to all of them ---- */

typedef enum order_kind { INIT, PRETRAIN_TO, TRAIN, PUBLISH, SAVE } order_kind;

typedef struct group group;
typedef struct member {
    group *g;
    k2i_work work;
    k2i_result *result;
    pthread_t thread;
} member;

struct group {
    uint32_t ranks;
    member members[FIXTURE_RANKS_MAX];
    const char *locators[FIXTURE_RANKS_MAX];
    char held[FIXTURE_RANKS_MAX][K2_XFER_LOCATOR_MAX];
    order_kind kind;
    const char *text; /* source, locator or dir */
    uint64_t from, to, bytes;
    k2_digest digest;
    float reward; /* of the first trajectory of a batch; 0: as drawn */
};

static void *member_run(void *arg)
{
    member *m = arg;
    const group *g = m->g;
    switch (g->kind) {
    case INIT: k2i_work_init(&m->work, g->locators, g->ranks, g->text, g->to, m->result); break;
    case PRETRAIN_TO: k2i_work_pretrain(&m->work, g->from, g->to, m->result); break;
    case TRAIN: k2i_work_train(&m->work, g->to, g->text, g->bytes, g->digest, m->result); break;
    case PUBLISH: k2i_work_publish(&m->work, g->to, m->result); break;
    case SAVE: k2i_work_save(&m->work, g->text, g->to, m->result); break;
    }
    return NULL;
}

static const k2i_result *order(group *g, order_kind kind)
{
    g->kind = kind;
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_int_equal(pthread_create(&g->members[r].thread, NULL, member_run, &g->members[r]), 0);
    for (uint32_t r = 0; r < g->ranks; r++) pthread_join(g->members[r].thread, NULL);
    for (uint32_t r = 1; r < g->ranks; r++)
        assert_int_equal(g->members[r].result->error.code == K2_OK, g->members[0].result->error.code == K2_OK);
    return g->members[0].result;
}

static void assert_ok(const k2i_result *r)
{
    if (r->error.code != K2_OK) fail_msg("%s", r->error.text);
}

static void group_open(group *g, const place *p, const char *source, uint64_t step)
{
    *g = (group){.ranks = (uint32_t)p->config.trainer_ranks, .text = source, .to = step};
    for (uint32_t r = 0; r < g->ranks; r++) {
        member *m = &g->members[r];
        m->g = g;
        m->result = k2_alloc(sizeof(*m->result));
        assert_int_equal(k2i_work_open(&m->work, &p->config, r, NULL, NULL), K2_OK);
        k2i_work_join(&m->work, m->result);
        assert_ok(m->result);
        memcpy(g->held[r], m->result->locator, sizeof(g->held[r]));
        g->locators[r] = g->held[r];
    }
    assert_ok(order(g, INIT));
}

static void group_close(group *g)
{
    for (uint32_t r = 0; r < g->ranks; r++) {
        k2i_work_close(&g->members[r].work);
        k2_free(g->members[r].result);
    }
}

static void pretrain(group *g, uint64_t from, uint64_t to)
{
    g->from = from;
    g->to = to;
    const k2i_result *r = order(g, PRETRAIN_TO);
    assert_ok(r);
    assert_true(k2i_metrics_get(&r->metrics, "loss") > 0 &&
                k2i_metrics_get(&r->metrics, "tokens") >= 6.0 * (double)(to - from));
    assert_true(k2i_metrics_get(&r->metrics, "skipped") == 0 && k2i_metrics_get(&r->metrics, "load_max_vio_max") >= 0);
}

/* The batch of step s is offered by an engine of its own, as the master's is. */
static const k2i_result *train_with(group *g, uint64_t step, k2_digest *wrong)
{
    k2_xfer_config config = {.transport = "shm"};
    k2_xfer *xfer;
    k2_xfer_segment *segment;
    fixture_batch *b = k2_alloc(sizeof(*b));
    fixture_batch_fill(b, step, 0);
    if (g->reward != 0) b->list[0].reward = g->reward;
    fixture_batch_encode(b, step);
    assert_int_equal(k2_xfer_open(&config, &xfer, NULL), K2_OK);
    assert_int_equal(k2_xfer_segment_create(xfer, b->bytes.len, &segment, NULL), K2_OK);
    memcpy(k2_xfer_segment_memory(segment), b->bytes.data, b->bytes.len);
    g->text = k2_xfer_segment_locator(segment);
    g->bytes = b->bytes.len;
    g->digest = wrong ? *wrong : k2_digest_of(b->bytes.data, b->bytes.len);
    g->to = step;
    const k2i_result *r = order(g, TRAIN);
    k2_xfer_segment_destroy(segment);
    k2_xfer_close(xfer);
    k2_buf_fini(&b->bytes);
    k2_free(b);
    return r;
}

static k2_digest publish(group *g, uint64_t version)
{
    g->to = version;
    const k2i_result *r = order(g, PUBLISH);
    assert_ok(r);
    assert_true(r->has_locator && r->bytes > 0 && !k2_digest_zero(r->digest));
    for (uint32_t i = 1; i < g->ranks; i++)
        assert_true(k2_digest_equal(g->members[i].result->digest, r->digest) && !g->members[i].result->has_locator);
    return r->digest;
}

static k2_digest life(uint32_t ranks)
{
    place p = place_make(ranks);
    group g;
    group_open(&g, &p, "fresh", 0);
    pretrain(&g, 0, 4);
    pretrain(&g, 4, PRETRAIN);
    for (uint64_t s = 1; s <= STEPS; s++) assert_ok(train_with(&g, s, NULL));
    k2_digest digest = publish(&g, STEPS);
    group_close(&g);
    fixture_dir_end(p.dir);
    return digest;
}

static void test_ranks_do_not_matter(void **state)
{
    (void)state;
    assert_true(k2_digest_equal(life(1), life(2)));
}

/* Save in the middle with two ranks, go on with one: as if nothing had happened. */
static void test_resume(void **state)
{
    (void)state;
    place p = place_make(2);
    char *early = k2_asprintf("%s/early", p.dir), *late = k2_asprintf("%s/late", p.dir);
    group g;
    group_open(&g, &p, "fresh", 0);
    pretrain(&g, 0, 3);
    g.text = early;
    g.to = 0;
    assert_ok(order(&g, SAVE));
    group_close(&g);
    p.config.trainer_ranks = 1;
    group_open(&g, &p, early, 0);
    assert_int_equal(g.members[0].result->pretrain_step, 3);
    pretrain(&g, 3, PRETRAIN);
    assert_ok(train_with(&g, 1, NULL));
    g.text = late;
    g.to = 1;
    const k2i_result *saved = order(&g, SAVE);
    assert_ok(saved);
    k2_digest digest = saved->digest;
    group_close(&g);
    p.config.trainer_ranks = 2;
    group_open(&g, &p, late, 1);
    assert_true(k2_digest_equal(g.members[0].result->digest, digest));
    assert_ok(train_with(&g, 2, NULL));
    assert_ok(train_with(&g, 3, NULL));
    k2_digest end = publish(&g, STEPS);
    group_close(&g);
    k2_free(late);
    k2_free(early);
    fixture_dir_end(p.dir);
    assert_true(k2_digest_equal(end, life(1)));
}

/* A damaged batch changes nothing on any rank, and the right one goes through afterwards. */
static void test_damaged_batch(void **state)
{
    (void)state;
    place p = place_make(2);
    group g;
    group_open(&g, &p, "fresh", 0);
    k2_digest before = publish(&g, 0), wrong = {1, 2};
    const k2i_result *r = train_with(&g, 1, &wrong);
    assert_int_equal(r->error.code, K2_CORRUPT);
    assert_true(r->unchanged && g.members[1].result->unchanged);
    assert_true(k2_digest_equal(before, publish(&g, 0)));
    assert_ok(train_with(&g, 1, NULL));
    assert_false(k2_digest_equal(before, publish(&g, 1)));
    group_close(&g);
    fixture_dir_end(p.dir);
}

/* What rollouts do: read the segment, check everything, and find the weights; the version before stays readable. */
static void test_published_weights(void **state)
{
    (void)state;
    place p = place_make(1);
    group g;
    group_open(&g, &p, "fresh", 0);
    k2_xfer *xfer = g.members[0].work.xfer;
    for (uint64_t v = 0; v < 2; v++) {
        k2_digest digest = publish(&g, v);
        k2_xfer_remote *remote;
        k2_weights_segment header;
        k2_weights_manifest *manifest;
        assert_int_equal(k2_xfer_remote_open(xfer, g.members[0].result->locator, k2_now_ns() + K2_NS_PER_S, &remote, NULL),
                         K2_OK);
        const unsigned char *bytes = k2_xfer_remote_map(remote);
        assert_int_equal(k2_weights_segment_decode(bytes, k2_xfer_remote_bytes(remote), &header, NULL), K2_OK);
        assert_int_equal(k2_weights_manifest_decode((const char *)bytes + K2_WEIGHTS_SEGMENT_HEADER_BYTES,
                                                    header.manifest_bytes, &manifest, NULL),
                         K2_OK);
        assert_true(header.version == v && k2_digest_equal(manifest->digest, digest));
        assert_int_equal(k2_weights_manifest_verify(manifest, bytes + header.data_offset, NULL), K2_OK);
        k2_weights_manifest_free(manifest);
        k2_xfer_remote_close(remote);
        if (v == 0) assert_ok(train_with(&g, 1, NULL));
    }
    assert_non_null(g.members[0].work.published[1]);
    group_close(&g);
    fixture_dir_end(p.dir);
}

static void init_refused(const place *p, const char *source, uint64_t step, k2_code code, const char *part)
{
    k2i_work w;
    k2i_result *r = k2_alloc(sizeof(*r));
    assert_int_equal(k2i_work_open(&w, &p->config, 0, NULL, NULL), K2_OK);
    k2i_work_join(&w, r);
    const char *locator = "";
    k2i_work_init(&w, &locator, 1, source, step, r);
    assert_int_equal(r->error.code, code);
    assert_non_null(strstr(r->error.text, part));
    k2i_work_close(&w);
    k2_free(r);
}

static void test_bad_starts(void **state)
{
    (void)state;
    place p = place_make(1);
    init_refused(&p, "fresh", 3, K2_BAD_INPUT, "INIT: found step 3 of a fresh model, expected 0");
    init_refused(&p, p.dir, 3, K2_NOT_FOUND, "trainer.json");
    p.config.trainer_micro_tokens = 1ull << 20;
    p.config.trainer_grad_lanes = 64;
    p.config.trainer_threads = 64;
    p.config.rollout_groups = 65536;
    p.config.rollout_group_size = 1024;
    p.config.rollout_max_tokens = 1ull << 20;
    init_refused(&p, "fresh", 0, K2_LIMIT, "lower trainer.micro_tokens");
    p.config = fixture_config();
    snprintf(p.config.model_config, sizeof(p.config.model_config), "%s/none.json", p.dir);
    init_refused(&p, "fresh", 0, K2_NOT_FOUND, "none.json");
    fixture_dir_end(p.dir);
}

static double kl_of(const k2i_result *r)
{
    assert_ok(r);
    return k2i_metrics_get(&r->metrics, "kl");
}

/* The reference model is the directory's, whatever has been trained since, and however often the trainers start. */
static void test_reference_is_frozen(void **state)
{
    (void)state;
    place p = place_make(2);
    char *start = k2_asprintf("%s/start", p.dir), *middle = k2_asprintf("%s/middle", p.dir);
    group g;
    group_open(&g, &p, "fresh", 0);
    pretrain(&g, 0, PRETRAIN);
    g.text = start;
    g.to = 0;
    assert_ok(order(&g, SAVE));
    group_close(&g);
    p.config.trainer_kl_weight = 0.25;
    snprintf(p.config.trainer_kl_reference, sizeof(p.config.trainer_kl_reference), "%s", start);
    group_open(&g, &p, start, 0);
    assert_true(kl_of(train_with(&g, 1, NULL)) == 0);
    g.text = middle;
    g.to = 1;
    assert_ok(order(&g, SAVE));
    double second = kl_of(train_with(&g, 2, NULL));
    k2_digest end = publish(&g, 2);
    assert_true(second > 0);
    group_close(&g);
    p.config.trainer_ranks = 1;
    group_open(&g, &p, middle, 1);
    assert_true(kl_of(train_with(&g, 2, NULL)) == second);
    assert_true(k2_digest_equal(publish(&g, 2), end));
    group_close(&g);
    snprintf(p.config.trainer_kl_reference, sizeof(p.config.trainer_kl_reference), "%s/none", p.dir);
    init_refused(&p, middle, 1, K2_NOT_FOUND, "/none");
    k2_free(middle);
    k2_free(start);
    fixture_dir_end(p.dir);
}

/* What it prints is looked at elsewhere. */
static int repeat(const char *dir, const k2_quarantine_note *note, bool json)
{
    fflush(stdout);
    int held = dup(1), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    int status = k2_trainer_repeat(dir, note, json);
    fflush(stdout);
    dup2(held, 1);
    close(held);
    close(null);
    return status;
}

/* A step that meets infinity leaves the weights, counts up, and is put aside; repeating it from there gives what the run had.
 */
static void test_bad_step_is_put_aside(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        place p = place_make(ranks);
        p.config.trainer_clip_norm = 0;
        p.config.policy_kept = 1;
        group g;
        group_open(&g, &p, "fresh", 0);
        g.reward = 1e26f; /* the second moment would be infinite */
        k2_digest before = publish(&g, 0);
        const k2i_result *r = train_with(&g, 1, NULL);
        assert_ok(r);
        assert_true(k2i_metrics_get(&r->metrics, "skipped") == 1);
        assert_true(k2_digest_equal(before, publish(&g, 1)));
        char *dir = k2_asprintf("%s/quarantine/step-1", p.config.run_dir);
        k2_quarantine_note note;
        assert_int_equal(k2_quarantine_read(dir, &note, NULL), K2_OK);
        assert_true(k2_digest_equal(note.weights, before) && k2_digest_equal(note.result, before));
        assert_non_null(strstr(note.error, "is NaN or infinite"));
        assert_int_equal(repeat(dir, &note, true), 0);
        note.result.lo++;
        assert_int_equal(repeat(dir, &note, false), 1);
        note.batch_last = 2;
        assert_int_equal(repeat(dir, &note, false), 2);
        k2_free(dir);
        r = train_with(&g, 2, NULL); /* policy.kept are there: a run that is ill for days does not fill the disk */
        assert_ok(r);
        assert_true(k2i_metrics_get(&r->metrics, "skipped") == 1);
        dir = k2_asprintf("%s/quarantine/step-2", p.config.run_dir);
        assert_false(k2_file_exists(dir));
        k2_free(dir);
        group_close(&g);
        fixture_dir_end(p.dir);
    }
}

/* The same in pretraining, where an entry keeps the sequences themselves: the corpus may be gone. */
static void test_bad_pretraining_is_put_aside(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        place p = place_make(ranks);
        group g;
        group_open(&g, &p, "fresh", 0);
        pretrain(&g, 0, 2);
        for (uint32_t r = 0; r < ranks; r++) {
            k2i_learner *l = g.members[r].work.learner;
            k2i_learner_params(l)[k2_model_layout_find(k2_model_layout_of(k2i_learner_model(l)), "lm_head.weight")->offset] =
                3e38f;
            k2i_learner_params_changed(l);
        }
        g.from = 2;
        g.to = 4;
        const k2i_result *r = order(&g, PRETRAIN_TO);
        assert_ok(r);
        assert_true(k2i_metrics_get(&r->metrics, "skipped") == 2);
        group_close(&g);
        for (int s = 2; s < 4; s++) {
            char *dir = k2_asprintf("%s/quarantine/pretrain-%d", p.config.run_dir, s);
            k2_quarantine_note note;
            assert_int_equal(k2_quarantine_read(dir, &note, NULL), K2_OK);
            assert_int_equal(repeat(dir, &note, s == 2), 0);
            k2_free(dir);
        }
        fixture_dir_end(p.dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_do_not_matter),
        cmocka_unit_test(test_resume),
        cmocka_unit_test_setup_teardown(test_ranks_do_not_matter, with_muon, without_muon),
        cmocka_unit_test_setup_teardown(test_resume, with_muon, without_muon),
        cmocka_unit_test(test_damaged_batch),
        cmocka_unit_test(test_published_weights),
        cmocka_unit_test(test_bad_starts),
        cmocka_unit_test(test_reference_is_frozen),
        cmocka_unit_test(test_bad_step_is_put_aside),
        cmocka_unit_test(test_bad_pretraining_is_put_aside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
