/* budget - a trainer's memory, buffer by buffer. See budget.h. */
#include "common/budget/budget.h"

#include <string.h>
#include <unistd.h>

#define REPLICA_FLOATS_MAX (64u << 20)
#define SHARD_SLACK        4096u               /* floats: shards end at blocks of the norm */
#define STAGING_BYTES      (2ull * (8u << 20)) /* at the default size of a collective's segment */
#define READ_BACK_BYTES    (16ull << 20)       /* of a file that was written, mapped at a time */
#define TOKEN_BYTES        28u /* of a micro-batch besides activations: ids, targets, log-probabilities, weights */
#define KL_BYTES           28u /* and, where there is a reference model, of what it says of the token */
#define ANSWER_BYTES       32u /* of a token of a batch: itself, and what a step computes for it */

uint32_t k2_budget_trainer_threads(const k2_config *config)
{
    if (config->trainer_threads > 0) return (uint32_t)K2_MIN(config->trainer_threads, (uint64_t)K2_TEAM_THREADS_MAX);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t each = (uint64_t)K2_MAX(cores, 1l) / config->trainer_ranks;
    return (uint32_t)K2_MIN(K2_MAX(each, 1ull), (uint64_t)K2_TEAM_THREADS_MAX);
}

uint32_t k2_budget_replicas(uint64_t floats, uint32_t threads, uint32_t lanes_local)
{
    return floats > REPLICA_FLOATS_MAX ? 1 : K2_MIN(K2_MIN(threads, lanes_local), K2_BUDGET_REPLICAS_MAX);
}

uint64_t k2_budget_muon_floats(uint64_t rows, uint64_t cols)
{
    uint64_t least = K2_MIN(rows, cols);
    return 3 * ((rows * cols + 15) / 16 * 16) + 2 * ((least * least + 15) / 16 * 16);
}

bool k2_budget_has_reference(const k2_config *config)
{
    return config->trainer_kl_weight > 0 && strcmp(config->mode, "pretrain") != 0;
}

static uint64_t muon_bytes(const k2_model_layout *l, uint64_t shard, uint32_t threads)
{
    uint64_t most = 0;
    for (size_t i = 0; i < l->params_count; i++)
        if (l->params[i].kind == K2_KIND_MATRIX)
            most = K2_MAX(most, k2_budget_muon_floats(l->params[i].shape.size[0], l->params[i].shape.size[1]));
    return shard + threads * most * sizeof(float);
}

static uint64_t batch_bytes(const k2_config *c)
{
    uint64_t bytes = c->pretrain_steps == 0 ? 0 : c->pretrain_batch_sequences * (c->pretrain_sequence_tokens * 8 + 128);
    if (strcmp(c->mode, "pretrain") != 0)
        bytes += c->rollout_groups * c->rollout_group_size * c->rollout_max_tokens *
                 (ANSWER_BYTES + (k2_budget_has_reference(c) ? KL_BYTES : 0));
    return bytes;
}

k2_budget k2_budget_trainer(const k2_config *config, const k2_dims *dims, uint32_t ranks)
{
    k2_model_layout *l = k2_model_layout_new(dims);
    uint64_t vector = l->floats * sizeof(float), shard = vector / ranks + SHARD_SLACK * sizeof(float);
    uint32_t threads = k2_budget_trainer_threads(config), lanes = (uint32_t)config->trainer_grad_lanes / ranks;
    uint32_t replicas = k2_budget_replicas(l->floats, threads, lanes);
    size_t micro = (size_t)config->trainer_micro_tokens;
    uint64_t acts = k2_model_train_bytes(dims, threads / replicas, micro, k2_recompute_find(config->trainer_recompute));
    k2_budget b = {.models = replicas * (uint64_t)k2_model_bytes(dims, k2_compute_find(config->model_compute, true)),
                   .acts = replicas * (acts + TOKEN_BYTES * micro),
                   .gradients = lanes * vector + shard,
                   .moments = 2 * shard,
                   .reference = k2_budget_has_reference(config) ? vector : 0,
                   .muon = strcmp(config->trainer_optimizer, "muon") == 0 ? muon_bytes(l, shard, threads) : 0,
                   .published = 2 * vector,
                   .checkpoint = 2 * vector + K2_MIN(vector, READ_BACK_BYTES),
                   .undo = config->trainer_epochs * config->trainer_minibatches > 1 ? 3 * vector : 0,
                   .batches = batch_bytes(config),
                   .staging = ranks > 1 ? STAGING_BYTES : 0};
    b.total = b.reference + b.models + b.acts + b.gradients + b.moments + b.muon + b.published + b.checkpoint + b.undo +
              b.batches + b.staging;
    k2_model_layout_free(l);
    return b;
}
