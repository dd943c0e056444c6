/* weights - a model's sizes and tensors as files that other programs read, and as segments that travel.
 *
 * Nouns: `k2_dims` (common/tensor) are the sizes, as a Hugging Face config.json states them; a `k2_weights_file` is one
 * safetensors file, mapped and checked at open; a `k2_weights_dir` is a model directory, one such file or its shards; a
 * `k2_weights_slot` is one named tensor in the caller's memory, f32; a `k2_weights_manifest` says what lies where in a segment
 * of weights, with digests. Callers own slots and what they point to; everything else is freed by its own close or free.
 * Functions that take a path block on files. Nothing here keeps state, so different objects may be used by different threads.
 */
#ifndef K2_COMMON_WEIGHTS_H
#define K2_COMMON_WEIGHTS_H

#include "common/base/base.h"
#include "common/tensor/tensor.h"

#define K2_WEIGHTS_NAME_BYTES_MAX   512u         /* of a tensor's name */
#define K2_WEIGHTS_TENSORS_MAX      1000000u     /* of one model: Kimi-K2 with its FP8 scales has 139,644 */
#define K2_WEIGHTS_HEADER_BYTES_MAX 100000000u   /* of a safetensors header, as the format's own reader has it */
#define K2_WEIGHTS_CONFIG_BYTES_MAX (1u << 20)   /* of a config.json */
#define K2_WEIGHTS_ALIGN            256u         /* of each tensor in a segment */

/* ---- sizes: config.json ----------------------------------------------------------------------------------------------- */

/* k2_weights_dims_load - the sizes in a Hugging Face config.json of model_type "kimi_k2" or "deepseek_v3".
 *
 *   Every key is known: it sets a size, it must have the one value that our model computes (hidden_act "silu", scoring_func
 *   "sigmoid", attention_bias false, ...), or it says nothing about the computation and is ignored (architectures, dtype,
 *   use_cache, ...). RoPE is understood both as "rope_theta" with "rope_scaling" and as "rope_parameters" of transformers 5.
 *
 * errors   "path: key: found, expected": NOT_FOUND; BAD_INPUT: not JSON, an unknown key (with the nearest known one), a missing
 *          size, a wrong type, what k2_dims_check refuses; UNSUPPORTED: a value that our model does not compute (biases,
 *          another activation) or another quantisation than block-wise fp8
 * source   transformers, configuration_deepseek_v3.py; moonshotai/Kimi-K2-Instruct, config.json
 * tests    tests/unit/weights/dims_test.c, tests/fuzz/weights/json.c
 */
k2_code k2_weights_dims_load(const char *path, k2_dims *out, k2_error *err);
/* The same for text in memory; `name` stands for the path in errors. */
k2_code k2_weights_dims_parse(const char *name, const char *text, size_t n, k2_dims *out, k2_error *err);
/* Append the config.json that transformers loads as DeepseekV3ForCausalLM; reading it back gives equal dims
 * (but for first_k_dense_replace of a model without experts, which becomes the number of layers). */
void k2_weights_dims_encode(const k2_dims *dims, k2_buf *out);
k2_code k2_weights_dims_write(const k2_dims *dims, const char *path, k2_error *err); /* atomic */

/* How weights are quantised: a weight is an e4m3 number times the scale of its block. block_rows 0: they are not. */
typedef struct k2_weights_quant {
    uint32_t block_rows, block_columns; /* Kimi-K2: 128 and 128; blocks at the right and lower edge may be smaller */
} k2_weights_quant;

/* k2_weights_quant_parse - "quantization_config" in the text of a config.json; `name` stands for the path in errors.
 *
 * errors   BAD_INPUT: not JSON, an unknown key; UNSUPPORTED: anything but quant_method "fp8", fmt "e4m3", activation_scheme
 *          "dynamic", with a weight_block_size
 * source   deepseek-ai/DeepSeek-V3, README_WEIGHTS.md
 */
k2_code k2_weights_quant_parse(const char *name, const char *text, size_t n, k2_weights_quant *out, k2_error *err);

/* ---- tensors: safetensors ----------------------------------------------------------------------------------------------- */

/* F32, BF16 and F16 can be loaded, and F8_E4M3 together with its scales, which takes a directory (below); a file with any other
 * type of k2_dtype can be checked and shown. */
typedef struct k2_weights_tensor {
    const char *name;
    k2_dtype dtype;
    k2_shape shape;   /* rank 0: one number */
    const void *data; /* within the mapped file; at no particular alignment */
    uint64_t bytes;
} k2_weights_tensor;

typedef struct k2_weights_file k2_weights_file;

/* k2_weights_file_open - map a safetensors file and check it.
 *
 *   u64 header size, JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__": {text: text}}, data.
 *
 * memory   the result is the caller's; k2_weights_file_close (NULL is fine). Tensors and names live as long as it does
 * errors   "path: ...": NOT_FOUND; BAD_INPUT: shorter than its header says, header not JSON, a field missing or of a wrong
 *          type, a name given twice, bytes that do not fit dtype and shape, tensors that overlap, leave a gap or the file;
 *          UNSUPPORTED: a dtype that is not in K2_DTYPES; LIMIT
 * source   huggingface/safetensors, README.md, "Format"
 * tests    tests/unit/weights/file_test.c, tests/fuzz/weights/safetensors.c
 */
k2_code k2_weights_file_open(const char *path, k2_weights_file **out, k2_error *err);
/* The same for bytes that stay the caller's; `name` stands for the path in errors. */
k2_code k2_weights_file_parse(const char *name, const void *bytes, size_t n, k2_weights_file **out, k2_error *err);
void k2_weights_file_close(k2_weights_file *f);
size_t k2_weights_file_count(const k2_weights_file *f);
const k2_weights_tensor *k2_weights_file_at(const k2_weights_file *f, size_t i); /* in the order of their data */
const k2_weights_tensor *k2_weights_file_find(const k2_weights_file *f, const char *name); /* NULL: not there */

/* These bytes of the file's mapping will not be read again soon: their pages need not stay. Bytes of a file that was parsed stay. */
void k2_weights_file_forget(const k2_weights_file *f, const void *bytes, uint64_t n);

/* The digest of all data that the metadata records: every file that we write has one. False: none. */
bool k2_weights_file_digest(const k2_weights_file *f, k2_digest *out);
/* CORRUPT where a digest is recorded and the data has another one. */
k2_code k2_weights_file_verify(const k2_weights_file *f, k2_error *err);

/* k2_weights_tensor_f32 - the elements as f32. bf16 and f16 are exact in f32.
 *
 * errors   UNSUPPORTED: another dtype; NOT_FINITE: NaN or infinity (names the element). On errors out is undefined
 */
k2_code k2_weights_tensor_f32(const k2_weights_tensor *t, float *out, k2_error *err);

/* One tensor in the caller's memory. */
typedef struct k2_weights_slot {
    const char *name;
    k2_shape shape;
    float *data; /* k2_shape_count elements */
} k2_weights_slot;

/* k2_weights_file_write - write slots as one f32 safetensors file, through a temporary name, durable when it returns OK.
 *
 *   The metadata holds "format": "pt", which transformers asks for, and the digest of the data. Order of the slots is the order
 *   of the data; the same slots give the same bytes.
 *
 * errors   NO_SPACE, IO. Names given twice are asserted
 */
k2_code k2_weights_file_write(const char *path, const k2_weights_slot *slots, size_t count, k2_error *err);

/* ---- model directories -------------------------------------------------------------------------------------------------- */

typedef struct k2_weights_dir k2_weights_dir;

/* One tensor of a directory. */
typedef struct k2_weights_item {
    const k2_weights_tensor *tensor;
    const k2_weights_tensor *scale; /* of an F8_E4M3 tensor "x": "x_scale_inv"; NULL: not there, or not quantised */
    bool is_scale;                  /* this is the scale of another one */
    size_t file;                    /* number of the file that it lies in */
} k2_weights_item;

/* k2_weights_dir_open - map DIR/model.safetensors, or the shards that DIR/model.safetensors.index.json names.
 *
 *   Files are followed where they are symbolic links (the hub's cache consists of them); names in the index are names of files
 *   in the directory, never paths. A tensor and its scales may lie in different shards. The block size comes from config.json,
 *   which need not be there for weights that are not quantised.
 *
 * memory   headers only, about 200 bytes a tensor; weights are mapped, and pages that were read are given back to the system
 *          piece by piece, so reading a directory adds nothing that grows with it. k2_weights_dir_close (NULL is fine)
 * errors   NOT_FOUND: neither file, or a shard missing; BAD_INPUT: index and shards that disagree, a shard's name that leaves
 *          the directory; those of k2_weights_file_open and k2_weights_quant_parse
 * tests    tests/unit/weights/dir_test.c, tests/unit/weights/quant_test.c
 */
k2_code k2_weights_dir_open(const char *dir, k2_weights_dir **out, k2_error *err);
void k2_weights_dir_close(k2_weights_dir *d);
size_t k2_weights_dir_count(const k2_weights_dir *d);
const k2_weights_item *k2_weights_dir_at(const k2_weights_dir *d, size_t i); /* by file, then in the order of their data */
const k2_weights_item *k2_weights_dir_find(const k2_weights_dir *d, const char *name); /* NULL: not there */
size_t k2_weights_dir_files(const k2_weights_dir *d);
const k2_weights_file *k2_weights_dir_file(const k2_weights_dir *d, size_t i);
const char *k2_weights_dir_path(const k2_weights_dir *d, size_t i); /* of file i */
k2_weights_quant k2_weights_dir_quant(const k2_weights_dir *d);

/* k2_weights_item_check - can its elements be read as f32? Errors as below, but for NOT_FINITE. */
k2_code k2_weights_item_check(const k2_weights_dir *d, const k2_weights_item *item, k2_error *err);
/* k2_weights_item_f32 - elements first to first + count - 1, in row order, as f32.
 *
 *   F8_E4M3 [R,C]: out[r,c] = e4m3[r,c] * scale[r / block_rows, c / block_columns], one f32 product.
 *
 * errors   "path: ...": UNSUPPORTED: a dtype that cannot be loaded, or F8_E4M3 without a block size; BAD_INPUT: scales missing,
 *          or of another shape or type; NOT_FINITE: names the element. On errors out is undefined
 */
k2_code k2_weights_item_f32(const k2_weights_dir *d, const k2_weights_item *item, uint64_t first, uint64_t count, float *out,
                            k2_error *err);

/* k2_weights_dir_load - fill every slot from a directory.
 *
 *   Skipped are tensors named *.rotary_emb.inv_freq, which follow from the sizes, and those of prediction layers, which stand
 *   behind the last layer of the slots and take no part in the model's own answers.
 *
 * errors   NOT_FOUND: a tensor missing; BAD_INPUT: another shape, a tensor that no slot asks for; and those of the functions
 *          above. On errors the slots' memory is undefined
 * tests    tests/unit/weights/dir_test.c; tests/interop/weights (transformers and safetensors read what we write)
 */
k2_code k2_weights_dir_load(const char *dir, const k2_weights_slot *slots, size_t count, k2_error *err);
/* One tensor, row-major: that of slots[slot]. It is gone when this returns. */
typedef void k2_weights_take(void *arg, size_t slot, const float *tensor);
/* k2_weights_dir_each - the same, for who keeps weights in another form: every tensor is given once, one after the other.
 *
 * memory   the largest tensor, as f32; slots need no data
 * errors   those of k2_weights_dir_load; some tensors may have been given by then. *digest becomes the weights digest, on OK only
 */
k2_code k2_weights_dir_each(const char *dir, const k2_weights_slot *slots, size_t count, k2_weights_take *take, void *arg,
                            k2_digest *digest, k2_error *err);
/* k2_weights_dir_check - would k2_weights_dir_load find every tensor, in a type it can load and with its shape? Reads headers
 * only: slots need no data, and a NaN among the elements shows only when they are loaded. Errors are the same.
 */
k2_code k2_weights_dir_check(const char *dir, const k2_weights_slot *slots, size_t count, k2_error *err);
/* Bytes done so far, of how many. */
typedef void k2_weights_progress(void *arg, uint64_t done, uint64_t total);

/* k2_weights_dir_verify - read a whole directory as k2_weights_dir_load would, without memory for its weights.
 *
 *   Every element of every tensor that can be read is finite, also of those that the model skips, and every file's data has the
 *   digest that its header records, if it does. *digest becomes the weights digest that an engine with these weights has.
 *
 * errors   those of k2_weights_dir_load; CORRUPT: a digest
 */
k2_code k2_weights_dir_verify(const char *dir, const k2_weights_slot *slots, size_t count, k2_weights_progress *progress,
                              void *arg, k2_digest *digest, k2_error *err);

/* How weights are stored: to nearest, ties to even. Biases of the router (*.e_score_correction_bias) are F32 in all. F8_E4M3
 * has the projections of attention and feed-forward in blocks of 128 x 128 with the scale amax / 448, and all else in BF16. */
typedef struct k2_weights_format {
    k2_dtype dtype;       /* F32, BF16, F16 or F8_E4M3 */
    uint64_t shard_bytes; /* data of one file at most, unless one tensor is larger; 0: one file */
} k2_weights_format;

/* k2_weights_dir_save - write weights and config.json of a model.
 *
 *   One file is model.safetensors; more are model-00001-of-00003.safetensors and so on, with model.safetensors.index.json.
 *   Every file gets its name when it is durable: shards first, then the index, config.json last, so a directory with a
 *   config.json holds its weights. DIR is made if need be.
 *
 * memory   a few MiB, F8_E4M3: 128 rows of the widest tensor
 * errors   BAD_INPUT: DIR holds a model already: none is written over; NOT_FINITE: NaN or infinity, or what the type cannot
 *          hold; NO_SPACE, IO. Shards may then lie in DIR, but no config.json
 * tests    tests/unit/weights/save_test.c
 */
k2_code k2_weights_dir_save(const char *dir, const k2_dims *dims, const k2_weights_format *format, const k2_weights_slot *slots,
                            size_t count, k2_error *err);

/* k2_weights_dir_convert - the model directory `from` as a new one, `to`, in another format.
 *
 *   All tensors go along, also those that our model has no use for; what is no floating-point number is copied. config.json
 *   keeps everything but torch_dtype and quantization_config; tokenizer, generation config and licence are copied. F8_E4M3 to
 *   F8_E4M3 keeps codes and scales.
 *
 * memory   as above
 * errors   BAD_INPUT: `to` exists, or what k2_weights_dir_open finds; NO_SPACE, asked before anything is written; NOT_FINITE;
 *          IO. `to` comes to be in one step, or not at all
 */
k2_code k2_weights_dir_convert(const char *from, const char *to, const k2_weights_format *format, k2_weights_progress *progress,
                               void *arg, k2_error *err);
/* k2_weights_side_files_copy - what belongs to a model beside its weights (tokenizer, generation config, chat template, licence), as far as it is
 * in directory `from`, into `to`, over files of the same names.
 *
 * errors   IO, NO_SPACE
 */
k2_code k2_weights_side_files_copy(const char *from, const char *to, k2_error *err);
/* The weights digest (see below) of slots in memory. */
k2_digest k2_weights_digest(const k2_weights_slot *slots, size_t count);

/* ---- weights on the move ------------------------------------------------------------------------------------------------- */

/* A segment of weights:
 *
 *     0      header, 256 bytes: "K2WSEG1\0", u64 version, u64 manifest bytes, u64 data offset, u64 data bytes,
 *            manifest digest (hi, lo), zeros
 *     256    manifest, JSON
 *            zeros up to the next multiple of 4096
 *     data   tensors, each at a multiple of 256, f32, little-endian; gaps are zeros
 *
 * The weights digest is the digest of the lines "name dtype d0,d1 tensor-digest\n" sorted by name. It depends on names, types,
 * shapes and values only: not on order, layout, chunk size, ranks, transport or version.
 */
#define K2_WEIGHTS_SEGMENT_HEADER_BYTES 256u
#define K2_WEIGHTS_SEGMENT_DATA_ALIGN   4096u
#define K2_WEIGHTS_MANIFEST_BYTES_MAX   (512u << 20) /* JSON of one manifest: a million tensors of a long line each */
#define K2_WEIGHTS_CHUNK_BYTES_MIN      4096u
#define K2_WEIGHTS_CHUNK_BYTES_MAX      (1u << 30)
#define K2_WEIGHTS_CHUNKS_MAX           (16u << 20)

typedef struct k2_weights_entry {
    const char *name;
    k2_shape shape;
    uint64_t offset, bytes; /* within the data part */
    k2_digest digest;       /* of the tensor's bytes */
} k2_weights_entry;

typedef struct k2_weights_manifest {
    uint64_t version;    /* training step that made the weights */
    uint64_t data_bytes; /* of the data part, gaps included */
    uint32_t chunk_bytes;
    size_t count;
    k2_weights_entry *entries; /* in the order of their offsets */
    size_t chunk_count;        /* ceil(data_bytes / chunk_bytes); the last one may be shorter */
    uint64_t *chunks;          /* k2_hash64 of each chunk with seed 0 */
    k2_digest digest;          /* the weights digest */
} k2_weights_manifest;

/* k2_weights_manifest_plan - lay slots out one behind the other; digests stay zero until k2_weights_segment_fill.
 *
 * memory   the result is the caller's, k2_weights_manifest_free; it keeps no pointer to the slots
 * errors   BAD_INPUT: chunk_bytes out of range or no multiple of 4096; LIMIT: too many tensors or chunks
 */
k2_code k2_weights_manifest_plan(const k2_weights_slot *slots, size_t count, uint64_t version, uint32_t chunk_bytes,
                                 k2_weights_manifest **out, k2_error *err);
void k2_weights_manifest_free(k2_weights_manifest *m);
/* Its length depends on the plan alone, not on the digests, so that a segment can be made before it is filled. */
void k2_weights_manifest_encode(const k2_weights_manifest *m, k2_buf *out);
/* k2_weights_manifest_decode - strict: every field there once, of its type and in range; entries in order, aligned, inside the
 * data; the digest must be the one that follows from the entries.
 *
 * errors   BAD_INPUT, LIMIT, CORRUPT: the digest; the text names the field
 * tests    tests/unit/weights/manifest_test.c, tests/fuzz/weights/json.c
 */
k2_code k2_weights_manifest_decode(const char *text, size_t n, k2_weights_manifest **out, k2_error *err);
/* CORRUPT where a chunk's hash or a tensor's digest is not that of the bytes (names the first one). */
k2_code k2_weights_manifest_verify(const k2_weights_manifest *m, const void *data, k2_error *err);
/* BAD_INPUT where names or shapes are not exactly those of the slots: ask before the data is fetched. */
k2_code k2_weights_manifest_check(const k2_weights_manifest *m, const k2_weights_slot *slots, size_t count, k2_error *err);
/* Every slot's data becomes the tensor of its name, where it lies in the data. Checks as above. */
k2_code k2_weights_manifest_bind(const k2_weights_manifest *m, void *data, k2_weights_slot *slots, size_t count, k2_error *err);

typedef struct k2_weights_segment {
    uint64_t version, manifest_bytes, data_offset, data_bytes;
    k2_digest manifest_digest; /* of the JSON bytes */
} k2_weights_segment;

/* The header for a planned manifest (its digest still zero), and the bytes of the whole segment. */
uint64_t k2_weights_segment_plan(const k2_weights_manifest *m, k2_weights_segment *out);
/* k2_weights_segment_fill - write header, manifest and tensors into memory of the planned size, digests included.
 *
 * keeps    the manifest's digests are set; the header is written last, so that a reader of shared memory never takes a segment
 *          that is being filled for a whole one
 * errors   none; the slots are those of the plan (asserted)
 */
void k2_weights_segment_fill(k2_weights_manifest *m, const k2_weights_slot *slots, size_t count, void *memory, uint64_t bytes);
void k2_weights_segment_encode(const k2_weights_segment *s, unsigned char out[K2_WEIGHTS_SEGMENT_HEADER_BYTES]);
/* BAD_INPUT: magic, sizes that do not add up to segment_bytes, or a data offset that is not where it belongs. */
k2_code k2_weights_segment_decode(const unsigned char header[K2_WEIGHTS_SEGMENT_HEADER_BYTES], uint64_t segment_bytes,
                                  k2_weights_segment *out, k2_error *err);

#endif
