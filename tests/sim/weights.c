/* weights: real segments, pulled by the real code over a transport that goes wrong. The model is so small that filling, reading
 * and verifying one takes microseconds; its parameters follow from the digest that stands for a trainer's model.
 *
 * The transport is the built-in `self` with faults in between. It says that its reads are not immediate: then one thread of
 * the engine makes all reads one after the other while this one waits, and their order is always the same. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "rollout/pull_int.h"
#include "sim_int.h"

#define CHUNK_BYTES 4096u
#define OWNERS      1024u /* segments that exist at once, with room */
#define KNOWN       64u   /* models whose segment is kept */

typedef struct known {
    k2_digest model, digest;
    void *bytes; /* of the whole segment */
    uint64_t count;
} known;

static k2_xfer *engine;
static k2_xfer_ops faulty;
static const k2_xfer_ops *built_in;
static k2_model *scratch;
static k2_weights_slot *slots;
static size_t slot_count;
static known models[KNOWN];
static uint32_t models_at;
static struct {
    uint64_t id, serial;
} owners[OWNERS];
static k2_xfer_segment *decoy;
static k2_xfer_locator decoy_at, last_created;
static uint64_t owner; /* of the segment that is being created */

/* Of the pull under way. */
static sim *now;
static uint32_t reader;

/* ---- the transport */

static k2_code create(void *t, uint64_t bytes, const k2_xfer_nonce *nonce, void **out, k2_xfer_locator *where, k2_error *err)
{
    k2_code code = built_in->segment_create(t, bytes, nonce, out, where, err);
    if (code != K2_OK) return code;
    last_created = *where;
    last_created.bytes = bytes;
    last_created.nonce = *nonce;
    owners[where->id % OWNERS].id = where->id;
    owners[where->id % OWNERS].serial = owner;
    return K2_OK;
}

static const sim_proc *owner_of(uint64_t id)
{
    return owners[id % OWNERS].id == id ? sim_proc_find(now, owners[id % OWNERS].serial) : NULL;
}

static k2_code reach(void *t, const k2_xfer_locator *where, uint64_t deadline_ns, void **out, k2_error *err)
{
    const sim_proc *p = owner_of(where->id);
    if (!p) return k2_error_set(err, K2_PEER_CLOSED, "the owner is gone");
    if (!sim_proc_runs(now, p)) return k2_error_set(err, K2_TIMEOUT, "the owner says nothing");
    bool other = sim_fault(now, SIM_OTHER_WEIGHTS, reader);
    return built_in->remote_open(t, other ? &decoy_at : where, deadline_ns, out, err);
}

static k2_code fetch(void *r, k2_xfer_io *io, k2_error *err)
{
    k2_xfer_io real = *io;
    if (io->bytes == CHUNK_BYTES && sim_fault(now, SIM_OTHER_CHUNK, reader))
        real.offset -= CHUNK_BYTES; /* chunks of data stand behind a page of manifest at least */
    k2_code code = built_in->remote_read(r, &real, err);
    if (code != K2_OK) return code;
    if (sim_fault(now, SIM_CUT_CHUNK, reader)) {
        memset((char *)io->local + io->bytes / 2, 0, io->bytes - io->bytes / 2);
        return k2_error_set(err, K2_PEER_CLOSED, "the chunk ended early");
    }
    if (sim_fault(now, SIM_FLIP_CHUNK, reader)) {
        ((unsigned char *)io->local)[sim_fault_draw(now, io->bytes)] ^= (unsigned char)(1u << sim_fault_draw(now, 8));
        real.hash = k2_hash64(io->local, io->bytes, 0);
    }
    io->hash = real.hash;
    return K2_OK;
}

/* ---- models */

static void fill(k2_digest model)
{
    uint64_t x = model.hi ^ model.lo, count;
    for (size_t i = 0; i < slot_count; i++) {
        float *p = slots[i].data;
        K2_ASSERT(k2_shape_count(&slots[i].shape, &count));
        for (uint64_t k = 0; k < count; k++) {
            x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull + 0x9e3779b97f4a7c15ull;
            p[k] = (float)(x >> 40) / (float)(1u << 24) - 0.5f;
        }
    }
}

static known *model_of(k2_digest model);

static const k2_dims dims = {.vocab_size = SIM_VOCAB,
                             .hidden_size = 16,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 2,
                             .q_lora_rank = 8,
                             .kv_lora_rank = 8,
                             .qk_nope_head_dim = 8,
                             .qk_rope_head_dim = 8,
                             .v_head_dim = 8,
                             .intermediate_size = 16,
                             .moe_intermediate_size = 8,
                             .n_routed_experts = 2,
                             .n_shared_experts = 1,
                             .num_experts_per_tok = 1,
                             .n_group = 1,
                             .topk_group = 1,
                             .first_k_dense_replace = 1,
                             .moe_layer_freq = 1,
                             .routed_scaling_factor = 1,
                             .max_position_embeddings = 64,
                             .rope_theta = 10000,
                             .rms_norm_eps = 1e-6,
                             .initializer_range = 0.02,
                             .bos_token_id = -1,
                             .eos_token_id = -1};

static void begin(void)
{
    if (engine) return;
    k2_error err = {0};
    built_in = k2_xfer_builtin()[0];
    K2_ASSERT(strcmp(built_in->name, "self") == 0);
    faulty = *built_in;
    faulty.caps.immediate = false;
    faulty.segment_create = create;
    faulty.remote_open = reach;
    faulty.remote_read = fetch;
    static const k2_xfer_ops *list[] = {&faulty, NULL};
    k2_xfer_config config = {
        .transport = "self", .retries = 2, .deadline_ns = 3600 * K2_NS_PER_S, .backoff_ns = 1, .ops = list};
    K2_ASSERT(k2_xfer_open(&config, &engine, &err) == K2_OK);
    scratch = k2_model_new(&dims, K2_COMPUTE_F32, 1, &err);
    K2_ASSERT(scratch);
    slots = k2i_model_slots(scratch, &slot_count);
    const known *k = model_of((k2_digest){13, 13});
    K2_ASSERT(k2_xfer_segment_create(engine, k->count, &decoy, &err) == K2_OK);
    memcpy(k2_xfer_segment_memory(decoy), k->bytes, k->count);
    decoy_at = last_created;
}

static known *model_of(k2_digest model)
{
    begin();
    for (uint32_t i = 0; i < KNOWN; i++)
        if (models[i].bytes && k2_digest_equal(models[i].model, model)) return &models[i];
    known *k = &models[models_at++ % KNOWN];
    k2_weights_manifest *m;
    k2_weights_segment layout;
    k2_error err = {0};
    fill(model);
    K2_ASSERT(k2_weights_manifest_plan(slots, slot_count, 1, CHUNK_BYTES, &m, &err) == K2_OK);
    k->count = k2_weights_segment_plan(m, &layout);
    k2_free(k->bytes);
    k->bytes = k2_alloc(k->count);
    k2_weights_segment_fill(m, slots, slot_count, k->bytes, k->count);
    k->model = model;
    k->digest = m->digest;
    k2_weights_manifest_free(m);
    return k;
}

k2_digest sim_weights_digest(k2_digest model)
{
    return k2_digest_zero(model) ? model : model_of(model)->digest;
}

k2_xfer_segment *sim_weights_offer(sim *s, const sim_proc *p, k2_digest model)
{
    (void)s;
    k2_error err = {0};
    k2_xfer_segment *out;
    const known *k = model_of(model);
    owner = p->serial;
    K2_ASSERT(k2_xfer_segment_create(engine, k->count, &out, &err) == K2_OK);
    memcpy(k2_xfer_segment_memory(out), k->bytes, k->count);
    return out;
}

k2_code sim_weights_pull(sim *s, const sim_proc *p, const char *const *sources, uint32_t count, k2_digest want,
                         k2_xfer_segment **out, k2_digest *content)
{
    begin();
    atomic_bool cancel = false;
    k2i_pulled pulled = {0};
    k2_error err = {0};
    const k2i_pull ask = {.xfer = engine,
                          .sources = sources,
                          .source_count = count,
                          .digest = want,
                          .deadline_ns = k2_now_ns() + 3600 * K2_NS_PER_S,
                          .cancel = &cancel,
                          .model = scratch};
    now = s;
    reader = p->worker;
    owner = p->serial;
    memset(k2_model_params(scratch), 0, sizeof(float)); /* the buffer held something else before */
    k2_code code = k2i_pull_run(&ask, &pulled, &err);
    *out = pulled.segment;
    *content = k2_weights_digest(slots, slot_count);
    return code;
}
