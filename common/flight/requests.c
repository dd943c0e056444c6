/* Starts and finishes of one ring, brought together by name and id. */
#include "common/flight/trace_int.h"

#include <stdlib.h>

static int by_id(const void *a, const void *b)
{
    const k2_flight_event *x = *(const k2_flight_event *const *)a, *y = *(const k2_flight_event *const *)b;
    if (x->name != y->name) return x->name < y->name ? -1 : 1;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int by_start(const void *a, const void *b)
{
    const k2i_flight_request *x = a, *y = b;
    uint64_t s = x->start ? x->start->begin_ns : 0, t = y->start ? y->start->begin_ns : 0;
    return s < t ? -1 : s > t;
}

k2i_flight_request *k2i_flight_requests_of(const k2_flight_ring *ring, size_t *count)
{
    size_t n = 0;
    const k2_flight_event **list = k2_alloc_array(ring->count, sizeof *list);
    k2i_flight_request *out = k2_alloc_array(ring->count, sizeof *out);
    for (size_t i = 0; i < ring->count; i++) {
        const k2_flight_event *e = &ring->events[i];
        if (e->kind == K2_FLIGHT_IS_START || e->kind == K2_FLIGHT_IS_FINISH) list[n++] = e;
    }
    if (n > 0) qsort(list, n, sizeof *list, by_id);
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        const k2_flight_event *e = list[i], *next = i + 1 < n ? list[i + 1] : NULL;
        k2i_flight_request *r = &out[(*count)++];
        if (e->kind == K2_FLIGHT_IS_FINISH) {
            r->finish = e;
            continue;
        }
        r->start = e;
        if (next == NULL || next->name != e->name || next->id != e->id || next->kind != K2_FLIGHT_IS_FINISH) continue;
        r->finish = next;
        i++;
    }
    if (*count > 0) qsort(out, *count, sizeof *out, by_start);
    k2_free(list);
    return out;
}
