/* work_out - what leaves the trainer: published weights, checkpoints; and how much memory all of it takes. See work_int.h. */
#include "trainer/work_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/flight/flight.h"

/* ---- PUBLISH ---- */

static k2_code segment_publish(k2i_work *w, const k2i_slots *s, uint64_t version, k2i_result *out)
{
    k2_weights_manifest *manifest;
    k2_weights_segment header;
    k2_xfer_segment *segment;
    uint32_t chunk = (uint32_t)K2_MIN(w->config.xfer_chunk_bytes / 4096 * 4096, (uint64_t)K2_WEIGHTS_CHUNK_BYTES_MAX);
    k2_code code = k2_weights_manifest_plan(s->slots, s->count, version, chunk, &manifest, &out->error);
    if (code != K2_OK) return code;
    k2_xfer_segment_destroy(w->published[1]); /* two versions ago: nobody is still to read it, and there are never three */
    w->published[1] = NULL;
    uint64_t bytes = k2_weights_segment_plan(manifest, &header);
    code = k2_xfer_segment_create(w->xfer, bytes, &segment, &out->error);
    if (code == K2_OK) {
        k2_weights_segment_fill(manifest, s->slots, s->count, k2_xfer_segment_memory(segment), bytes);
        w->published[1] = w->published[0];
        w->published[0] = segment;
        snprintf(out->locator, sizeof(out->locator), "%s", k2_xfer_segment_locator(segment));
        out->has_locator = true;
        out->bytes = bytes;
        out->digest = manifest->digest;
    }
    k2_weights_manifest_free(manifest);
    return code;
}

/* No collective: ranks that do not publish still say what they hold, so that the master sees them agree. */
void k2i_work_publish(k2i_work *w, uint64_t version, k2i_result *out)
{
    memset(out, 0, sizeof(*out));
    out->unchanged = true;
    out->version = version;
    k2i_slots s = k2i_slots_make(k2_model_layout_of(k2i_learner_model(w->learner)), k2i_learner_params(w->learner), "");
    if (w->rank == 0)
        (void)segment_publish(w, &s, version, out);
    else
        out->digest = k2_weights_digest(s.slots, s.count);
    k2i_slots_free(&s);
}

/* ---- SAVE ---- */

static uint64_t dir_bytes(const k2_model_layout *layout, const k2_weights_format *format)
{
    const bool rounded = format->dtype != K2_DTYPE_F32; /* then the weights are there twice */
    return layout->floats * (3 * sizeof(float) + (rounded ? k2_dtype_bytes(format->dtype) : 0));
}

/* Moments of all ranks in one vector; elements in no rank's range do not exist. */
static k2_code gather(k2i_work *w, const float *own, float *all, k2_error *err)
{
    const k2i_optim *o = k2i_learner_optim(w->learner);
    memcpy(all + o->begin, own, (o->end - o->begin) * sizeof(float));
    uint64_t floats = k2_model_param_count(k2i_learner_model(w->learner));
    return k2_coll_all_gather(w->coll, all, sizeof(float), floats, k2i_learner_ranges(w->learner), err);
}

k2_code k2i_moments_gather(k2i_work *w, float *m, float *v, k2_error *err)
{
    const k2i_optim *o = k2i_learner_optim(w->learner);
    k2_code code = gather(w, o->m, m, err);
    return code == K2_OK ? gather(w, o->v, v, err) : code;
}

void k2i_work_save(k2i_work *w, const char *dir, uint64_t step, k2i_result *out)
{
    memset(out, 0, sizeof(*out));
    const k2_model_layout *layout = k2_model_layout_of(k2i_learner_model(w->learner));
    const k2i_optim *o = k2i_learner_optim(w->learner);
    float *m = k2_alloc_array(layout->floats, sizeof(float)), *v = k2_alloc_array(layout->floats, sizeof(float));
    k2i_checkpoint state = {.step = w->step,
                            .pretrain_step = w->pretrain_step,
                            .updates = o->updates,
                            .moments = w->moments,
                            .seed = w->config.seed};
    k2_code code = k2i_moments_gather(w, m, v, &out->error);
    out->unchanged = code == K2_OK; /* a full disk costs a checkpoint, not the training */
    if (code == K2_OK && w->rank == 0) {
        const k2_weights_format format = k2i_checkpoint_format(&w->config);
        uint32_t span = k2_flight_begin(K2_FLIGHT_CHECKPOINT, step, dir_bytes(layout, &format), 0, K2_FLIGHT_NONE);
        code = k2i_checkpoint_write(dir, &w->dims, &format, layout, k2i_learner_params(w->learner), m, v, &w->config, &state,
                                    &out->error);
        k2_flight_end_with(span, 3, code);
        out->digest = state.weights;
        out->bytes = dir_bytes(layout, &format);
    }
    out->version = step;
    k2_free(v);
    k2_free(m);
}

/* ---- memory ---- */

k2i_learner_config k2i_learner_config_of(const k2_config *config, const k2_dims *dims)
{
    return (k2i_learner_config){.dims = *dims,
                                .compute = k2_compute_find(config->model_compute, true),
                                .threads = k2_budget_trainer_threads(config),
                                .lanes = (uint32_t)config->trainer_grad_lanes,
                                .micro_tokens = (uint32_t)config->trainer_micro_tokens,
                                .recompute = k2_recompute_find(config->trainer_recompute),
                                .muon = strcmp(config->trainer_optimizer, "muon") == 0,
                                .reference = k2_budget_has_reference(config)};
}

/* A control group's limit: a number, or "max". Absent outside of control groups. These files claim to be empty, so no
 * k2_file_read. */
static uint64_t limit_read(const char *path)
{
    char text[32] = "";
    uint64_t limit;
    FILE *f = fopen(path, "re");
    if (!f) return UINT64_MAX;
    bool read = fgets(text, sizeof(text), f) != NULL;
    fclose(f);
    text[strcspn(text, "\n")] = 0;
    return read && k2_str_u64(text, &limit) ? limit : UINT64_MAX;
}

uint64_t k2i_memory_machine(void)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t v2 = limit_read("/sys/fs/cgroup/memory.max"), v1 = limit_read("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    return K2_MIN(machine, K2_MIN(v1, v2));
}
