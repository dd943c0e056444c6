/* Weights into a directory: which tensor is stored how and in which shard, then the shards, then the index. */
#include "store_int.h"
#include "dir_int.h"
#include "number_int.h"
#include "quant_int.h"
#include "write_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PIECE 1048576u /* elements that are read, narrowed and written at a time */

typedef struct store {
    const char *dir;
    k2i_progress progress;
    uint64_t done, total;
    size_t count;
    k2i_written *tensors;       /* in the order of the files: a quantised one is followed by its scales */
    const k2i_source **sources; /* of each; NULL: the scales of the one before */
    char **names;               /* of scales */
    size_t shard_count;
    size_t *shard_ends; /* number of the first tensor behind each shard */
} store;

/* ---- what is stored how ------------------------------------------------------------------------------------------ */

static bool ends_with(const char *text, const char *suffix)
{
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* As Kimi-K2 is published: the projections of attention and feed-forward are quantised; embeddings, norms, the router and
 * the output are not. */
static bool is_quantised(const k2i_source *s)
{
    return s->shape.rank == 2 && ends_with(s->name, ".weight") && strstr(s->name, "_proj") &&
           (strstr(s->name, ".self_attn.") || strstr(s->name, ".mlp."));
}

static k2_dtype stored_as(const k2i_source *s, k2_dtype dtype)
{
    if (s->copy) return s->dtype;
    if (ends_with(s->name, ".e_score_correction_bias")) return K2_DTYPE_F32; /* small steps on it must not vanish */
    return dtype == K2_DTYPE_F8_E4M3 && !is_quantised(s) ? K2_DTYPE_BF16 : dtype;
}

static k2_shape scale_shape(const k2_shape *s)
{
    return (k2_shape){.rank = 2,
                      .size = {s->size[0] / K2I_QUANT_BLOCK + (s->size[0] % K2I_QUANT_BLOCK != 0),
                               s->size[1] / K2I_QUANT_BLOCK + (s->size[1] % K2I_QUANT_BLOCK != 0)}};
}

static void tensors_plan(store *st, const k2i_source *sources, size_t count, k2_dtype dtype)
{
    st->tensors = k2_alloc_array(2 * count, sizeof *st->tensors);
    st->sources = k2_alloc_array(2 * count, sizeof *st->sources);
    st->names = k2_alloc_array(2 * count, sizeof *st->names);
    for (size_t i = 0; i < count; i++) {
        const k2i_source *s = &sources[i];
        const k2_dtype stored = stored_as(s, dtype);
        st->sources[st->count] = s;
        st->tensors[st->count++] = (k2i_written){.name = s->name, .dtype = stored, .shape = s->shape};
        if (s->copy || stored != K2_DTYPE_F8_E4M3) continue;
        st->names[st->count] = k2_asprintf("%s" K2I_SCALE_SUFFIX, s->name);
        st->tensors[st->count] =
            (k2i_written){.name = st->names[st->count], .dtype = K2_DTYPE_F32, .shape = scale_shape(&s->shape)};
        st->count++;
    }
    for (size_t i = 0; i < st->count; i++) st->total += k2i_written_bytes(&st->tensors[i]);
}

/* In order: a shard is closed where the next tensor (with its scales) would make it too large. */
static void shards_plan(store *st, uint64_t shard_bytes)
{
    uint64_t bytes = 0;
    st->shard_ends = k2_alloc_array(st->count + 1, sizeof *st->shard_ends);
    for (size_t i = 0, next; i < st->count; i = next) {
        uint64_t n = 0;
        for (next = i; next == i || (next < st->count && !st->sources[next]); next++)
            n += k2i_written_bytes(&st->tensors[next]);
        if (shard_bytes && bytes && n > shard_bytes - K2_MIN(bytes, shard_bytes)) {
            st->shard_ends[st->shard_count++] = i;
            bytes = 0;
        }
        bytes += n;
    }
    st->shard_ends[st->shard_count++] = st->count;
}

static store store_begin(const char *dir, const k2i_source *sources, size_t count, const k2_weights_format *format)
{
    store st = {.dir = dir};
    tensors_plan(&st, sources, count, format->dtype);
    shards_plan(&st, format->shard_bytes);
    return st;
}

static void store_end(store *st)
{
    for (size_t i = 0; i < st->count; i++) k2_free(st->names[i]);
    k2_free(st->names);
    k2_free(st->tensors);
    k2_free(st->sources);
    k2_free(st->shard_ends);
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static k2_code put(store *st, k2i_writer *w, const void *bytes, uint64_t n, k2_error *err)
{
    k2_code code = k2i_writer_put(w, bytes, n, err);
    st->done += n;
    if (code == K2_OK && st->progress.call) st->progress.call(st->progress.arg, st->done, st->total);
    return code;
}

static k2_code copy_write(store *st, k2i_writer *w, const k2i_written *t, const k2i_source *s, k2_error *err)
{
    const uint64_t bytes = k2i_written_bytes(t), piece = PIECE * sizeof(float);
    k2_code code = K2_OK;
    for (uint64_t at = 0; at < bytes && code == K2_OK; at += piece)
        code = put(st, w, (const char *)s->copy + at, K2_MIN(bytes - at, piece), err);
    return code;
}

static k2_code values_write(store *st, k2i_writer *w, const k2i_written *t, const k2i_source *s, k2_error *err)
{
    const size_t size = k2_dtype_bytes(t->dtype);
    const uint64_t count = k2i_written_bytes(t) / size, piece = K2_MIN(count, (uint64_t)PIECE);
    float *values = k2_alloc_array(piece, sizeof *values);
    unsigned char *narrow = k2_alloc_array(piece, size);
    k2_code code = K2_OK;
    for (uint64_t at = 0; at < count && code == K2_OK; at += piece) {
        const uint64_t n = K2_MIN(count - at, piece);
        code = s->read(s, at, n, values, err);
        const uint64_t fitted = code == K2_OK ? k2i_narrow(t->dtype, values, n, narrow) : n;
        if (fitted < n)
            code = k2_error_set(err, K2_NOT_FINITE, "tensor %.100s: element %" PRIu64 " is %g, which %s cannot hold", s->name,
                                at + fitted, (double)values[fitted], k2_dtype_name(t->dtype));
        if (code == K2_OK) code = put(st, w, narrow, n * size, err);
    }
    k2_free(values);
    k2_free(narrow);
    return code;
}

/* One row of blocks: the largest magnitude of a block becomes 448, the largest e4m3 number. Infinity and NaN were refused. */
static void blocks_encode(const float *values, uint64_t rows, uint64_t columns, unsigned char *codes, float *scales)
{
    for (uint64_t first = 0, b = 0; first < columns; first += K2I_QUANT_BLOCK, b++) {
        const uint64_t end = K2_MIN(first + K2I_QUANT_BLOCK, columns);
        float most = 0;
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t c = first; c < end; c++) most = fmaxf(most, fabsf(values[r * columns + c]));
        /* A block of zeros, or of numbers so small that their scale would lose its own digits, has the smallest normal one. */
        scales[b] = fmaxf(most / 448.0f, 0x1p-126f);
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t c = first; c < end; c++)
                codes[r * columns + c] = k2i_e4m3_of_f32(values[r * columns + c] / scales[b]);
    }
}

static k2_code quantised_write(store *st, k2i_writer *w, const k2i_written *t, const k2i_source *s, k2_error *err)
{
    const uint64_t rows = t->shape.size[0], columns = t->shape.size[1], across = t[1].shape.size[1];
    float *values = k2_alloc_array(K2I_QUANT_BLOCK * columns, sizeof *values);
    unsigned char *codes = k2_alloc(K2I_QUANT_BLOCK * columns);
    float *scales = k2_alloc(k2i_written_bytes(&t[1]));
    k2_code code = K2_OK;
    for (uint64_t row = 0; row < rows && code == K2_OK; row += K2I_QUANT_BLOCK) {
        const uint64_t n = K2_MIN(rows - row, (uint64_t)K2I_QUANT_BLOCK);
        code = s->read(s, row * columns, n * columns, values, err);
        if (code != K2_OK) break;
        blocks_encode(values, n, columns, codes, scales + row / K2I_QUANT_BLOCK * across);
        code = put(st, w, codes, n * columns, err);
    }
    if (code == K2_OK) code = put(st, w, scales, k2i_written_bytes(&t[1]), err);
    k2_free(values);
    k2_free(codes);
    k2_free(scales);
    return code;
}

static k2_code tensor_write(store *st, k2i_writer *w, const k2i_written *t, const k2i_source *s, k2_error *err)
{
    if (s->copy) return copy_write(st, w, t, s, err);
    return t->dtype == K2_DTYPE_F8_E4M3 ? quantised_write(st, w, t, s, err) : values_write(st, w, t, s, err);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void shard_name(const store *st, size_t shard, char out[64])
{
    if (st->shard_count == 1)
        strcpy(out, K2I_WEIGHTS_FILE);
    else
        snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, st->shard_count);
}

static k2_code shard_write(store *st, size_t shard, size_t begin, size_t end, k2_error *err)
{
    char name[64];
    shard_name(st, shard, name);
    char *path = k2_asprintf("%s/%s", st->dir, name);
    k2i_writer *w = NULL;
    k2_code code = k2i_writer_begin(path, st->tensors + begin, end - begin, &w, err);
    for (size_t i = begin; i < end && code == K2_OK; i++)
        if (st->sources[i]) code = tensor_write(st, w, &st->tensors[i], st->sources[i], err);
    if (w) code = k2i_writer_end(w, code, err);
    k2_free(path);
    return code;
}

static k2_code index_write(const store *st, k2_error *err)
{
    char *path = k2_asprintf("%s/" K2I_INDEX_FILE, st->dir), name[64];
    k2_buf text;
    k2_buf_init(&text, K2I_INDEX_BYTES_MAX);
    k2_buf_printf(&text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", st->total);
    for (size_t i = 0, shard = 0; i < st->count; i++) {
        if (i == st->shard_ends[shard]) shard++;
        shard_name(st, shard, name);
        k2_buf_printf(&text, "%s\n    ", i ? "," : "");
        k2_buf_json_string(&text, st->tensors[i].name, strlen(st->tensors[i].name));
        k2_buf_printf(&text, ": \"%s\"", name);
    }
    k2_buf_puts(&text, "\n  }\n}\n");
    k2_code code = text.overflow
                       ? k2_error_set(err, K2_LIMIT, "%s: the index is longer than %u bytes", path, K2I_INDEX_BYTES_MAX)
                       : k2_file_write_atomic(path, text.data, text.len, err);
    k2_buf_fini(&text);
    k2_free(path);
    return code;
}

uint64_t k2i_store_bytes(const k2i_source *sources, size_t count, const k2_weights_format *format)
{
    store st = store_begin("", sources, count, format);
    store_end(&st);
    return st.total;
}

k2_code k2i_store_write(const char *dir, const k2i_source *sources, size_t count, const k2_weights_format *format,
                        k2i_progress progress, k2_error *err)
{
    store st = store_begin(dir, sources, count, format);
    k2_code code = K2_OK;
    st.progress = progress;
    for (size_t shard = 0, begin = 0; shard < st.shard_count && code == K2_OK; begin = st.shard_ends[shard++])
        code = shard_write(&st, shard, begin, st.shard_ends[shard], err);
    if (code == K2_OK && st.shard_count > 1) code = index_write(&st, err);
    store_end(&st);
    return code;
}
