/* pull - see pull_int.h. */
#include "rollout/pull_int.h"

#include <string.h>

#include "common/base/planted.h"

#define POLL_NS (20 * K2_NS_PER_MS) /* how soon a pull that is to be ended notices */
#define HEADER  K2_WEIGHTS_SEGMENT_HEADER_BYTES

typedef struct fetch {
    const k2i_pull *p;
    k2_weights_slot *slots; /* of our model; in the end with data in the segment */
    size_t slot_count;
    k2_xfer_remote *remotes[K2_XFER_SOURCES_MAX];
    uint32_t count;
    unsigned char header[HEADER];
    k2_weights_segment layout;
    uint64_t bytes; /* of the whole segment */
    char *manifest_text;
    k2_weights_manifest *manifest;
    k2_xfer_segment *segment;
    k2_xfer_progress progress;
} fetch;

k2_weights_slot *k2i_model_slots(k2_model *m, size_t *count)
{
    const k2_model_layout *layout = k2_model_layout_of(m);
    float *params = k2_model_params(m);
    k2_weights_slot *slots = k2_alloc_array(layout->params_count, sizeof *slots);
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *param = &layout->params[i];
        slots[i] =
            (k2_weights_slot){.name = param->name, .shape = param->shape, .data = params ? params + param->offset : NULL};
    }
    *count = layout->params_count;
    return slots;
}

/* ---- one source: its header and its manifest --------------------------------------------------------------------------- */

static k2_code read_header(const fetch *f, k2_xfer_remote *r, unsigned char header[HEADER], k2_weights_segment *layout,
                           k2_error *err)
{
    if (k2_xfer_remote_bytes(r) < HEADER) return k2_error_set(err, K2_BAD_INPUT, "it has no room for a header");
    k2_code code = k2_xfer_read(r, 0, HEADER, header, NULL, f->p->deadline_ns, err);
    return code == K2_OK ? k2_weights_segment_decode(header, k2_xfer_remote_bytes(r), layout, err) : code;
}

static k2_code read_manifest(const fetch *f, k2_xfer_remote *r, const k2_weights_segment *layout, char *text, k2_error *err)
{
    k2_xfer_request req = {.sources = &r, .source_count = 1, .offset = HEADER, .bytes = layout->manifest_bytes, .local = text};
    k2_xfer_batch *batch;
    k2_code code = k2_xfer_batch_submit(f->p->xfer, &req, 1, &batch, err);
    if (code != K2_OK) return code;
    code = k2_xfer_batch_wait(batch, f->p->deadline_ns, err);
    k2_xfer_batch_close(batch);
    if (code == K2_OK && !k2_digest_equal(k2_digest_of(text, layout->manifest_bytes), layout->manifest_digest))
        code = k2_error_set(err, K2_CORRUPT, "the manifest does not have the digest that its header names");
    return code;
}

/* Are these the weights that are wanted, and of our model? */
static k2_code check_manifest(const fetch *f, const k2_weights_manifest *m, const k2_weights_segment *layout, k2_error *err)
{
    if (m->data_bytes != layout->data_bytes || m->version != layout->version)
        return k2_error_set(err, K2_CORRUPT, "header and manifest disagree about the bytes of data or the version");
    if (!k2_digest_equal(m->digest, f->p->digest) && !K2_PLANTED(OTHER_WEIGHTS)) {
        char found[K2_DIGEST_HEX], wanted[K2_DIGEST_HEX];
        k2_digest_hex(m->digest, found);
        k2_digest_hex(f->p->digest, wanted);
        return k2_error_set(err, K2_CORRUPT, "it holds the weights %s, expected %s", found, wanted);
    }
    return k2_weights_manifest_check(m, f->slots, f->slot_count, err);
}

/* The segment of this source becomes the one that is fetched. */
static k2_code adopt(fetch *f, k2_xfer_remote *r, const unsigned char header[HEADER], const k2_weights_segment *layout,
                     k2_error *err)
{
    if (layout->manifest_bytes > K2_WEIGHTS_MANIFEST_BYTES_MAX)
        return k2_error_set(err, K2_LIMIT, "a manifest of %llu bytes", (unsigned long long)layout->manifest_bytes);
    char *text = k2_alloc(layout->manifest_bytes + 1);
    k2_weights_manifest *m = NULL;
    k2_code code = read_manifest(f, r, layout, text, err);
    if (code == K2_OK) code = k2_weights_manifest_decode(text, layout->manifest_bytes, &m, err);
    if (code == K2_OK) code = check_manifest(f, m, layout, err);
    if (code != K2_OK) {
        k2_weights_manifest_free(m);
        k2_free(text);
        return code;
    }
    memcpy(f->header, header, HEADER);
    f->layout = *layout;
    f->bytes = k2_xfer_remote_bytes(r);
    f->manifest_text = text;
    f->manifest = m;
    return K2_OK;
}

/* ---- sources -------------------------------------------------------------------------------------------------------- */

/* The first source that has what is wanted says which segment it is; others count only when they hold the very same one. */
static k2_code add_source(fetch *f, const char *locator, k2_error *err)
{
    k2_xfer_remote *r;
    k2_code code = k2_xfer_remote_open(f->p->xfer, locator, f->p->deadline_ns, &r, err);
    if (code != K2_OK) return code;
    unsigned char header[HEADER];
    k2_weights_segment layout;
    code = read_header(f, r, header, &layout, err);
    if (code == K2_OK && f->count == 0)
        code = adopt(f, r, header, &layout, err);
    else if (code == K2_OK && memcmp(header, f->header, HEADER) != 0)
        code = k2_error_set(err, K2_CORRUPT, "it holds another segment than the sources before it");
    if (code != K2_OK) {
        k2_error_prefix(err, "%s", k2_xfer_remote_name(r));
        k2_xfer_remote_close(r);
        return code;
    }
    f->remotes[f->count++] = r;
    return K2_OK;
}

static k2_code open_sources(fetch *f, k2_error *err)
{
    k2_error why = {0};
    (void)k2_error_set(&why, K2_BAD_INPUT, "no source was named");
    uint32_t n = K2_MIN(f->p->source_count, K2_XFER_SOURCES_MAX);
    for (uint32_t i = 0; i < n; i++) {
        k2_error one;
        if (add_source(f, f->p->sources[i], &one) == K2_OK) continue;
        K2_LOG_WARN(f->p->log, "a source of weights is left out: %s", one.text);
        why = one;
    }
    if (f->count > 0) return K2_OK; /* err stays as it was: it is written on failure only */
    if (err) *err = why;
    return why.code;
}

/* ---- data --------------------------------------------------------------------------------------------------------------- */

static k2_code wait_batch(fetch *f, k2_xfer_batch *batch, k2_error *err)
{
    for (;;) {
        uint64_t now = k2_now_ns();
        (void)k2_xfer_batch_wait(batch, K2_MIN(now + POLL_NS, f->p->deadline_ns), NULL);
        if (k2_xfer_batch_poll(batch, &f->progress)) return k2_xfer_batch_wait(batch, 0, err); /* what came of it */
        if (now >= f->p->deadline_ns)
            return k2_error_set(err, K2_TIMEOUT, "%llu of %llu bytes of weights came before the deadline",
                                (unsigned long long)f->progress.done_bytes, (unsigned long long)f->progress.bytes);
        if (atomic_load(f->p->cancel)) return k2_error_set(err, K2_CANCELED, "the transfer was ended");
    }
}

static k2_code fetch_data(fetch *f, k2_error *err)
{
    if (f->layout.data_bytes == 0) return K2_OK;
    k2_xfer_request req = {
        .sources = f->remotes,
        .source_count = f->count,
        .offset = f->layout.data_offset,
        .bytes = f->layout.data_bytes,
        .local = (char *)k2_xfer_segment_memory(f->segment) + f->layout.data_offset,
        .chunk_bytes = f->manifest->chunk_bytes,
        .hashes = K2_PLANTED(UNVERIFIED) ? NULL : f->manifest->chunks,
    };
    k2_xfer_batch *batch;
    k2_code code = k2_xfer_batch_submit(f->p->xfer, &req, 1, &batch, err);
    if (code != K2_OK) return code;
    code = wait_batch(f, batch, err);
    k2_xfer_batch_close(batch);
    return code;
}

/* From the segment, which stays: for peers, and because the model keeps its weights as panels. */
static void fill_model(const fetch *f)
{
    const float **tensors = k2_alloc_array(f->slot_count, sizeof *tensors);
    for (size_t i = 0; i < f->slot_count; i++) tensors[i] = f->slots[i].data;
    k2_model_params_take(f->p->model, tensors);
    k2_free(tensors);
}

static k2_code run(fetch *f, k2_error *err)
{
    k2_code code = open_sources(f, err);
    if (code != K2_OK) return code;
    code = k2_xfer_segment_create(f->p->xfer, f->bytes, &f->segment, err);
    if (code == K2_OK) code = fetch_data(f, err);
    if (code != K2_OK) return code;
    char *memory = k2_xfer_segment_memory(f->segment), *data = memory + f->layout.data_offset;
    code = K2_PLANTED(UNVERIFIED) ? K2_OK : k2_weights_manifest_verify(f->manifest, data, err);
    if (code == K2_OK) code = k2_weights_manifest_bind(f->manifest, data, f->slots, f->slot_count, err);
    if (code == K2_OK && atomic_load(f->p->cancel)) code = k2_error_set(err, K2_CANCELED, "the transfer was ended");
    if (code != K2_OK) return code;
    fill_model(f);
    memcpy(memory + HEADER, f->manifest_text, f->layout.manifest_bytes);
    memcpy(memory, f->header, HEADER); /* last: only now it is a segment of weights */
    return K2_OK;
}

k2_code k2i_pull_run(const k2i_pull *p, k2i_pulled *out, k2_error *err)
{
    fetch *f = k2_alloc(sizeof *f);
    f->p = p;
    f->slots = k2i_model_slots(p->model, &f->slot_count);
    k2_code code = run(f, err);
    if (code == K2_OK) {
        *out = (k2i_pulled){
            .segment = f->segment, .bytes = f->bytes, .retries = f->progress.retries, .elsewhere = f->progress.elsewhere};
    } else {
        k2_xfer_segment_destroy(f->segment);
    }
    k2_weights_manifest_free(f->manifest);
    k2_free(f->manifest_text);
    for (uint32_t i = 0; i < f->count; i++) k2_xfer_remote_close(f->remotes[i]);
    k2_free(f->slots);
    k2_free(f);
    return code;
}
