/* One event for people and for JSON, after the table of names. */
#include "common/flight/trace_int.h"

#include <string.h>

#define SAFE_INTEGER (1ull << 53)

static const k2i_flight_row rows[] = {
#define K2_X(name, category, text, a, b, c, d) {category, text, {a, b, c, d}},
    K2_FLIGHT_NAMES(K2_X)
#undef K2_X
};

const k2i_flight_row *k2i_flight_row_of(k2_flight_name name)
{
    K2_ASSERT((unsigned)name < K2_COUNT(rows));
    return &rows[name];
}

void k2i_flight_u64_json(uint64_t v, k2_buf *out)
{
    k2_buf_printf(out, v > SAFE_INTEGER ? "\"%llu\"" : "%llu", (unsigned long long)v);
}

/* Up to 16 characters from one or two numbers; what is not printable ends it. */
static void text_of(const uint64_t *words, uint32_t count, char out[17])
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < 8 * count; i++) {
        char c = (char)(words[i / 8] >> (8 * (i % 8)));
        if (c < 0x20 || c == 0x7f) break;
        out[len++] = c;
    }
    out[len] = 0;
}

typedef struct pen {
    k2_buf *out;
    bool json;
    uint32_t count;
} pen;

static void key(pen *p, const char *name, size_t n)
{
    if (p->json)
        k2_buf_printf(p->out, "%s\"%.*s\": ", p->count ? ", " : "", (int)n, name);
    else
        k2_buf_printf(p->out, " %.*s=", (int)n, name);
    p->count++;
}

static void put_text(pen *p, const char *name, size_t n, const char *value)
{
    key(p, name, n);
    if (p->json)
        k2_buf_json_string(p->out, value, strlen(value));
    else
        k2_buf_puts(p->out, value);
}

static void put_number(pen *p, const char *name, size_t n, uint64_t value)
{
    key(p, name, n);
    if (p->json)
        k2i_flight_u64_json(value, p->out);
    else
        k2_buf_printf(p->out, "%llu", (unsigned long long)value);
}

static void put_arg(pen *p, const char *spec, const uint64_t *value, bool wide)
{
    size_t n = strcspn(spec, ":");
    const char *how = spec + n;
    char text[17];
    if (n == 0 || *value == K2_FLIGHT_NONE) return;
    if (strcmp(how, ":text") == 0) {
        text_of(value, wide ? 2 : 1, text);
        if (text[0]) put_text(p, spec, n, text);
    } else if (strcmp(how, ":code") == 0) {
        put_text(p, spec, n, *value < K2_CODE_COUNT ? k2_code_name((k2_code)*value) : "?");
    } else if (strcmp(how, ":coll") == 0) {
        put_text(p, spec, n, k2_flight_collective_text(k2i_coll_op(*value)));
        put_number(p, "rank", 4, k2i_coll_rank(*value));
        put_number(p, "ranks", 5, k2i_coll_ranks(*value));
    } else {
        put_number(p, spec, n, *value);
    }
}

static uint32_t put_args(pen *p, const k2_flight_event *e)
{
    const k2i_flight_row *row = k2i_flight_row_of(e->name);
    for (uint32_t i = 0; i < K2_FLIGHT_ARGS; i++) {
        if (row->args[i][0] == '+') continue;
        put_arg(p, row->args[i], &e->args[i], i + 1 < K2_FLIGHT_ARGS && row->args[i + 1][0] == '+');
    }
    return p->count;
}

uint32_t k2i_flight_args_json(const k2_flight_event *e, k2_buf *out)
{
    return put_args(&(pen){.out = out, .json = true}, e);
}

void k2i_flight_args_text(const k2_flight_event *e, k2_buf *out)
{
    put_args(&(pen){.out = out}, e);
}

void k2_flight_event_text(const k2_flight_event *e, k2_buf *out)
{
    k2_buf_puts(out, k2i_flight_row_of(e->name)->text);
    if (e->kind == K2_FLIGHT_IS_START) k2_buf_puts(out, " begins");
    if (e->kind == K2_FLIGHT_IS_FINISH) k2_buf_puts(out, " ends");
    k2i_flight_args_text(e, out);
}

const k2_flight_event *k2i_flight_last(const k2_flight_ring *ring)
{
    const k2_flight_event *last = NULL;
    for (size_t i = 0; i < ring->count; i++) {
        const k2_flight_event *e = &ring->events[i];
        if (e->kind == K2_FLIGHT_IS_OPEN || e->name == K2_FLIGHT_POLL || e->name == K2_FLIGHT_QUEUES) continue;
        if (last == NULL || e->end_ns >= last->end_ns) last = e;
    }
    return last;
}
