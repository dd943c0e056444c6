/* aside - a step that met NaN or infinity goes into quarantine, with a copy of the state that it began from. A reference to the
 * run's last checkpoint would be smaller, but going on from there means training every batch since: the copy repeats the step
 * alone. See work_int.h. */
#include "trainer/work_int.h"

#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

static k2_code config_put(const k2i_work *w, k2_quarantine *q, k2_error *err)
{
    char *json = k2_config_json(&w->config);
    k2_code code = k2_quarantine_put(q, "config.json", json, strlen(json), err);
    k2_free(json);
    return code;
}

static k2_code start_put(k2i_work *w, k2_quarantine *q, float *m, float *v, k2i_checkpoint *state, k2_error *err)
{
    char *dir = k2_quarantine_path(k2_quarantine_dir(q), "start");
    const k2_weights_format format = {.dtype = K2_DTYPE_F32};
    k2_code code = k2i_checkpoint_write(dir, &w->dims, &format, k2_model_layout_of(k2i_learner_model(w->learner)),
                                        k2i_learner_params(w->learner), m, v, NULL, state, err);
    k2_free(dir);
    return code;
}

/* q is gone afterwards. */
static k2_code entry_write(k2i_work *w, const k2i_bad_step *s, k2_quarantine *q, float *m, float *v, char **path, k2_error *err)
{
    k2i_checkpoint state = s->start;
    state.updates = k2i_learner_optim(w->learner)->updates;
    state.moments = w->moments;
    state.seed = w->config.seed;
    k2_code code = config_put(w, q, err);
    if (code == K2_OK) code = k2_quarantine_put_batch(q, s->step, s->bytes, s->len, err);
    if (code == K2_OK) code = start_put(w, q, m, v, &state, err);
    k2_quarantine_note note = {.kind = s->kind,
                               .number = s->step,
                               .seed = w->config.seed,
                               .batch_first = s->step,
                               .batch_last = s->step,
                               .weights = state.weights,
                               .result = state.weights}; /* what is skipped changes nothing */
    snprintf(note.error, sizeof(note.error), "%s is NaN or infinite", s->bad);
    if (code == K2_OK) return k2_quarantine_commit(q, &note, path, err);
    k2_quarantine_drop(q);
    return code;
}

static void tell(const k2i_work *w, const k2i_bad_step *s, k2_code code, const char *path, const k2_error *why)
{
    if (code == K2_OK)
        K2_LOG_WARN(w->log, "%s is NaN or infinite: the step is skipped and put aside step=%llu dir=%s", s->bad, (ull)s->step,
                    path);
    else if (code == K2_CANCELED)
        K2_LOG_WARN(w->log, "%s is NaN or infinite: the step is skipped, as it was before step=%llu", s->bad, (ull)s->step);
    else
        K2_LOG_ERROR(w->log, "%s is NaN or infinite: the step is skipped, and nothing of it is kept step=%llu: %s", s->bad,
                     (ull)s->step, why->text);
}

k2_code k2i_put_aside(k2i_work *w, const k2i_bad_step *s, k2_error *err)
{
    k2_quarantine *q = NULL;
    k2_error why = {.code = K2_OK};
    char *path = NULL;
    if (w->rank == 0) (void)k2_quarantine_begin(w->config.run_dir, s->kind, s->step, w->config.policy_kept, &q, &why);
    double kept = q != NULL, all[K2_COLL_RANKS_MAX]; /* where nothing is to be written, nothing need be gathered */
    k2_code code = k2_coll_all_gather_f64(w->coll, &kept, 1, all, err);
    if (code == K2_OK && all[0] != 0) {
        size_t floats = k2_model_param_count(k2i_learner_model(w->learner));
        float *m = k2_alloc_array(floats, sizeof(float)), *v = k2_alloc_array(floats, sizeof(float));
        code = k2i_moments_gather(w, m, v, err);
        if (code == K2_OK && q) {
            (void)entry_write(w, s, q, m, v, &path, &why);
            q = NULL;
        }
        k2_free(v);
        k2_free(m);
    }
    k2_quarantine_drop(q);
    if (code == K2_OK && w->rank == 0) tell(w, s, why.code, path, &why);
    k2_free(path);
    return code;
}
