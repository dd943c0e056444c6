/* `k2rl ckpt verify`: is this directory the whole model that its config.json describes? */
#include "commands_int.h"
#include "common/model/model.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model --------------------------------------------------------------------------------------------------- */

static k2_code model_verify(const char *dir, const k2_dims *dims, size_t *tensors, k2_digest *digest, k2_error *err)
{
    k2i_ckpt_meter meter = {.what = "verifying"};
    k2_model_layout *l = k2_model_layout_new(dims);
    k2_weights_slot *slots = k2_alloc_array(l->params_count, sizeof *slots);
    for (size_t i = 0; i < l->params_count; i++)
        slots[i] = (k2_weights_slot){.name = l->params[i].name, .shape = l->params[i].shape};
    k2_code code = k2_weights_dir_verify(dir, slots, l->params_count, k2i_ckpt_meter_move, &meter, digest, err);
    k2i_ckpt_meter_end(&meter);
    *tensors = l->params_count;
    k2_free(slots);
    k2_model_layout_free(l);
    return code;
}

/* ---- other files ------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Tensors, those of the optimizer's state too, which a checkpoint keeps in the same format under an ending that no engine
 * loads. */
static int is_safetensors(const struct dirent *entry)
{
    return ends_with(entry->d_name, ".safetensors") || ends_with(entry->d_name, ".state");
}

static bool is_of_model(const k2_weights_dir *d, const char *path)
{
    for (size_t i = 0; i < k2_weights_dir_files(d); i++)
        if (strcmp(k2_weights_dir_path(d, i), path) == 0) return true;
    return false;
}

/* A file that the model does not consist of, as the optimizer's beside a checkpoint: whole, and with the digest that it
 * records. One that is named like a shard but is none says that something went wrong. */
static k2_code other_verify(const char *path, const char *name, k2_error *err)
{
    k2_weights_file *f = NULL;
    if (strncmp(name, "model", 5) == 0)
        return k2_error_set(err, K2_BAD_INPUT, "%.300s: is named like the model's weights, but is not part of them", path);
    k2_code code = k2_weights_file_open(path, &f, err);
    if (code == K2_OK && (code = k2_weights_file_verify(f, err)) != K2_OK) k2_error_prefix(err, "%.200s", path);
    k2_weights_file_close(f);
    return code;
}

static k2_code others_verify(const char *dir, size_t *files, size_t *others, k2_error *err)
{
    struct dirent **names = NULL;
    k2_weights_dir *d = NULL;
    k2_code code = k2_weights_dir_open(dir, &d, err);
    if (code != K2_OK) return code;
    int count = scandir(dir, &names, is_safetensors, alphasort);
    if (count < 0) code = k2_error_errno(err, errno, "%s: cannot read the directory", dir);
    *files = k2_weights_dir_files(d);
    for (int i = 0; i < count; i++) {
        char *path = k2_asprintf("%s/%s", dir, names[i]->d_name);
        if (code == K2_OK && !is_of_model(d, path)) {
            code = other_verify(path, names[i]->d_name, err);
            ++*others;
        }
        k2_free(path);
        free(names[i]);
    }
    free(names);
    k2_weights_dir_close(d);
    return code;
}

k2_code k2i_ckpt_verify(char **args, int count, k2_error *err)
{
    int operands = 0;
    size_t tensors = 0, files = 0, others = 0;
    k2_dims dims;
    k2_digest digest;
    char hex[K2_DIGEST_HEX];
    k2_code code = k2_args_parse(args, count, NULL, 0, &operands, NULL, err);
    if (code == K2_OK && operands != 1) code = k2_error_set(err, K2_BAD_INPUT, "%d operands, expected one DIR", operands);
    if (code == K2_OK) code = k2i_ckpt_dims(args[0], &dims, err);
    if (code == K2_OK) code = others_verify(args[0], &files, &others, err);
    if (code == K2_OK) code = model_verify(args[0], &dims, &tensors, &digest, err);
    if (code != K2_OK) return code;
    k2_digest_hex(digest, hex);
    printf("%s: ok, whole and finite: %zu tensors in %zu file%s; weights digest %s\n", args[0], tensors, files,
           files == 1 ? "" : "s", hex);
    if (others) printf("whole: %zu other file%s of tensors\n", others, others == 1 ? "" : "s");
    return K2_OK;
}
