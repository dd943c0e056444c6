/* How `k2rl stacks` shows what it took. */
#include "master/stacks_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define NAMES_MAX 12u /* processes that a cluster's line names; --json has all */

/* ---- text -------------------------------------------------------------------------------------------------------------------
 */

static void print_process(const k2m_seen *s, k2_buf *out)
{
    k2_buf_printf(out, "  %-20s pid %-8d %s", s->name, (int)s->proc.pid, k2_proc_state_text(s->proc.state));
    if (s->taken)
        k2_buf_printf(out, ", %u thread%s, held %.1f ms%s%s", s->stacks.count, s->stacks.count == 1 ? "" : "s",
                      (double)s->stacks.stopped_ns / 1e6, s->stacks.note[0] ? "; " : "", s->stacks.note);
    else
        k2_buf_printf(out, "; no stack: %s%s%s", s->why_not, s->outside ? "; " : "", s->outside ? s->outside : "");
    k2_buf_puts(out, "\n");
}

/* "trainer-0, trainer-2 (4 threads)" */
static void print_members(const k2m_seen_list *l, const k2_stack_cluster *c, k2_buf *out)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < c->count;) {
        uint32_t process = l->members[c->first + i].process, threads = 0;
        for (; i < c->count && l->members[c->first + i].process == process; i++) threads++;
        if (++named > NAMES_MAX) continue;
        k2_buf_printf(out, "%s%s", named > 1 ? ", " : "", l->list[process].name);
        if (threads > 1) k2_buf_printf(out, " (%u threads)", threads);
    }
    if (named > NAMES_MAX) k2_buf_printf(out, " and %u more", named - NAMES_MAX);
}

static void print_cluster(const k2m_seen_list *l, size_t number, k2_buf *out)
{
    const k2_stack_cluster *c = &l->clusters[number];
    const k2_stack_member *first = &l->members[c->first];
    k2_buf_printf(out, "\n%zu. ", number + 1);
    print_members(l, c, out);
    if (c->share_of > 1) k2_buf_printf(out, " - %u of %u: %s", c->share, c->share_of, c->role);
    k2_buf_printf(out, " - thread %s, %s\n", first->stack->name, k2_proc_state_text(first->stack->state));
    for (uint32_t i = 0; i < first->stack->count; i++) {
        char line[4 * K2_STACK_NAME_MAX];
        k2_frame_text(&first->stack->frames[i], line, sizeof line);
        k2_buf_printf(out, "     %s\n", line);
    }
    if (first->stack->cut) k2_buf_puts(out, "     ... (the rest cannot be told)\n");
}

void k2m_seen_print(const k2m_seen_list *l, k2_buf *out)
{
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    k2_buf_printf(out, "%zu processes, %u threads at %04d-%02d-%02dT%02d:%02d:%02dZ\n", l->count, l->threads, tm.tm_year + 1900,
                  tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    for (size_t i = 0; i < l->count; i++) print_process(&l->list[i], out);
    for (size_t i = 0; i < l->cluster_count; i++) print_cluster(l, i, out);
    if (l->idle) k2_buf_printf(out, "\n%u threads are in libraries only; --all shows them\n", l->idle);
    for (size_t i = 0; i < l->count; i++)
        if (l->list[i].python_stack)
            k2_buf_printf(out, "\n%s, pid %d, by py-spy:\n%s\n", l->list[i].name, (int)l->list[i].proc.pid,
                          l->list[i].python_stack);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------
 */

static void text(k2_buf *out, const char *key, const char *value)
{
    k2_buf_printf(out, "\"%s\": ", key);
    k2_buf_json_string(out, value, strlen(value));
}

static void json_process(const k2m_seen *s, k2_buf *out)
{
    char state[2] = {s->proc.state, 0};
    k2_buf_puts(out, "{");
    text(out, "name", s->name);
    k2_buf_printf(out, ", \"pid\": %d, ", (int)s->proc.pid);
    text(out, "state", state);
    k2_buf_printf(out, ", \"threads\": %u, \"held_ms\": %.3f, ", s->stacks.count, (double)s->stacks.stopped_ns / 1e6);
    text(out, "error", s->why_not);
    k2_buf_puts(out, ", ");
    text(out, "outside", s->outside ? s->outside : "");
    k2_buf_puts(out, ", ");
    text(out, "python", s->python_stack ? s->python_stack : "");
    k2_buf_puts(out, "}");
}

static void json_frame(const k2_frame *f, k2_buf *out)
{
    char name[2 * K2_STACK_NAME_MAX];
    k2_frame_name(f, name);
    k2_buf_puts(out, "{");
    text(out, "function", name);
    k2_buf_puts(out, ", ");
    text(out, "module", f->module);
    k2_buf_puts(out, ", ");
    text(out, "file", f->file);
    k2_buf_printf(out, ", \"line\": %u}", f->line);
}

static void json_cluster(const k2m_seen_list *l, const k2_stack_cluster *c, k2_buf *out)
{
    const k2_stack *s = l->members[c->first].stack;
    k2_buf_puts(out, "{");
    text(out, "role", c->role);
    k2_buf_printf(out, ", \"share\": %u, \"share_of\": %u, \"members\": [", c->share, c->share_of);
    for (uint32_t i = 0; i < c->count; i++) {
        const k2_stack_member *m = &l->members[c->first + i];
        k2_buf_puts(out, i ? ", {" : "{");
        text(out, "process", l->list[m->process].name);
        k2_buf_printf(out, ", \"pid\": %d, \"tid\": %d, ", (int)l->list[m->process].proc.pid, (int)m->stack->tid);
        text(out, "thread", m->stack->name);
        k2_buf_puts(out, "}");
    }
    k2_buf_puts(out, "], \"frames\": [");
    for (uint32_t i = 0; i < s->count; i++) {
        if (i) k2_buf_puts(out, ", ");
        json_frame(&s->frames[i], out);
    }
    k2_buf_printf(out, "], \"cut\": %s}", s->cut ? "true" : "false");
}

void k2m_seen_json(const k2m_seen_list *l, k2_buf *out)
{
    k2_buf_puts(out, "{\"processes\": [");
    for (size_t i = 0; i < l->count; i++) {
        if (i) k2_buf_puts(out, ", ");
        json_process(&l->list[i], out);
    }
    k2_buf_printf(out, "], \"threads\": %u, \"left_out\": %u, \"clusters\": [", l->threads, l->idle);
    for (size_t i = 0; i < l->cluster_count; i++) {
        if (i) k2_buf_puts(out, ", ");
        json_cluster(l, &l->clusters[i], out);
    }
    k2_buf_puts(out, "]}\n");
}
