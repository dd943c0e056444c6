/* `k2rl ckpt`: look at a model directory, and check that it is whole. */
#include "common/weights/weights.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The safetensors files of a directory in the order of their names. */
typedef struct listing {
    char **paths;
    size_t count;
} listing;

static int is_safetensors(const struct dirent *entry)
{
    static const char suffix[] = ".safetensors";
    const size_t n = strlen(entry->d_name);
    return n >= sizeof suffix && strcmp(entry->d_name + n - (sizeof suffix - 1), suffix) == 0;
}

static k2_code listing_make(const char *dir, listing *out, k2_error *err)
{
    struct dirent **names = NULL;
    int count = scandir(dir, &names, is_safetensors, alphasort);
    if (count < 0) return k2_error_errno(err, errno, "%s: cannot read the directory", dir);
    *out = (listing){.paths = k2_alloc_array((size_t)count, sizeof *out->paths), .count = (size_t)count};
    for (int i = 0; i < count; i++) {
        out->paths[i] = k2_asprintf("%s/%s", dir, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return K2_OK;
}

static void listing_free(listing *l)
{
    for (size_t i = 0; i < l->count; i++) k2_free(l->paths[i]);
    k2_free(l->paths);
}

static void dims_print(const k2_dims *d)
{
    printf("layers %u (%u of experts)  width %u  heads %u  vocabulary %u  positions %u\n", d->num_hidden_layers,
           k2_dims_moe_layers(d), d->hidden_size, d->num_attention_heads, d->vocab_size, d->max_position_embeddings);
    if (d->n_routed_experts)
        printf("experts %u, %u a token, %u shared, width %u\n", d->n_routed_experts, d->num_experts_per_tok,
               d->n_shared_experts, d->moe_intermediate_size);
}

/* ---- show -------------------------------------------------------------------------------------------------------- */

static void tensor_print(const k2_weights_tensor *t)
{
    printf("  %-8s", k2_dtype_name(t->dtype));
    char shape[96] = "";
    int n = 0;
    for (uint32_t i = 0; i < t->shape.rank; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRIu64, i ? " x " : "", t->shape.size[i]);
    printf(" %-20s %s\n", shape, t->name);
}

static k2_code file_show(const char *path, k2_error *err)
{
    k2_weights_file *f = NULL;
    uint64_t bytes = 0;
    k2_code code = k2_weights_file_open(path, &f, err);
    if (code != K2_OK) return code;
    for (size_t i = 0; i < k2_weights_file_count(f); i++) bytes += k2_weights_file_at(f, i)->bytes;
    printf("%s: %zu tensors, %" PRIu64 " bytes\n", path, k2_weights_file_count(f), bytes);
    for (size_t i = 0; i < k2_weights_file_count(f); i++) tensor_print(k2_weights_file_at(f, i));
    k2_weights_file_close(f);
    return K2_OK;
}

static k2_code show(const char *dir, const k2_dims *dims, const listing *files, k2_error *err)
{
    k2_code code = K2_OK;
    printf("%s\n", dir);
    dims_print(dims);
    for (size_t i = 0; i < files->count && code == K2_OK; i++) code = file_show(files->paths[i], err);
    return code;
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */

/* Every element of every tensor that is a number of ours is finite. */
static k2_code file_verify(const char *path, uint64_t *tensors, k2_error *err)
{
    k2_weights_file *f = NULL;
    k2_code code = k2_weights_file_open(path, &f, err);
    if (code != K2_OK) return code;
    for (size_t i = 0; i < k2_weights_file_count(f) && code == K2_OK; i++) {
        const k2_weights_tensor *t = k2_weights_file_at(f, i);
        if (t->dtype != K2_DTYPE_F32 && t->dtype != K2_DTYPE_BF16 && t->dtype != K2_DTYPE_F16) continue;
        float *values = k2_alloc_array(t->bytes / k2_dtype_bytes(t->dtype), sizeof *values);
        code = k2_weights_tensor_f32(t, values, err);
        k2_free(values);
        ++*tensors;
    }
    if (code != K2_OK) k2_error_prefix(err, "%.200s", path);
    k2_weights_file_close(f);
    return code;
}

static k2_code verify(const char *dir, const k2_dims *dims, const listing *files, k2_error *err)
{
    k2_code code = K2_OK;
    uint64_t tensors = 0;
    (void)dims; /* that it was read is the check */
    if (files->count == 0) return k2_error_set(err, K2_NOT_FOUND, "%s: holds no .safetensors file", dir);
    for (size_t i = 0; i < files->count && code == K2_OK; i++) code = file_verify(files->paths[i], &tensors, err);
    if (code == K2_OK) printf("%s: ok, %" PRIu64 " tensors in %zu files are whole and finite\n", dir, tensors, files->count);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    k2_code (*run)(const char *dir, const k2_dims *dims, const listing *files, k2_error *err);
    const char *what;
} commands[] = {
    {"show", show, "Print the sizes and the tensors of a model directory."},
    {"verify", verify, "Check a model directory: config.json, headers, offsets, and that every weight is finite."},
};

static void help(FILE *to)
{
    fprintf(to, "usage: k2rl ckpt COMMAND DIR\n\n");
    for (size_t i = 0; i < K2_COUNT(commands); i++) fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].what);
}

static k2_code run(size_t command, const char *dir, k2_error *err)
{
    k2_dims dims;
    listing files = {0};
    char *config = k2_asprintf("%s/config.json", dir);
    k2_code code = k2_weights_dims_load(config, &dims, err);
    k2_free(config);
    if (code == K2_OK) code = listing_make(dir, &files, err);
    if (code == K2_OK) code = commands[command].run(dir, &dims, &files, err);
    listing_free(&files);
    return code;
}

int k2_weights_main(int argc, char **argv)
{
    k2_error err = {0};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            help(stdout);
            return 0;
        }
    for (size_t i = 0; i < K2_COUNT(commands) && argc > 1; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        if (argc != 3 || argv[2][0] == '-') {
            fprintf(stderr, "k2rl ckpt %s: expected one DIR and no options\n", argv[1]);
            return 2;
        }
        k2_code code = run(i, argv[2], &err);
        if (code != K2_OK) fprintf(stderr, "k2rl ckpt %s: %s\n", commands[i].name, err.text);
        return k2_code_exit(code);
    }
    if (argc > 1)
        fprintf(stderr, "k2rl ckpt: unknown command \"%.64s\", expected show or verify\n", argv[1]);
    else
        fprintf(stderr, "k2rl ckpt: a command is missing: show or verify\n");
    return 2;
}
