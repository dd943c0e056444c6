/* metrics: the exact Prometheus text, and updates from several threads. */
#include "common/metrics/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void text(void **state)
{
    (void)state;
    k2_metrics *m = k2_metrics_new();
    static const double bounds[] = {0.1, 1, 10};
    k2_metric *requests = k2_metrics_counter(m, "k2_requests_total", "engine=\"1\"", "Requests\nby \\engine");
    k2_metric *depth = k2_metrics_gauge(m, "k2_depth", "", "Depth");
    k2_metric *seconds = k2_metrics_histogram(m, "k2_seconds", "engine=\"1\"", "Seconds", bounds, 3);
    k2_metric *other = k2_metrics_counter(m, "k2_requests_total", "engine=\"2\"", "Requests\nby \\engine");
    assert_ptr_equal(requests, k2_metrics_counter(m, "k2_requests_total", "engine=\"1\"", ""));
    k2_metric_add(requests, 3);
    k2_metric_add(other, 1);
    k2_metric_set(depth, -2.5);
    k2_metric_add(depth, 0.25);
    k2_metric_observe(seconds, 0.1);
    k2_metric_observe(seconds, 5);
    k2_metric_observe(seconds, 50);
    k2_buf out;
    k2_buf_init(&out, 1 << 16);
    assert_true(k2_metrics_text(m, &out));
    assert_string_equal(out.data, "# HELP k2_requests_total Requests\\nby \\\\engine\n"
                                  "# TYPE k2_requests_total counter\n"
                                  "k2_requests_total{engine=\"1\"} 3\n"
                                  "k2_requests_total{engine=\"2\"} 1\n"
                                  "# HELP k2_depth Depth\n"
                                  "# TYPE k2_depth gauge\n"
                                  "k2_depth -2.25\n"
                                  "# HELP k2_seconds Seconds\n"
                                  "# TYPE k2_seconds histogram\n"
                                  "k2_seconds_bucket{engine=\"1\",le=\"0.1\"} 1\n"
                                  "k2_seconds_bucket{engine=\"1\",le=\"1\"} 1\n"
                                  "k2_seconds_bucket{engine=\"1\",le=\"10\"} 2\n"
                                  "k2_seconds_bucket{engine=\"1\",le=\"+Inf\"} 3\n"
                                  "k2_seconds_sum{engine=\"1\"} 55.100000000000001\n"
                                  "k2_seconds_count{engine=\"1\"} 3\n");
    k2_buf small;
    k2_buf_init(&small, 100);
    assert_false(k2_metrics_text(m, &small));
    k2_metric_set(depth, NAN);
    k2_buf_clear(&out);
    assert_true(k2_metrics_text(m, &out));
    assert_non_null(strstr(out.data, "k2_depth NaN\n"));
    k2_buf_fini(&small);
    k2_buf_fini(&out);
    k2_metrics_free(m);
}

static void *hammer(void *arg)
{
    k2_metric **list = arg;
    for (int i = 0; i < 20000; i++) {
        k2_metric_add(list[0], 1);
        k2_metric_observe(list[1], i % 3);
    }
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    k2_metrics *m = k2_metrics_new();
    static const double bounds[] = {0.5};
    k2_metric *list[] = {k2_metrics_counter(m, "a", "", ""), k2_metrics_histogram(m, "b", "", "", bounds, 1)};
    pthread_t t[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, hammer, list), 0);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    assert_true(k2_metric_value(list[0]) == 60000);
    assert_int_equal(k2_metric_count(list[1]), 60000);
    k2_metrics_free(m);
}

static void *find_and_observe(void *arg)
{
    static const double bounds[] = {1, 2, 3, 4, 5, 6, 7, 8};
    char labels[16];
    for (int i = 0; i < 100; i++) {
        snprintf(labels, sizeof labels, "i=\"%d\"", i);
        k2_metric_observe(k2_metrics_histogram(arg, "c", labels, "", bounds, K2_COUNT(bounds)), 4.5);
    }
    return NULL;
}

/* Whoever finds a histogram that another thread has just made finds its bounds, too. */
static void threads_make_the_same(void **state)
{
    (void)state;
    k2_metrics *m = k2_metrics_new();
    pthread_t t[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, find_and_observe, m), 0);
    k2_buf out;
    k2_buf_init(&out, 1 << 20);
    for (int i = 0; i < 20; i++) {
        k2_buf_clear(&out);
        assert_true(k2_metrics_text(m, &out));
    }
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    k2_buf_clear(&out);
    assert_true(k2_metrics_text(m, &out));
    const char *at = out.data;
    for (int i = 0; i < 100; i++) {
        assert_non_null(at = strstr(at, ",le=\"4\"} 0\n"));
        assert_non_null(at = strstr(at, ",le=\"5\"} 3\n"));
    }
    k2_buf_fini(&out);
    k2_metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text), cmocka_unit_test(threads),
                                       cmocka_unit_test(threads_make_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
