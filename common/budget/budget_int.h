/* budget_int - what both kinds of process have. */
#ifndef K2_BUDGET_INT_H
#define K2_BUDGET_INT_H

#include "common/budget/budget.h"

/* Code and libraries, stacks, buffers of loop and control plane of any worker, and its flight recorder. */
uint64_t k2i_budget_process(const k2_config *config);

/* Tokens of a prompt and an answer at most. */
uint64_t k2i_budget_context(const k2_config *config, const k2_dims *dims);

#endif
