/* checkpoint - write, verify, read. See checkpoint_int.h. */
#include "trainer/checkpoint_int.h"

#include "common/inputs/inputs.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FORMAT         "k2rl-trainer-1"
#define JSON_BYTES_MAX 65536u

static const char *const moments_names[] = {
    [K2I_MOMENTS_NONE] = "none", [K2I_MOMENTS_PRETRAIN] = "pretrain", [K2I_MOMENTS_TRAIN] = "train"};

/* ---- slots ---- */

k2i_slots k2i_slots_make(const k2_model_layout *layout, float *flat, const char *prefix)
{
    size_t prefix_bytes = strlen(prefix), stride = prefix_bytes + K2_PARAM_NAME_MAX;
    k2i_slots s = {.count = layout->params_count};
    s.slots = k2_alloc_array(s.count, sizeof(*s.slots));
    s.names = k2_alloc_array(s.count, stride);
    for (size_t i = 0; i < s.count; i++) {
        const k2_param *p = &layout->params[i];
        char *name = s.names + i * stride;
        memcpy(name, prefix, prefix_bytes);
        memcpy(name + prefix_bytes, p->name, K2_PARAM_NAME_MAX);
        s.slots[i] = (k2_weights_slot){.name = name, .shape = p->shape, .data = flat + p->offset};
    }
    return s;
}

void k2i_slots_free(k2i_slots *s)
{
    k2_free(s->names);
    k2_free(s->slots);
    *s = (k2i_slots){0};
}

/* What optimizer.state holds, in one list: m and v, and with params the weights themselves. */
static k2i_slots optimizer_slots(const k2_model_layout *layout, float *m, float *v, float *params)
{
    const struct {
        const char *prefix;
        float *flat;
    } parts[] = {{"m.", m}, {"v.", v}, {"w.", params}};
    const size_t count = params ? 3 : 2, stride = K2_PARAM_NAME_MAX + 2;
    k2i_slots s = {.count = count * layout->params_count};
    s.slots = k2_alloc_array(s.count, sizeof(*s.slots));
    s.names = k2_alloc_array(s.count, stride);
    for (size_t k = 0, at = 0; k < count; k++) {
        k2i_slots part = k2i_slots_make(layout, parts[k].flat, parts[k].prefix);
        for (size_t i = 0; i < part.count; i++, at++) {
            s.slots[at] = part.slots[i];
            s.slots[at].name = strcpy(s.names + at * stride, part.slots[i].name);
        }
        k2i_slots_free(&part);
    }
    return s;
}

/* ---- trainer.json ---- */

void k2i_checkpoint_encode(const k2i_checkpoint *s, k2_buf *out)
{
    char weights[K2_DIGEST_HEX], optimizer[K2_DIGEST_HEX];
    k2_digest_hex(s->weights, weights);
    k2_digest_hex(s->optimizer, optimizer);
    k2_buf_printf(
        out,
        "{\n  \"format\": \"" FORMAT "\",\n  \"step\": %llu,\n  \"pretrain_step\": %llu,\n  \"seed\": \"%llu\",\n"
        "  \"moments\": \"%s\",\n  \"updates\": %llu,\n  \"weights_digest\": \"%s\",\n  \"optimizer_digest\": \"%s\"\n}\n",
        (unsigned long long)s->step, (unsigned long long)s->pretrain_step, (unsigned long long)s->seed,
        moments_names[s->moments], (unsigned long long)s->updates, weights, optimizer);
}

static bool field_u64(const cJSON *root, const char *name, uint64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 9007199254740992.0)) return false;
    *out = (uint64_t)item->valuedouble;
    return (double)*out == item->valuedouble;
}

static const char *field_text(const cJSON *root, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, name));
    return text ? text : "";
}

static bool field_moments(const cJSON *root, k2i_moments *out)
{
    const char *text = field_text(root, "moments");
    for (size_t i = 0; i < K2_COUNT(moments_names); i++) {
        if (strcmp(text, moments_names[i]) != 0) continue;
        *out = (k2i_moments)i;
        return true;
    }
    return false;
}

/* The name of the first field that is missing or of a wrong type, NULL: all are well. */
static const char *state_decode(const cJSON *root, k2i_checkpoint *s)
{
    if (strcmp(field_text(root, "format"), FORMAT) != 0) return "format";
    if (!field_u64(root, "step", &s->step)) return "step";
    if (!field_u64(root, "pretrain_step", &s->pretrain_step)) return "pretrain_step";
    if (!k2_str_u64(field_text(root, "seed"), &s->seed)) return "seed";
    if (!field_moments(root, &s->moments)) return "moments";
    if (!field_u64(root, "updates", &s->updates)) return "updates";
    if (!k2_digest_parse(field_text(root, "weights_digest"), &s->weights)) return "weights_digest";
    if (!k2_digest_parse(field_text(root, "optimizer_digest"), &s->optimizer)) return "optimizer_digest";
    return NULL;
}

k2_code k2i_checkpoint_parse(const char *path, const char *text, size_t len, k2i_checkpoint *out, k2_error *err)
{
    k2i_checkpoint found = {0};
    k2_code code = K2_OK;
    cJSON *root = k2_json_fault(text, len, 8) ? NULL : cJSON_ParseWithLength(text, len);
    const char *fault = root ? state_decode(root, &found) : NULL;
    if (!root)
        code = k2_error_set(err, K2_BAD_INPUT, "%s: not a JSON object", path);
    else if (fault)
        code = k2_error_set(err, K2_BAD_INPUT, "%s: %s: missing, or not what a checkpoint of this version holds", path, fault);
    if (code == K2_OK) *out = found;
    cJSON_Delete(root);
    return code;
}

k2_code k2i_checkpoint_peek(const char *dir, k2i_checkpoint *state, k2_error *err)
{
    char *path = k2_asprintf("%s/trainer.json", dir), *text;
    size_t len;
    k2_code code = k2_file_read(path, JSON_BYTES_MAX, &text, &len, err);
    if (code == K2_OK) {
        code = k2i_checkpoint_parse(path, text, len, state, err);
        k2_free(text);
    }
    k2_free(path);
    return code;
}
/* ---- writing ---- */

/* A piece at a time, whose pages are given back: what was written need not be in memory a second time. */
static bool same_bytes(const k2_weights_file *f, const k2_weights_tensor *t, const float *data)
{
    const uint64_t piece = K2_FILE_PIECE_BYTES;
    const char *stored = t->data, *held = (const char *)data;
    for (uint64_t at = 0; at < t->bytes; at += piece) {
        uint64_t n = K2_MIN(t->bytes - at, piece);
        if (memcmp(stored + at, held + at, n) != 0) return false;
        k2_weights_file_forget(f, stored + at, n);
    }
    return true;
}

static k2_code file_verify(const char *path, const k2i_slots *s, k2_error *err)
{
    k2_weights_file *f;
    k2_code code = k2_weights_file_open(path, &f, err);
    if (code != K2_OK) return code;
    for (size_t i = 0; i < s->count && code == K2_OK; i++) {
        const k2_weights_slot *slot = &s->slots[i];
        const k2_weights_tensor *t = k2_weights_file_find(f, slot->name);
        if (!t || !k2_shape_equal(&t->shape, &slot->shape) || !same_bytes(f, t, slot->data))
            code = k2_error_set(err, K2_CORRUPT, "%s: %s: read back differently from what was written", path, slot->name);
    }
    k2_weights_file_close(f);
    return code;
}

/* *digest is that of the weights in memory: those of the files are the same, or rounded. */
static k2_code weights_write(const char *dir, const k2_dims *dims, const k2_weights_format *format, const k2i_slots *s,
                             k2_digest *digest, k2_error *err)
{
    k2_digest stored;
    k2_code code = k2_weights_dir_save(dir, dims, format, s->slots, s->count, err);
    if (code == K2_OK) code = k2_weights_dir_verify(dir, s->slots, s->count, NULL, NULL, &stored, err);
    if (code != K2_OK) return code;
    *digest = k2_weights_digest(s->slots, s->count);
    if (format->dtype == K2_DTYPE_F32 && !k2_digest_equal(stored, *digest))
        return k2_error_set(err, K2_CORRUPT, "%s: the weights read back differently from what was written", dir);
    return K2_OK;
}

static k2_code optimizer_write(const char *dir, const k2i_slots *s, k2_digest *digest, k2_error *err)
{
    char *path = k2_asprintf("%s/optimizer.state", dir);
    k2_code code = k2_weights_file_write(path, s->slots, s->count, err);
    if (code == K2_OK) code = file_verify(path, s, err);
    if (code == K2_OK) *digest = k2_weights_digest(s->slots, s->count);
    k2_free(path);
    return code;
}

static k2_code state_write(const char *dir, const k2i_checkpoint *state, k2_error *err)
{
    char *path = k2_asprintf("%s/trainer.json", dir);
    k2_buf json;
    k2_buf_init(&json, JSON_BYTES_MAX);
    k2i_checkpoint_encode(state, &json);
    k2_code code = k2_file_write_atomic(path, json.data, json.len, err);
    k2_buf_fini(&json);
    k2_free(path);
    return code;
}

static k2_code parent_sync(const char *path, k2_error *err)
{
    char *parent = k2_strdup(path), *slash = strrchr(parent, '/');
    if (slash) *(slash == parent ? slash + 1 : slash) = 0;
    const char *dir = slash ? parent : ".";
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    k2_code code = fd >= 0 && fsync(fd) == 0 ? K2_OK : k2_error_errno(err, errno, "%s", dir);
    if (fd >= 0) close(fd);
    k2_free(parent);
    return code;
}

/* Where something stands already, the two swap names in one step, so that at no moment there is nothing. */
static k2_code dir_place(const char *from, const char *to, k2_error *err)
{
    k2_code code = K2_OK;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0 && rename(from, to) != 0)
        code = k2_error_errno(err, errno, "%s", to);
    if (code == K2_OK) code = parent_sync(to, err);
    return code;
}

k2_weights_format k2i_checkpoint_format(const k2_config *c)
{
    return (k2_weights_format){.dtype = strcmp(c->run_checkpoint_dtype, "bf16") == 0 ? K2_DTYPE_BF16 : K2_DTYPE_F32,
                               .shard_bytes = c->run_shard_bytes};
}

k2_code k2i_checkpoint_write(const char *dir, const k2_dims *dims, const k2_weights_format *format,
                             const k2_model_layout *layout, float *params, float *m, float *v, const k2_config *beside,
                             k2i_checkpoint *state, k2_error *err)
{
    char *temp = k2_asprintf("%s.tmp", dir);
    k2i_slots weights = k2i_slots_make(layout, params, "");
    k2i_slots optimizer = optimizer_slots(layout, m, v, format->dtype == K2_DTYPE_F32 ? NULL : params);
    k2_code code = k2_dir_remove(temp, err);
    if (code == K2_OK) code = k2_dir_make(temp, err);
    if (code == K2_OK && beside) code = k2_inputs_copy(beside, temp, err);
    if (code == K2_OK) code = weights_write(temp, dims, format, &weights, &state->weights, err);
    if (code == K2_OK) code = optimizer_write(temp, &optimizer, &state->optimizer, err);
    if (code == K2_OK) code = state_write(temp, state, err);
    if (code == K2_OK) code = dir_place(temp, dir, err);
    (void)k2_dir_remove(temp, NULL); /* what stood there before, or what did not come to be */
    k2i_slots_free(&optimizer);
    k2i_slots_free(&weights);
    k2_free(temp);
    return code;
}

/* ---- reading ---- */

static k2_code optimizer_read(const char *path, const k2_weights_file *f, const k2i_slots *s, k2_error *err)
{
    k2_code code = K2_OK;
    if (k2_weights_file_count(f) != s->count)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %zu tensors, expected %zu", path, k2_weights_file_count(f), s->count);
    for (size_t i = 0; i < s->count && code == K2_OK; i++) {
        const k2_weights_tensor *t = k2_weights_file_find(f, s->slots[i].name);
        if (!t || !k2_shape_equal(&t->shape, &s->slots[i].shape))
            code = k2_error_set(err, K2_BAD_INPUT, "%s: %s: %s", path, s->slots[i].name, t ? "another shape" : "missing");
        else
            code = k2_weights_tensor_f32(t, s->slots[i].data, err);
        if (t) k2_weights_file_forget(f, t->data, t->bytes);
    }
    return code;
}

/* Where the optimizer's file has the weights, those of the model are rounded: they must be there, but nothing is taken from
 * them. */
static k2_code vectors_read(const char *dir, const k2_model_layout *layout, float *params, float *m, float *v,
                            const k2i_checkpoint *state, k2_error *err)
{
    char *path = k2_asprintf("%s/optimizer.state", dir), first[K2_PARAM_NAME_MAX + 2];
    k2_weights_file *f = NULL;
    k2i_slots weights = k2i_slots_make(layout, params, ""), optimizer = {0};
    k2_code code = k2_weights_file_open(path, &f, err);
    if (code != K2_OK) goto free_slots;
    snprintf(first, sizeof(first), "w.%s", layout->params[0].name);
    const bool has_weights = k2_weights_file_find(f, first) != NULL;
    optimizer = optimizer_slots(layout, m, v, has_weights ? params : NULL);
    code = has_weights ? k2_weights_dir_check(dir, weights.slots, weights.count, err)
                       : k2_weights_dir_load(dir, weights.slots, weights.count, err);
    if (code == K2_OK) code = optimizer_read(path, f, &optimizer, err);
    if (code == K2_OK && !k2_digest_equal(k2_weights_digest(weights.slots, weights.count), state->weights))
        code = k2_error_set(err, K2_CORRUPT, "%s: the digest of its weights is not the one in trainer.json", dir);
    if (code == K2_OK && !k2_digest_equal(k2_weights_digest(optimizer.slots, optimizer.count), state->optimizer))
        code = k2_error_set(err, K2_CORRUPT, "%s: its digest is not the one in trainer.json", path);
    k2_weights_file_close(f);
free_slots:
    k2i_slots_free(&optimizer);
    k2i_slots_free(&weights);
    k2_free(path);
    return code;
}

k2_code k2i_checkpoint_read(const char *dir, const k2_model_layout *layout, float *params, float *m, float *v,
                            k2i_checkpoint *state, k2_error *err)
{
    k2i_checkpoint found;
    k2_code code = k2i_checkpoint_peek(dir, &found, err);
    if (code == K2_OK) code = vectors_read(dir, layout, params, m, v, &found, err);
    if (code == K2_OK) *state = found;
    return code;
}
