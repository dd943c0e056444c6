/* budget of a trainer, buffer by buffer. See budget.h. */
#include "common/budget/budget_int.h"

#include <string.h>
#include <unistd.h>

#include "common/data/data.h"
#include "common/wire/batch.h"

#define REPLICA_FLOATS_MAX (64u << 20)
#define SHARD_SLACK        4096u        /* floats: shards end at blocks of the norm */
#define STAGING_BYTES      (8ull << 20) /* of one of a collective's two slots, at the default size */
#define PROCESS_BYTES      (8ull << 20)
#define MICRO_TOKEN_BYTES  28u  /* of a token of a micro-batch besides activations: id, target, log-probabilities, weights */
#define ANSWER_TOKEN_BYTES 13u  /* of a generated token of a batch besides itself: three log-probabilities, its use */
#define KL_TOKEN_BYTES     28u  /* and, where there is a reference model, of what it says of the token */
#define TRAJECTORY_BYTES   128u /* of one besides its tokens: how it is laid out, rewards, advantage */
#define SPANS              2u   /* of versions in one trajectory */
#define MUON_TOGETHER_MULS (1ull << 25) /* of one step on a matrix: several milliseconds of one thread for all five */
#define PROMPT_GUESS       64u          /* tokens */
#define DOCUMENT_BYTES     16u          /* at the sampler */
#define WINDOW_BYTES       4u
#define DOCUMENT_GUESS     24u /* tokens of a task's document */

/* ---- shares ---- */

uint64_t k2i_budget_process(const k2_config *config)
{
    return PROCESS_BYTES + (config->run_flight_kib << 10);
}

uint64_t k2i_budget_context(const k2_config *c, const k2_dims *dims)
{
    return K2_MIN((uint64_t)dims->max_position_embeddings, PROMPT_GUESS + c->rollout_max_tokens);
}

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

/* ---- parts ---- */

/* Its fifteen phases take milliseconds each, to which waking the others adds little. */
bool k2_budget_muon_large(uint64_t rows, uint64_t cols)
{
    uint64_t least = K2_MIN(rows, cols), most = K2_MAX(rows, cols);
    return least * least * (2 * most + least) >= MUON_TOGETHER_MULS;
}

uint64_t k2_budget_muon_floats(const k2_model_layout *l, uint32_t threads, uint64_t *small)
{
    uint64_t large = 0;
    *small = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        if (l->params[i].kind != K2_KIND_MATRIX) continue;
        uint64_t rows = l->params[i].shape.size[0], cols = l->params[i].shape.size[1], least = K2_MIN(rows, cols);
        uint64_t floats = 3 * ((rows * cols + 15) / 16 * 16) + 2 * ((least * least + 15) / 16 * 16);
        uint64_t *most = k2_budget_muon_large(rows, cols) ? &large : small;
        *most = K2_MAX(*most, floats);
    }
    return K2_MAX(large, threads * *small);
}

bool k2_budget_has_reference(const k2_config *config)
{
    return config->trainer_kl_weight > 0 && strcmp(config->mode, "pretrain") != 0;
}

static uint64_t muon_bytes(const k2_model_layout *l, uint64_t shard, uint32_t threads)
{
    uint64_t small;
    return shard + k2_budget_muon_floats(l, threads, &small) * sizeof(float);
}

/* Two slots of an own segment, and what is read of the others': in place where memory is shared, else into one more slot. */
static uint64_t staging_bytes(const k2_config *c, uint64_t shard, uint32_t lanes, uint32_t ranks)
{
    if (ranks == 1) return 0;
    uint64_t others = ranks - 1, written = K2_MIN(STAGING_BYTES, others * lanes * shard);
    uint64_t read = others * K2_MAX(K2_MIN(STAGING_BYTES / others, lanes * shard), K2_MIN(STAGING_BYTES, shard));
    return 2 * written + (strcmp(c->xfer_transport, "shm") == 0 ? 2 * read : STAGING_BYTES);
}

static uint64_t corpus_bytes(const k2_config *c)
{
    if (c->pretrain_steps == 0) return 0;
    k2_idx_sizes s;
    if (k2_idx_sizes_read(c->data_corpus, &s, NULL) != K2_OK)
        s = (k2_idx_sizes){.documents = c->data_task_corpus,
                           .tokens = c->data_task_corpus * DOCUMENT_GUESS,
                           .idx_bytes = c->data_task_corpus * 20,
                           .bin_bytes = c->data_task_corpus * DOCUMENT_GUESS * 2};
    uint64_t windows = s.documents + s.tokens / c->pretrain_sequence_tokens;
    uint64_t pages = K2_MAX(s.idx_bytes, K2_MIN(s.idx_bytes + s.bin_bytes, (uint64_t)K2_BUDGET_CORPUS_BYTES));
    return pages + s.documents * DOCUMENT_BYTES + windows * WINDOW_BYTES +
           c->pretrain_batch_sequences * (c->pretrain_sequence_tokens * 8 + TRAJECTORY_BYTES);
}

/* With rollout.refill_max more groups are begun, but for each of them another one leaves the batch. */
static uint64_t batch_bytes(const k2_config *c, const k2_dims *dims)
{
    if (strcmp(c->mode, "pretrain") == 0) return 0;
    uint64_t n = c->rollout_groups * c->rollout_group_size, generated = n * c->rollout_max_tokens;
    uint64_t token = ANSWER_TOKEN_BYTES + (k2_budget_has_reference(c) ? KL_TOKEN_BYTES : 0);
    return k2_batch_bytes(n, SPANS * n, n * k2i_budget_context(c, dims), generated) + generated * token + n * TRAJECTORY_BYTES;
}

/* ---- all ---- */

k2_budget k2_budget_trainer(const k2_config *config, const k2_dims *dims, uint32_t rank, uint32_t ranks)
{
    k2_model_layout *l = k2_model_layout_new(dims);
    uint64_t vector = l->floats * sizeof(float), shard = K2_MIN(vector, vector / ranks + SHARD_SLACK * sizeof(float));
    uint32_t threads = k2_budget_trainer_threads(config), lanes = (uint32_t)config->trainer_grad_lanes / ranks;
    uint32_t replicas = k2_budget_replicas(l->floats, threads, lanes);
    size_t micro = (size_t)config->trainer_micro_tokens;
    uint64_t acts = k2_model_train_bytes(dims, threads / replicas, micro, k2_recompute_find(config->trainer_recompute));
    uint64_t undo = config->trainer_epochs * config->trainer_minibatches > 1 ? vector + 2 * shard : 0;
    uint64_t batch = batch_bytes(config, dims);
    k2_budget b = {.process = k2i_budget_process(config),
                   .models = replicas * (uint64_t)k2_model_bytes(dims, k2_compute_find(config->model_compute, true)),
                   .acts = replicas * (acts + MICRO_TOKEN_BYTES * micro),
                   .gradients = lanes * vector + shard,
                   .moments = 2 * shard,
                   .reference = k2_budget_has_reference(config) ? vector : 0,
                   .muon = strcmp(config->trainer_optimizer, "muon") == 0 ? muon_bytes(l, shard, threads) : 0,
                   .published = rank == 0 ? 2 * k2_budget_segment(dims) : 0,
                   .staging = staging_bytes(config, shard, lanes, ranks),
                   .corpus = corpus_bytes(config),
                   .training = batch > 0 ? batch + undo : 0,
                   .checkpoint = 2 * vector + (rank == 0 ? K2_MIN(vector, (uint64_t)K2_FILE_PIECE_BYTES) : 0)};
    b.total = b.process + b.models + b.acts + b.gradients + b.moments + b.reference + b.muon + b.published + b.staging +
              b.corpus + K2_MAX(b.training, b.checkpoint);
    k2_model_layout_free(l);
    return b;
}
