/* top_text: an overview as lines of text, or as JSON. Pure. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "master/look_int.h"

#define LINE_MAX_BYTES 512u

static double number(const k2_msg_overview *v, const char *name)
{
    for (uint32_t i = 0; i < v->numbers.count; i++)
        if (strcmp(v->numbers.items[i].name, name) == 0) return v->numbers.items[i].value;
    return 0;
}

static bool known(const k2_msg_overview *v, const char *name)
{
    for (uint32_t i = 0; i < v->numbers.count; i++)
        if (strcmp(v->numbers.items[i].name, name) == 0) return true;
    return false;
}

typedef struct page {
    k2_buf *out;
    uint32_t width, left; /* lines */
} page;

__attribute__((format(printf, 2, 3))) static void line(page *p, const char *fmt, ...)
{
    char text[LINE_MAX_BYTES];
    if (p->left == 0) return;
    p->left--;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?'; /* names and phases come from other processes */
    k2_buf_append(p->out, text, K2_MIN(strlen(text), (size_t)p->width));
    k2_buf_append(p->out, "\n", 1);
}

static void duration(double s, char out[32])
{
    if (s < 120)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 7200)
        snprintf(out, 32, "%.0f min", s / 60);
    else
        snprintf(out, 32, "%.1f h", s / 3600);
}

static void head(page *p, const k2_msg_overview *v)
{
    char bar[21], spent[32], left[32];
    double share = number(v, "share");
    bool pretrains = number(v, "pretraining") > 0;
    for (size_t i = 0; i < 20; i++) bar[i] = (double)i < share * 20 ? '#' : '.';
    bar[20] = 0;
    duration(number(v, "seconds"), spent);
    duration(number(v, "left_seconds"), left);
    line(p, "k2rl %s (%s)  %s %.0f/%.0f [%s]  %s, about %s left", v->run_id, v->mode, pretrains ? "pretraining" : "iteration",
         number(v, pretrains ? "pretrain_step" : "iteration"), number(v, pretrains ? "pretrain_steps" : "iterations"), bar,
         spent, number(v, "left_seconds") > 0 ? left : "?");
    line(p, "phase    %s for %.1f s   step %.0f   weights %.0f   checkpoint %.0f", v->phase, number(v, "phase_seconds"),
         number(v, "step"), number(v, "version"), number(v, "checkpoint"));
    line(p, "waits    %s", v->waits);
}

static void sums(page *p, const k2_msg_overview *v)
{
    char reward[32] = "-", accuracy[32] = "-";
    if (known(v, "reward")) snprintf(reward, sizeof reward, "%.3f", number(v, "reward"));
    if (known(v, "accuracy")) snprintf(accuracy, sizeof accuracy, "%.1f %%", 100 * number(v, "accuracy"));
    line(p, "rates    rollout %.0f tokens/s   requests %.1f/s   train %.0f tokens/s   reward %s   accuracy %s",
         number(v, "rollout_tokens_per_s"), number(v, "requests_per_s"), number(v, "train_tokens_per_s"), reward, accuracy);
    line(
        p,
        "answers  %.0f queued, %.0f to resume, %.0f running, %.0f unscored, %.0f scored; cut %.0f, finished %.0f, dropped %.0f",
        number(v, "queued"), number(v, "queued_resumed"), number(v, "running"), number(v, "unscored"), number(v, "scored"),
        number(v, "cut_total"), number(v, "finished_total"), number(v, "dropped_total"));
    if (known(v, "groups_flat"))
        line(p, "groups   %.0f in work, %.0f of them have equal rewards (up to %.0f are replaced)", number(v, "groups_open"),
             number(v, "groups_flat"), number(v, "refill_max"));
    if (known(v, "prompts"))
        line(p, "prompts  %.0f of %.0f seen, %.0f solved; mean success %.3f", number(v, "prompts_seen"), number(v, "prompts"),
             number(v, "prompts_solved"), number(v, "success_mean"));
    if (known(v, "proxy_running"))
        line(p, "proxy    %.0f running, %.0f queued, %.0f engines ready; %.0f answers at reward commands; retried %.0f",
             number(v, "proxy_running"), number(v, "proxy_queued"), number(v, "proxy_engines_ready"),
             number(v, "scores_at_engines"), number(v, "retried"));
    line(p, "journal  %.1f MiB since the last snapshot, %.0f actions wait for the disk", number(v, "journal_bytes") / (1 << 20),
         number(v, "held_actions"));
    line(p, "fleet    trainers %.0f/%.0f, rollouts %.0f/%.0f, proxies %.0f/%.0f are up; %.0f say nothing",
         number(v, "trainers_up"), number(v, "trainers"), number(v, "rollouts_up"), number(v, "rollouts"),
         number(v, "proxies_up"), number(v, "proxies"), number(v, "silent"));
}

static void worker(page *p, const k2_msg_overview *v, uint32_t i)
{
    char silent[48] = "", pid[24] = "-";
    if (v->silent_ms.items[i]) snprintf(silent, sizeof silent, "  silent for %.1f s", (double)v->silent_ms.items[i] / 1000);
    if (v->pids.items[i]) snprintf(pid, sizeof pid, "%llu", (unsigned long long)v->pids.items[i]);
    line(p, "%-14s %8s  %6.1f s  %8llu  %10llu  %s%s", v->names.items[i], pid, (double)v->lease_ms.items[i] / 1000,
         (unsigned long long)v->requests.items[i], (unsigned long long)v->tokens_per_s.items[i], v->states.items[i], silent);
}

void k2m_top_text(const k2_msg_overview *v, uint32_t width, uint32_t height, k2_buf *out)
{
    page p = {.out = out, .width = width ? width : LINE_MAX_BYTES, .left = height ? height : UINT32_MAX};
    double all = number(v, "workers");
    head(&p, v);
    sums(&p, v);
    line(&p, " ");
    line(&p, "%-14s %8s  %8s  %8s  %10s  %s", "WORKER", "PID", "LEASE", "REQUESTS", "TOKENS/S", "STATE");
    uint32_t i = 0;
    /* The last line is kept for the count of those that have no room. */
    for (; i < v->names.count && (p.left > 1 || (p.left == 1 && i + 1 >= all)); i++) worker(&p, v, i);
    if (i < all) line(&p, "... %.0f workers more", all - i);
}

void k2m_top_json(const k2_msg_overview *v, k2_buf *out)
{
    const struct {
        const char *name, *value;
    } words[] = {{"run_id", v->run_id}, {"mode", v->mode}, {"phase", v->phase}, {"waits", v->waits}};
    k2_buf_puts(out, "{");
    for (size_t i = 0; i < K2_COUNT(words); i++) {
        k2_buf_printf(out, "%s\"%s\": ", i ? ", " : "", words[i].name);
        k2_buf_json_string(out, words[i].value, strlen(words[i].value));
    }
    for (uint32_t i = 0; i < v->numbers.count; i++) {
        k2_buf_puts(out, ", ");
        k2_buf_json_string(out, v->numbers.items[i].name, strlen(v->numbers.items[i].name));
        if (isfinite(v->numbers.items[i].value))
            k2_buf_printf(out, ": %.9g", v->numbers.items[i].value);
        else
            k2_buf_puts(out, ": null");
    }
    k2_buf_puts(out, ", \"rows\": [");
    for (uint32_t i = 0; i < v->names.count; i++) {
        k2_buf_puts(out, i ? ", {\"name\": " : "{\"name\": ");
        k2_buf_json_string(out, v->names.items[i], strlen(v->names.items[i]));
        k2_buf_puts(out, ", \"state\": ");
        k2_buf_json_string(out, v->states.items[i], strlen(v->states.items[i]));
        k2_buf_printf(out,
                      ", \"pid\": %llu, \"lease_ms\": %llu, \"silent_ms\": %llu, \"requests\": %llu, \"tokens_per_s\": %llu}",
                      (unsigned long long)v->pids.items[i], (unsigned long long)v->lease_ms.items[i],
                      (unsigned long long)v->silent_ms.items[i], (unsigned long long)v->requests.items[i],
                      (unsigned long long)v->tokens_per_s.items[i]);
    }
    k2_buf_puts(out, "]}\n");
}

bool k2m_top_whole(const k2_msg_overview *v)
{
    uint32_t n = v->names.count;
    return v->states.count == n && v->pids.count == n && v->lease_ms.count == n && v->silent_ms.count == n &&
           v->requests.count == n && v->tokens_per_s.count == n;
}
