/* Text and JSON lines to token files: `k2rl data text2idx` and `jsonl2idx`, and tasks made of text. Each document ends with
 * EOS. */
#include "commands_int.h"
#include "common/data/data.h"
#include "common/token/token.h"
#include "jsonl_int.h"
#include "text_int.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TEXT_BYTES_MAX (1u << 30) /* of one file: it is held in memory as text and as ids */

typedef struct seen_file {
    dev_t device;
    ino_t inode;
} seen_file;

typedef struct writer {
    k2_tokenizer *tokenizer;
    k2_idx_builder *builder;
    k2_tokens tokens;
    seen_file *seen; /* files read so far: a second name of one adds nothing but a repetition */
    size_t seen_count, seen_capacity;
    bool split;
    const char *field;
} writer;

static k2_code document_add(writer *w, const char *text, size_t n, k2_error *err)
{
    const int32_t eos = k2_tokenizer_eos(w->tokenizer);
    k2_tokens_clear(&w->tokens);
    k2_code code = k2_tokenizer_encode(w->tokenizer, text, n, &w->tokens, err);
    if (code == K2_OK && !k2_tokens_push(&w->tokens, &eos, 1))
        code = k2_error_set(err, K2_LIMIT, "more than %zu tokens", w->tokens.count_max);
    if (code != K2_OK) return k2_error_prefix(err, "a document of %zu bytes", n);
    code = k2_idx_builder_add(w->builder, w->tokens.ids, w->tokens.count, err);
    if (code == K2_OK) k2_idx_builder_document_end(w->builder);
    return code;
}

static bool is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\f\v", line[i]) || line[i] == 0) return false;
    return true;
}

/* Documents are runs of lines that are not blank, without the line end of the last one. */
static k2_code paragraphs_add(writer *w, const char *text, size_t n, k2_error *err)
{
    size_t begin = 0, end = 0; /* of the paragraph so far; equal: none */
    k2_code code = K2_OK;
    for (size_t at = 0; at < n && code == K2_OK;) {
        const char *newline = memchr(text + at, '\n', n - at);
        const size_t len = newline ? (size_t)(newline - (text + at)) : n - at;
        if (!is_blank(text + at, len)) {
            if (begin == end) begin = at;
            end = at + len;
        } else if (begin != end) {
            code = document_add(w, text + begin, end - begin, err);
            begin = end = 0;
        }
        at += len + 1;
    }
    if (code == K2_OK && begin != end) code = document_add(w, text + begin, end - begin, err);
    return code;
}

static k2_code lines_add(writer *w, const char *path, const char *bytes, size_t n, k2_error *err)
{
    k2i_jsonl lines = {.name = path, .bytes = bytes, .n = n, .line_bytes_max = K2_DATA_LINE_BYTES_MAX};
    const char *line;
    size_t len;
    k2_code code;
    while ((code = k2i_jsonl_next(&lines, &line, &len, err)) == K2_OK) {
        const k2i_place at = {.name = path, .line = lines.line};
        const cJSON *item = NULL;
        cJSON *object = NULL;
        code = k2i_jsonl_object(at, line, len, &object, err);
        if (code != K2_OK) return code;
        code = k2i_jsonl_field(at, object, w->field, &item, err);
        if (code == K2_OK && !item)
            code = k2_error_set(err, K2_BAD_INPUT, "%s:%u: \"%s\" is missing", path, at.line, w->field);
        else if (code == K2_OK && !cJSON_IsString(item))
            code = k2_error_set(err, K2_BAD_INPUT, "%s:%u: %s is %s, expected a string", path, at.line, w->field,
                                k2i_jsonl_type(item));
        if (code == K2_OK) code = document_add(w, item->valuestring, strlen(item->valuestring), err);
        cJSON_Delete(object);
        if (code != K2_OK) return code;
    }
    return code == K2_NOT_FOUND ? K2_OK : code;
}

static bool seen_before(writer *w, const struct stat *st)
{
    for (size_t i = 0; i < w->seen_count; i++)
        if (w->seen[i].device == st->st_dev && w->seen[i].inode == st->st_ino) return true;
    if (w->seen_count == w->seen_capacity) {
        w->seen_capacity = K2_MAX(w->seen_capacity * 2, (size_t)64);
        w->seen = k2_realloc_array(w->seen, w->seen_capacity, sizeof *w->seen);
    }
    w->seen[w->seen_count++] = (seen_file){.device = st->st_dev, .inode = st->st_ino};
    return false;
}

static k2_code file_add(writer *w, const char *path, const struct stat *st, k2_error *err)
{
    char *bytes = NULL;
    size_t n = 0;
    if (seen_before(w, st)) {
        fprintf(stderr, "k2rl data: %s: skipped, another name of a file that was read before\n", path);
        return K2_OK;
    }
    k2_code code = k2_file_read(path, w->field ? K2_DATA_FILE_BYTES_MAX : TEXT_BYTES_MAX, &bytes, &n, err);
    if (code != K2_OK) return code;
    if (w->field)
        code = lines_add(w, path, bytes, n, err);
    else if (w->split)
        code = paragraphs_add(w, bytes, n, err);
    else if (n > 0)
        code = document_add(w, bytes, n, err);
    k2_free(bytes);
    return code;
}

/* The regular files of a directory in the order of their names; links and sub-directories are left out. */
static k2_code directory_add(writer *w, const char *path, k2_error *err)
{
    struct dirent **names = NULL;
    int count = scandir(path, &names, NULL, alphasort);
    if (count < 0) return k2_error_errno(err, errno, "%s: cannot read the directory", path);
    k2_code code = K2_OK;
    for (int i = 0; i < count; i++) {
        char *file = k2_asprintf("%s/%s", path, names[i]->d_name);
        struct stat st;
        if (code == K2_OK && lstat(file, &st) != 0)
            code = k2_error_errno(err, errno, "%s: cannot stat", file);
        else if (code == K2_OK && S_ISREG(st.st_mode))
            code = file_add(w, file, &st, err);
        k2_free(file);
        free(names[i]);
    }
    free(names);
    return code;
}

static k2_code inputs_add(writer *w, char **paths, int count, k2_error *err)
{
    k2_code code = K2_OK;
    for (int i = 0; i < count && code == K2_OK; i++) {
        struct stat st;
        if (stat(paths[i], &st) != 0) return k2_error_errno(err, errno, "%s: cannot open", paths[i]);
        code = S_ISDIR(st.st_mode) ? directory_add(w, paths[i], err) : file_add(w, paths[i], &st, err);
    }
    return code;
}

k2_code k2i_text_convert(const char *prefix, char **paths, int count, k2i_text_options options, k2i_text_counts *counts,
                         k2_error *err)
{
    writer w = {.split = options.split, .field = options.field};
    k2_tokens_init(&w.tokens, INT32_MAX);
    k2_code code = k2i_tokenizer_of(options.tokenizer, options.pattern, &w.tokenizer, err);
    if (code == K2_OK && k2_tokenizer_eos(w.tokenizer) < 0)
        code = k2_error_set(err, K2_UNSUPPORTED, "%s: names no token that ends a text (eos_token of tokenizer_config.json)",
                            options.tokenizer);
    if (code != K2_OK) goto close_tokenizer;
    code = k2_idx_builder_begin(prefix, k2_idx_dtype_for(k2_tokenizer_vocab(w.tokenizer)), &w.builder, err);
    if (code != K2_OK) goto close_tokenizer;
    code = inputs_add(&w, paths, count, err);
    const k2i_text_counts made = {.documents = k2_idx_builder_sequences(w.builder), .tokens = k2_idx_builder_tokens(w.builder)};
    if (code == K2_OK)
        code = k2_idx_builder_commit(w.builder, err);
    else
        k2_idx_builder_abort(w.builder);
    if (code == K2_OK) *counts = made;
close_tokenizer:
    k2_tokenizer_close(w.tokenizer);
    k2_tokens_fini(&w.tokens);
    k2_free(w.seen);
    return code;
}

static k2_code command(char **operands, int count, k2i_text_options options, k2_error *err)
{
    k2i_text_counts made;
    if (count < 2) return k2_error_set(err, K2_BAD_INPUT, "%d operands, expected OUT_PREFIX and at least one FILE", count);
    k2_code code = k2i_text_convert(operands[0], operands + 1, count - 1, options, &made, err);
    if (code == K2_OK) printf("%s: %" PRIu64 " documents, %" PRIu64 " tokens\n", operands[0], made.documents, made.tokens);
    return code;
}

k2_code k2i_data_text2idx(char **args, int count, k2_error *err)
{
    k2i_text_options o = {0};
    const k2_option options[] = {{.name = "--split", .flag = &o.split},
                                 {.name = "--tokenizer", .text = &o.tokenizer},
                                 {.name = "--pattern", .text = &o.pattern}};
    int operands = 0;
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    return code == K2_OK ? command(args, operands, o, err) : code;
}

k2_code k2i_data_jsonl2idx(char **args, int count, k2_error *err)
{
    k2i_text_options o = {.field = "text"};
    const k2_option options[] = {{.name = "--field", .text = &o.field},
                                 {.name = "--tokenizer", .text = &o.tokenizer},
                                 {.name = "--pattern", .text = &o.pattern}};
    int operands = 0;
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    return code == K2_OK ? command(args, operands, o, err) : code;
}
