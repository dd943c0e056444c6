/* What recording costs: CSV lines `name,value,unit,ratio,against`. Each kind of event takes turns with reading the clock, which
 * is the least that an event with a time can cost; a ratio is the median of the turns' ratios, the clock's time over ours. */
#include "common/flight/flight.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 9, EACH = 200000, THREADS = 2 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, TURNS, sizeof *v, by_value);
    return v[TURNS / 2];
}

static uint64_t sink;

static void clock_read(uint64_t i)
{
    sink += k2_now_ns() + i;
}

static void copy(uint64_t i)
{
    static uint64_t ring[4096][8];
    uint64_t w[8] = {i, i, i, i, i, i, i, i};
    memcpy(ring[i % 4096], w, sizeof w);
    __asm__ volatile("" ::"r"(ring) : "memory"); /* it must happen */
}

static void mark(uint64_t i)
{
    k2_flight_mark(K2_FLIGHT_TEST, i, i, i, i);
}

static void span(uint64_t i)
{
    k2_flight_end(k2_flight_begin(K2_FLIGHT_TEST, i, i, i, i));
}

static double per_call(void (*fn)(uint64_t i))
{
    uint64_t start = k2_now_ns();
    for (uint64_t i = 0; i < EACH; i++) fn(i);
    return (double)(k2_now_ns() - start) / EACH;
}

static void compare(const char *name, void (*fn)(uint64_t i), const char *against, void (*other)(uint64_t i))
{
    double ns[TURNS], ratio[TURNS];
    for (int t = 0; t < TURNS; t++) {
        ns[t] = per_call(fn);
        ratio[t] = per_call(other) / ns[t];
    }
    printf("%s,%.1f,ns,%.3f,%s\n", name, median(ns), median(ratio), against);
}

static void *marks(void *arg)
{
    *(double *)arg = per_call(mark);
    return NULL;
}

/* All write into one ring: they share its counter, and nothing else. */
static void together(void)
{
    double ns[TURNS], each[THREADS];
    for (int t = 0; t < TURNS; t++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, marks, &each[i]);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        ns[t] = (each[0] + each[1]) / THREADS;
    }
    printf("flight_mark_two_threads,%.1f,ns,,\n", median(ns));
}

int main(void)
{
    char dir[] = "/tmp/k2_flight_bench_XXXXXX";
    k2_error err;
    if (!mkdtemp(dir)) return 1;
    printf("name,value,unit,ratio,against\n");
    compare("flight_mark_off", mark, "clock_gettime", clock_read);
    k2_flight_config config = {.dir = dir, .role = "master", .kib = 256};
    if (k2_flight_open(&config, &err) != K2_OK) {
        fprintf(stderr, "flight_bench: %s\n", err.text);
        return 1;
    }
    compare("flight_mark", mark, "clock_gettime", clock_read);
    compare("flight_mark", mark, "memcpy of 64 bytes", copy);
    compare("flight_span", span, "clock_gettime", clock_read);
    together();
    k2_flight_close();
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : 1;
}
