/* pull - fetch one version of the weights from whoever holds it, verify all of it, and keep it so that others can fetch it.
 *
 * Blocks: for a worker thread. Nothing of a pull is visible before the whole is verified: every chunk against the manifest's
 * hashes, every tensor against its digest, the manifest against the digest that the master named.
 */
#ifndef K2_ROLLOUT_PULL_INT_H
#define K2_ROLLOUT_PULL_INT_H

#include <stdatomic.h>

#include "common/log/log.h"
#include "common/model/model.h"
#include "common/weights/weights.h"
#include "common/xfer/xfer.h"

typedef struct k2i_pull {
    k2_xfer *xfer;
    const char *const *sources; /* locators, tried in this order; those beyond K2_XFER_SOURCES_MAX are left out */
    uint32_t source_count;
    k2_digest digest;           /* of the weights that are wanted */
    uint64_t deadline_ns;       /* absolute */
    const atomic_bool *cancel;
    k2_model *model;            /* its parameters are overwritten; undefined after an error */
    k2_log *log;
} k2i_pull;

typedef struct k2i_pulled {
    k2_xfer_segment *segment; /* header, manifest and tensors as the sources have them: this process is a source now */
    uint64_t bytes, retries, elsewhere;
} k2i_pulled;

/* k2i_pull_run - fetch, verify, and fill the model.
 *
 * memory   out->segment is the caller's: k2_xfer_segment_destroy
 * errors   those of xfer and of weights, with the source named; CORRUPT where all sources offer other weights (one that does is
 *          left out, and the log says so); CANCELED; TIMEOUT
 * tests    tests/unit/rollout/pull_test.c
 */
k2_code k2i_pull_run(const k2i_pull *p, k2i_pulled *out, k2_error *err);

/* The model's tensors as slots, in the layout's order, with data where the model keeps a vector of parameters; k2_free the array (the names
 * stay the model's). */
k2_weights_slot *k2i_model_slots(k2_model *m, size_t *count);

#endif
