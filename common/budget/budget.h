/* budget - how much memory trainers and rollout workers will take, from the configuration, before anything starts.
 *
 * One place says it: the master's plan (`--dry-run`) prints it, the trainer refuses a machine that is too small, each process
 * logs it beside its peak at the end, and a test holds the two within a tenth of one another. Whoever gives them another buffer
 * adds it here. What is meant is the peak of the resident set (VmHWM): pages of files and of segments that others share count
 * in each process that touches them.
 */
#ifndef K2_COMMON_BUDGET_H
#define K2_COMMON_BUDGET_H

#include "common/config/config.h"
#include "common/model/model.h"

#define K2_BUDGET_CORPUS_BYTES (16u << 20) /* pages of a corpus that a trainer keeps; of a larger one it gives pages back */
#define K2_BUDGET_REPLICAS_MAX 16u         /* lanes that one rank runs side by side */

/* Bytes of one rank: what stands from the start, and the largest of what comes and goes. */
typedef struct k2_budget {
    uint64_t process;    /* code, libraries, stacks, buffers of loop and control plane, flight recorder */
    uint64_t models;     /* parameters and panels, of each replica */
    uint64_t acts;       /* activations of one micro-batch, of each replica */
    uint64_t gradients;  /* one vector a lane, and the shard's sum */
    uint64_t moments;    /* of the shard */
    uint64_t reference;  /* the frozen model of trainer.kl */
    uint64_t muon;       /* directions of the shard, and working memory of each thread */
    uint64_t published;  /* two versions, by rank 0 */
    uint64_t staging;    /* of collectives, as far as it is used */
    uint64_t corpus;     /* pages, and the order of its windows */
    uint64_t training;   /* comes and goes: a batch, what is computed for it, what a step of several updates goes back to */
    uint64_t checkpoint; /* comes and goes: moments gathered to be written, and what of a file is read back at a time */
    uint64_t total;
} k2_budget;

/* k2_budget_trainer - rank `rank` of `ranks`.
 *
 * errors   none; configuration and dims must have passed their checks. A corpus that is not there yet is taken to be as long as
 *          data.task_corpus says
 * threads  reads the header of the corpus: not on a loop after start
 * tests    tests/e2e/memory_test.sh: against the peaks of processes of whole runs
 */
k2_budget k2_budget_trainer(const k2_config *config, const k2_dims *dims, uint32_t rank, uint32_t ranks);

/* Does a trainer hold a frozen reference model? */
bool k2_budget_has_reference(const k2_config *config);

/* Threads of one rank on this machine: trainer.threads, or its share of the cores. */
uint32_t k2_budget_trainer_threads(const k2_config *config);

/* k2_budget_replicas - models that a rank runs side by side: one for each of its lanes, as far as threads go; a single one
 * above 256 MiB of parameters, where a second copy costs more than it brings. */
uint32_t k2_budget_replicas(uint64_t floats, uint32_t threads, uint32_t lanes_local);

/* A matrix that all threads of Muon compute together; of others each thread takes one. */
bool k2_budget_muon_large(uint64_t rows, uint64_t cols);
/* Floats of working memory that Muon takes: for the largest of the large ones, or for each thread that of the largest small one (*small). A
 * matrix takes its direction, two of its size, two of its smaller side squared. */
uint64_t k2_budget_muon_floats(const k2_model_layout *layout, uint32_t threads, uint64_t *small);

/* Bytes of one worker of a run. */
typedef struct k2_budget_engine {
    uint64_t process;
    uint64_t models;   /* active and staged, parameters and panels */
    uint64_t segments; /* of both, and the trainer's pages while it is read */
    uint64_t cache;    /* latent pages, and their books */
    uint64_t acts;     /* of one step */
    uint64_t logits;
    uint64_t requests; /* of the run: what other clients may ask for beside it is bounded, but not foreseen */
    uint64_t total;
} k2_budget_engine;

/* errors and tests as k2_budget_trainer */
k2_budget_engine k2_budget_rollout(const k2_config *config, const k2_dims *dims, uint32_t cores);

/* Threads of an engine where `workers` share this machine's cores: rollout.threads, or as many as the products of a full batch
 * keep busy. */
uint32_t k2_budget_rollout_threads(const k2_config *config, const k2_dims *dims, uint32_t workers, uint32_t cores);

/* Bytes of a segment of weights, and of the largest tensor as f32. */
uint64_t k2_budget_segment(const k2_dims *dims);
uint64_t k2_budget_tensor(const k2_dims *dims);

#endif
