/* A trace as Chrome's JSON. Piece by piece: only one event's text is in memory besides a buffer. */
#include "common/flight/trace_int.h"

#include <string.h>

#define PIECE_BYTES (64u << 10) /* what is handed on at a time */
#define LINE_BYTES  4096u       /* of one event, generously */

typedef struct writer {
    const k2_flight_trace *trace;
    const k2_flight_ring *ring;
    uint32_t pid; /* of the trace: real ones may be the same on two machines, and be used again on one */
    k2_buf out;
    bool (*put)(void *arg, const void *bytes, size_t n);
    void *arg;
    bool ok, first;
} writer;

static void flush(writer *w, size_t least)
{
    if (w->out.len < least || w->out.len == 0) return;
    w->ok = w->ok && w->put(w->arg, w->out.data, w->out.len);
    k2_buf_clear(&w->out);
}

/* {"ph": "X", "pid": 1, "tid": 2, "ts": 1.234 - what every event begins with, and what follows is the caller's. */
static void begin(writer *w, const char *ph, uint32_t track, uint64_t ns)
{
    flush(w, PIECE_BYTES);
    k2_buf_printf(&w->out, "%s{\"ph\": \"%s\", \"pid\": %u, \"tid\": %u", w->first ? "" : ",\n", ph, w->pid, track + 1);
    w->first = false;
    double us = (double)(ns - w->trace->zero_ns) / 1e3;
    k2_buf_printf(&w->out, ", \"ts\": %.3f", us);
}

static void named(writer *w, const k2_flight_event *e)
{
    const k2i_flight_row *row = k2i_flight_row_of(e->name);
    k2_buf_printf(&w->out, ", \"name\": \"%s\", \"cat\": \"%s\"", row->text, row->category);
}

static void args(writer *w, const k2_flight_event *e, const char *flag)
{
    k2_buf_puts(&w->out, ", \"args\": {");
    uint32_t n = e != NULL ? k2i_flight_args_json(e, &w->out) : 0;
    if (flag != NULL) k2_buf_printf(&w->out, "%s\"%s\": true", n ? ", " : "", flag);
    k2_buf_puts(&w->out, "}}");
}

/* ---- who is who ------------------------------------------------------------------------------------------------------ */

static void metadata(writer *w)
{
    const k2_flight_ring *r = w->ring;
    flush(w, PIECE_BYTES);
    k2_buf_printf(&w->out,
                  "%s{\"ph\": \"M\", \"pid\": %u, \"name\": \"process_name\", \"args\": {\"name\": ", w->first ? "" : ",\n",
                  w->pid);
    w->first = false;
    char *name = k2_asprintf("%s-%u (pid %llu on %s, %s)", r->role, r->index, (unsigned long long)r->pid, r->host,
                             k2_flight_life_text(r->life));
    k2_buf_json_string(&w->out, name, strlen(name));
    k2_free(name);
    k2_buf_printf(&w->out,
                  "}},\n{\"ph\": \"M\", \"pid\": %u, \"name\": \"process_sort_index\", \"args\": {\"sort_index\": %u}}", w->pid,
                  w->pid);
    for (uint32_t t = 0; t <= K2_FLIGHT_THREADS_MAX; t++) {
        if (r->tracks[t][0] == 0) continue;
        k2_buf_printf(&w->out,
                      ",\n{\"ph\": \"M\", \"pid\": %u, \"tid\": %u, \"name\": \"thread_name\", \"args\": {\"name\": ", w->pid,
                      t + 1);
        k2_buf_json_string(&w->out, r->tracks[t], strlen(r->tracks[t]));
        k2_buf_puts(&w->out, "}}");
    }
}

/* ---- events on threads ------------------------------------------------------------------------------------------------ */

/* A request's way from the proxy to an engine: both know trajectory and position. An arrow hangs on slices, so these two
 * instants are slices of a nanosecond. */
static bool is_end_of_flow(const k2_flight_event *e)
{
    return (e->name == K2_FLIGHT_ROUTED || e->name == K2_FLIGHT_ADMITTED) && e->kind == K2_FLIGHT_IS_MARK &&
           e->args[0] != K2_FLIGHT_NONE;
}

static void flow(writer *w, const k2_flight_event *e)
{
    bool from = e->name == K2_FLIGHT_ROUTED;
    begin(w, "X", e->track, e->begin_ns);
    named(w, e);
    k2_buf_puts(&w->out, ", \"dur\": 0.001");
    args(w, e, NULL);
    begin(w, from ? "s" : "f", e->track, e->begin_ns);
    k2_buf_printf(&w->out, ", \"name\": \"request\", \"cat\": \"request\", \"id\": \"0x%llx\"%s}",
                  (unsigned long long)k2_hash64(e->args, 2 * sizeof e->args[0], 0), from ? "" : ", \"bp\": \"e\"");
}

static void on_thread(writer *w, const k2_flight_event *e)
{
    switch (e->kind) {
    case K2_FLIGHT_IS_SPAN:
    case K2_FLIGHT_IS_OPEN:
        begin(w, "X", e->track, e->begin_ns);
        named(w, e);
        k2_buf_printf(&w->out, ", \"dur\": %.3f", (double)(e->end_ns - e->begin_ns) / 1e3);
        args(w, e, e->kind == K2_FLIGHT_IS_OPEN ? "unfinished" : NULL);
        break;
    case K2_FLIGHT_IS_MARK:
        if (is_end_of_flow(e)) {
            flow(w, e);
            break;
        }
        begin(w, "i", e->track, e->begin_ns);
        named(w, e);
        k2_buf_puts(&w->out, ", \"s\": \"t\"");
        args(w, e, NULL);
        break;
    case K2_FLIGHT_IS_COUNT:
        begin(w, "C", e->track, e->begin_ns);
        named(w, e);
        args(w, e, NULL);
        break;
    case K2_FLIGHT_IS_START:
    case K2_FLIGHT_IS_FINISH: break; /* in pairs, later */
    }
}

/* ---- requests --------------------------------------------------------------------------------------------------------- */

static void half(writer *w, const char *ph, const k2_flight_event *e, uint64_t ns, const char *flag)
{
    begin(w, ph, e->track, ns);
    named(w, e);
    k2_buf_printf(&w->out, ", \"id2\": {\"local\": \"0x%llx\"}", (unsigned long long)e->id);
    args(w, e, flag);
}

/* Each becomes "b" and "e": what has not ended ends with the ring, what began before the ring's first event begins there. */
static void requests(writer *w)
{
    const k2_flight_ring *r = w->ring;
    size_t n;
    k2i_flight_request *list = k2i_flight_requests_of(r, &n);
    for (size_t i = 0; i < n; i++) {
        const k2_flight_event *start = list[i].start, *finish = list[i].finish;
        uint64_t until = finish ? finish->end_ns : r->end_ns;
        if (until < w->trace->begin_ns) continue;
        half(w, "b", start ? start : finish, start ? start->begin_ns : r->events[0].begin_ns,
             !start    ? "cut"
             : !finish ? "unfinished"
                       : NULL);
        half(w, "e", finish ? finish : start, until, NULL);
    }
    k2_free(list);
}

bool k2_flight_chrome_write(const k2_flight_trace *trace, bool (*put)(void *arg, const void *bytes, size_t n), void *arg)
{
    writer w = {.trace = trace, .put = put, .arg = arg, .ok = true, .first = true};
    k2_buf_init(&w.out, PIECE_BYTES + 16 * LINE_BYTES);
    k2_buf_printf(&w.out, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"begin_unix_ns\": \"%llu\"}, \"traceEvents\": [\n",
                  (unsigned long long)trace->zero_ns);
    for (uint32_t i = 0; i < trace->count && w.ok; i++) {
        w.ring = trace->rings[i];
        w.pid = i + 1;
        if (w.ring->end_ns < trace->begin_ns) continue;
        metadata(&w);
        for (size_t k = 0; k < w.ring->count && w.ok; k++)
            if (w.ring->events[k].end_ns >= trace->begin_ns) on_thread(&w, &w.ring->events[k]);
        requests(&w);
    }
    k2_buf_puts(&w.out, "\n]}\n");
    K2_ASSERT(!w.out.overflow);
    flush(&w, 0);
    k2_buf_fini(&w.out);
    return w.ok;
}
