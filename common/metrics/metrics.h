/* metrics - numbers that a process shows about itself, and the two formats others read them in.
 *
 * Nouns: a *registry* holds *metrics*; a metric is a counter (only rises), a gauge (is set) or a histogram (counts observations
 * below fixed bounds). Metrics live as long as their registry. Updates are atomic and take no lock, so any thread may make
 * them; making metrics and writing text take the registry's lock.
 * A *k2_tb* writes one TensorBoard event file; it belongs to one thread.
 */
#ifndef K2_COMMON_METRICS_H
#define K2_COMMON_METRICS_H

#include "common/base/base.h"

#define K2_METRICS_MAX 512u       /* metrics (series) in one registry: a few dozen names with labels of workers */
#define K2_METRICS_BOUNDS_MAX 24u /* bounds of one histogram */

typedef struct k2_metrics k2_metrics;
typedef struct k2_metric k2_metric;

k2_metrics *k2_metrics_new(void);
void k2_metrics_free(k2_metrics *m);

/* k2_metrics_counter, _gauge, _histogram - make a series, or find it where the same name and labels were made before.
 *
 * labels   "" or `engine="3",kind="shm"` (Prometheus form, without braces)
 * errors   bad names ([a-zA-Z_][a-zA-Z0-9_]*), a second kind under one name, K2_METRICS_MAX are asserted: names are code, not
 *          input
 * source   Prometheus text exposition format 0.0.4
 * tests    tests/unit/metrics/metrics_test.c
 */
k2_metric *k2_metrics_counter(k2_metrics *m, const char *name, const char *labels, const char *help);
k2_metric *k2_metrics_gauge(k2_metrics *m, const char *name, const char *labels, const char *help);
/* bounds rise strictly; +Inf is implied. */
k2_metric *k2_metrics_histogram(k2_metrics *m, const char *name, const char *labels, const char *help, const double *bounds,
                                size_t count);

void k2_metric_add(k2_metric *m, double v);     /* counter (v >= 0) and gauge */
void k2_metric_set(k2_metric *m, double v);     /* gauge */
void k2_metric_observe(k2_metric *m, double v); /* histogram */
double k2_metric_value(const k2_metric *m);     /* counter, gauge; sum of a histogram */
uint64_t k2_metric_count(const k2_metric *m);   /* observations of a histogram */

/* Everything as Prometheus text, names in the order they were made, HELP and TYPE once a name. False on overflow of the buffer.
 * */
bool k2_metrics_text(k2_metrics *m, k2_buf *out);
#define K2_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* ---- TensorBoard ------------------------------------------------------------------------------------------------- */

/* k2_tb_open - create `dir`/events.out.tfevents.<seconds>.<host>.<pid>.<n> and write its first record (file_version).
 *
 * errors   IO, NO_SPACE, NOT_FOUND with the path
 * source   TFRecord framing and event.proto of TensorFlow; CRC-32C (Castagnoli), masked by rotation and addition
 * tests    tests/unit/metrics/tensorboard_test.c, tests/interop/metrics
 */
typedef struct k2_tb k2_tb;
k2_code k2_tb_open(const char *dir, k2_tb **out, k2_error *err);
/* One scalar. Buffered; step counts from 0, wall_s is seconds since 1970. */
void k2_tb_scalar(k2_tb *tb, const char *tag, int64_t step, double value, double wall_s);
void k2_tb_text(k2_tb *tb, const char *tag, int64_t step, const char *text, double wall_s);
k2_code k2_tb_flush(k2_tb *tb, k2_error *err); /* hands what is buffered to the kernel; blocks */
void k2_tb_close(k2_tb *tb);                   /* flushes; NULL is OK */
const char *k2_tb_path(const k2_tb *tb);

/* The pieces, for tests. */
uint32_t k2_tb_crc32c(const void *bytes, size_t n);
uint32_t k2_tb_crc32c_masked(const void *bytes, size_t n);
void k2_tb_frame(k2_buf *out, const void *bytes, size_t n); /* length, its crc, bytes, their crc */

#endif
