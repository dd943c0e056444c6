/* work - what commands do: everything slow of one rank, run one at a time on a worker thread.
 *
 * The noun is `k2i_work`: the group of ranks, the learner, the corpus, the published segments. The I/O half calls one function
 * a command and turns the `k2i_result` into DONE. Except for k2i_work_open and k2i_work_close all of them are collectives.
 */
#ifndef K2_TRAINER_WORK_INT_H
#define K2_TRAINER_WORK_INT_H

#include <stdatomic.h>

#include "common/config/config.h"
#include "common/log/log.h"
#include "common/quarantine/quarantine.h"
#include "common/xfer/xfer.h"
#include "trainer/checkpoint_int.h"
#include "trainer/learner_int.h"
#include "trainer/metrics_int.h"
#include "trainer/pretrain_int.h"

typedef struct k2i_result {
    k2_error error;               /* code OK: done */
    bool unchanged;               /* with an error: state is as before, on all ranks */
    uint64_t step, pretrain_step; /* after INIT */
    uint64_t version, bytes;
    k2_digest digest;
    char locator[K2_XFER_LOCATOR_MAX]; /* "": none to give */
    bool has_locator;
    k2i_metrics metrics;
} k2i_result;

typedef struct k2i_work {
    k2_config config;
    uint32_t rank, ranks;
    k2_log *log; /* may be NULL */
    k2_xfer *xfer;
    k2_coll *coll;
    k2_dims dims;
    k2i_learner *learner;   /* NULL before INIT */
    k2i_pretrain *pretrain; /* opened by the first PRETRAIN */
    k2i_moments moments;    /* whose moments the optimizer holds */
    uint64_t step, pretrain_step;
    k2_xfer_segment *published[2]; /* the version published last, and the one before */
    _Atomic uint64_t progress, tokens; /* steps done and what was in them, read by the loop's thread for POLL */
} k2i_work;

/* k2i_work_open - start the transfer engine.
 *
 * memory   config is copied; log may be NULL and stays the caller's; end with k2i_work_close
 * errors   those of k2_xfer_open
 */
k2_code k2i_work_open(k2i_work *w, const k2_config *config, uint32_t rank, k2_log *log, k2_error *err);
void k2i_work_close(k2i_work *w);

/* The commands of trainer.h. `out` is zeroed first; each sets out->error. */
void k2i_work_join(k2i_work *w, k2i_result *out);
void k2i_work_init(k2i_work *w, const char *const *locators, uint32_t count, const char *source, uint64_t step,
                   k2i_result *out);
void k2i_work_pretrain(k2i_work *w, uint64_t from, uint64_t to, k2i_result *out);
void k2i_work_train(k2i_work *w, uint64_t step, const char *locator, uint64_t bytes, k2_digest digest, k2i_result *out);
void k2i_work_publish(k2i_work *w, uint64_t version, k2i_result *out);
void k2i_work_save(k2i_work *w, const char *dir, uint64_t step, k2i_result *out);

/* ---- inside work ---- */

/* Bytes the machine has, or the control group allows, whichever is less. */
uint64_t k2i_memory_machine(void);
/* What the configuration says of a learner; without coll. */
k2i_learner_config k2i_learner_config_of(const k2_config *config, const k2_dims *dims);
/* One verdict for all ranks: own error where there is one, else that of the lowest rank that has one (AGAIN, names the rank).
 * *unchanged says whether all ranks came to it. */
k2_code k2i_agree(k2i_work *w, k2_code own, bool *unchanged, k2_error *err);
/* Digest of the present weights. */
k2_digest k2i_work_digest(const k2i_work *w);
/* Moments are of one phase; entering another one forgets them. */
void k2i_moments_enter(k2i_work *w, k2i_moments phase);
/* k2i_put_aside - the step that has just been skipped goes into quarantine: its batch, and a copy of the state that it began
 * from, which is the present one. A collective; rank 0 writes.
 *
 * keeps    a quarantine that is full, or a disk that is, is logged and costs nothing else
 * errors   those of the collectives
 */
typedef struct k2i_bad_step {
    k2_quarantine_kind kind;     /* STEP or PRETRAIN */
    uint64_t step;
    k2i_checkpoint start;        /* step and pretrain_step of the state; the rest is filled in */
    const void *bytes;           /* the batch, encoded */
    size_t len;
    const char *bad;             /* what was NaN or infinite */
} k2i_bad_step;
k2_code k2i_put_aside(k2i_work *w, const k2i_bad_step *s, k2_error *err);
/* Both moments of all ranks, m and v [floats], and how many updates they are of. A collective. */
k2_code k2i_moments_gather(k2i_work *w, float *m, float *v, k2_error *err);

#endif
