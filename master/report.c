/* report: what people and programs read of a run: metrics.jsonl, TensorBoard, a line an iteration, the last JSON object. The
 * live view stands in view.c. */
#include "master/report_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

k2_code k2m_reporter_open(const k2m_run *r, k2_loop *loop, k2_log *log, k2m_reporter **out, k2_error *err)
{
    k2m_reporter *p = k2_alloc(sizeof *p);
    *p = (k2m_reporter){.run = r, .log = log, .start_ns = k2_now_ns(), .tty = !r->json && isatty(STDOUT_FILENO)};
    char *config = k2_config_json(&r->config);
    k2_code code = k2m_paper_open(r->config.run_dir, config, loop, log, &p->paper, err);
    k2_free(config);
    if (code == K2_OK)
        *out = p;
    else
        k2_free(p);
    return code;
}

void k2m_reporter_close(k2m_reporter *p)
{
    if (!p) return;
    k2m_paper_close(p->paper);
    k2_free(p);
}

void k2m_reporter_trainer(k2m_reporter *p, const k2_wire_metrics *metrics)
{
    p->trained_count = 0;
    for (uint32_t i = 0; i < metrics->count && p->trained_count < TRAINED_MAX; i++) {
        snprintf(p->trained[p->trained_count].name, sizeof p->trained[0].name, "%s", metrics->items[i].name);
        p->trained[p->trained_count++].value = metrics->items[i].value;
    }
}

double k2m_trained(const k2m_reporter *p, const char *name)
{
    for (uint32_t i = 0; i < p->trained_count; i++)
        if (strcmp(p->trained[i].name, name) == 0) return p->trained[i].value;
    return NAN;
}

void k2m_reporter_batch(k2m_reporter *p, const k2m_core *m, uint64_t step)
{
    uint64_t group;
    uint32_t size;
    double reward = 0, length = 0, cuts = 0, answers = 0;
    p->batch_trajectories = 0;
    for (uint32_t at = 0; k2_replay_group_next(m->replay, step, &at, &group, &size);) {
        bool left_out = k2m_batch_leaves_out(m, group);
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            if (k2_replay_find(m->replay, k2_replay_id(group, k), &info) != K2_OK || info.state == K2_REPLAY_DROPPED) continue;
            p->batch_trajectories += !left_out;
            answers++; /* what is earned is told of all answers: those left out are the prompts that are easy or hopeless */
            reward += info.reward;
            length += info.generated;
            cuts += info.cuts;
        }
    }
    double n = answers > 0 ? answers : 1;
    p->batch_reward = reward / n;
    p->batch_length = length / n;
    p->batch_cuts = cuts / n;
}

/* ---- metrics.jsonl and TensorBoard
 * ------------------------------------------------------------------------------------------- */

static void put(k2_buf *b, const char *name, double v)
{
    k2_buf_printf(b, ", \"%s\": ", name);
    if (isfinite(v))
        k2_buf_printf(b, "%.9g", v);
    else
        k2_buf_puts(b, "null");
}

static void begin_line(k2_buf *b, const char *kind, uint64_t iteration)
{
    k2_buf_init(b, 1 << 20);
    k2_buf_printf(b, "{\"kind\": \"%s\", \"wall_s\": %.3f, \"iteration\": %llu", kind, (double)k2_wall_us() / 1e6,
                  (unsigned long long)iteration);
}

static void end_line(k2m_reporter *p, k2_buf *b)
{
    k2_buf_puts(b, "}\n");
    k2m_paper_line(p->paper, b->data, b->len);
    k2_buf_fini(b);
}

static void scalar(k2m_reporter *p, const char *group, const char *name, uint64_t step, double v)
{
    if (isfinite(v)) k2m_paper_scalar(p->paper, group, name, step, v);
}

static void trained_metrics(k2m_reporter *p, k2_buf *b, const char *group, uint64_t step)
{
    for (uint32_t i = 0; i < p->trained_count; i++) {
        if (strcmp(p->trained[i].name, "groups") == 0) continue; /* the line has it already */
        put(b, p->trained[i].name, p->trained[i].value);
        scalar(p, group, p->trained[i].name, step, p->trained[i].value);
    }
}

static void success_metrics(k2m_reporter *p, k2_buf *b, const k2m_report *r)
{
    const struct {
        const char *name;
        double value;
    } list[] = {{"success_mean", r->success.mean}, {"prompts_seen", r->success.seen}, {"prompts_solved", r->success.solved}};
    for (size_t i = 0; i < K2_COUNT(list); i++) {
        put(b, list[i].name, list[i].value);
        scalar(p, "run", list[i].name, r->iteration, list[i].value);
    }
}

static double seconds(uint64_t ns)
{
    return (double)ns / (double)K2_NS_PER_S;
}

static void note(double *sum, double v)
{
    if (isfinite(v)) *sum += v;
}

static void put_both(k2m_reporter *p, k2_buf *b, uint64_t iteration, const char *name, double v)
{
    put(b, name, v);
    scalar(p, "run", name, iteration, v);
}

static double tokens_per_s(const k2m_report *r)
{
    return r->generate_ns ? (double)r->generated_tokens / seconds(r->generate_ns) : NAN;
}

static void iteration_metrics(k2m_reporter *p, const k2m_report *r)
{
    const k2_replay_counts n = r->counts;
    const struct {
        const char *name;
        double value;
    } list[] = {{"groups", r->groups},
                {"trajectories", r->trained ? p->batch_trajectories : 0},
                {"reward", r->trained ? p->batch_reward : NAN},
                {"length", r->trained ? p->batch_length : NAN},
                {"cuts", r->trained ? p->batch_cuts : NAN},
                {"generate_s", seconds(r->generate_ns)},
                {"train_s", seconds(r->train_ns)},
                {"generated_tokens", (double)r->generated_tokens},
                {"rollout_tokens_per_s", tokens_per_s(r)},
                {"cut_total", (double)n.cut_total},
                {"resumed_total", (double)n.resumed_total},
                {"dropped_total", (double)n.dropped_total},
                {"skipped_batches", (double)r->aside[K2M_ASIDE_NAN]},
                {"dropped_poison", (double)r->aside[K2M_ASIDE_POISON]},
                {"dropped_reward", (double)r->aside[K2M_ASIDE_REWARD]},
                {"repetition_total", (double)n.repetition_total},
                {"retried_total", (double)r->retried},
                {"queued_resumed", n.queued_resumed}};
    k2_buf b;
    begin_line(&b, "iteration", r->iteration);
    k2_buf_printf(&b, ", \"version\": %llu", (unsigned long long)r->version);
    for (size_t i = 0; i < K2_COUNT(list); i++) put_both(p, &b, r->iteration, list[i].name, list[i].value);
    if (r->success.on) success_metrics(p, &b, r);
    if (p->run->config.rollout_refill_max > 0) put_both(p, &b, r->iteration, "groups_filtered", r->filtered);
    if (r->trained) trained_metrics(p, &b, "train", r->iteration);
    end_line(p, &b);
}

static void iteration_add(k2m_reporter *p, const k2m_report *r)
{
    p->generate_s += seconds(r->generate_ns);
    p->generated += (double)r->generated_tokens;
    if (!r->trained) return;
    p->train_s += seconds(r->train_ns);
    note(&p->train_tokens, k2m_trained(p, "tokens"));
    note(&p->train_busy_s, k2m_trained(p, "seconds"));
    p->last_reward = p->batch_reward;
}

static void report_iteration(k2m_reporter *p, const k2m_report *r)
{
    char trained[160] = "no group is whole yet";
    iteration_metrics(p, r);
    iteration_add(p, r);
    if (r->trained)
        snprintf(trained, sizeof trained, "reward %.3f  groups %u  length %.1f  loss %.4g  grad %.3g  train %.2f s",
                 p->batch_reward, r->groups, p->batch_length, k2m_trained(p, "loss"), k2m_trained(p, "grad_norm"),
                 seconds(r->train_ns));
    k2m_say(p, "iteration %llu/%llu  %s  generate %.2f s (%.0f tokens/s)  cut %llu  resumed %llu",
            (unsigned long long)r->iteration, (unsigned long long)p->run->config.iterations, trained, seconds(r->generate_ns),
            r->generate_ns ? tokens_per_s(r) : 0.0, (unsigned long long)r->counts.cut_total,
            (unsigned long long)r->counts.resumed_total);
}

static void report_pretrain(k2m_reporter *p, const k2m_report *r)
{
    k2_buf b;
    begin_line(&b, "pretrain", 0);
    k2_buf_printf(&b, ", \"pretrain_step\": %llu", (unsigned long long)r->pretrain_to);
    put(&b, "slice_s", seconds(r->train_ns));
    trained_metrics(p, &b, "pretrain", r->pretrain_to);
    end_line(p, &b);
    p->pretrain_s += seconds(r->train_ns);
    note(&p->pretrain_tokens, k2m_trained(p, "tokens"));
    k2m_say(p, "pretrain %llu/%llu  loss %.4f  grad %.3g  lr %.3g  %.0f tokens/s", (unsigned long long)r->pretrain_to,
            (unsigned long long)p->run->config.pretrain_steps, k2m_trained(p, "loss"), k2m_trained(p, "grad_norm"),
            k2m_trained(p, "lr"), k2m_trained(p, "tokens") / seconds(r->train_ns));
}

static void report_eval(k2m_reporter *p, const k2m_report *r)
{
    double accuracy = r->total ? (double)r->correct / r->total : NAN;
    k2_buf b;
    begin_line(&b, "eval", r->iteration);
    put(&b, "accuracy", accuracy);
    put(&b, "correct", r->correct);
    put(&b, "total", r->total);
    put(&b, "eval_s", seconds(r->generate_ns));
    end_line(p, &b);
    scalar(p, "eval", "accuracy", r->iteration, accuracy);
    p->eval_s += seconds(r->generate_ns);
    p->last_accuracy = accuracy;
    p->evaluated = true;
    k2m_say(p, "evaluation after iteration %llu: %u of %u held-out prompts right (%.1f %%)", (unsigned long long)r->iteration,
            r->correct, r->total, 100 * accuracy);
}

void k2m_reporter_report(k2m_reporter *p, const k2m_report *r)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(r->digest, hex);
    switch (r->kind) {
    case K2M_REPORT_ITERATION: report_iteration(p, r); break;
    case K2M_REPORT_PRETRAIN: report_pretrain(p, r); break;
    case K2M_REPORT_EVAL: report_eval(p, r); break;
    case K2M_REPORT_SAVE:
        k2m_say(p, "checkpoint step_%07llu is saved (iteration %llu)", (unsigned long long)r->version,
                (unsigned long long)r->iteration);
        break;
    case K2M_REPORT_WEIGHTS:
        p->update_s += seconds(r->update_ns);
        K2_LOG_INFO(p->log, "weights in force version=%llu digest=%s update_ms=%.0f", (unsigned long long)r->version, hex,
                    seconds(r->update_ns) * 1000);
        break;
    }
    k2m_paper_send(p->paper);
}

/* ---- the end
 * --------------------------------------------------------------------------------------------------------------------- */

static void put_accuracy(k2_buf *b, const char *name, bool known, uint32_t correct, uint32_t total)
{
    if (known && total)
        k2_buf_printf(b, "\"%s\": %.6g, ", name, (double)correct / total);
    else
        k2_buf_printf(b, "\"%s\": null, ", name);
}

static double rate(double n, double s)
{
    return s > 0 ? n / s : 0;
}

static void print_json(const k2m_reporter *p, const k2m_core *m, const char *hex, bool ok)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    k2_buf b;
    k2_buf_init(&b, 1 << 16);
    k2_buf_puts(&b, "{");
    put_accuracy(&b, "accuracy_before", m->evaluated_before, m->before_correct, m->before_total);
    put_accuracy(&b, "accuracy_after", m->evaluated_before, m->after_correct, m->after_total);
    k2_buf_printf(
        &b, "\"ok\": %s, \"iterations\": %llu, \"trajectories\": %llu, \"cut\": %llu, \"resumed\": %llu, \"retried\": %llu, ",
        ok ? "true" : "false", (unsigned long long)m->iteration, (unsigned long long)n.consumed_total,
        (unsigned long long)n.cut_total, (unsigned long long)n.resumed_total, (unsigned long long)m->retried);
    k2_buf_printf(&b, "\"skipped_batches\": %llu, \"dropped_poison\": %llu, \"dropped_reward\": %llu, ",
                  (unsigned long long)m->aside[K2M_ASIDE_NAN], (unsigned long long)m->aside[K2M_ASIDE_POISON],
                  (unsigned long long)m->aside[K2M_ASIDE_REWARD]);
    k2_buf_printf(&b, "\"dropped\": %llu, \"repetitions\": %llu, \"pretrain_steps\": %llu, \"weights_digest\": \"%s\", ",
                  (unsigned long long)n.dropped_total, (unsigned long long)n.repetition_total,
                  (unsigned long long)K2_MAX(m->trainer_pretrain, m->checkpoint.pretrain), hex);
    k2_buf_puts(&b, "\"run_dir\": ");
    k2_buf_json_string(&b, p->run->config.run_dir, strlen(p->run->config.run_dir));
    k2_buf_printf(&b,
                  ", \"seconds\": {\"total\": %.3f, \"pretrain\": %.3f, \"rl\": %.3f, \"generate\": %.3f, \"train\": %.3f, "
                  "\"update\": %.3f, \"eval\": "
                  "%.3f}, ",
                  seconds(k2_now_ns() - p->start_ns), p->pretrain_s, p->rl_ns ? seconds(k2_now_ns() - p->rl_ns) : 0.0,
                  p->generate_s, p->train_s, p->update_s, p->eval_s);
    k2_buf_printf(&b, "\"tokens_per_s\": {\"rollout\": %.1f, \"train\": %.1f, \"pretrain\": %.1f}}",
                  rate(p->generated, p->generate_s), rate(p->train_tokens, p->train_s),
                  rate(p->pretrain_tokens, p->pretrain_s));
    printf("%s\n", b.data);
    k2_buf_fini(&b);
}

void k2m_reporter_summary(k2m_reporter *p, const k2m_core *m, k2_code code, const char *text)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(k2m_digest_of(m, k2_replay_count(m->replay).step_consumed), hex);
    k2m_view_clear(p);
    if (code == K2_OK) {
        if (text[0]) printf("%s\n", text);
        if (m->evaluated_before && m->before_total && m->after_total)
            printf("held-out accuracy: %.1f %% before, %.1f %% after %llu iterations\n",
                   100.0 * m->before_correct / m->before_total, 100.0 * m->after_correct / m->after_total,
                   (unsigned long long)m->iteration);
        printf("weights %s, run directory %s\n", hex, p->run->config.run_dir);
    }
    if (p->run->json) print_json(p, m, hex, code == K2_OK);
    fflush(stdout);
    K2_LOG_INFO(p->log, "end code=%s weights=%s", k2_code_name(code), hex);
}
