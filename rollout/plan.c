/* plan - see plan_int.h. */
#include "rollout/plan_int.h"

#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0

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

k2_code k2i_plan_engine(const k2_config *config, const k2_dims *dims, uint32_t workers, uint32_t cores, k2i_engine_plan *out,
                        k2_error *err)
{
    uint64_t pt = config->rollout_page_tokens, pages = (config->rollout_cache_tokens + pt - 1) / pt;
    uint64_t context = K2_MIN((uint64_t)dims->max_position_embeddings, config->rollout_cache_tokens);
    if (context < 2)
        return k2_error_set(err, K2_BAD_INPUT, "max_position_embeddings: found %u, expected at least 2",
                            dims->max_position_embeddings);
    if (config->rollout_repetition_max_period < config->rollout_repetition_min_period)
        return k2_error_set(err, K2_BAD_INPUT, "rollout.repetition.max_period: found %llu, expected at least min_period, %llu",
                            (unsigned long long)config->rollout_repetition_max_period,
                            (unsigned long long)config->rollout_repetition_min_period);
    uint64_t threads = config->rollout_threads;
    if (threads == 0) threads = K2_MIN(K2_MAX(1u, cores / K2_MAX(1u, workers)), threads_worth(dims, config->rollout_batch_max));
    *out = (k2i_engine_plan){
        .threads = (uint32_t)K2_MIN(threads, K2_TEAM_THREADS_MAX),
        .compute = k2_compute_find(config->model_compute, false),
        .core = {.batch_max = (uint32_t)config->rollout_batch_max,
                 .prefill_chunk = (uint32_t)config->rollout_prefill_chunk,
                 .requests_max = (uint32_t)(config->rollout_queue_max + config->rollout_batch_max),
                 .pages = (uint32_t)pages,
                 .page_tokens = (uint32_t)pt,
                 .context_max = (uint32_t)context,
                 .vocab = dims->vocab_size,
                 .prompt_rows = K2I_PROMPT_ROWS,
                 .repetition = {.min_period = (uint32_t)config->rollout_repetition_min_period,
                                .max_period = (uint32_t)config->rollout_repetition_max_period,
                                .count = (uint32_t)config->rollout_repetition_count}},
    };
    return K2_OK;
}

static uint64_t segment_bytes(const k2_dims *dims)
{
    k2_model_layout *layout = k2_model_layout_new(dims);
    /* Each tensor is aligned to 256 bytes and takes a line of about 400 in the manifest. */
    uint64_t bytes = (uint64_t)layout->floats * sizeof(float) + (uint64_t)layout->params_count * (256 + 400) + 8192;
    k2_model_layout_free(layout);
    return bytes;
}

uint64_t k2i_plan_bytes(const k2i_engine_plan *plan, const k2_dims *dims, uint32_t models, bool segments)
{
    uint64_t each = (uint64_t)k2_model_bytes(dims, plan->compute) + (segments ? segment_bytes(dims) : 0);
    return each * models + k2i_engine_bytes(plan, dims);
}

k2_code k2i_plan_check(const k2i_engine_plan *plan, const k2_dims *dims, uint32_t models, bool segments, uint64_t available,
                       k2_error *err)
{
    uint64_t need = k2i_plan_bytes(plan, dims, models, segments), engine = k2i_engine_bytes(plan, dims);
    if (need <= available) return K2_OK;
    return k2_error_set(
        err, K2_LIMIT,
        "rollout needs %.2f GiB of memory (weights %.2f, cache of %u pages and batch %.2f), but %.2f GiB are free; "
        "a smaller rollout.cache_tokens, rollout.batch_max or model needs less",
        (double)need / GIB, (double)(need - engine) / GIB, plan->core.pages, (double)engine / GIB, (double)available / GIB);
}

/* ---- what there is ---------------------------------------------------------------------------------------------------- */

static bool read_number(const char *path, const char *key, uint64_t unit, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    char line[256];
    unsigned long long v;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        size_t n = strlen(key);
        found = strncmp(line, key, n) == 0 && sscanf(line + n, " %llu", &v) == 1;
    }
    if (f) fclose(f);
    if (found) *out = v * unit;
    return found;
}

uint64_t k2i_memory_available(void)
{
    uint64_t available = UINT64_MAX, limit, used;
    read_number("/proc/meminfo", "MemAvailable:", 1024, &available);
    if (read_number("/sys/fs/cgroup/memory.max", "", 1, &limit) && read_number("/sys/fs/cgroup/memory.current", "", 1, &used))
        available = K2_MIN(available, limit > used ? limit - used : 0);
    return available;
}
