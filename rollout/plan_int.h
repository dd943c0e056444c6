/* plan - from the configuration and the model's sizes to the sizes of an engine, and what all of it takes in memory. Pure, but
 * for k2i_memory_available. */
#ifndef K2_ROLLOUT_PLAN_INT_H
#define K2_ROLLOUT_PLAN_INT_H

#include "common/config/config.h"
#include "rollout/engine_int.h"

/* k2i_plan_engine - `workers` processes share this machine's `cores`.
 *
 * errors   BAD_INPUT naming the key where the sizes do not go together
 */
k2_code k2i_plan_engine(const k2_config *config, const k2_dims *dims, uint32_t workers, uint32_t cores, k2i_engine_plan *out,
                        k2_error *err);

/* Bytes of a worker: `models` models (two in a run: active and staged), as many segments of weights, or else the one tensor that is being
 * loaded, and the engine. */
uint64_t k2i_plan_bytes(const k2i_engine_plan *plan, const k2_dims *dims, uint32_t models, bool segments);

/* Bytes that this process may still take: the least of what the machine has free and what its control group leaves. */
uint64_t k2i_memory_available(void);

/* k2i_plan_check - LIMIT "rollout needs 12.3 GiB (...), 4.0 GiB are free" when it does not fit. */
k2_code k2i_plan_check(const k2i_engine_plan *plan, const k2_dims *dims, uint32_t models, bool segments, uint64_t available,
                       k2_error *err);

#endif
