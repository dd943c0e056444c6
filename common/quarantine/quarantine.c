/* quarantine - write an entry, read its note. See quarantine.h. */
#include "common/quarantine/quarantine.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FORMAT         "k2rl-quarantine-1"
#define NOTE_BYTES_MAX 65536u

typedef unsigned long long ull;

struct k2_quarantine {
    char *parent, *temp, *path;
    k2_quarantine_kind kind;
    uint64_t number;
};

const char *k2_quarantine_kind_name(k2_quarantine_kind kind)
{
    static const char *const names[] = {
#define K2_X(id, name, number) name,
        K2_QUARANTINE_KINDS(K2_X)
#undef K2_X
    };
    return (size_t)kind < K2_COUNT(names) ? names[kind] : "?";
}

static const char *number_name(k2_quarantine_kind kind)
{
    static const char *const names[] = {
#define K2_X(id, name, number) number,
        K2_QUARANTINE_KINDS(K2_X)
#undef K2_X
    };
    return names[kind];
}

char *k2_quarantine_path(const char *dir, const char *name)
{
    return k2_asprintf("%s/%s", dir, name);
}

char *k2_quarantine_batch_path(const char *dir, uint64_t step)
{
    return k2_asprintf("%s/batch-%07llu.bin", dir, (ull)step);
}

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static uint64_t entries_in(const char *dir)
{
    uint64_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void release(k2_quarantine *q)
{
    k2_free(q->path);
    k2_free(q->temp);
    k2_free(q->parent);
    k2_free(q);
}

k2_code k2_quarantine_begin(const char *run_dir, k2_quarantine_kind kind, uint64_t number, uint64_t kept, k2_quarantine **out,
                            k2_error *err)
{
    k2_quarantine *q = k2_alloc(sizeof *q);
    const char *name = k2_quarantine_kind_name(kind);
    *q = (k2_quarantine){.kind = kind, .number = number, .parent = k2_asprintf("%s/quarantine", run_dir)};
    q->path = k2_asprintf("%s/%s-%llu", q->parent, name, (ull)number);
    q->temp = k2_asprintf("%s/.%s-%llu", q->parent, name, (ull)number);
    k2_code code = k2_dir_make(q->parent, err);
    if (code == K2_OK && k2_file_exists(q->path))
        code = k2_error_set(err, K2_CANCELED, "%s: is there already", q->path);
    else if (code == K2_OK && entries_in(q->parent) >= kept)
        code = k2_error_set(err, K2_LIMIT, "%s: holds %llu entries already (policy.kept)", q->parent, (ull)kept);
    if (code == K2_OK) code = k2_dir_remove(q->temp, err); /* of a process that died over it */
    if (code == K2_OK) code = k2_dir_make(q->temp, err);
    if (code != K2_OK) {
        release(q);
        return code;
    }
    *out = q;
    return K2_OK;
}

const char *k2_quarantine_dir(const k2_quarantine *q)
{
    return q->temp;
}

k2_code k2_quarantine_put(k2_quarantine *q, const char *name, const void *bytes, size_t n, k2_error *err)
{
    char *path = k2_quarantine_path(q->temp, name);
    k2_code code = k2_file_write_atomic(path, bytes, n, err);
    k2_free(path);
    return code;
}

k2_code k2_quarantine_put_batch(k2_quarantine *q, uint64_t step, const void *bytes, size_t n, k2_error *err)
{
    char *path = k2_quarantine_batch_path(q->temp, step);
    k2_code code = k2_file_write_atomic(path, bytes, n, err);
    k2_free(path);
    return code;
}

static k2_code dir_sync(const char *path, k2_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    k2_code code = fd >= 0 && fsync(fd) == 0 ? K2_OK : k2_error_errno(err, errno, "%s", path);
    if (fd >= 0) close(fd);
    return code;
}

/* A checkpoint's files are never written to again, only renamed away, so that a second name holds their content. */
k2_code k2_quarantine_link_start(k2_quarantine *q, const char *checkpoint, k2_error *err)
{
    char *start = k2_quarantine_path(q->temp, "start");
    k2_code code = k2_dir_make(start, err);
    DIR *d = code == K2_OK ? opendir(checkpoint) : NULL;
    if (code == K2_OK && !d) code = k2_error_errno(err, errno, "%s", checkpoint);
    for (struct dirent *e; d && code == K2_OK && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *from = k2_quarantine_path(checkpoint, e->d_name), *to = k2_quarantine_path(start, e->d_name);
        if (link(from, to) != 0)
            code = errno == EPERM || errno == EXDEV || errno == ENOTSUP
                       ? k2_error_set(err, K2_UNSUPPORTED, "%s: its file system links no files", from)
                       : k2_error_errno(err, errno, "%s", from);
        k2_free(from);
        k2_free(to);
    }
    if (d) closedir(d);
    if (code == K2_OK) code = dir_sync(start, err);
    k2_free(start);
    return code;
}

static void digest_put(k2_buf *b, const char *name, k2_digest d)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(d, hex);
    k2_buf_printf(b, ",\n  \"%s\": \"%s\"", name, hex);
}

/* Numbers of 64 bits are strings: readers of JSON lose digits above 2^53. */
static void note_encode(const k2_quarantine_note *n, k2_buf *b)
{
    k2_buf_printf(b, "{\n  \"format\": \"" FORMAT "\",\n  \"kind\": \"%s\",\n  \"%s\": \"%llu\",\n  \"error\": ",
                  k2_quarantine_kind_name(n->kind), number_name(n->kind), (ull)n->number);
    k2_buf_json_string(b, n->error, strlen(n->error));
    k2_buf_printf(b, ",\n  \"deaths\": %llu,\n  \"seed\": \"%llu\",\n  \"batch_first\": \"%llu\",\n  \"batch_last\": \"%llu\"",
                  (ull)n->deaths, (ull)n->seed, (ull)n->batch_first, (ull)n->batch_last);
    digest_put(b, "weights_digest", n->weights);
    digest_put(b, "result_digest", n->result);
    k2_buf_printf(b, ",\n  \"k2rl\": \"%s\",\n  \"created_us\": %llu\n}\n", K2_VERSION, (ull)k2_wall_us());
}

k2_code k2_quarantine_commit(k2_quarantine *q, const k2_quarantine_note *note, char **path, k2_error *err)
{
    K2_ASSERT(note->kind == q->kind && note->number == q->number);
    k2_buf b;
    k2_buf_init(&b, NOTE_BYTES_MAX);
    note_encode(note, &b);
    k2_code code = k2_quarantine_put(q, K2_QUARANTINE_NOTE, b.data, b.len, err);
    k2_buf_fini(&b);
    if (code == K2_OK) code = dir_sync(q->temp, err);
    if (code == K2_OK && rename(q->temp, q->path) != 0) code = k2_error_errno(err, errno, "%s", q->path);
    if (code == K2_OK) code = dir_sync(q->parent, err);
    if (code == K2_OK && path) *path = k2_strdup(q->path);
    if (code == K2_OK)
        release(q);
    else
        k2_quarantine_drop(q);
    return code;
}

void k2_quarantine_drop(k2_quarantine *q)
{
    if (!q) return;
    (void)k2_dir_remove(q->temp, NULL);
    release(q);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *root, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, name));
    return text ? text : "";
}

static bool kind_find(const char *name, k2_quarantine_kind *out)
{
    for (int i = 0; i < K2_QUARANTINE_KIND_COUNT; i++) {
        if (strcmp(name, k2_quarantine_kind_name((k2_quarantine_kind)i)) != 0) continue;
        *out = (k2_quarantine_kind)i;
        return true;
    }
    return false;
}

/* The first field that is not what it must be, NULL: all are. */
static const char *note_decode(const cJSON *root, k2_quarantine_note *n)
{
    const cJSON *deaths = cJSON_GetObjectItemCaseSensitive(root, "deaths");
    const char *error = text_of(root, "error");
    if (strcmp(text_of(root, "format"), FORMAT) != 0) return "format";
    if (!kind_find(text_of(root, "kind"), &n->kind)) return "kind";
    if (!k2_str_u64(text_of(root, number_name(n->kind)), &n->number)) return number_name(n->kind);
    if (!k2_str_u64(text_of(root, "seed"), &n->seed)) return "seed";
    if (!k2_str_u64(text_of(root, "batch_first"), &n->batch_first)) return "batch_first";
    if (!k2_str_u64(text_of(root, "batch_last"), &n->batch_last)) return "batch_last";
    if (n->batch_last >= n->batch_first && n->batch_last - n->batch_first >= 1u << 20) return "batch_last";
    if (!k2_digest_parse(text_of(root, "weights_digest"), &n->weights)) return "weights_digest";
    if (!k2_digest_parse(text_of(root, "result_digest"), &n->result)) return "result_digest";
    if (!cJSON_IsNumber(deaths) || !(deaths->valuedouble >= 0 && deaths->valuedouble < 1e9)) return "deaths";
    if (!*error || strlen(error) >= sizeof n->error) return "error";
    n->deaths = (uint64_t)deaths->valuedouble;
    memcpy(n->error, error, strlen(error) + 1);
    return NULL;
}

k2_code k2_quarantine_parse(const char *name, const char *text, size_t n, k2_quarantine_note *out, k2_error *err)
{
    k2_quarantine_note found = {0};
    k2_code code = K2_OK;
    cJSON *root = k2_json_fault(text, n, 8) ? NULL : cJSON_ParseWithLength(text, n);
    const char *fault = root ? note_decode(root, &found) : NULL;
    if (!root)
        code = k2_error_set(err, K2_BAD_INPUT, "%s: not a JSON object", name);
    else if (fault)
        code = k2_error_set(err, K2_BAD_INPUT, "%s: %s: missing, or not what an entry of this version holds", name, fault);
    cJSON_Delete(root);
    if (code == K2_OK) *out = found;
    return code;
}

k2_code k2_quarantine_read(const char *dir, k2_quarantine_note *out, k2_error *err)
{
    char *path = k2_quarantine_path(dir, K2_QUARANTINE_NOTE), *text = NULL;
    size_t len;
    k2_code code = k2_file_read(path, NOTE_BYTES_MAX, &text, &len, err);
    if (code == K2_OK) code = k2_quarantine_parse(path, text, len, out, err);
    k2_free(text);
    k2_free(path);
    return code;
}
