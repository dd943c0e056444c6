/* metrics - see metrics_int.h. */
#include "trainer/metrics_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t find(const k2i_metrics *m, const char *name)
{
    uint32_t i = 0;
    while (i < m->count && strcmp(m->items[i].name, name) != 0) i++;
    return i;
}

void k2i_metrics_set(k2i_metrics *m, const char *name, double value)
{
    uint32_t i = find(m, name);
    if (i == m->count) {
        K2_ASSERT(m->count < K2I_METRICS_MAX && strlen(name) < K2I_METRIC_NAME_MAX);
        memcpy(m->items[m->count++].name, name, strlen(name) + 1);
    }
    m->items[i].value = value;
}

double k2i_metrics_get(const k2i_metrics *m, const char *name)
{
    uint32_t i = find(m, name);
    return i < m->count ? m->items[i].value : (double)NAN;
}

void k2i_metrics_loads(k2i_metrics *m, k2i_learner *l)
{
    const k2_dims *dims = k2_model_dims(k2i_learner_model(l));
    const double *load = k2i_learner_loads(l);
    uint32_t experts = dims->n_routed_experts, layers = 0;
    double total = 0, worst = 0;
    for (uint32_t layer = 0; layer < dims->num_hidden_layers; layer++) {
        if (!k2_dims_is_moe(dims, layer)) continue;
        double sum = 0, most = 0;
        for (uint32_t e = 0; e < experts; e++, load++) {
            sum += *load;
            most = K2_MAX(most, *load);
        }
        double excess = sum > 0 ? most * experts / sum - 1 : 0;
        char name[K2I_METRIC_NAME_MAX];
        snprintf(name, sizeof(name), "load_max_vio.%u", layer);
        k2i_metrics_set(m, name, excess);
        total += excess;
        worst = K2_MAX(worst, excess);
        layers++;
    }
    k2i_metrics_set(m, "load_max_vio", layers > 0 ? total / layers : 0);
    k2i_metrics_set(m, "load_max_vio_max", worst);
}

void k2i_metrics_speed(k2i_metrics *m, double tokens, double seconds)
{
    k2i_metrics_set(m, "tokens", tokens);
    k2i_metrics_set(m, "seconds", seconds);
    k2i_metrics_set(m, "tokens_per_s", seconds > 0 ? tokens / seconds : 0);
}
