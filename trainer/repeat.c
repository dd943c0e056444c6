/* repeat - a step that was put aside, trained again in one process by the code of the run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer/inspect_int.h"
#include "trainer/rl_int.h"
#include "trainer/trainer.h"
#include "trainer/work_int.h"

#define BATCH_BYTES_MAX ((size_t)1 << 40)

typedef unsigned long long ull;

typedef struct repeat {
    const char *dir;
    const k2_quarantine_note *note;
    k2i_work work;
    k2i_metrics *metrics; /* of the last step */
    k2i_inspection seen;
    const char *bad;
    k2_digest before, after;
} repeat;

/* ---- doing it ---- */

static k2_code open_at_start(repeat *r, k2_error *err)
{
    k2_config config;
    k2i_checkpoint state = {0};
    char *path = k2_quarantine_path(r->dir, "config.json"), *start = k2_quarantine_path(r->dir, "start");
    k2i_result *result = k2_alloc(sizeof(*result));
    k2_config_defaults(&config);
    k2_code code = k2_config_load(&config, path, err);
    config.trainer_ranks = 1;
    if (code == K2_OK) code = k2i_checkpoint_peek(start, &state, err);
    if (code == K2_OK) code = k2i_work_open(&r->work, &config, 0, NULL, err);
    if (code == K2_OK) {
        char alone[K2_XFER_LOCATOR_MAX];
        const char *locator = alone;
        k2i_work_join(&r->work, result);
        memcpy(alone, result->locator, sizeof(alone)); /* INIT clears the result */
        if (result->error.code == K2_OK) k2i_work_init(&r->work, &locator, 1, start, state.step, result);
        code = result->error.code;
        if (code != K2_OK) *err = result->error;
    }
    k2_free(result);
    k2_free(start);
    k2_free(path);
    return code;
}

static k2_code batch_load(const repeat *r, uint64_t step, void **bytes, k2_batch *batch, k2_error *err)
{
    char *path = k2_quarantine_batch_path(r->dir, step), *text = NULL;
    size_t len = 0;
    k2_code code = k2_file_read(path, BATCH_BYTES_MAX, &text, &len, err);
    if (code == K2_OK) {
        *bytes = k2_alloc_aligned(64, len); /* a view of it needs more than a file's text has */
        memcpy(*bytes, text, len);
        code = k2_batch_decode(*bytes, len, batch, err);
        if (code == K2_OK && batch->step != step)
            code = k2_error_set(err, K2_BAD_INPUT, "%s: is of step %llu", path, (ull)batch->step);
        if (code == K2_OK && r->note->kind != K2_QUARANTINE_PRETRAIN)
            code = k2i_rl_check(batch, &r->work.dims, &r->work.config, err);
        if (code != K2_OK) k2_free(*bytes);
    }
    k2_free(text);
    k2_free(path);
    return code;
}

static k2_code step_train(repeat *r, const k2_batch *batch, bool look, k2_error *err)
{
    k2i_work *w = &r->work;
    bool pretrain = r->note->kind == K2_QUARANTINE_PRETRAIN;
    k2i_moments_enter(w, pretrain ? K2I_MOMENTS_PRETRAIN : K2I_MOMENTS_TRAIN);
    if (look) k2i_inspect(w->learner, &w->config, batch, pretrain, &r->seen);
    r->bad = NULL;
    r->metrics->count = 0;
    k2_code code = pretrain ? k2i_pretrain_repeat(&w->config, w->learner, batch, r->metrics, &r->bad, err)
                            : k2i_rl_step(w->learner, &w->config, batch, r->metrics, &r->bad, err);
    if (code == K2_OK && look && r->bad) k2i_inspect_update(w->learner, r->bad, &r->seen);
    return code;
}

/* All batches in order; the last one is looked at where that is wanted. */
static k2_code run(repeat *r, bool look, k2_error *err)
{
    r->metrics = k2_alloc(sizeof(*r->metrics));
    k2_code code = open_at_start(r, err);
    for (uint64_t s = r->note->batch_first; s <= r->note->batch_last && code == K2_OK; s++) {
        void *bytes;
        k2_batch batch;
        bool last = s == r->note->batch_last;
        if (last) r->before = k2i_work_digest(&r->work);
        code = batch_load(r, s, &bytes, &batch, err);
        if (code != K2_OK) break;
        code = step_train(r, &batch, last && look, err);
        k2_free(bytes);
    }
    if (code == K2_OK) r->after = k2i_work_digest(&r->work);
    return code;
}

static void run_end(repeat *r)
{
    k2i_inspection_fini(&r->seen);
    k2i_work_close(&r->work);
    k2_free(r->metrics);
}

/* ---- telling it ---- */

static bool same(k2_digest a, k2_digest known)
{
    return k2_digest_zero(known) || k2_digest_equal(a, known);
}

static bool reproduced(const repeat *r)
{
    return same(r->before, r->note->weights) && same(r->after, r->note->result);
}

static void put_number(k2_buf *b, const char *name, double x)
{
    if (isfinite(x))
        k2_buf_printf(b, ", \"%s\": %.9g", name, x);
    else
        k2_buf_printf(b, ", \"%s\": null", name);
}

static void put_text(k2_buf *b, const char *name, const char *text)
{
    k2_buf_printf(b, ", \"%s\": ", name);
    if (text && text[0])
        k2_buf_json_string(b, text, strlen(text));
    else
        k2_buf_puts(b, "null");
}

static void put_digest(k2_buf *b, const char *name, k2_digest d)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(d, hex);
    put_text(b, name, k2_digest_zero(d) ? NULL : hex);
}

static void print_json(const repeat *r)
{
    k2_buf b;
    k2_buf_init(&b, SIZE_MAX / 2);
    k2_buf_printf(&b, "{\"kind\": \"%s\", \"step\": %llu, \"trajectories\": [", k2_quarantine_kind_name(r->note->kind),
                  (ull)r->note->number);
    for (uint32_t i = 0; i < r->seen.count; i++) {
        const k2i_seen *s = &r->seen.seen[i];
        k2_buf_printf(&b, "%s{\"trajectory\": %llu, \"group\": %llu, \"tokens\": %u", i ? ", " : "", (ull)s->id, (ull)s->group,
                      s->tokens);
        put_number(&b, "reward", s->reward);
        put_number(&b, "advantage", s->advantage);
        put_number(&b, "loss", s->loss);
        put_number(&b, "logp", s->logp);
        put_number(&b, "rollout_logp", s->rollout);
        put_number(&b, "ratio", s->ratio);
        put_number(&b, "grad_norm", s->grad_norm);
        k2_buf_puts(&b, "}");
    }
    k2_buf_puts(&b, "]");
    put_number(&b, "loss", k2i_metrics_get(r->metrics, "loss"));
    put_number(&b, "grad_norm", k2i_metrics_get(r->metrics, "grad_norm"));
    put_text(&b, "bad", r->bad);
    put_text(&b, "first_bad", r->seen.first_bad);
    put_digest(&b, "weights_before", r->before);
    put_digest(&b, "expected_before", r->note->weights);
    put_digest(&b, "weights_after", r->after);
    put_digest(&b, "expected_after", r->note->result);
    k2_buf_printf(&b, ", \"reproduced\": %s}\n", reproduced(r) ? "true" : "false");
    fputs(b.data, stdout);
    k2_buf_fini(&b);
}

static void print_digests(const char *when, k2_digest now, k2_digest run)
{
    char a[K2_DIGEST_HEX], b[K2_DIGEST_HEX];
    k2_digest_hex(now, a);
    k2_digest_hex(run, b);
    if (k2_digest_zero(run))
        printf("weights %s: %s; what the run had is not known\n", when, a);
    else if (k2_digest_equal(now, run))
        printf("weights %s: %s, as in the run\n", when, a);
    else
        printf("weights %s: %s, the run had %s\n", when, a, b);
}

static void print_text(const repeat *r)
{
    printf("%s %llu: %s\n\n%12s %8s %9s %9s %7s %9s %9s %9s %10s %10s\n", k2_quarantine_kind_name(r->note->kind),
           (ull)r->note->number, r->note->error, "trajectory", "group", "reward", "advantage", "tokens", "logp", "rollout",
           "ratio", "loss", "grad norm");
    for (uint32_t i = 0; i < r->seen.count; i++) {
        const k2i_seen *s = &r->seen.seen[i];
        printf("%12llu %8llu %9.4g %9.4g %7u %9.4f %9.4f %9.4f %10.4g %10.4g%s\n", (ull)s->id, (ull)s->group, s->reward,
               s->advantage, s->tokens, s->logp, s->rollout, s->ratio, s->loss, s->grad_norm, s->bad ? "  <== not finite" : "");
    }
    printf("\nfirst that is not finite: %s\n", r->seen.first_bad[0] ? r->seen.first_bad : "nothing");
    if (r->bad)
        printf("the step is skipped: %s is NaN or infinite\n", r->bad);
    else
        printf("the step is made: loss %.6g, gradient norm %.6g\n", k2i_metrics_get(r->metrics, "loss"),
               k2i_metrics_get(r->metrics, "grad_norm"));
    print_digests("before", r->before, r->note->weights);
    print_digests("after", r->after, r->note->result);
    puts(reproduced(r) ? "reproduced" : "NOT reproduced");
}

/* ---- public ---- */

int k2_trainer_repeat(const char *dir, const k2_quarantine_note *note, bool json)
{
    repeat r = {.dir = dir, .note = note};
    k2_error err = {0};
    int status = 2;
    k2_code code = note->batch_first > note->batch_last ? k2_error_set(&err, K2_BAD_INPUT, "%s: has no batch", dir) : K2_OK;
    if (code == K2_OK) code = run(&r, true, &err);
    if (code == K2_OK) {
        status = reproduced(&r) ? 0 : 1;
        if (json)
            print_json(&r);
        else
            print_text(&r);
        fflush(stdout);
    } else {
        fprintf(stderr, "k2rl replay-step: %s\n", err.text);
    }
    run_end(&r);
    return status;
}

k2_code k2_trainer_weights(const char *dir, const k2_quarantine_note *note, const char *model_dir, k2_error *err)
{
    repeat r = {.dir = dir, .note = note};
    k2_code code = run(&r, false, err);
    if (code == K2_OK && !k2_digest_equal(r.after, note->weights))
        code = k2_error_set(err, K2_CORRUPT, "%s: its start and batches do not lead to the weights that it names", dir);
    if (code == K2_OK) {
        k2i_slots s =
            k2i_slots_make(k2_model_layout_of(k2i_learner_model(r.work.learner)), k2i_learner_params(r.work.learner), "");
        code = k2_weights_dir_save(model_dir, &r.work.dims, &(k2_weights_format){.dtype = K2_DTYPE_F32}, s.slots, s.count, err);
        k2i_slots_free(&s);
    }
    run_end(&r);
    return code;
}
