/* ask: WHY from whoever may open the control socket. The question is also a probe: all POLLs in hand are answered, a live
 * worker sends its next one at once, and half a second later it shows who did not. Cost is bounded: one probe at a time. */
#include "master/io_int.h"

#include <stdio.h>
#include <string.h>

void k2m_ask(k2m_io *io, k2_net_call *call)
{
    if (io->why_count == K2M_WHY_MAX) {
        k2_net_reply(call, &(k2_msg){.type = K2_MSG_REFUSED, .refused = {.code = K2_FULL, .text = "too many ask at once"}});
        return;
    }
    io->why[io->why_count++] = call;
    if (io->why_count > 1) return; /* the probe under way tells them too */
    io->probe_ns = k2_loop_now_ns(io->loop);
    k2m_workers_probe(io);
    k2m_proxy_list_ask(io);
}

typedef struct answer {
    const char *what[K2M_WAITS_MAX], *owners[K2M_WAITS_MAX], *hosts[K2M_WAITS_MAX];
    uint64_t parents[K2M_WAITS_MAX], pids[K2M_WAITS_MAX], since[K2M_WAITS_MAX], left[K2M_WAITS_MAX], silent[K2M_WAITS_MAX];
} answer;

static void fill(answer *a, const k2m_waits *waits, uint64_t now_ns)
{
    for (uint32_t i = 0; i < waits->count; i++) {
        const k2m_wait *w = &waits->list[i];
        a->what[i] = w->what;
        a->owners[i] = w->owner;
        a->parents[i] = w->parent;
        a->pids[i] = w->pid;
        a->hosts[i] = w->host;
        a->since[i] = now_ns > w->since_ns ? (now_ns - w->since_ns) / K2_NS_PER_MS : 0;
        a->silent[i] = w->silent_ns / K2_NS_PER_MS;
        a->left[i] = UINT64_MAX;
        if (w->deadline_ns) a->left[i] = w->deadline_ns > now_ns ? (w->deadline_ns - now_ns) / K2_NS_PER_MS : 0;
    }
}

/* The proxy's list is worth waiting for while the proxy itself speaks. */
static bool list_comes(const k2m_io *io, uint64_t now_ns)
{
    if (!io->list_call || now_ns - io->probe_ns >= K2M_LIST_NS) return false;
    const k2m_worker *proxy = &io->core->workers[io->core->proxy];
    return proxy->state == K2M_UP && (proxy->owes_poll_ns == 0 || now_ns - proxy->owes_poll_ns < K2M_SILENT_NS);
}

void k2m_ask_tick(k2m_io *io, uint64_t now_ns)
{
    const k2m_core *m = io->core;
    bool asks = m->phase == K2M_PHASE_GENERATE || m->phase == K2M_PHASE_EVAL;
    if (asks && now_ns - m->progress_ns >= K2M_LIST_EVERY_NS && now_ns - io->list_asked_ns >= K2M_LIST_EVERY_NS)
        k2m_proxy_list_ask(io);
    if (io->why_count == 0 || now_ns - io->probe_ns < K2M_PROBE_NS || list_comes(io, now_ns)) return;
    k2m_waits waits;
    answer a;
    k2m_core_waits(io->core, now_ns, &waits);
    fill(&a, &waits, now_ns);
    uint32_t n = waits.count;
    k2_msg reply = {.type = K2_MSG_WAITS,
                    .waits = {.run_id = io->run->id,
                              .phase = k2m_phase_name(io->core->phase),
                              .iteration = io->core->iteration,
                              .version = io->core->force_version,
                              .culprit = waits.culprit,
                              .what = {a.what, n},
                              .owners = {a.owners, n},
                              .parents = {a.parents, n},
                              .pids = {a.pids, n},
                              .hosts = {a.hosts, n},
                              .since_ms = {a.since, n},
                              .left_ms = {a.left, n},
                              .silent_ms = {a.silent, n}}};
    for (uint32_t i = 0; i < io->why_count; i++) k2_net_reply(io->why[i], &reply);
    io->why_count = 0;
}
