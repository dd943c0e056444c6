/* inputs - see inputs.h. */
#include "common/inputs/inputs.h"

#include <string.h>
#include <sys/stat.h>

#include "common/token/token.h"
#include "common/weights/weights.h"

char *k2_inputs_model_path(const k2_config *c)
{
    return c->model_dir[0] ? k2_asprintf("%s/config.json", c->model_dir) : k2_strdup(c->model_config);
}

static k2_code model_read(const char *path, k2_digest *out, k2_error *err)
{
    k2_dims dims;
    k2_buf text;
    k2_code code = k2_weights_dims_load(path, &dims, err);
    if (code != K2_OK) return code;
    k2_buf_init(&text, K2_WEIGHTS_CONFIG_BYTES_MAX);
    k2_weights_dims_encode(&dims, &text);
    *out = k2_digest_of(text.data, text.len);
    k2_buf_fini(&text);
    return K2_OK;
}

static k2_code tokenizer_read(const k2_config *c, k2_digest *out, k2_error *err)
{
    const k2_tokenizer_spec spec = {
        .kind = c->tokenizer_kind, .path = k2_config_tokenizer_path(c, c->model_dir), .pattern = c->tokenizer_pattern};
    return k2_tokenizer_fingerprint(&spec, out, err);
}

k2_code k2_inputs_read(const k2_config *c, k2_inputs *out, k2_error *err)
{
    k2_inputs found;
    char *path = k2_inputs_model_path(c);
    k2_code code = model_read(path, &found.model, err);
    if (code == K2_OK) code = tokenizer_read(c, &found.tokenizer, err);
    if (code == K2_OK) *out = found;
    k2_free(path);
    return code;
}

static k2_code compare(const char *path, const char *what, k2_digest own, k2_digest masters, k2_error *err)
{
    char found[K2_DIGEST_HEX], wanted[K2_DIGEST_HEX];
    if (k2_digest_zero(masters) || k2_digest_equal(own, masters)) return K2_OK;
    k2_digest_hex(own, found);
    k2_digest_hex(masters, wanted);
    return k2_error_set(err, K2_BAD_INPUT, "%.200s: the %s here is not the master's: found %s, expected %s", path, what, found,
                        wanted);
}

k2_code k2_inputs_check(const k2_config *c, const k2_inputs *masters, k2_error *err)
{
    k2_inputs own;
    char *path = k2_inputs_model_path(c);
    k2_code code = k2_inputs_read(c, &own, err);
    if (code == K2_OK) code = compare(path, "model", own.model, masters->model, err);
    if (code == K2_OK)
        code = compare(k2_config_tokenizer_path(c, c->model_dir), "tokenizer", own.tokenizer, masters->tokenizer, err);
    k2_free(path);
    return code;
}

/* ---- into a checkpoint ---- */

/* The name that a file of the tokenizer has in a model's directory. */
static const char *tokenizer_name(const k2_config *c)
{
    static const char *const patterns[][2] = {
        {"kimi", "tiktoken.model"}, {"qwen", "qwen.tiktoken"}, {"cl100k", "cl100k_base.tiktoken"}};
    const char *path = c->tokenizer_path, *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t n = strlen(name);
    bool json = strcmp(c->tokenizer_kind, "json") == 0 ||
                (strcmp(c->tokenizer_kind, "auto") == 0 && n > 5 && strcmp(name + n - 5, ".json") == 0);
    if (json) return "tokenizer.json";
    for (size_t i = 0; i < K2_COUNT(patterns); i++)
        if (strcmp(c->tokenizer_pattern, patterns[i][0]) == 0) return patterns[i][1];
    return name; /* without a pattern it goes by its name */
}

/* One file, and what says which of its tokens are special. */
static k2_code tokenizer_file_copy(const k2_config *c, const char *to, k2_error *err)
{
    const char *path = c->tokenizer_path, *slash = strrchr(path, '/');
    char *target = k2_asprintf("%s/%s", to, tokenizer_name(c)), *config = k2_asprintf("%s/tokenizer_config.json", to),
         *beside = k2_asprintf("%.*stokenizer_config.json", slash ? (int)(slash - path + 1) : 0, path);
    k2_code code = k2_file_copy(path, target, err);
    if (code == K2_OK && k2_file_exists(beside)) code = k2_file_copy(beside, config, err);
    k2_free(beside);
    k2_free(config);
    k2_free(target);
    return code;
}

k2_code k2_inputs_copy(const k2_config *c, const char *to, k2_error *err)
{
    struct stat st;
    k2_code code = c->model_dir[0] ? k2_weights_side_files_copy(c->model_dir, to, err) : K2_OK;
    if (code != K2_OK || !c->tokenizer_path[0] || stat(c->tokenizer_path, &st) != 0) return code;
    return S_ISDIR(st.st_mode) ? k2_weights_side_files_copy(c->tokenizer_path, to, err) : tokenizer_file_copy(c, to, err);
}
