/* What a trace tells, for people and for programs. Pure. */
#include "common/flight/trace_int.h"

#include <stdio.h>
#include <string.h>

#define SHOWN_MAX 3u /* unfinished requests of one process: an engine has hundreds */

static double since(const k2_flight_trace *t, uint64_t ns)
{
    return t->end_ns > ns ? (double)(t->end_ns - ns) / 1e9 : 0;
}

static const char *amount(uint64_t bytes, char out[32])
{
    if (bytes < 10000)
        snprintf(out, 32, "%llu bytes", (unsigned long long)bytes);
    else if (bytes < 10000000)
        snprintf(out, 32, "%.1f kB", (double)bytes / 1e3);
    else
        snprintf(out, 32, "%.1f MB", (double)bytes / 1e6);
    return out;
}

/* Polls are always under way. */
static bool unfinished(const k2i_flight_request *r)
{
    return r->start != NULL && r->finish == NULL && r->start->name != K2_FLIGHT_POLL;
}

static bool entered(const k2_flight_group *g, uint32_t rank)
{
    return g->members[rank].has && g->members[rank].last->args[1] >= g->seq;
}

/* ---- for people ------------------------------------------------------------------------------------------------------- */

/* "; in phase train (2.1 s), collective seq=41 ... (1.9 s)" */
static void open_text(const k2_flight_trace *t, const k2_flight_ring *r, k2_buf *out)
{
    uint32_t n = 0;
    for (size_t i = 0; i < r->count; i++) {
        const k2_flight_event *e = &r->events[i];
        if (e->kind != K2_FLIGHT_IS_OPEN) continue;
        k2_buf_puts(out, n++ ? ", " : "; in: ");
        k2_flight_event_text(e, out);
        k2_buf_printf(out, " (%.1f s)", since(t, e->begin_ns));
    }
}

/* "; 8 unfinished: request trajectory=55 ... (0.3 s), ..." */
static void unfinished_text(const k2_flight_trace *t, const k2_flight_ring *r, k2_buf *out)
{
    size_t count, n = 0, shown = 0;
    k2i_flight_request *list = k2i_flight_requests_of(r, &count);
    for (size_t i = 0; i < count; i++) n += unfinished(&list[i]);
    if (n > 0) k2_buf_printf(out, "; %zu unfinished: ", n);
    for (size_t i = 0; i < count && shown < SHOWN_MAX; i++) {
        const k2_flight_event *e = list[i].start;
        if (!unfinished(&list[i])) continue;
        k2_buf_printf(out, "%s%s", shown++ ? ", " : "", k2i_flight_row_of(e->name)->text);
        k2i_flight_args_text(e, out);
        k2_buf_printf(out, " (%.1f s)", since(t, e->begin_ns));
    }
    if (n > shown) k2_buf_puts(out, ", ...");
    k2_free(list);
}

static void doing_text(const k2_flight_trace *t, const k2_flight_ring *r, k2_buf *out)
{
    const k2_flight_event *last = k2i_flight_last(r);
    if (last != NULL) {
        k2_buf_printf(out, "last event %.1f s ago: ", since(t, last->end_ns));
        k2_flight_event_text(last, out);
    } else {
        k2_buf_puts(out, "nothing has ended yet");
    }
    open_text(t, r, out);
    unfinished_text(t, r, out);
}

static void processes_text(const k2_flight_trace *t, k2_buf *out)
{
    size_t events = 0;
    uint64_t lost = 0, torn = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        events += t->rings[i]->count;
        lost += t->rings[i]->lost;
        torn += t->rings[i]->torn;
    }
    k2_buf_printf(out, "%u processes, %zu events over %.1f s; %llu older ones overwritten, %llu unreadable\n", t->count, events,
                  (double)(t->end_ns - t->begin_ns) / 1e9, (unsigned long long)lost, (unsigned long long)torn);
    for (uint32_t i = 0; i < t->count; i++) {
        const k2_flight_ring *r = t->rings[i];
        char name[32];
        snprintf(name, sizeof name, "%s-%u", r->role, r->index);
        k2_buf_printf(out, "  %-10s pid %-8llu %-8s", name, (unsigned long long)r->pid, k2_flight_life_text(r->life));
        doing_text(t, r, out);
        k2_buf_puts(out, "\n");
    }
}

static void ranks_text(const k2_flight_group *g, bool want, k2_buf *out)
{
    uint32_t n = want ? g->ranks - g->behind : g->behind, seen = 0;
    k2_buf_puts(out, n == 1 ? "rank" : "ranks");
    for (uint32_t r = 0; r < g->ranks; r++)
        if (entered(g, r) == want) k2_buf_printf(out, "%s %u", seen++ ? "," : "", r);
}

static void behind_text(const k2_flight_trace *t, const k2_flight_group *g, uint32_t rank, k2_buf *out)
{
    const k2_flight_member *m = &g->members[rank];
    k2_buf_printf(out, "    rank %u: ", rank);
    if (m->ring == NULL) {
        k2_buf_puts(out, "no ring of it is here\n");
        return;
    }
    k2_buf_printf(out, "%s-%u, pid %llu, %s; ", m->ring->role, m->ring->index, (unsigned long long)m->ring->pid,
                  k2_flight_life_text(m->ring->life));
    if (m->has)
        k2_buf_printf(out, "the last it %s is %llu (%s); ", m->inside ? "is still in" : "has done",
                      (unsigned long long)m->last->args[1], k2_flight_collective_text((uint32_t)(m->last->args[3] & 0xff)));
    else
        k2_buf_puts(out, "none of this group's is in its ring; ");
    doing_text(t, m->ring, out);
    k2_buf_puts(out, "\n");
}

static void group_text(const k2_flight_trace *t, const k2_flight_group *g, k2_buf *out)
{
    char bytes[32];
    k2_buf_printf(out, "collective %llu (%s, %s, group %llu): ", (unsigned long long)g->seq, k2_flight_collective_text(g->op),
                  amount(g->bytes, bytes), (unsigned long long)g->group);
    if (g->behind == 0) {
        uint32_t inside = 0;
        for (uint32_t r = 0; r < g->ranks; r++) inside += g->members[r].inside;
        k2_buf_printf(out, "all %u ranks entered it, %u are still in it; no rank has entered a later one\n", g->ranks, inside);
        return;
    }
    ranks_text(g, true, out);
    k2_buf_printf(out, " entered (%.1f s ago); ", since(t, g->first_ns));
    ranks_text(g, false, out);
    k2_buf_puts(out, " did not\n");
    for (uint32_t r = 0; r < g->ranks; r++)
        if (!entered(g, r)) behind_text(t, g, r, out);
}

void k2_flight_summary_text(const k2_flight_trace *trace, const k2_flight_collectives *c, k2_buf *out)
{
    processes_text(trace, out);
    for (uint32_t i = 0; i < c->group_count; i++)
        if (c->groups[i].behind > 0 || i + 1 == c->group_count) group_text(trace, &c->groups[i], out);
    for (uint32_t i = 0; i < c->mismatch_count; i++) {
        const k2_flight_mismatch *m = &c->mismatches[i];
        k2_buf_printf(out, "collective %llu of group %llu differs: rank %u did %s of %llu bytes, rank %u %s of %llu bytes\n",
                      (unsigned long long)m->seq, (unsigned long long)m->group, m->a.rank, k2_flight_collective_text(m->a.op),
                      (unsigned long long)m->a.bytes, m->b.rank, k2_flight_collective_text(m->b.op),
                      (unsigned long long)m->b.bytes);
    }
}

/* ---- for programs ------------------------------------------------------------------------------------------------------ */

static void event_json(const k2_flight_trace *t, const k2_flight_event *e, k2_buf *out)
{
    uint64_t ns = e->kind == K2_FLIGHT_IS_OPEN ? e->begin_ns : e->end_ns;
    k2_buf_printf(out, "{\"name\": \"%s\", \"ago_s\": %.3f, \"args\": {", k2i_flight_row_of(e->name)->text, since(t, ns));
    k2i_flight_args_json(e, out);
    k2_buf_puts(out, "}}");
}

static void process_json(const k2_flight_trace *t, const k2_flight_ring *r, k2_buf *out)
{
    const k2_flight_event *last = k2i_flight_last(r);
    uint32_t n = 0;
    k2_buf_printf(out, "{\"role\": \"%s\", \"index\": %u, \"pid\": ", r->role, r->index);
    k2i_flight_u64_json(r->pid, out);
    k2_buf_puts(out, ", \"host\": ");
    k2_buf_json_string(out, r->host, strlen(r->host));
    k2_buf_puts(out, ", \"incarnation\": ");
    k2i_flight_u64_json(r->incarnation, out);
    k2_buf_printf(out, ", \"life\": \"%s\", \"events\": %zu, \"last\": ", k2_flight_life_text(r->life), r->count);
    if (last != NULL)
        event_json(t, last, out);
    else
        k2_buf_puts(out, "null");
    k2_buf_puts(out, ", \"open\": [");
    for (size_t i = 0; i < r->count; i++) {
        if (r->events[i].kind != K2_FLIGHT_IS_OPEN) continue;
        if (n++) k2_buf_puts(out, ", ");
        event_json(t, &r->events[i], out);
    }
    k2_buf_puts(out, "], \"unfinished\": [");
    size_t count, shown = 0;
    k2i_flight_request *list = k2i_flight_requests_of(r, &count);
    for (size_t i = 0; i < count; i++) {
        if (!unfinished(&list[i])) continue;
        if (shown++) k2_buf_puts(out, ", ");
        event_json(t, list[i].start, out);
    }
    k2_free(list);
    k2_buf_puts(out, "]}");
}

static void group_json(const k2_flight_trace *t, const k2_flight_group *g, k2_buf *out)
{
    k2_buf_puts(out, "{\"group\": ");
    k2i_flight_u64_json(g->group, out);
    k2_buf_puts(out, ", \"seq\": ");
    k2i_flight_u64_json(g->seq, out);
    k2_buf_printf(out, ", \"op\": \"%s\", \"bytes\": ", k2_flight_collective_text(g->op));
    k2i_flight_u64_json(g->bytes, out);
    k2_buf_printf(out, ", \"ago_s\": %.3f", since(t, g->first_ns));
    for (int want = 1; want >= 0; want--) {
        uint32_t n = 0;
        k2_buf_puts(out, want ? ", \"entered\": [" : "], \"missing\": [");
        for (uint32_t r = 0; r < g->ranks; r++)
            if (entered(g, r) == (want != 0)) k2_buf_printf(out, "%s%u", n++ ? ", " : "", r);
    }
    k2_buf_puts(out, "]}");
}

void k2_flight_summary_json(const k2_flight_trace *trace, const k2_flight_collectives *c, k2_buf *out)
{
    k2_buf_printf(out, "{\"seconds\": %.3f, \"processes\": [", (double)(trace->end_ns - trace->begin_ns) / 1e9);
    for (uint32_t i = 0; i < trace->count; i++) {
        if (i > 0) k2_buf_puts(out, ", ");
        process_json(trace, trace->rings[i], out);
    }
    k2_buf_puts(out, "], \"collectives\": [");
    for (uint32_t i = 0; i < c->group_count; i++) {
        if (i > 0) k2_buf_puts(out, ", ");
        group_json(trace, &c->groups[i], out);
    }
    k2_buf_puts(out, "], \"mismatches\": [");
    for (uint32_t i = 0; i < c->mismatch_count; i++) {
        const k2_flight_mismatch *m = &c->mismatches[i];
        k2_buf_puts(out, i > 0 ? ", {\"group\": " : "{\"group\": ");
        k2i_flight_u64_json(m->group, out);
        k2_buf_puts(out, ", \"seq\": ");
        k2i_flight_u64_json(m->seq, out);
        k2_buf_printf(out, ", \"ranks\": [%u, %u], \"ops\": [\"%s\", \"%s\"]}", m->a.rank, m->b.rank,
                      k2_flight_collective_text(m->a.op), k2_flight_collective_text(m->b.op));
    }
    k2_buf_puts(out, "]}\n");
}
