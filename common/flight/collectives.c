/* Which rank did not enter which collective, and which ranks did different things under one number. Pure. */
#include "common/flight/trace_int.h"

#include <stdlib.h>
#include <string.h>

/* One collective as one rank entered it. */
typedef struct entry {
    const k2_flight_event *event;
    const k2_flight_ring *ring;
    uint64_t group, seq, bytes;
    uint32_t op, rank, ranks;
} entry;

static bool entry_of(const k2_flight_ring *ring, const k2_flight_event *e, entry *out)
{
    if (e->name != K2_FLIGHT_COLLECTIVE || (e->kind != K2_FLIGHT_IS_SPAN && e->kind != K2_FLIGHT_IS_OPEN)) return false;
    *out = (entry){.event = e,
                   .ring = ring,
                   .group = e->args[0],
                   .seq = e->args[1],
                   .bytes = e->args[2],
                   .op = k2i_coll_op(e->args[3]),
                   .rank = k2i_coll_rank(e->args[3]),
                   .ranks = k2i_coll_ranks(e->args[3])};
    return out->ranks <= K2_FLIGHT_RANKS_MAX && out->rank < out->ranks;
}

static int by_group(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->seq != y->seq) return x->seq < y->seq ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return x->event->begin_ns < y->event->begin_ns ? -1 : x->event->begin_ns > y->event->begin_ns;
}

static entry *entries_of(const k2_flight_trace *trace, size_t *count)
{
    entry e, *list = NULL;
    size_t n = 0, room = 0;
    for (uint32_t r = 0; r < trace->count; r++) {
        const k2_flight_ring *ring = trace->rings[r];
        for (size_t i = 0; i < ring->count; i++) {
            if (!entry_of(ring, &ring->events[i], &e)) continue;
            if (n == room) list = k2_realloc_array(list, room = K2_MAX(2 * room, (size_t)256), sizeof *list);
            list[n++] = e;
        }
    }
    if (n > 0) qsort(list, n, sizeof *list, by_group);
    *count = n;
    return list;
}

/* The first of a number speaks for it; a group of which two disagree is broken from there on. */
static void mismatches_find(const entry *e, size_t n, k2_flight_collectives *out)
{
    for (size_t i = 1, first = 0; i < n; i++) {
        if (e[i].seq != e[first].seq) first = i;
        bool same = e[i].op == e[first].op && e[i].bytes == e[first].bytes;
        if (same || out->mismatch_count == K2_FLIGHT_MISMATCHES_MAX) continue;
        out->mismatches[out->mismatch_count++] =
            (k2_flight_mismatch){.group = e[i].group,
                                 .seq = e[i].seq,
                                 .a = {.rank = e[first].rank, .op = e[first].op, .bytes = e[first].bytes},
                                 .b = {.rank = e[i].rank, .op = e[i].op, .bytes = e[i].bytes}};
    }
}

/* The rank's process, where it has recorded nothing of the group: the last one of that index at the time. */
static const k2_flight_ring *ring_of_rank(const k2_flight_trace *trace, const char *role, uint32_t rank, uint64_t until_ns)
{
    const k2_flight_ring *best = NULL;
    for (uint32_t i = 0; i < trace->count; i++) {
        const k2_flight_ring *r = trace->rings[i];
        if (r->index != rank || strcmp(r->role, role) != 0 || r->start_ns > until_ns) continue;
        if (best == NULL || r->start_ns >= best->start_ns) best = r;
    }
    return best;
}

static void group_find(const k2_flight_trace *trace, const entry *e, size_t n, k2_flight_group *g)
{
    const entry *last = &e[n - 1];
    uint64_t until_ns = 0;
    *g =
        (k2_flight_group){.group = last->group, .seq = last->seq, .bytes = last->bytes, .op = last->op, .first_ns = UINT64_MAX};
    for (size_t i = 0; i < n; i++) {
        k2_flight_member *m = &g->members[e[i].rank];
        *m = (k2_flight_member){
            .ring = e[i].ring, .has = true, .inside = e[i].event->kind == K2_FLIGHT_IS_OPEN, .last = e[i].event};
        g->ranks = K2_MAX(g->ranks, e[i].ranks);
        until_ns = K2_MAX(until_ns, e[i].event->end_ns);
        if (e[i].seq == g->seq && e[i].event->begin_ns < g->first_ns) {
            g->first_ns = e[i].event->begin_ns;
            g->op = e[i].op;
            g->bytes = e[i].bytes;
        }
    }
    for (uint32_t r = 0; r < g->ranks; r++) {
        k2_flight_member *m = &g->members[r];
        if (!m->has) m->ring = ring_of_rank(trace, last->ring->role, r, until_ns);
        g->behind += !m->has || m->last->args[1] < g->seq;
    }
}

/* Entries of one group, and when the last of them began. */
typedef struct stretch {
    size_t from, to;
    uint64_t last_ns;
} stretch;

static int by_time(const void *a, const void *b)
{
    const stretch *x = a, *y = b;
    return x->last_ns < y->last_ns ? -1 : x->last_ns > y->last_ns;
}

static stretch *stretches_of(const entry *e, size_t n, size_t *count)
{
    stretch *list = k2_alloc_array(n, sizeof *list);
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || e[i].group != e[i - 1].group) list[(*count)++] = (stretch){.from = i};
        stretch *s = &list[*count - 1];
        s->to = i + 1;
        s->last_ns = K2_MAX(s->last_ns, e[i].event->begin_ns);
    }
    if (*count > 0) qsort(list, *count, sizeof *list, by_time);
    return list;
}

void k2_flight_collectives_find(const k2_flight_trace *trace, k2_flight_collectives *out)
{
    size_t n, groups;
    entry *e = entries_of(trace, &n);
    stretch *s = stretches_of(e, n, &groups);
    size_t skip = groups - K2_MIN(groups, (size_t)K2_FLIGHT_GROUPS_MAX);
    *out = (k2_flight_collectives){.groups = k2_alloc_array(groups - skip, sizeof *out->groups)};
    for (size_t i = skip; i < groups; i++) {
        mismatches_find(e + s[i].from, s[i].to - s[i].from, out);
        group_find(trace, e + s[i].from, s[i].to - s[i].from, &out->groups[out->group_count++]);
    }
    k2_free(s);
    k2_free(e);
}

void k2_flight_collectives_fini(k2_flight_collectives *c)
{
    k2_free(c->groups);
    *c = (k2_flight_collectives){0};
}
