/* budget - how much memory a trainer will take, from its configuration, before anything starts.
 *
 * One place says it: the master's plan (`--dry-run`) prints it, the trainer refuses a machine that is too small, logs it beside its
 * peak at the end, and a test holds the two within a tenth of one another. Whoever gives the trainer another buffer adds it here.
 */
#ifndef K2_COMMON_BUDGET_H
#define K2_COMMON_BUDGET_H

#include "common/config/config.h"
#include "common/model/model.h"

/* Bytes of one rank. */
typedef struct k2_budget {
    uint64_t models;     /* parameters and panels, of each replica */
    uint64_t acts;       /* activations of one micro-batch, of each replica */
    uint64_t gradients;  /* one vector a lane, and the shard's sum */
    uint64_t moments;    /* of the shard */
    uint64_t reference;  /* the frozen model of trainer.kl */
    uint64_t muon;       /* directions of the shard, and working memory of each thread */
    uint64_t published;  /* two versions (of which only rank 0 has any) */
    uint64_t checkpoint; /* moments gathered to be written, and what of a file is read back at a time */
    uint64_t undo;       /* what a step of several updates goes back to */
    uint64_t batches;    /* of pretraining, and of reinforcement learning, with what is computed for each of their tokens */
    uint64_t staging;    /* of collectives */
    uint64_t total;
} k2_budget;

#define K2_BUDGET_REPLICAS_MAX 16u /* lanes that one rank runs side by side */

#define K2_BUDGET_PROCESS_BYTES (10ull << 20) /* code, stacks, buffers of loop and control plane of any process */

/* k2_budget_trainer - one rank of `ranks`, without K2_BUDGET_PROCESS_BYTES and the flight recorder.
 *
 * errors   none; the configuration and the dims must have passed their checks
 * tests    tests/unit/trainer/memory_test.c: against the peak of a process that trains, publishes and saves
 */
k2_budget k2_budget_trainer(const k2_config *config, const k2_dims *dims, uint32_t ranks);

/* Does a trainer hold a frozen reference model? */
bool k2_budget_has_reference(const k2_config *config);

/* Threads of one rank on this machine: trainer.threads, or its share of the cores. */
uint32_t k2_budget_trainer_threads(const k2_config *config);

/* k2_budget_replicas - models that a rank runs side by side: one for each of its lanes, as far as threads go; a single one above 256 MiB
 * of parameters, where a second copy costs more than it brings. */
uint32_t k2_budget_replicas(uint64_t floats, uint32_t threads, uint32_t lanes_local);

/* Floats of working memory that Muon takes for a matrix: its direction, two of its size, two of its smaller side squared. */
uint64_t k2_budget_muon_floats(uint64_t rows, uint64_t cols);

#endif
