/* outbox: what the core says in a step: actions, log lines, the phase it is in, and the failure that ends a run. */
#include "master/core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/log/log.h"

static const char *const phase_names[K2M_PHASE_COUNT] = {"start",  "join",     "init",  "pretrain", "save",
                                                         "latest", "batch",    "train", "publish",  "distribute",
                                                         "eval",   "generate", "stop",  "end"};

const char *k2m_phase_name(k2m_phase p)
{
    return phase_names[p];
}

bool k2m_phase_timed(k2m_phase p)
{
    return p == K2M_PHASE_START || p == K2M_PHASE_DISTRIBUTE || p == K2M_PHASE_EVAL || p == K2M_PHASE_GENERATE ||
           p == K2M_PHASE_BATCH || p == K2M_PHASE_LATEST;
}

k2m_action *k2m_act(k2m_core *m, k2m_action_type type)
{
    K2_ASSERT(m->outbox.count < m->outbox.capacity);
    k2m_action *a = &m->outbox.list[m->outbox.count++];
    memset(a, 0, sizeof *a);
    a->type = type;
    return a;
}

bool k2m_room(const k2m_core *m, uint32_t count)
{
    return m->outbox.count + count + k2m_worker_actions(m) + K2M_OUTBOX_RESERVE <= m->outbox.capacity;
}

/* Texts hold what workers and users' programs said: a terminal shows them, so nothing in them may steer it or begin a line. */
static void plain(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

void k2m_log(k2m_core *m, int level, const char *fmt, ...)
{
    if (!k2m_room(m, 0)) return;
    k2m_action *a = k2m_act(m, K2M_ACT_LOG);
    a->level = level;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, ap);
    va_end(ap);
    plain(a->text);
}

/* Once in a step: one look shows all processes. */
void k2m_stacks_ask(k2m_core *m, const char *fmt, ...)
{
    if (m->stacks_asked || !k2m_room(m, 0)) return;
    m->stacks_asked = true;
    k2m_action *a = k2m_act(m, K2M_ACT_STACKS);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, ap);
    va_end(ap);
}

void k2m_phase_set(k2m_core *m, k2m_phase p)
{
    m->phase = p;
    m->phase_since_ns = m->progress_ns = m->now_ns;
}

/* The text of a failure, and behind it which process went first when some have just ended, unless it speaks of that one anyhow.
 * What ended because of the failure is no cause of it; but a crash ends its process only after its report. */
void k2m_fail_text(const k2m_core *m, uint64_t failed_ns, char out[K2M_TEXT_MAX])
{
    k2m_incident x;
    char how[160], cause[256];
    snprintf(out, K2M_TEXT_MAX, "%s", m->fail_text);
    k2m_exits_incident(&m->exits, &x);
    if (x.count == 0 || failed_ns > x.list[x.count - 1]->at_ns + K2M_EXIT_GAP_NS) return;
    const k2m_exit *first = x.list[0];
    if (first->at_ns > failed_ns + (k2m_exit_crashed(first) ? K2M_EXIT_TIE_NS : 0)) return;
    size_t name = strlen(first->name);
    if (strncmp(out, first->name, name) == 0 && out[name] == ' ') return;
    k2m_exit_how(first, how, sizeof how);
    int n = snprintf(cause, sizeof cause, "; first cause: %s %s", first->name, how);
    size_t at = K2_MIN(strlen(out), K2M_TEXT_MAX - 1 - (size_t)n); /* where both are too long it is cut in front of the cause */
    memcpy(out + at, cause, (size_t)n + 1);
}

/* The run cannot go on: everything is stopped at once, and the text is what people see. */
void k2m_fail(k2m_core *m, k2_code code, const char *fmt, ...)
{
    if (m->failing || m->phase == K2M_PHASE_END) return;
    m->failing = true;
    m->fail_code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(m->fail_text, sizeof m->fail_text, fmt, ap);
    va_end(ap);
    plain(m->fail_text);
    char text[K2M_TEXT_MAX];
    k2m_fail_text(m, m->now_ns, text);
    k2m_log(m, K2_LOG_ERROR, "%s", text);
    k2m_phase_set(m, K2M_PHASE_STOP);
    k2m_stop_all(m);
}
