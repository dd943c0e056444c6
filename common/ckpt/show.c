/* `k2rl ckpt show`: what is in a model directory, for people and for programs. */
#include "commands_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define JSON_BYTES_MAX (1u << 30)

/* Numbers and bytes of each type. */
typedef struct totals {
    uint64_t tensors[K2_DTYPE_COUNT], elements[K2_DTYPE_COUNT], bytes[K2_DTYPE_COUNT];
    uint64_t parameters; /* scales of quantised tensors are none */
} totals;

static totals totals_of(const k2_weights_dir *d)
{
    totals sum = {0};
    for (size_t i = 0; i < k2_weights_dir_count(d); i++) {
        const k2_weights_item *item = k2_weights_dir_at(d, i);
        const k2_weights_tensor *t = item->tensor;
        const uint64_t elements = t->bytes / k2_dtype_bytes(t->dtype);
        sum.tensors[t->dtype]++;
        sum.elements[t->dtype] += elements;
        sum.bytes[t->dtype] += t->bytes;
        if (!item->is_scale) sum.parameters += elements;
    }
    return sum;
}

static uint64_t file_bytes(const k2_weights_file *f)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < k2_weights_file_count(f); i++) bytes += k2_weights_file_at(f, i)->bytes;
    return bytes;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

static void dims_print(const k2_dims *d)
{
    printf("layers %u (%u of experts)  width %u  heads %u  vocabulary %u  positions %u%s\n", d->num_hidden_layers,
           k2_dims_moe_layers(d), d->hidden_size, d->num_attention_heads, d->vocab_size, d->max_position_embeddings,
           d->tie_word_embeddings ? "  tied embeddings" : "");
    if (d->n_routed_experts)
        printf("experts %u in %u groups, %u a token, %u shared, width %u\n", d->n_routed_experts, d->n_group,
               d->num_experts_per_tok, d->n_shared_experts, d->moe_intermediate_size);
}

static void tensor_print(const k2_weights_tensor *t)
{
    char shape[96] = "";
    int n = 0;
    for (uint32_t i = 0; i < t->shape.rank; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRIu64, i ? " x " : "", t->shape.size[i]);
    printf("  %-8s %-20s %s\n", k2_dtype_name(t->dtype), shape, t->name);
}

static void file_print(const char *path, const k2_weights_file *f)
{
    char hex[K2_DIGEST_HEX] = "none recorded";
    k2_digest digest;
    if (k2_weights_file_digest(f, &digest)) k2_digest_hex(digest, hex);
    printf("%s: %zu tensors, %" PRIu64 " bytes, digest %s\n", base_name(path), k2_weights_file_count(f), file_bytes(f), hex);
    for (size_t i = 0; i < k2_weights_file_count(f); i++) tensor_print(k2_weights_file_at(f, i));
}

static void print(const char *dir, const k2_dims *dims, const k2_weights_dir *d)
{
    const totals sum = totals_of(d);
    const k2_weights_quant q = k2_weights_dir_quant(d);
    printf("%s\n", dir);
    dims_print(dims);
    if (q.block_rows) printf("quantised: fp8 e4m3 in blocks of %u x %u\n", q.block_rows, q.block_columns);
    for (size_t i = 0; i < k2_weights_dir_files(d); i++) file_print(k2_weights_dir_path(d, i), k2_weights_dir_file(d, i));
    for (unsigned i = 0; i < K2_DTYPE_COUNT; i++)
        if (sum.tensors[i])
            printf("%-8s %" PRIu64 " tensors, %" PRIu64 " elements, %" PRIu64 " bytes\n", k2_dtype_name((k2_dtype)i),
                   sum.tensors[i], sum.elements[i], sum.bytes[i]);
    printf("parameters %" PRIu64 "\n", sum.parameters);
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static void text_json(k2_buf *out, const char *text)
{
    k2_buf_json_string(out, text, strlen(text));
}

static void file_json(const char *path, const k2_weights_file *f, k2_buf *out)
{
    char hex[K2_DIGEST_HEX];
    k2_digest digest;
    const bool recorded = k2_weights_file_digest(f, &digest);
    if (recorded) k2_digest_hex(digest, hex);
    k2_buf_puts(out, "{\"name\":");
    text_json(out, base_name(path));
    k2_buf_printf(out, ",\"tensors\":%zu,\"bytes\":%" PRIu64 ",\"digest\":%s%s%s}", k2_weights_file_count(f), file_bytes(f),
                  recorded ? "\"" : "", recorded ? hex : "null", recorded ? "\"" : "");
}

static void item_json(const k2_weights_dir *d, const k2_weights_item *item, k2_buf *out)
{
    const k2_weights_tensor *t = item->tensor;
    k2_buf_puts(out, "{\"name\":");
    text_json(out, t->name);
    k2_buf_printf(out, ",\"dtype\":\"%s\",\"shape\":[", k2_dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->shape.rank; i++) k2_buf_printf(out, "%s%" PRIu64, i ? "," : "", t->shape.size[i]);
    k2_buf_printf(out, "],\"bytes\":%" PRIu64 ",\"file\":", t->bytes);
    text_json(out, base_name(k2_weights_dir_path(d, item->file)));
    k2_buf_printf(out, ",\"scale_of_another\":%s}", item->is_scale ? "true" : "false");
}

static k2_code print_json(const char *dir, const k2_dims *dims, const k2_weights_dir *d, k2_error *err)
{
    const totals sum = totals_of(d);
    const k2_weights_quant q = k2_weights_dir_quant(d);
    k2_buf out;
    k2_buf_init(&out, JSON_BYTES_MAX);
    k2_buf_puts(&out, "{\"directory\":");
    text_json(&out, dir);
    k2_buf_puts(&out, ",\"config\":");
    k2_weights_dims_encode(dims, &out);
    if (q.block_rows) k2_buf_printf(&out, ",\"weight_block_size\":[%u,%u]", q.block_rows, q.block_columns);
    k2_buf_printf(&out, ",\"parameters\":%" PRIu64 ",\"files\":[", sum.parameters);
    for (size_t i = 0; i < k2_weights_dir_files(d); i++) {
        if (i) k2_buf_puts(&out, ",");
        file_json(k2_weights_dir_path(d, i), k2_weights_dir_file(d, i), &out);
    }
    k2_buf_puts(&out, "],\"tensors\":[");
    for (size_t i = 0; i < k2_weights_dir_count(d); i++) {
        if (i) k2_buf_puts(&out, ",");
        item_json(d, k2_weights_dir_at(d, i), &out);
    }
    k2_buf_puts(&out, "]}");
    k2_code code =
        out.overflow ? k2_error_set(err, K2_LIMIT, "%s: its list is longer than %u bytes", dir, JSON_BYTES_MAX) : K2_OK;
    /* One line: names cannot hold a line feed once they are JSON strings, so the only ones are those of config. */
    for (size_t i = 0; code == K2_OK && i < out.len; i++)
        if (out.data[i] == '\n') out.data[i] = ' ';
    if (code == K2_OK) puts(out.data);
    k2_buf_fini(&out);
    return code;
}

k2_code k2i_ckpt_show(char **args, int count, k2_error *err)
{
    bool json = false;
    const k2_option options[] = {{.name = "--json", .flag = &json}};
    int operands = 0;
    k2_dims dims;
    k2_weights_dir *d = NULL;
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    if (code == K2_OK && operands != 1) code = k2_error_set(err, K2_BAD_INPUT, "%d operands, expected one DIR", operands);
    if (code == K2_OK) code = k2i_ckpt_dims(args[0], &dims, err);
    if (code == K2_OK) code = k2_weights_dir_open(args[0], &d, err);
    if (code != K2_OK) return code;
    if (json)
        code = print_json(args[0], &dims, d, err);
    else
        print(args[0], &dims, d);
    k2_weights_dir_close(d);
    return code;
}
