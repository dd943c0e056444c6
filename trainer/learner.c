/* learner - one update from the gradients of all lanes of all ranks. See learner_int.h. */
#include "trainer/lanes_int.h"

#include <math.h>
#include <string.h>

#include "common/flight/flight.h"

/* ---- birth and death ---- */

static uint32_t replicas_count(const k2i_learner *l)
{
    k2_model_layout *layout = k2_model_layout_new(&l->config.dims);
    uint32_t count = k2_budget_replicas(layout->floats, l->config.threads, l->lanes_local);
    k2_model_layout_free(layout);
    return count;
}

/* Tensors of one kind that stand side by side become one span; the padding behind a tensor goes with it and stays 0. */
static void spans_make(k2i_learner *l, const k2_model_layout *layout)
{
    l->spans = k2_alloc_array(layout->params_count, sizeof(*l->spans));
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        uint64_t end = i + 1 < layout->params_count ? layout->params[i + 1].offset : layout->floats;
        bool trained = p->kind != K2_KIND_BIAS, decays = p->kind == K2_KIND_MATRIX || p->kind == K2_KIND_EMBED;
        bool by_muon = l->config.muon && p->kind == K2_KIND_MATRIX;
        k2i_optim_span *last = l->span_count > 0 ? &l->spans[l->span_count - 1] : NULL;
        if (last && last->trained == trained && last->decays == decays && last->by_muon == by_muon)
            last->end = end;
        else
            l->spans[l->span_count++] =
                (k2i_optim_span){.begin = p->offset, .end = end, .trained = trained, .by_muon = by_muon, .decays = decays};
    }
}

static void ranges_make(k2i_learner *l)
{
    l->ranges = k2_alloc_array(l->ranks, sizeof(*l->ranges));
    l->block_ranges = k2_alloc_array(l->ranks, sizeof(*l->block_ranges));
    for (uint32_t r = 0; r < l->ranks; r++) {
        l->ranges[r] = k2_coll_split(l->floats, l->ranks, r, K2I_BLOCK);
        uint64_t first = (l->ranges[r].begin + K2I_BLOCK - 1) / K2I_BLOCK; /* an empty range may begin at the ragged end */
        l->block_ranges[r] = (k2_coll_range){first, first + k2i_norm_block_count(l->ranges[r].begin, l->ranges[r].end)};
    }
}

static k2_code replica_open(k2i_replica *r, const k2i_learner *l, uint32_t threads, k2_error *err)
{
    uint32_t n = l->config.micro_tokens;
    r->model = k2_model_new(&l->config.dims, l->config.compute, threads, err);
    if (!r->model) return err->code;
    k2_arena_init(&r->arena, k2_model_train_bytes(&l->config.dims, threads, n, l->config.recompute));
    r->tokens = k2_alloc_array(n, sizeof(int32_t));
    r->targets = k2_alloc_array(n, sizeof(int32_t));
    r->starts = k2_alloc_array((size_t)n + 1, sizeof(uint32_t));
    r->logp = k2_alloc_array(n, sizeof(float));
    r->entropy = k2_alloc_array(n, sizeof(float));
    r->weight = k2_alloc_array(n, sizeof(float));
    r->dlogp = k2_alloc_array(n, sizeof(float));
    r->loads = k2_alloc_array(l->loads_count, sizeof(uint32_t));
    r->tops = k2_alloc_array(l->tops_count, sizeof(float));
    return K2_OK;
}

static void replica_close(k2i_replica *r)
{
    k2_free(r->tops);
    k2_free(r->loads);
    k2_free(r->dlogp);
    k2_free(r->weight);
    k2_free(r->entropy);
    k2_free(r->logp);
    k2_free(r->starts);
    k2_free(r->targets);
    k2_free(r->tokens);
    if (r->arena.base) k2_arena_fini(&r->arena);
    k2_model_free(r->model);
}

static void buffers_make(k2i_learner *l)
{
    k2_coll_range own = l->ranges[l->rank];
    l->grads = k2_alloc_array(l->lanes_local, sizeof(*l->grads));
    for (uint32_t i = 0; i < l->lanes_local; i++) l->grads[i] = k2_alloc_aligned(64, l->floats * sizeof(float));
    if (l->config.reference) l->reference = k2_alloc_aligned(64, l->floats * sizeof(float));
    l->shard = k2_alloc_aligned(64, (own.end - own.begin) * sizeof(float));
    l->block_sums = k2_alloc_array(l->blocks, sizeof(double));
    l->lane_sums = k2_alloc_array((size_t)l->config.lanes * l->sums_width, sizeof(double));
    l->loads = k2_alloc_array(l->loads_count, sizeof(double));
    l->tops = k2_alloc_array(l->tops_count, sizeof(double));
    k2i_optim_init(&l->optim, own.begin, own.end);
}

k2_code k2i_learner_new(const k2i_learner_config *config, k2i_learner **out, k2_error *err)
{
    k2_error local;
    if (!err) err = &local;
    k2_code code = k2_dims_check(&config->dims, err);
    if (code != K2_OK) return code;
    k2i_learner *l = k2_alloc(sizeof(*l));
    l->config = *config;
    l->rank = k2_coll_rank(config->coll);
    l->ranks = k2_coll_ranks(config->coll);
    K2_ASSERT(config->threads >= 1 && config->lanes % l->ranks == 0);
    l->lanes_local = config->lanes / l->ranks;
    l->lane_first = l->rank * l->lanes_local;
    l->loads_count = k2_dims_moe_layers(&config->dims) * config->dims.n_routed_experts;
    l->tops_count = config->dims.num_hidden_layers * config->dims.num_attention_heads;
    l->sums_width = K2I_SUM_COUNT + l->loads_count + l->tops_count;
    l->replica_count = replicas_count(l);
    for (uint32_t i = 0; i < l->replica_count && code == K2_OK; i++)
        code = replica_open(&l->replicas[i], l, config->threads / l->replica_count, err);
    if (code != K2_OK) {
        k2i_learner_free(l);
        return code;
    }
    const k2_model_layout *layout = k2_model_layout_of(l->replicas[0].model);
    l->floats = layout->floats;
    l->blocks = k2i_norm_block_count(0, l->floats);
    l->team = k2_kern_team_new(l->replica_count);
    spans_make(l, layout);
    ranges_make(l);
    buffers_make(l);
    if (config->muon) l->muon = k2i_muon_new(layout, l->ranges[l->rank].begin, l->ranges[l->rank].end, config->threads);
    *out = l;
    return K2_OK;
}

void k2i_learner_free(k2i_learner *l)
{
    if (!l) return;
    k2i_muon_free(l->muon);
    k2i_optim_fini(&l->optim);
    k2_free(l->spans);
    k2_free(l->block_ranges);
    k2_free(l->ranges);
    k2_free(l->tops);
    k2_free(l->loads);
    k2_free(l->lane_sums);
    k2_free(l->block_sums);
    k2_free(l->shard);
    k2_free(l->reference);
    for (uint32_t i = 0; l->grads && i < l->lanes_local; i++) k2_free(l->grads[i]);
    k2_free(l->grads);
    k2_kern_team_free(l->team);
    for (uint32_t i = 0; i < l->replica_count; i++) replica_close(&l->replicas[i]);
    k2_free(l);
}

k2_model *k2i_learner_model(k2i_learner *l)
{
    return l->replicas[0].model;
}
float *k2i_learner_params(k2i_learner *l)
{
    return k2_model_params(l->replicas[0].model);
}
k2i_optim *k2i_learner_optim(k2i_learner *l)
{
    return &l->optim;
}
const k2_coll_range *k2i_learner_ranges(const k2i_learner *l)
{
    return l->ranges;
}
k2_coll *k2i_learner_coll(const k2i_learner *l)
{
    return l->config.coll;
}
const double *k2i_learner_loads(const k2i_learner *l)
{
    return l->loads;
}

/* ---- one update ---- */

static void replica_sync(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_learner *l = arg;
    if (task > 0) memcpy(k2_model_params(l->replicas[task].model), k2i_learner_params(l), l->floats * sizeof(float));
    k2_model_params_changed(l->replicas[task].model);
}

void k2i_learner_params_changed(k2i_learner *l)
{
    k2_kern_team_run(l->team, l->replica_count, replica_sync, l);
}

float *k2i_learner_reference(k2i_learner *l)
{
    return l->reference;
}

void k2i_learner_reference_swap(k2i_learner *l)
{
    float *params = k2i_learner_params(l);
    for (uint64_t i = 0; i < l->floats; i++) {
        float t = params[i];
        params[i] = l->reference[i];
        l->reference[i] = t;
    }
    k2i_learner_params_changed(l);
}

void k2i_learner_forward(k2i_learner *l, const k2i_pass *pass)
{
    k2i_lanes_run(l, pass, false);
}

static k2_code norm_compute(k2i_learner *l, double *norm, k2_error *err)
{
    k2_coll_range own = l->ranges[l->rank];
    k2i_norm_blocks(l->shard, own.begin, own.end, l->block_sums + l->block_ranges[l->rank].begin);
    k2_code code = k2_coll_all_gather(l->config.coll, l->block_sums, sizeof(double), l->blocks, l->block_ranges, err);
    if (code != K2_OK) return code;
    double sum = 0;
    for (uint64_t b = 0; b < l->blocks; b++) sum += l->block_sums[b];
    *norm = sqrt(sum);
    return K2_OK;
}

/* bias += rate * sign(mean - count): an expert with more than its share becomes harder to choose.
 * source: DeepSeek-V3 2024, 2.1.2 (auxiliary-loss-free load balancing) */
static void bias_update(k2i_learner *l, double rate)
{
    const k2_model_layout *layout = k2_model_layout_of(l->replicas[0].model);
    uint32_t experts = l->config.dims.n_routed_experts, layer = 0;
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        if (p->kind != K2_KIND_BIAS) continue;
        const double *count = l->loads + (size_t)layer++ * experts;
        double mean = 0;
        for (uint32_t e = 0; e < experts; e++) mean += count[e];
        mean /= experts;
        float *bias = k2i_learner_params(l) + p->offset;
        for (uint32_t e = 0; e < experts; e++) bias[e] += (float)(count[e] < mean ? rate : count[e] > mean ? -rate : 0);
    }
    K2_ASSERT(layer * experts == l->loads_count);
}

static k2_code sums_gather(k2i_learner *l, double sums[K2I_SUM_COUNT], k2_error *err)
{
    uint32_t n = l->lanes_local * l->sums_width;
    k2_code code = k2_coll_all_gather_f64(l->config.coll, l->lane_sums + (size_t)l->rank * n, n, l->lane_sums, err);
    if (code == K2_OK) k2i_lanes_combine(l, sums);
    return code;
}

/* The gradient of all lanes and its norm; whether it can be followed. */
static k2_code gradient_make(k2i_learner *l, const k2i_pass *pass, k2i_outcome *o, k2_error *err)
{
    k2i_lanes_run(l, pass, true);
    k2_code code = sums_gather(l, o->sums, err);
    if (code == K2_OK && o->sums[K2I_SUM_BAD] != 0) o->bad = "a log-probability or the loss";
    if (code != K2_OK || o->bad) return code;
    code = k2_coll_reduce_scatter_lanes(l->config.coll, (const float *const *)l->grads, l->lanes_local, l->floats, l->ranges,
                                        l->shard, err);
    if (code == K2_OK) code = norm_compute(l, &o->grad_norm, err);
    if (code == K2_OK && isfinite(o->grad_norm) == 0) o->bad = "the gradient";
    return code;
}

/* Muon's half before anything changes: momentum of the shard, gathered where lane 0's gradient stood (it is summed up by now),
 * and what becomes of it as whole matrices. */
static k2_code muon_prepare(k2i_learner *l, const k2i_update *u, double scale, k2_error *err)
{
    float *whole = l->grads[0];
    k2i_muon_momentum(l->muon, &l->optim, &u->optim, scale, l->shard, whole);
    k2_code code = k2_coll_all_gather(l->config.coll, whole, sizeof(float), l->floats, l->ranges, err);
    if (code == K2_OK) k2i_muon_orthogonalise(l->muon, whole);
    return code;
}

/* Finite gradients may still make moments or parameters infinite: all ranks look, each at its shard, before one changes. */
static k2_code update_try(k2i_learner *l, const k2i_update *u, double scale, k2i_outcome *o, k2_error *err)
{
    const float *params = k2i_learner_params(l);
    k2_code code = l->muon ? muon_prepare(l, u, scale, err) : K2_OK;
    if (code != K2_OK) return code;
    l->bad_at = k2i_optim_spoils(&l->optim, &u->optim, l->spans, l->span_count, u->lr, scale, l->shard, params);
    if (l->muon) l->bad_at = K2_MIN(l->bad_at, k2i_muon_spoils(l->muon, &l->optim, &u->optim, u->lr, scale, l->shard, params));
    double mine = l->bad_at != K2I_SPOILS_NONE, all[K2_COLL_RANKS_MAX];
    code = k2_coll_all_gather_f64(l->config.coll, &mine, 1, all, err);
    for (uint32_t r = 0; r < l->ranks && code == K2_OK; r++)
        if (all[r] != 0) o->bad = "a parameter or moment after the update";
    return code;
}

static k2_code update_make(k2i_learner *l, const k2i_update *u, double scale, k2i_outcome *o, k2_error *err)
{
    float *params = k2i_learner_params(l);
    uint32_t span = k2_flight_begin(K2_FLIGHT_UPDATE, l->optim.updates, 0, 0, 0);
    k2i_optim_apply(&l->optim, &u->optim, l->spans, l->span_count, u->lr, scale, l->shard, params);
    if (l->muon) k2i_muon_apply(l->muon, &l->optim, &u->optim, u->lr, scale, l->shard, params);
    k2_flight_end(span);
    k2_code code = k2_coll_all_gather(l->config.coll, params, sizeof(float), l->floats, l->ranges, err);
    if (code == K2_OK && u->bias_rate > 0) bias_update(l, u->bias_rate);
    if (code == K2_OK && u->qk_clip > 0)
        o->qk_clipped = k2i_qk_clip(&l->config.dims, k2_model_layout_of(k2i_learner_model(l)), l->tops, u->qk_clip, params);
    k2i_learner_params_changed(l);
    return code;
}

k2_code k2i_learner_update(k2i_learner *l, const k2i_pass *pass, const k2i_update *update, k2i_outcome *out, k2_error *err)
{
    k2i_outcome o = {0};
    l->bad_at = K2I_SPOILS_NONE;
    k2_code code = gradient_make(l, pass, &o, err);
    double scale = update->clip_norm > 0 && o.grad_norm > update->clip_norm ? update->clip_norm / o.grad_norm : 1;
    /* Without a gradient of the loss (every group's rewards are equal) there is nothing to learn: old momentum, or the small
     * auxiliary loss that AdamW would blow up, must not move the weights. */
    bool moves = code == K2_OK && !o.bad && o.grad_norm > 0 && o.sums[K2I_SUM_MOVES] != 0;
    if (moves) code = update_try(l, update, scale, &o, err);
    o.skipped = o.bad != NULL;
    o.score_max = -INFINITY;
    for (uint32_t h = 0; h < l->tops_count; h++) o.score_max = K2_MAX(o.score_max, l->tops[h]);
    if (code == K2_OK && moves && !o.bad) code = update_make(l, update, scale, &o, err);
    if (code == K2_OK) *out = o;
    return code;
}
