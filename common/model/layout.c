/* The layout: K2_MODEL_WEIGHTS expanded over the layers and experts of a model into names, shapes and offsets. */
#include "common/model/model_int.h"

#include <stdio.h>
#include <string.h>

typedef struct entry {
    uint32_t id;
    k2_weight_where where;
    k2_weight_kind kind;
    uint64_t rows, cols;
    const char *name;
} entry;

static void entries_of(const k2_dims *d, entry out[K2I_WEIGHT_COUNT])
{
    const entry table[K2I_WEIGHT_COUNT] = {
#define K2_X(id, where, kind, rows, cols, name) {K2I_W_##id, where, kind, rows, cols, name},
        K2_MODEL_WEIGHTS(K2_X)
#undef K2_X
    };
    memcpy(out, table, sizeof(table));
}

static bool weight_exists(const k2_dims *d, k2_weight_where where, uint32_t layer)
{
    switch (where) {
    case K2_IN_MODEL: return true;
    case K2_IN_UNTIED: return !d->tie_word_embeddings;
    case K2_IN_LAYER: return true;
    case K2_IN_QFULL: return d->q_lora_rank == 0;
    case K2_IN_QLORA: return d->q_lora_rank > 0;
    case K2_IN_DENSE: return !k2_dims_is_moe(d, layer);
    case K2_IN_MOE:
    case K2_IN_EXPERT: return k2_dims_is_moe(d, layer);
    case K2_IN_SHARED: return k2_dims_is_moe(d, layer) && d->n_shared_experts > 0;
    }
    return false;
}

static bool in_layer(k2_weight_where where)
{
    return where != K2_IN_MODEL && where != K2_IN_UNTIED;
}

/* Append one tensor; with params NULL only count. */
static void put(k2_model_layout *l, const entry *e, int32_t layer, int32_t expert)
{
    size_t count = (size_t)e->rows * (size_t)(e->cols ? e->cols : 1);
    if (l->params) {
        k2_param *p = &l->params[l->params_count];
        if (layer < 0) {
            snprintf(p->name, sizeof(p->name), "%s", e->name);
        } else if (expert < 0) {
            snprintf(p->name, sizeof(p->name), "model.layers.%d.%s", layer, e->name);
        } else {
            snprintf(p->name, sizeof(p->name), "model.layers.%d.mlp.experts.%d.%s", layer, expert, e->name);
        }
        p->shape.rank = e->cols ? 2 : 1;
        p->shape.size[0] = e->rows;
        p->shape.size[1] = e->cols;
        p->offset = l->floats;
        p->count = count;
        p->kind = e->kind;
        p->weight = e->id;
        p->layer = layer;
        p->expert = expert;
    }
    l->params_count++;
    l->floats += k2i_padded(count);
}

/* Experts stand together: gate, up, down of expert 0, then of expert 1, ... so that one expert is one range. */
static void put_experts(k2_model_layout *l, const k2_dims *d, const entry *e, uint32_t layer)
{
    for (uint32_t x = 0; x < d->n_routed_experts; x++) {
        for (uint32_t i = K2I_W_expert_gate; i <= K2I_W_expert_down; i++) put(l, &e[i], (int32_t)layer, (int32_t)x);
    }
}

static void put_layer(k2_model_layout *l, const k2_dims *d, const entry *e, uint32_t layer)
{
    for (uint32_t i = 0; i < K2I_WEIGHT_COUNT; i++) {
        if (!in_layer(e[i].where) || !weight_exists(d, e[i].where, layer)) continue;
        if (i == K2I_W_expert_gate) put_experts(l, d, e, layer);
        if (e[i].where != K2_IN_EXPERT) put(l, &e[i], (int32_t)layer, -1);
    }
}

static void put_all(k2_model_layout *l, const k2_dims *d)
{
    entry e[K2I_WEIGHT_COUNT];
    entries_of(d, e);
    bool layers_done = false;
    for (uint32_t i = 0; i < K2I_WEIGHT_COUNT; i++) {
        if (in_layer(e[i].where)) {
            for (uint32_t layer = 0; !layers_done && layer < d->num_hidden_layers; layer++) put_layer(l, d, e, layer);
            layers_done = true;
        } else if (weight_exists(d, e[i].where, 0)) {
            put(l, &e[i], -1, -1);
        }
    }
}

k2_model_layout *k2_model_layout_new(const k2_dims *dims)
{
    k2_model_layout *l = k2_alloc(sizeof(*l));
    put_all(l, dims);
    l->params = k2_alloc_array(l->params_count, sizeof(k2_param));
    l->params_count = 0;
    l->floats = 0;
    put_all(l, dims);
    return l;
}

void k2_model_layout_free(k2_model_layout *layout)
{
    if (!layout) return;
    k2_free(layout->params);
    k2_free(layout);
}

const k2_param *k2_model_layout_find(const k2_model_layout *layout, const char *name)
{
    for (size_t i = 0; i < layout->params_count; i++) {
        if (strcmp(layout->params[i].name, name) == 0) return &layout->params[i];
    }
    return NULL;
}
