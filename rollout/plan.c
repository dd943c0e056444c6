/* plan - see plan_int.h. */
#include "rollout/plan_int.h"

#include <stdio.h>
#include <string.h>

#include "common/budget/budget.h"

#define GIB 1073741824.0

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
    *out = (k2i_engine_plan){
        .threads = k2_budget_rollout_threads(config, dims, workers, cores),
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

uint64_t k2i_plan_bytes(const k2i_engine_plan *plan, const k2_dims *dims, uint32_t models, bool segments)
{
    const uint64_t weights = segments ? models * k2_budget_segment(dims) : k2_budget_tensor(dims);
    return models * (uint64_t)k2_model_bytes(dims, plan->compute) + weights + k2i_engine_bytes(plan, dims);
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
