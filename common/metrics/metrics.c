/* metrics: the registry, and its Prometheus text. */
#include "common/metrics/metrics.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef enum kind { COUNTER, GAUGE, HISTOGRAM } kind;
static const char *const kind_names[] = {"counter", "gauge", "histogram"};

struct k2_metric {
    kind kind;
    char *name, *labels, *help;
    _Atomic uint64_t value_bits; /* a double; the sum of a histogram */
    size_t bound_count;
    double bounds[K2_METRICS_BOUNDS_MAX];
    _Atomic uint64_t below[K2_METRICS_BOUNDS_MAX + 1]; /* not cumulative; the last one is +Inf */
};

struct k2_metrics {
    pthread_mutex_t lock;
    k2_metric *list[K2_METRICS_MAX];
    uint32_t count;
};

static double to_double(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static uint64_t to_bits(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

k2_metrics *k2_metrics_new(void)
{
    k2_metrics *m = k2_alloc(sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

void k2_metrics_free(k2_metrics *m)
{
    if (!m) return;
    for (uint32_t i = 0; i < m->count; i++) {
        k2_free(m->list[i]->name);
        k2_free(m->list[i]->labels);
        k2_free(m->list[i]->help);
        k2_free(m->list[i]);
    }
    pthread_mutex_destroy(&m->lock);
    k2_free(m);
}

static bool name_ok(const char *s)
{
    if (!isalpha((unsigned char)*s) && *s != '_') return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && *s != '_') return false;
    return true;
}

/* Whole before any other thread can find it. */
static k2_metric *make(k2_metrics *m, kind k, const char *name, const char *labels, const char *help, const double *bounds,
                       size_t bound_count)
{
    K2_ASSERT(name_ok(name));
    k2_metric *found = NULL;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->count; i++) {
        if (strcmp(m->list[i]->name, name) != 0) continue;
        K2_ASSERT(m->list[i]->kind == k);
        if (strcmp(m->list[i]->labels, labels) == 0) found = m->list[i];
    }
    if (!found) {
        K2_ASSERT(m->count < K2_METRICS_MAX);
        found = k2_alloc(sizeof *found);
        found->kind = k;
        found->name = k2_strdup(name);
        found->labels = k2_strdup(labels);
        found->help = k2_strdup(help);
        for (size_t i = 0; i < bound_count; i++) found->bounds[i] = bounds[i];
        found->bound_count = bound_count;
        m->list[m->count++] = found;
    }
    pthread_mutex_unlock(&m->lock);
    return found;
}

k2_metric *k2_metrics_counter(k2_metrics *m, const char *name, const char *labels, const char *help)
{
    return make(m, COUNTER, name, labels, help, NULL, 0);
}

k2_metric *k2_metrics_gauge(k2_metrics *m, const char *name, const char *labels, const char *help)
{
    return make(m, GAUGE, name, labels, help, NULL, 0);
}

k2_metric *k2_metrics_histogram(k2_metrics *m, const char *name, const char *labels, const char *help, const double *bounds,
                                size_t count)
{
    K2_ASSERT(count >= 1 && count <= K2_METRICS_BOUNDS_MAX);
    for (size_t i = 1; i < count; i++) K2_ASSERT(bounds[i - 1] < bounds[i]);
    return make(m, HISTOGRAM, name, labels, help, bounds, count);
}

static void add(_Atomic uint64_t *bits, double v)
{
    uint64_t old = atomic_load_explicit(bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(bits, &old, to_bits(to_double(old) + v), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void k2_metric_add(k2_metric *m, double v)
{
    K2_ASSERT(m->kind == GAUGE || (m->kind == COUNTER && v >= 0));
    add(&m->value_bits, v);
}

void k2_metric_set(k2_metric *m, double v)
{
    K2_ASSERT(m->kind == GAUGE);
    atomic_store_explicit(&m->value_bits, to_bits(v), memory_order_relaxed);
}

void k2_metric_observe(k2_metric *m, double v)
{
    K2_ASSERT(m->kind == HISTOGRAM);
    size_t i = 0;
    while (i < m->bound_count && !(v <= m->bounds[i])) i++; /* NaN counts as above every bound */
    atomic_fetch_add_explicit(&m->below[i], 1, memory_order_relaxed);
    add(&m->value_bits, v);
}

double k2_metric_value(const k2_metric *m)
{
    return to_double(atomic_load_explicit(&m->value_bits, memory_order_relaxed));
}

uint64_t k2_metric_count(const k2_metric *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= m->bound_count; i++) n += atomic_load_explicit(&m->below[i], memory_order_relaxed);
    return n;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void put_value(k2_buf *out, double v)
{
    if (isnan(v))
        k2_buf_puts(out, " NaN\n");
    else if (isinf(v))
        k2_buf_puts(out, v > 0 ? " +Inf\n" : " -Inf\n");
    else
        k2_buf_printf(out, " %.17g\n", v);
}

static void put_series(k2_buf *out, const k2_metric *m, const char *suffix, const char *more)
{
    k2_buf_printf(out, "%s%s", m->name, suffix);
    if (m->labels[0] || more[0]) k2_buf_printf(out, "{%s%s%s}", m->labels, m->labels[0] && more[0] ? "," : "", more);
}

static void put_histogram(k2_buf *out, const k2_metric *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i <= m->bound_count; i++) {
        char le[48] = "le=\"+Inf\"";
        if (i < m->bound_count) snprintf(le, sizeof le, "le=\"%.9g\"", m->bounds[i]);
        sum += atomic_load_explicit(&m->below[i], memory_order_relaxed);
        put_series(out, m, "_bucket", le);
        k2_buf_printf(out, " %llu\n", (unsigned long long)sum);
    }
    put_series(out, m, "_sum", "");
    put_value(out, k2_metric_value(m));
    put_series(out, m, "_count", "");
    k2_buf_printf(out, " %llu\n", (unsigned long long)sum);
}

static void put_help(k2_buf *out, const k2_metric *m)
{
    k2_buf_printf(out, "# HELP %s ", m->name);
    for (const char *s = m->help; *s; s++) {
        if (*s == '\\' || *s == '\n') k2_buf_puts(out, *s == '\\' ? "\\\\" : "\\n");
        if (*s != '\\' && *s != '\n') k2_buf_append(out, s, 1);
    }
    k2_buf_printf(out, "\n# TYPE %s %s\n", m->name, kind_names[m->kind]);
}

/* All series of one name must stand together, whenever they were made. */
static void put_name(k2_buf *out, k2_metrics *m, uint32_t first)
{
    put_help(out, m->list[first]);
    for (uint32_t i = first; i < m->count; i++) {
        k2_metric *s = m->list[i];
        if (strcmp(s->name, m->list[first]->name) != 0) continue;
        if (s->kind == HISTOGRAM) {
            put_histogram(out, s);
        } else {
            put_series(out, s, "", "");
            put_value(out, k2_metric_value(s));
        }
    }
}

bool k2_metrics_text(k2_metrics *m, k2_buf *out)
{
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->count; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++) seen = strcmp(m->list[k]->name, m->list[i]->name) == 0;
        if (!seen) put_name(out, m, i);
    }
    pthread_mutex_unlock(&m->lock);
    return !out->overflow;
}
