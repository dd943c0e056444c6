/* exits: how processes ended, and which end came first. Pure. */
#include "master/exits_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

k2m_exit *k2m_exits_add(k2m_exits *x, const char *name, uint64_t incarnation, uint64_t at_ns)
{
    k2m_exit *e = &x->ring[x->count++ % K2M_EXITS_KEPT];
    *e = (k2m_exit){.incarnation = incarnation, .at_ns = at_ns};
    snprintf(e->name, sizeof e->name, "%s", name);
    return e;
}

k2m_exit *k2m_exits_find(k2m_exits *x, uint64_t incarnation)
{
    for (uint32_t i = 0; i < K2_MIN(x->count, K2M_EXITS_KEPT); i++)
        if (x->ring[i].incarnation == incarnation) return &x->ring[i];
    return NULL;
}

bool k2m_exit_crashed(const k2m_exit *e)
{
    int s = e->signal;
    return e->over && !e->killed[0] &&
           (s == SIGSEGV || s == SIGBUS || s == SIGFPE || s == SIGILL || s == SIGABRT || s == SIGSYS);
}

/* ---- which came first ----------------------------------------------------------------------------------------------- */

/* How little somebody else can be to blame. */
static int weight(const k2m_exit *e)
{
    if (k2m_exit_crashed(e)) return 4;
    if (e->killed[0]) return 2;
    return e->over && e->signal ? 3 : 1;
}

void k2m_exits_incident(const k2m_exits *x, k2m_incident *out)
{
    uint64_t oldest = x->count > K2M_EXITS_KEPT ? x->count - K2M_EXITS_KEPT : 0;
    uint32_t n = 0, cause = 0;
    const k2m_exit *backwards[K2M_EXITS_KEPT];
    for (uint64_t i = x->count; i-- > oldest;) {
        const k2m_exit *e = &x->ring[i % K2M_EXITS_KEPT];
        if (e->expected) continue;
        if (n > 0 && backwards[n - 1]->at_ns - e->at_ns > K2M_EXIT_GAP_NS) break;
        backwards[n++] = e;
    }
    for (uint32_t i = 0; i < n; i++) out->list[i] = backwards[n - 1 - i];
    out->count = n;
    for (uint32_t i = 1; i < n && out->list[i]->at_ns - out->list[0]->at_ns <= K2M_EXIT_TIE_NS; i++)
        if (weight(out->list[i]) > weight(out->list[cause])) cause = i;
    if (n == 0) return;
    const k2m_exit *first = out->list[cause];
    memmove(out->list + 1, out->list, cause * sizeof(const k2m_exit *));
    out->list[0] = first;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

void k2m_exit_how(const k2m_exit *e, char *out, size_t n)
{
    char name[K2_SIGNAL_NAME_MAX];
    if (e->killed[0])
        snprintf(out, n, "was ended by the master: it %s", e->killed);
    else if (e->signal)
        snprintf(out, n, "was ended by %s", k2_signal_name(e->signal, name));
    else
        snprintf(out, n, "exited with %d", e->exit_code);
}

void k2m_exit_text(const k2m_exit *e, char *out, size_t n)
{
    char how[K2M_EXIT_TEXT_MAX / 2], memory[96] = "", name[K2_SIGNAL_NAME_MAX];
    k2m_exit_how(e, how, sizeof how);
    if (e->oom_kills)
        snprintf(memory, sizeof memory, "; its cgroup counts %llu more kill%s for lack of memory",
                 (unsigned long long)e->oom_kills, e->oom_kills == 1 ? "" : "s");
    /* That the master's SIGKILL was what it died of is no news. */
    bool otherwise = e->killed[0] && e->over && e->signal != SIGKILL;
    snprintf(out, n, "%s (incarnation %llu, pid %llu) %s%s%s after %.1f s%s%s%s", e->name, (unsigned long long)e->incarnation,
             (unsigned long long)e->pid, how, otherwise ? "; in the end by " : "",
             !otherwise  ? ""
             : e->signal ? k2_signal_name(e->signal, name)
                         : "itself",
             (double)e->lived_ns / 1e9, memory, e->last[0] ? ": " : "", e->last);
}
