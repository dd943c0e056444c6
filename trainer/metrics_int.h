/* metrics - the named numbers that a command answers with. trainer.h lists the names. */
#ifndef K2_TRAINER_METRICS_INT_H
#define K2_TRAINER_METRICS_INT_H

#include "common/base/base.h"
#include "trainer/learner_int.h"

#define K2I_METRIC_NAME_MAX 32u
#define K2I_METRICS_MAX     (K2_DIM_LAYERS_MAX + 64u) /* one of each MoE layer, and room for all others */

typedef struct k2i_metrics {
    uint32_t count;
    struct {
        char name[K2I_METRIC_NAME_MAX];
        double value;
    } items[K2I_METRICS_MAX];
} k2i_metrics;

/* Set a metric, adding it where it is new. */
void k2i_metrics_set(k2i_metrics *m, const char *name, double value);
double k2i_metrics_get(const k2i_metrics *m, const char *name); /* NaN: not there */

/* load_max_vio and its kin from the learner's last pass: max over experts of load / mean load, minus 1. */
void k2i_metrics_loads(k2i_metrics *m, k2i_learner *l);
/* tokens, seconds, tokens_per_s. */
void k2i_metrics_speed(k2i_metrics *m, double tokens, double seconds);

#endif
