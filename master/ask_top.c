/* ask_top: TOP from whoever may open the control socket. It is answered at once and asks nobody: a picture a second costs the
 * master a look at its own memory. */
#include "master/io_int.h"

typedef struct rows {
    const char *names[K2_WIRE_ROWS_MAX], *states[K2_WIRE_ROWS_MAX];
    uint64_t pids[K2_WIRE_ROWS_MAX], lease[K2_WIRE_ROWS_MAX], silent[K2_WIRE_ROWS_MAX], requests[K2_WIRE_ROWS_MAX],
        tokens[K2_WIRE_ROWS_MAX];
} rows;

static void fill(rows *r, const k2m_overview *v)
{
    for (uint32_t i = 0; i < v->row_count; i++) {
        const k2m_row *row = &v->rows[i];
        r->names[i] = row->name;
        r->states[i] = row->state;
        r->pids[i] = row->pid;
        r->lease[i] = row->lease_ms;
        r->silent[i] = row->silent_ms;
        r->requests[i] = row->requests;
        r->tokens[i] = row->tokens_per_s;
    }
}

void k2m_ask_top(k2m_io *io, k2_net_call *call)
{
    const k2m_core *m = io->core;
    k2m_told told = {.held = io->hold.count - io->hold.first, .journal_bytes = io->journal_bytes};
    k2m_overview *v = k2_alloc(sizeof *v);
    rows *r = k2_alloc(sizeof *r);
    k2m_reporter_told(io->reporter, &told);
    k2m_core_overview(m, &told, k2_loop_now_ns(io->loop), v);
    fill(r, v);
    uint32_t n = v->row_count;
    k2_msg reply = {.type = K2_MSG_OVERVIEW,
                    .overview = {.run_id = io->run->id,
                                 .mode = m->c.config->mode,
                                 .phase = k2m_phase_name(m->phase),
                                 .waits = v->waits,
                                 .numbers = {v->numbers, v->number_count},
                                 .names = {r->names, n},
                                 .states = {r->states, n},
                                 .pids = {r->pids, n},
                                 .lease_ms = {r->lease, n},
                                 .silent_ms = {r->silent, n},
                                 .requests = {r->requests, n},
                                 .tokens_per_s = {r->tokens, n}}};
    k2_net_reply(call, &reply);
    k2_free(r);
    k2_free(v);
}
