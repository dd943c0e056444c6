/* plan: what a run will take, computed from the configuration before anything starts. */
#include "master/io_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/budget/budget.h"

#define PROCESS_BYTES (8ull << 20) /* code, stacks, buffers of loop and control plane of any process */
#define PEER_BYTES    (6u << 10) /* of the control plane for each worker: connection, waiting POLL, last replies; bench/scale */
#define ENGINE_BYTES  1200u      /* of the proxy for each engine: K2I_PX_ENGINE_BYTES */
#define PROMPT_GUESS  64u  /* tokens of a prompt, where the file is made only at the start: those of the tasks are shorter */
#define PROMPT_BYTES  256u /* of a prompt besides its tokens: its line, its texts */

/* Parameters that one token runs through: of the routed experts only the chosen ones. */
static void count_params(const k2_dims *d, k2m_plan *out)
{
    k2_model_layout *l = k2_model_layout_new(d);
    double active = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        double n = (double)l->params[i].count;
        out->params += (uint64_t)n;
        bool routed = strstr(l->params[i].name, ".mlp.experts.") != NULL;
        active += routed ? n * d->num_experts_per_tok / d->n_routed_experts : n;
    }
    out->active_params = (uint64_t)active;
    k2_model_layout_free(l);
}

static uint64_t cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint64_t)n : 1;
}

/* Without the journal's pages: those are the kernel's, who takes them back where it needs them. */
static uint64_t master_bytes(const k2m_run *r)
{
    const k2_config *c = &r->config;
    bool guess = r->train.count == 0;
    k2m_core_config cc = {.config = c,
                          .prompts = {.count = guess ? (uint32_t)c->data_task_prompts : r->train.count,
                                      .length_max = guess ? PROMPT_GUESS : r->train.length_max}};
    if (strcmp(c->mode, "pretrain") == 0) cc.prompts = (k2m_prompts){0};
    uint64_t workers = c->trainer_ranks + c->rollout_workers + 1,
             prompts = cc.prompts.count + K2_MIN(r->heldout.count, K2M_EVAL_MAX);
    uint64_t tokens = K2_MIN(cc.prompts.length_max, 4096u);
    return PROCESS_BYTES + k2m_core_bytes(&cc) + workers * (PEER_BYTES + sizeof(k2m_slot)) +
           2 * c->master_inflight_max * sizeof(k2m_action) + prompts * (PROMPT_BYTES + tokens * sizeof(int32_t)) +
           K2M_EVAL_MAX * sizeof *((k2m_io *)0)->eval;
}

/* What the machine has, or what its control group (a container's) leaves of it. */
static uint64_t machine_bytes(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
    uint64_t bytes = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0, limit;
    for (size_t i = 0; i < K2_COUNT(limits); i++) {
        char *text = NULL;
        size_t n;
        if (k2_file_read(limits[i], 64, &text, &n, NULL) != K2_OK) continue;
        text[strcspn(text, "\n")] = 0;
        if (k2_str_u64(text, &limit) && limit > 0) bytes = K2_MIN(bytes, limit); /* "max" is no number */
        k2_free(text);
    }
    return bytes;
}

void k2m_plan_make(const k2m_run *r, k2m_plan *out)
{
    const k2_config *c = &r->config;
    bool pretrain = strcmp(c->mode, "pretrain") == 0;
    *out = (k2m_plan){.machine_bytes = machine_bytes()};
    count_params(&r->dims, out);
    uint64_t flight = c->run_flight_kib << 10; /* pages of a file: they stay in memory as long as the process writes them */
    uint32_t ranks = (uint32_t)c->trainer_ranks;
    out->master_bytes = master_bytes(r) + flight;
    out->trainer_bytes = k2_budget_trainer(c, &r->dims, 0, ranks).total;
    out->total_bytes = out->master_bytes + out->trainer_bytes;
    if (ranks > 1) out->total_bytes += (ranks - 1) * k2_budget_trainer(c, &r->dims, 1, ranks).total;
    if (pretrain) return;
    out->rollout_bytes = k2_budget_rollout(c, &r->dims, (uint32_t)cores()).total;
    out->proxy_bytes = PROCESS_BYTES + flight + c->proxy_queue_max * 8192 + c->rollout_workers * ENGINE_BYTES;
    out->total_bytes += c->rollout_workers * out->rollout_bytes + out->proxy_bytes;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1ull << 30);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)(1ull << 20);
}

k2_code k2m_plan_check(const k2m_run *r, k2_error *err)
{
    k2m_plan p;
    k2m_plan_make(r, &p);
    if (p.machine_bytes == 0 || p.total_bytes <= p.machine_bytes) return K2_OK;
    return k2_error_set(err, K2_LIMIT,
                        "memory: the run needs %.1f GiB (trainer %.1f x %llu, rollout %.1f x %llu), the machine has %.1f GiB",
                        gib(p.total_bytes), gib(p.trainer_bytes), (unsigned long long)r->config.trainer_ranks,
                        gib(p.rollout_bytes), (unsigned long long)r->config.rollout_workers, gib(p.machine_bytes));
}

static void print_data(const char *what, const char *path, const k2m_prompt_set *s)
{
    if (s->count)
        printf("  %-10s %u prompts, longest %u tokens: %s\n", what, s->count, s->length_max, path);
    else
        printf("  %-10s %s\n", what, path[0] ? path : "generated where missing");
}

void k2m_plan_print(const k2m_run *r)
{
    const k2_config *c = &r->config;
    bool pretrain = strcmp(c->mode, "pretrain") == 0;
    k2m_plan p;
    k2m_plan_make(r, &p);
    printf("run        %s (%s), %s, seed %llu\n", c->run_dir, r->existed ? "will be resumed" : "new", c->mode,
           (unsigned long long)c->seed);
    printf("model      %.3f million parameters, %.3f million active for one token, products in %s\n", (double)p.params / 1e6,
           (double)p.active_params / 1e6, c->model_compute);
    printf("processes\n");
    printf("  master     1   %9.1f MiB at most   control at %s\n", mib(p.master_bytes),
           c->master_listen[0] ? c->master_listen : "a socket in the run directory");
    printf("  trainer    %-3llu %9.1f MiB           %u threads each, tensors by %s\n", (unsigned long long)c->trainer_ranks,
           mib(p.trainer_bytes), k2_budget_trainer_threads(c), c->xfer_transport);
    if (!pretrain) {
        printf("  rollout    %-3llu %9.1f MiB           %u threads each, any free port of 127.0.0.1\n",
               (unsigned long long)c->rollout_workers, mib(p.rollout_bytes),
               k2_budget_rollout_threads(c, &r->dims, (uint32_t)c->rollout_workers, (uint32_t)cores()));
        printf("  proxy      1   %9.1f MiB at most   %s\n", mib(p.proxy_bytes), c->proxy_listen);
    }
    printf("memory     %.1f MiB of %.1f MiB\n", mib(p.total_bytes), mib(p.machine_bytes));
    printf("data\n");
    if (c->data_task[0]) printf("  %-10s %s\n", "task", c->data_task);
    if (!pretrain) {
        print_data("prompts", c->data_prompts, &r->train);
        print_data("heldout", c->data_heldout, &r->heldout);
    }
    if (c->pretrain_steps && r->corpus_tokens)
        printf("  %-10s %llu tokens: %s\n", "corpus", (unsigned long long)r->corpus_tokens, c->data_corpus);
    else if (c->pretrain_steps)
        printf("  %-10s generated where missing\n", "corpus");
    printf("plan       %llu pretraining steps of %llu x %llu tokens", (unsigned long long)c->pretrain_steps,
           (unsigned long long)c->pretrain_batch_sequences, (unsigned long long)c->pretrain_sequence_tokens);
    if (!pretrain)
        printf(", then %llu iterations of up to %llu x %llu trajectories with a budget of %llu of %llu tokens",
               (unsigned long long)c->iterations, (unsigned long long)k2m_step_groups(c),
               (unsigned long long)c->rollout_group_size, (unsigned long long)c->rollout_budget_tokens,
               (unsigned long long)c->rollout_max_tokens);
    printf("\nnothing was started\n");
}
