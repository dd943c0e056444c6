/* work - group, start, training commands. See work_int.h; publishing and saving stand in work_out.c. */
#include "trainer/work_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer/rl_int.h"

typedef unsigned long long ull;

/* ---- birth and death ---- */

k2_code k2i_work_open(k2i_work *w, const k2_config *config, uint32_t rank, k2_log *log, k2_error *err)
{
    *w = (k2i_work){.config = *config, .rank = rank, .log = log, .ranks = (uint32_t)config->trainer_ranks};
    k2_xfer_config xfer = {.transport = w->config.xfer_transport,
                           .chunk_bytes = K2_MIN(K2_MAX(config->xfer_chunk_bytes, K2_XFER_CHUNK_MIN), K2_XFER_CHUNK_MAX),
                           .retries = (uint32_t)K2_MIN(config->xfer_retries, (uint64_t)K2_XFER_RETRIES_MAX),
                           .deadline_ns = config->xfer_deadline_ms * K2_NS_PER_MS};
    return k2_xfer_open(&xfer, &w->xfer, err);
}

static void model_drop(k2i_work *w)
{
    for (size_t i = 0; i < K2_COUNT(w->published); i++) {
        k2_xfer_segment_destroy(w->published[i]);
        w->published[i] = NULL;
    }
    k2i_pretrain_close(w->pretrain);
    k2i_learner_free(w->learner);
    w->pretrain = NULL;
    w->learner = NULL;
    w->moments = K2I_MOMENTS_NONE;
    w->step = w->pretrain_step = 0;
}

void k2i_work_close(k2i_work *w)
{
    model_drop(w);
    k2_coll_close(w->coll);
    k2_xfer_close(w->xfer);
    *w = (k2i_work){0};
}

/* ---- what all commands need ---- */

static void result_begin(k2i_result *out)
{
    memset(out, 0, sizeof(*out));
}

k2_code k2i_agree(k2i_work *w, k2_code own, bool *unchanged, k2_error *err)
{
    double mine = own, all[K2_COLL_RANKS_MAX];
    k2_error coll_err;
    *unchanged = false;
    k2_code code = k2_coll_all_gather_f64(w->coll, &mine, 1, all, &coll_err);
    if (code != K2_OK) {
        if (own == K2_OK && err) *err = coll_err;
        return own == K2_OK ? code : own;
    }
    *unchanged = true;
    if (own != K2_OK) return own;
    for (uint32_t r = 0; r < w->ranks; r++)
        if (all[r] != K2_OK)
            return k2_error_set(err, K2_AGAIN, "rank %u refused with %s; nothing was changed", r,
                                k2_code_name((k2_code)all[r]));
    return K2_OK;
}

void k2i_moments_enter(k2i_work *w, k2i_moments phase)
{
    if (w->moments != phase) k2i_optim_reset(k2i_learner_optim(w->learner));
    w->moments = phase;
}

/* ---- JOIN ---- */

void k2i_work_join(k2i_work *w, k2i_result *out)
{
    result_begin(out);
    model_drop(w);
    k2_coll_close(w->coll);
    w->coll = NULL;
    /* Locators carry a nonce, so groups formed at different times cannot meet, and the number of the group may stay the same.
     */
    k2_coll_config config = {.xfer = w->ranks > 1 ? w->xfer : NULL,
                             .rank = w->rank,
                             .ranks = w->ranks,
                             .group = 1,
                             .deadline_ns = w->config.xfer_deadline_ms * K2_NS_PER_MS};
    if (k2_coll_open(&config, &w->coll, &out->error) != K2_OK) return;
    snprintf(out->locator, sizeof(out->locator), "%s", k2_coll_locator(w->coll));
    out->has_locator = true;
}

/* ---- INIT ---- */

static k2_code dims_find(k2i_work *w, const char *source, k2_error *err)
{
    bool fresh = strcmp(source, "fresh") == 0;
    if (fresh && !w->config.model_dir[0]) return k2_weights_dims_load(w->config.model_config, &w->dims, err);
    char *path = k2_asprintf("%s/config.json", fresh ? w->config.model_dir : source);
    k2_code code = k2_weights_dims_load(path, &w->dims, err);
    k2_free(path);
    return code;
}

static k2_code memory_check(const k2i_work *w, k2_error *err)
{
    uint64_t needed = k2_budget_trainer(&w->config, &w->dims, w->rank, w->ranks).total, machine = k2i_memory_machine();
    uint64_t all = needed * w->ranks; /* ranks of one machine share it */
    if (all <= machine) return K2_OK;
    return k2_error_set(
        err, K2_LIMIT,
        "the trainer needs %llu MiB (%u ranks of %llu MiB), this machine has %llu MiB: lower trainer.micro_tokens "
        "or trainer.grad_lanes, or take a smaller model",
        (ull)(all >> 20), w->ranks, (ull)(needed >> 20), (ull)(machine >> 20));
}

static k2_code checkpoint_load(k2i_work *w, const char *source, uint64_t step, k2_error *err)
{
    const k2_model_layout *layout = k2_model_layout_of(k2i_learner_model(w->learner));
    k2i_optim *o = k2i_learner_optim(w->learner);
    float *m = k2_alloc_array(layout->floats, sizeof(float)), *v = k2_alloc_array(layout->floats, sizeof(float));
    k2i_checkpoint state;
    k2_code code = k2i_checkpoint_read(source, layout, k2i_learner_params(w->learner), m, v, &state, err);
    if (code == K2_OK && state.step != step)
        code = k2_error_set(err, K2_BAD_INPUT, "%s: holds step %llu, expected %llu", source, (ull)state.step, (ull)step);
    if (code == K2_OK) {
        memcpy(o->m, m + o->begin, (o->end - o->begin) * sizeof(float));
        memcpy(o->v, v + o->begin, (o->end - o->begin) * sizeof(float));
        o->updates = state.updates;
        w->moments = state.moments;
        w->step = state.step;
        w->pretrain_step = state.pretrain_step;
        k2i_learner_params_changed(w->learner);
    }
    k2_free(v);
    k2_free(m);
    return code;
}

static k2_code weights_load(k2i_work *w, const char *source, uint64_t step, k2_error *err)
{
    if (strcmp(source, "fresh") != 0) return checkpoint_load(w, source, step, err);
    if (step != 0) return k2_error_set(err, K2_BAD_INPUT, "INIT: found step %llu of a fresh model, expected 0", (ull)step);
    if (!w->config.model_dir[0]) {
        k2_model_init(k2i_learner_model(w->learner), w->config.seed, w->config.model_init_std);
        k2i_learner_params_changed(w->learner);
        return K2_OK;
    }
    k2i_slots s = k2i_slots_make(k2_model_layout_of(k2i_learner_model(w->learner)), k2i_learner_params(w->learner), "");
    k2_code code = k2_weights_dir_load(w->config.model_dir, s.slots, s.count, err);
    k2i_slots_free(&s);
    if (code == K2_OK) k2i_learner_params_changed(w->learner);
    return code;
}

/* The frozen model is the same on every start: a directory that the run does not write. */
static k2_code reference_load(k2i_work *w, k2_error *err)
{
    float *params = k2i_learner_reference(w->learner);
    const char *dir = w->config.trainer_kl_reference[0] ? w->config.trainer_kl_reference : w->config.model_dir;
    if (!params) return K2_OK;
    k2i_slots s = k2i_slots_make(k2_model_layout_of(k2i_learner_model(w->learner)), params, "");
    k2_code code = k2_weights_dir_load(dir, s.slots, s.count, err);
    k2i_slots_free(&s);
    return code;
}

k2_digest k2i_work_digest(const k2i_work *w)
{
    k2i_slots s = k2i_slots_make(k2_model_layout_of(k2i_learner_model(w->learner)), k2i_learner_params(w->learner), "");
    k2_digest digest = k2_weights_digest(s.slots, s.count);
    k2i_slots_free(&s);
    return digest;
}

/* Ranks that start apart would stay apart unseen: one look at the start costs nothing. */
static k2_code digests_compare(k2i_work *w, k2_digest own, k2_error *err)
{
    k2_digest all[K2_COLL_RANKS_MAX];
    k2_code code = k2_coll_all_gather_bytes(w->coll, &own, sizeof(own), all, err);
    for (uint32_t r = 0; r < w->ranks && code == K2_OK; r++)
        if (!k2_digest_equal(all[r], own))
            code = k2_error_set(err, K2_INTERNAL, "rank %u starts from other weights than rank %u", r, w->rank);
    return code;
}

static double params_active(const k2_model_layout *layout, const k2_dims *dims)
{
    double active = 0;
    for (size_t i = 0; i < layout->params_count; i++) {
        double share = layout->params[i].expert >= 0 ? (double)dims->num_experts_per_tok / dims->n_routed_experts : 1;
        active += share * (double)layout->params[i].count;
    }
    return active;
}

static void init_report(k2i_work *w, k2i_result *out)
{
    const k2_model_layout *layout = k2_model_layout_of(k2i_learner_model(w->learner));
    double params = 0;
    for (size_t i = 0; i < layout->params_count; i++) params += (double)layout->params[i].count;
    out->step = w->step;
    out->pretrain_step = w->pretrain_step;
    k2i_metrics_set(&out->metrics, "step", (double)w->step);
    k2i_metrics_set(&out->metrics, "pretrain_step", (double)w->pretrain_step);
    k2i_metrics_set(&out->metrics, "params", params);
    k2i_metrics_set(&out->metrics, "active_params", params_active(layout, &w->dims));
    k2i_metrics_set(&out->metrics, "memory_bytes", (double)k2_budget_trainer(&w->config, &w->dims, w->rank, w->ranks).total);
}

void k2i_work_init(k2i_work *w, const char *const *locators, uint32_t count, const char *source, uint64_t step, k2i_result *out)
{
    result_begin(out);
    k2_error *err = &out->error;
    k2_code code = K2_OK;
    if (count != w->ranks)
        code = k2_error_set(err, K2_BAD_INPUT, "INIT: found %u locators, expected %u, one for each rank", count, w->ranks);
    if (code == K2_OK) code = dims_find(w, source, err);
    if (code == K2_OK) code = memory_check(w, err);
    if (code == K2_OK) code = k2_coll_join(w->coll, locators, count, err);
    if (code != K2_OK) return;
    k2i_learner_config config = k2i_learner_config_of(&w->config, &w->dims);
    config.coll = w->coll;
    code = k2i_learner_new(&config, &w->learner, err);
    if (code == K2_OK) code = weights_load(w, source, step, err);
    if (code == K2_OK) code = reference_load(w, err);
    bool together;
    code = k2i_agree(w, code, &together, err);
    if (code != K2_OK) return;
    out->digest = k2i_work_digest(w);
    if (digests_compare(w, out->digest, err) == K2_OK) init_report(w, out);
}

/* ---- PRETRAIN ---- */

/* How a metric of one step goes into that of a slice of steps. */
static double metric_merge(const char *name, double so_far, double now, uint64_t steps)
{
    static const char *const sums[] = {"tokens", "tokens_loss", "seconds", "skipped", "qk_clipped"};
    size_t n = strlen(name);
    for (size_t i = 0; i < K2_COUNT(sums); i++)
        if (strcmp(name, sums[i]) == 0) return so_far + now;
    if (strcmp(name, "lr") == 0) return now;
    if (n > 4 && strcmp(name + n - 4, "_max") == 0) return steps > 0 ? K2_MAX(so_far, now) : now;
    return so_far + (now - so_far) / (double)(steps + 1);
}

static void metrics_merge(k2i_metrics *total, const k2i_metrics *step, uint64_t steps)
{
    for (uint32_t i = 0; i < step->count; i++) {
        double so_far = k2i_metrics_get(total, step->items[i].name);
        k2i_metrics_set(total, step->items[i].name,
                        metric_merge(step->items[i].name, isnan(so_far) != 0 ? 0 : so_far, step->items[i].value, steps));
    }
}

static k2_code pretrain_aside(k2i_work *w, uint64_t step, const char *bad, k2_error *err)
{
    k2_buf bytes;
    k2_buf_init(&bytes, SIZE_MAX / 2);
    k2_code code = k2i_pretrain_encode(w->pretrain, step, &bytes, err);
    k2i_bad_step s = {.kind = K2_QUARANTINE_PRETRAIN,
                      .step = step,
                      .start = {.step = w->step, .pretrain_step = step},
                      .bytes = bytes.data,
                      .len = bytes.len,
                      .bad = bad};
    if (code == K2_OK) code = k2i_put_aside(w, &s, err);
    k2_buf_fini(&bytes);
    return code;
}

static k2_code pretrain_one(k2i_work *w, uint64_t step, k2i_metrics *metrics, k2_error *err)
{
    const char *bad;
    k2_code code = k2i_pretrain_step(w->pretrain, w->learner, step, metrics, &bad, err);
    return code == K2_OK && bad ? pretrain_aside(w, step, bad, err) : code;
}

/* What a step says that it had; a step that failed says nothing. */
static void count_tokens(k2i_work *w, const k2i_metrics *step)
{
    double tokens = k2i_metrics_get(step, "tokens");
    if (tokens > 0) atomic_fetch_add(&w->tokens, (uint64_t)tokens);
}

void k2i_work_pretrain(k2i_work *w, uint64_t from, uint64_t to, k2i_result *out)
{
    result_begin(out);
    k2_code code = w->pretrain ? K2_OK : k2i_pretrain_open(&w->config, &w->dims, &w->pretrain, &out->error);
    code = k2i_agree(w, code, &out->unchanged, &out->error);
    if (code != K2_OK) return;
    out->unchanged = false;
    k2i_moments_enter(w, K2I_MOMENTS_PRETRAIN);
    k2i_metrics *step = k2_alloc(sizeof(*step));
    for (uint64_t s = from; s < to && code == K2_OK; s++) {
        step->count = 0;
        code = pretrain_one(w, s, step, &out->error);
        if (code == K2_OK) metrics_merge(&out->metrics, step, s - from);
        count_tokens(w, step);
        atomic_fetch_add(&w->progress, 1);
    }
    k2_free(step);
    if (code != K2_OK) return;
    w->pretrain_step = to;
    k2i_metrics_speed(&out->metrics, k2i_metrics_get(&out->metrics, "tokens"), k2i_metrics_get(&out->metrics, "seconds"));
}

/* ---- TRAIN ---- */

static k2_code batch_fetch(k2i_work *w, const char *locator, uint64_t bytes, void *to, k2_error *err)
{
    uint64_t deadline = k2_now_ns() + w->config.xfer_deadline_ms * K2_NS_PER_MS;
    k2_xfer_remote *remote;
    k2_xfer_batch *read = NULL;
    k2_code code = k2_xfer_remote_open(w->xfer, locator, deadline, &remote, err);
    if (code != K2_OK) return code;
    k2_xfer_request request = {.sources = &remote, .source_count = 1, .bytes = bytes, .local = to};
    code = k2_xfer_batch_submit(w->xfer, &request, 1, &read, err);
    if (code == K2_OK) code = k2_xfer_batch_wait(read, deadline, err);
    k2_xfer_batch_close(read);
    k2_xfer_remote_close(remote);
    return code;
}

static k2_code batch_check(const k2i_work *w, uint64_t step, k2_digest digest, const void *bytes, uint64_t n, k2_batch *batch,
                           k2_error *err)
{
    if (!k2_digest_equal(k2_digest_of(bytes, n), digest))
        return k2_error_set(err, K2_CORRUPT, "batch of step %llu: its bytes do not match their digest", (ull)step);
    k2_code code = k2_batch_decode(bytes, n, batch, err);
    if (code == K2_OK && batch->step != step)
        code = k2_error_set(err, K2_BAD_INPUT, "batch: made for step %llu, expected %llu", (ull)batch->step, (ull)step);
    return code == K2_OK ? k2i_rl_check(batch, &w->dims, &w->config, err) : code;
}

void k2i_work_train(k2i_work *w, uint64_t step, const char *locator, uint64_t bytes, k2_digest digest, k2i_result *out)
{
    result_begin(out);
    const char *bad = NULL;
    k2_batch batch;
    void *memory = bytes <= k2i_memory_machine() ? k2_alloc_aligned(64, bytes) : NULL;
    k2_code code = memory ? K2_OK : k2_error_set(&out->error, K2_LIMIT, "TRAIN: a batch of %llu bytes", (ull)bytes);
    if (code == K2_OK) code = batch_fetch(w, locator, bytes, memory, &out->error);
    if (code == K2_OK) code = batch_check(w, step, digest, memory, bytes, &batch, &out->error);
    code = k2i_agree(w, code, &out->unchanged, &out->error);
    if (code == K2_OK) {
        out->unchanged = false;
        k2i_moments_enter(w, K2I_MOMENTS_TRAIN);
        code = k2i_rl_step(w->learner, &w->config, &batch, &out->metrics, &bad, &out->error);
    }
    k2i_bad_step s = {.kind = K2_QUARANTINE_STEP,
                      .step = step,
                      .start = {.step = w->step, .pretrain_step = w->pretrain_step},
                      .bytes = memory,
                      .len = bytes,
                      .bad = bad};
    if (code == K2_OK && bad) code = k2i_put_aside(w, &s, &out->error);
    if (code == K2_OK) w->step = step;
    count_tokens(w, &out->metrics);
    atomic_fetch_add(&w->progress, 1);
    k2_free(memory);
}
