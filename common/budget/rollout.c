/* budget of a rollout worker, buffer by buffer. See budget.h. */
#include "common/budget/budget_int.h"

#define PROMPT_ROWS   32u           /* of logits beside the batch's: prompts that are scored */
#define SAMPLER_BYTES 16u           /* of an entry of the vocabulary at the sampler */
#define PAGE_BYTES    64u           /* of the books of one page of the cache */
#define REQUEST_BYTES 4096u         /* of one request: connection, texts, books */
#define TOKEN_BYTES   8u            /* of a token of a request: id and log-probability */
#define TENSOR_BYTES  (256u + 400u) /* of a tensor in a segment: alignment, and its line in the manifest */
#define SEGMENT_BYTES 8192u         /* of a segment's head */

/* Multiplications of a full step that are worth one more thread: a few milliseconds of one core. With less, threads wait for
 * each other longer than they work; a model of the quickstart's size is six times slower with two threads at batch 1. */
#define STEP_MULS_PER_THREAD 67108864.0

/* Threads that the products of one token, times the rows of a full batch, can keep busy. */
static uint64_t threads_worth(const k2_dims *dims, uint64_t rows)
{
    k2_model_layout *layout = k2_model_layout_new(dims);
    double muls = 0;
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        double share = p->expert < 0 ? 1.0 : (double)dims->num_experts_per_tok / (double)dims->n_routed_experts;
        if (p->shape.rank == 2) muls += share * (double)p->count;
    }
    k2_model_layout_free(layout);
    return (uint64_t)(muls * (double)rows / STEP_MULS_PER_THREAD) + 1;
}

uint32_t k2_budget_rollout_threads(const k2_config *config, const k2_dims *dims, uint32_t workers, uint32_t cores)
{
    uint64_t threads = config->rollout_threads;
    if (threads == 0) threads = K2_MIN(K2_MAX(1u, cores / K2_MAX(1u, workers)), threads_worth(dims, config->rollout_batch_max));
    return (uint32_t)K2_MIN(threads, (uint64_t)K2_TEAM_THREADS_MAX);
}

uint64_t k2_budget_segment(const k2_dims *dims)
{
    k2_model_layout *layout = k2_model_layout_new(dims);
    uint64_t bytes = layout->floats * sizeof(float) + (uint64_t)layout->params_count * TENSOR_BYTES + SEGMENT_BYTES;
    k2_model_layout_free(layout);
    return bytes;
}

uint64_t k2_budget_tensor(const k2_dims *dims)
{
    k2_model_layout *layout = k2_model_layout_new(dims);
    uint64_t floats = 0;
    for (size_t i = 0; i < layout->params_count; i++) floats = K2_MAX(floats, (uint64_t)layout->params[i].count);
    k2_model_layout_free(layout);
    return floats * sizeof(float);
}

k2_budget_engine k2_budget_rollout(const k2_config *c, const k2_dims *dims, uint32_t cores)
{
    uint32_t threads = k2_budget_rollout_threads(c, dims, (uint32_t)c->rollout_workers, cores);
    uint64_t context = K2_MIN((uint64_t)dims->max_position_embeddings, c->rollout_cache_tokens);
    uint64_t pages = (c->rollout_cache_tokens + c->rollout_page_tokens - 1) / c->rollout_page_tokens;
    uint64_t page = k2_model_page_floats(dims, (uint32_t)c->rollout_page_tokens) * sizeof(float) +
                    c->rollout_page_tokens * sizeof(int32_t) + PAGE_BYTES;
    uint64_t rows = c->rollout_batch_max + c->rollout_prefill_chunk, open = c->rollout_groups * c->rollout_group_size;
    open = K2_MIN(K2_MIN(open, c->master_inflight_max), c->rollout_queue_max + c->rollout_batch_max) / c->rollout_workers;
    k2_budget_engine b = {.process = k2i_budget_process(c),
                          .models = 2 * (uint64_t)k2_model_bytes(dims, k2_compute_find(c->model_compute, false)),
                          .segments = (c->xfer_transport[0] == 's' ? 3 : 2) * k2_budget_segment(dims),
                          .cache = pages * page,
                          .acts = k2_model_decode_bytes(dims, threads, rows, context),
                          .logits = dims->vocab_size * ((c->rollout_batch_max + PROMPT_ROWS) * sizeof(float) + SAMPLER_BYTES),
                          .requests = open * (REQUEST_BYTES + k2i_budget_context(c, dims) * TOKEN_BYTES)};
    b.total = b.process + b.models + b.segments + b.cache + b.acts + b.logits + b.requests;
    return b;
}
