/* What the trainer's tests share: a tiny model, ranks as threads of one process, batches made of drawn tokens, a directory. */
#ifndef K2_TESTS_TRAINER_FIXTURE_H
#define K2_TESTS_TRAINER_FIXTURE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "common/wire/batch.h"
#include "tests/support/tiny_dims.h"
#include "trainer/learner_int.h"

#define FIXTURE_RANKS_MAX 2u

static inline k2_dims fixture_dims(void)
{
    k2_dims d = tiny_dims();
    d.vocab_size = 40;
    d.hidden_size = 16;
    d.q_lora_rank = 8;
    d.qk_rope_head_dim = 4;
    d.intermediate_size = 24;
    d.moe_intermediate_size = 8;
    d.routed_scaling_factor = 1.5;
    d.max_position_embeddings = 64;
    return d;
}

static inline k2_config fixture_config(void)
{
    k2_config c;
    k2_config_defaults(&c);
    c.seed = 5;
    c.trainer_micro_tokens = 48;
    c.trainer_threads = 1;
    c.trainer_lr = 0.01;
    c.pretrain_lr = 0.01;
    c.pretrain_warmup_steps = 2;
    c.pretrain_steps = 12;
    c.pretrain_batch_sequences = 6;
    c.pretrain_sequence_tokens = 16;
    c.trainer_bias_update_rate = 0.001;
    return c;
}

/* ---- ranks as threads ---- */

typedef struct fixture_rank {
    uint32_t rank, ranks;
    k2_coll *coll;                /* joined when body runs */
    const void *arg;
    k2_digest digest;             /* what the rank's body ends with */
    void (*body)(struct fixture_rank *r);
    const char *const *locators;
    pthread_t thread;
} fixture_rank;

static inline void *fixture_thread(void *arg)
{
    fixture_rank *r = arg;
    k2_error err;
    K2_ASSERT(k2_coll_join(r->coll, r->locators, r->ranks, &err) == K2_OK);
    r->body(r);
    return NULL;
}

/* Run body on `ranks` threads, each in the same group; asserts that all end with the same digest, and returns it. */
static inline k2_digest fixture_run(uint32_t ranks, void (*body)(fixture_rank *r), const void *arg)
{
    fixture_rank all[FIXTURE_RANKS_MAX];
    const char *locators[FIXTURE_RANKS_MAX];
    k2_xfer *xfer = NULL;
    k2_error err;
    k2_xfer_config config = {.transport = "self"};
    K2_ASSERT(ranks <= FIXTURE_RANKS_MAX);
    if (ranks > 1) K2_ASSERT(k2_xfer_open(&config, &xfer, &err) == K2_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        all[r] = (fixture_rank){.rank = r, .ranks = ranks, .arg = arg, .body = body, .locators = locators};
        k2_coll_config coll = {.xfer = xfer, .rank = r, .ranks = ranks, .group = 1, .bytes_max = 65536};
        K2_ASSERT(k2_coll_open(&coll, &all[r].coll, &err) == K2_OK);
        locators[r] = k2_coll_locator(all[r].coll);
    }
    for (uint32_t r = 0; r < ranks; r++) K2_ASSERT(pthread_create(&all[r].thread, NULL, fixture_thread, &all[r]) == 0);
    for (uint32_t r = 0; r < ranks; r++) pthread_join(all[r].thread, NULL);
    for (uint32_t r = 0; r < ranks; r++) K2_ASSERT(k2_digest_equal(all[r].digest, all[0].digest));
    for (uint32_t r = 0; r < ranks; r++) k2_coll_close(all[r].coll);
    k2_xfer_close(xfer);
    return all[0].digest;
}

/* A learner with drawn weights, as every rank makes it; with `reference` a frozen model of the same ones. */
static inline k2i_learner *fixture_learner_beside(k2_coll *coll, uint32_t threads, uint32_t micro_tokens, bool reference)
{
    k2i_learner_config config = {.dims = fixture_dims(),
                                 .threads = threads,
                                 .lanes = 2,
                                 .micro_tokens = micro_tokens,
                                 .reference = reference,
                                 .coll = coll};
    k2i_learner *l = NULL;
    k2_error err;
    K2_ASSERT(k2i_learner_new(&config, &l, &err) == K2_OK);
    k2_model_init(k2i_learner_model(l), 5, 0.2);
    k2i_learner_params_changed(l);
    if (reference)
        memcpy(k2i_learner_reference(l), k2i_learner_params(l), k2_model_param_count(k2i_learner_model(l)) * sizeof(float));
    return l;
}

static inline k2i_learner *fixture_learner(k2_coll *coll, uint32_t threads, uint32_t micro_tokens)
{
    return fixture_learner_beside(coll, threads, micro_tokens, false);
}

static inline k2_digest fixture_digest(k2i_learner *l)
{
    return k2_digest_of(k2i_learner_params(l), k2_model_param_count(k2i_learner_model(l)) * sizeof(float));
}

/* ---- batches ---- */

#define FIXTURE_GROUPS 5u
#define FIXTURE_SIZE   4u /* trajectories of one group */
#define FIXTURE_COUNT  (FIXTURE_GROUPS * FIXTURE_SIZE)
#define FIXTURE_LONGEST 20u

typedef struct fixture_batch {
    k2_batch_trajectory list[FIXTURE_COUNT];
    int32_t tokens[FIXTURE_COUNT][2 * FIXTURE_LONGEST];
    float logps[FIXTURE_COUNT][FIXTURE_LONGEST];
    uint32_t versions[FIXTURE_COUNT][FIXTURE_LONGEST];
    k2_buf bytes;
    k2_batch batch;
} fixture_batch;

/* Drawn tokens; rewards 0 or 1, drawn too, but all 1 in the last group; tokens before `old` of each third trajectory are of
 * version step-2. */
static inline void fixture_batch_fill(fixture_batch *b, uint64_t step, uint32_t old)
{
    memset(b, 0, sizeof(*b));
    for (uint32_t i = 0; i < FIXTURE_COUNT; i++) {
        uint32_t prompt = 1 + (uint32_t)k2_rand_below(step, K2_STREAM_TEST, i, 0, 8);
        uint32_t answer = 1 + (uint32_t)k2_rand_below(step, K2_STREAM_TEST, i, 1, FIXTURE_LONGEST - 1);
        for (uint32_t t = 0; t < prompt + answer; t++)
            b->tokens[i][t] = (int32_t)k2_rand_below(step, K2_STREAM_TEST, i, 2 + t, 40);
        for (uint32_t t = 0; t < answer; t++) {
            b->logps[i][t] = -3.5f;
            b->versions[i][t] = (uint32_t)step - (i % 3 == 0 && t < old ? 2 : 1);
        }
        double draw = k2_rand_unit(step, K2_STREAM_TEST, i, 1000);
        b->list[i] = (k2_batch_trajectory){.id = (uint64_t)(i / FIXTURE_SIZE) * 1024 + i % FIXTURE_SIZE,
                                           .group = i / FIXTURE_SIZE,
                                           .reward = i / FIXTURE_SIZE == FIXTURE_GROUPS - 1 || draw < 0.5 ? 1 : 0,
                                           .prompt_tokens = prompt,
                                           .generated_tokens = answer,
                                           .finish = K2_BATCH_STOP,
                                           .tokens = b->tokens[i],
                                           .logps = b->logps[i],
                                           .versions = b->versions[i]};
    }
}

static inline void fixture_batch_encode(fixture_batch *b, uint64_t step)
{
    k2_error err;
    k2_buf_init(&b->bytes, 1 << 20);
    K2_ASSERT(k2_batch_encode(step, b->list, FIXTURE_COUNT, &b->bytes, &err) == K2_OK);
    K2_ASSERT(k2_batch_decode(b->bytes.data, b->bytes.len, &b->batch, &err) == K2_OK);
}

/* ---- a directory of one's own ---- */

static inline char *fixture_dir(void)
{
    char *path = k2_strdup("/tmp/k2rl-trainer-XXXXXX");
    K2_ASSERT(mkdtemp(path) != NULL);
    return path;
}

static inline void fixture_dir_end(char *path)
{
    K2_ASSERT(k2_dir_remove(path, NULL) == K2_OK);
    k2_free(path);
}

#endif
