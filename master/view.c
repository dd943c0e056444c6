/* view: the live view on a terminal. A few lines, drawn over themselves; elsewhere every line is simply printed. */
#include "master/report_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_NS (250 * K2_NS_PER_MS)

void k2m_say(k2m_reporter *p, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    K2_LOG_INFO(p->log, "%s", line);
    if (!p->tty) {
        printf("%s\n", line);
        fflush(stdout);
        return;
    }
    snprintf(p->events[p->event_count++ % VIEW_EVENTS], VIEW_LINE_MAX, "%.*s", (int)VIEW_LINE_MAX - 1, line);
    p->drawn_ns = 0;
}

void k2m_reporter_line(k2m_reporter *p, int level, const char *text)
{
    if (level < K2_LOG_WARN || level >= K2_LOG_ERROR) return; /* errors end the run and are told then */
    if (!p->tty) {
        printf("%s\n", text);
        fflush(stdout);
        return;
    }
    snprintf(p->events[p->event_count++ % VIEW_EVENTS], VIEW_LINE_MAX, "%.*s", (int)VIEW_LINE_MAX - 1, text);
    p->drawn_ns = 0;
}

void k2m_view_clear(k2m_reporter *p)
{
    if (p->view_lines) printf("\033[%uA\033[J", p->view_lines);
    p->view_lines = 0;
    if (!p->tty) return;
    for (uint32_t i = p->event_count > VIEW_EVENTS ? p->event_count - VIEW_EVENTS : 0; i < p->event_count; i++)
        printf("%s\n", p->events[i % VIEW_EVENTS]);
    p->event_count = 0;
}

/* Lines that were wrapped would be counted wrong and drawn over wrong, so they are cut at the window's width. */
static int columns(void)
{
    struct winsize w;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col < 20) return 80;
    return w.ws_col < 2 * VIEW_LINE_MAX ? w.ws_col : (int)(2 * VIEW_LINE_MAX);
}

static void line(k2m_reporter *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(k2m_reporter *p, const char *fmt, ...)
{
    char text[2 * VIEW_LINE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    printf("%.*s\033[K\n", columns() - 1, text);
    p->view_lines++;
}

static void bar(char *out, size_t n, double share)
{
    size_t width = n - 1, full = (size_t)(share * (double)width + 0.5);
    for (size_t i = 0; i < width; i++) out[i] = i < full ? '#' : '.';
    out[width] = 0;
}

static void draw_workers(k2m_reporter *p, const k2m_core *m)
{
    char text[VIEW_LINE_MAX];
    size_t at = 0;
    for (uint32_t i = 0; i < m->worker_count && at + 40 < sizeof text; i++) {
        char name[K2_WIRE_NAME_MAX];
        k2m_worker_name(&m->workers[i], name);
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %s", i ? "   " : "", name,
                               m->workers[i].state == K2M_UP ? m->workers[i].cmd_type != K2_MSG_NONE
                                                                   ? k2_msg_name(m->workers[i].cmd_type)
                                                                   : (m->workers[i].phase[0] ? m->workers[i].phase : "up")
                                                             : (m->workers[i].state == K2M_STARTING ? "starting" : "down"));
    }
    line(p, "  %s", text);
}

/* Where clients may ask while the run goes on; told again when a new proxy listens elsewhere. */
static void tell_proxy(k2m_reporter *p, const k2m_core *m)
{
    if (!m->has_proxy) return;
    const k2m_worker *w = &m->workers[m->proxy];
    if (w->state != K2M_UP || !m->in_force || strcmp(w->endpoint, p->proxy) == 0) return;
    snprintf(p->proxy, sizeof p->proxy, "%s", w->endpoint);
    k2m_say(p, "the proxy answers at %s", p->proxy);
}

void k2m_reporter_told(const k2m_reporter *p, k2m_told *out)
{
    double tokens = p->train_tokens + p->pretrain_tokens, s = p->train_busy_s + p->pretrain_s;
    out->start_ns = p->start_ns;
    out->rl_ns = p->rl_ns;
    out->evaluated = p->evaluated;
    out->accuracy = p->last_accuracy;
    out->trained = p->train_s > 0;
    out->reward = p->last_reward;
    out->train_tokens_per_s = s > 0 ? tokens / s : 0;
}

void k2m_reporter_tick(k2m_reporter *p, const k2m_core *m, uint64_t now_ns)
{
    if (p->rl_ns == 0 && (m->phase == K2M_PHASE_GENERATE || m->phase == K2M_PHASE_EVAL)) p->rl_ns = now_ns;
    tell_proxy(p, m);
    if (!p->tty || now_ns - p->drawn_ns < REDRAW_NS) return;
    p->drawn_ns = now_ns;
    if (p->view_lines) printf("\033[%uA", p->view_lines);
    p->view_lines = 0;
    const k2_config *c = &p->run->config;
    k2_replay_counts n = k2_replay_count(m->replay);
    bool pretraining = m->phase == K2M_PHASE_PRETRAIN || (m->iteration == 0 && m->trainer_pretrain < c->pretrain_steps);
    double share, eta;
    k2m_told told = {0};
    k2m_reporter_told(p, &told);
    k2m_core_eta(m, &told, now_ns, &share, &eta);
    char b[41], owes[K2M_TEXT_MAX];
    bar(b, sizeof b, share);
    double elapsed = (double)(now_ns - p->start_ns) / 1e9;
    line(p, "k2rl %s   %s %llu/%llu [%s]  %.0f s, about %.0f s left", p->run->id, pretraining ? "pretraining" : "iteration",
         (unsigned long long)(pretraining ? m->trainer_pretrain : m->iteration),
         (unsigned long long)(pretraining ? c->pretrain_steps : c->iterations), b, elapsed, eta);
    if (p->evaluated)
        line(p, "  reward %.3f   held-out accuracy %.1f %%   rollout %.0f tokens/s   train %.0f tokens/s", p->last_reward,
             100 * p->last_accuracy, p->generate_s > 0 ? p->generated / p->generate_s : 0,
             p->train_s > 0 ? p->train_tokens / p->train_s : 0);
    if (m->c.prompts.count)
        line(p, "  trajectories: %u running, %u to resume, %u waiting for rewards, %u scored; cut %llu, resumed %llu",
             n.running, n.queued_resumed, n.finished, n.scored, (unsigned long long)n.cut_total,
             (unsigned long long)n.resumed_total);
    k2m_core_owes(m, owes, sizeof owes);
    line(p, "  waits: %s", owes);
    draw_workers(p, m);
    if (p->proxy[0]) line(p, "  clients: %s", p->proxy);
    for (uint32_t i = p->event_count > VIEW_EVENTS ? p->event_count - VIEW_EVENTS : 0; i < p->event_count; i++)
        line(p, "  %s", p->events[i % VIEW_EVENTS]);
    printf("\033[J");
    fflush(stdout);
}
