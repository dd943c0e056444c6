/* A tokenizer: opening by kind, and the path of a text to ids and back. */
#include "common/token/token_int.h"
#include "common/token/utf8_int.h"

#include <string.h>
#include <sys/stat.h>

#define CONFIG_BYTES_MAX (16u << 20)

/* ---- opening --------------------------------------------------------------------------------------------------------- */

static k2_code load_byte(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err);
static k2_code load_tiktoken(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err);
static k2_code load_json(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err);

typedef k2_code loader(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err);

static const struct {
    const char *kind;
    loader *load;
} kinds[] = {{"byte", load_byte}, {"tiktoken", load_tiktoken}, {"json", load_json}};

/* What a directory may hold, in the order in which kind "auto" looks for it. */
static const struct {
    const char *file, *kind, *pattern;
} files[] = {
    {"tokenizer.json", "json", ""},
    {"tiktoken.model", "tiktoken", "kimi"},
    {"qwen.tiktoken", "tiktoken", "qwen"},
    {"cl100k_base.tiktoken", "tiktoken", "cl100k"},
};

k2_tokenizer *k2i_tokenizer_new(const char *kind)
{
    k2_tokenizer *t = k2_alloc(sizeof *t);
    t->kind = kind;
    for (int i = 0; i < K2I_MARKS; i++) t->marks[i] = -1;
    return t;
}

void k2_tokenizer_close(k2_tokenizer *t)
{
    if (!t) return;
    k2i_vocab_fini(&t->vocab);
    k2i_split_fini(&t->split);
    k2i_added_fini(&t->added);
    k2i_cache_free(t->cache);
    for (int i = 0; i < K2I_MARKS; i++) k2_free(t->mark_names[i]);
    k2_free(t);
}

static k2_code load_byte(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err)
{
    (void)file;
    if (path && *path)
        return k2_error_set(err, K2_BAD_INPUT, "tokenizer kind \"byte\" reads no file, but \"%.200s\" is given", path);
    if (pattern && *pattern) return k2_error_set(err, K2_BAD_INPUT, "tokenizer kind \"byte\" has no pattern");
    t->bytes_only = true;
    for (unsigned b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;
        k2i_vocab_put(&t->vocab, b, &byte, 1, true, NULL);
    }
#define K2_X(name, id) k2i_added_put(&t->added, id, #name, strlen(#name), K2I_ADDED_CONTROL | K2I_ADDED_HIDDEN);
    K2_TOKEN_BYTE_SPECIALS(K2_X)
#undef K2_X
    static const char *const marks[K2I_MARKS] = {"BOS", "EOS", "PAD"};
    for (int i = 0; i < K2I_MARKS; i++) t->mark_names[i] = k2_strdup(marks[i]);
    return K2_OK;
}

typedef k2_code parser(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err);

static k2_code parse_file(k2_tokenizer *t, const char *path, size_t bytes_max, parser *parse, k2_error *err)
{
    char *bytes = NULL;
    size_t n = 0;
    k2_code code = k2_file_read(path, bytes_max, &bytes, &n, err);
    if (code != K2_OK) return code;
    code = parse(t, bytes, n, err);
    k2_free(bytes);
    return code == K2_OK ? K2_OK : k2_error_prefix(err, "%.300s", path);
}

/* tokenizer_config.json beside the tokenizer's file; k2_free it. */
static char *config_beside(const char *file)
{
    const char *slash = strrchr(file, '/');
    return k2_asprintf("%.*stokenizer_config.json", slash ? (int)(slash - file + 1) : 0, file);
}

/* The tokenizer's file, and the other one where there is one. */
static k2_code parse_files(k2_tokenizer *t, const char *file, parser *parse, k2_error *err)
{
    char *config = config_beside(file);
    k2_code code = parse_file(t, file, K2_TOKEN_FILE_MAX, parse, err);
    if (code == K2_OK && k2_file_exists(config)) code = parse_file(t, config, CONFIG_BYTES_MAX, k2i_config_parse, err);
    k2_free(config);
    return code;
}

static k2_code load_tiktoken(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err)
{
    (void)path;
    const char *name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    for (size_t i = 0; i < K2_COUNT(files) && !(pattern && *pattern); i++)
        if (strcmp(name, files[i].file) == 0) pattern = files[i].pattern;
    if (!pattern || !*pattern)
        return k2_error_set(
            err, K2_UNSUPPORTED,
            "%.300s: no pattern is known for a file of this name; set tokenizer.pattern to kimi, qwen or cl100k", file);
    k2_code code = parse_files(t, file, k2i_tiktoken_parse, err);
    return code == K2_OK ? k2i_tiktoken_pattern(t, pattern, err) : code;
}

static k2_code load_json(k2_tokenizer *t, const char *path, const char *file, const char *pattern, k2_error *err)
{
    (void)path;
    if (pattern && *pattern)
        return k2_error_set(err, K2_BAD_INPUT, "tokenizer kind \"json\" has its patterns in its file, but \"%.64s\" is given",
                            pattern);
    return parse_files(t, file, k2i_tokjson_parse, err);
}

/* The file of a kind in a directory, or the path itself; *kind becomes what "auto" finds. k2_free the result. */
static k2_code find_file(const char *path, const char **kind, char **file, k2_error *err)
{
    struct stat st;
    const bool automatic = strcmp(*kind, "auto") == 0;
    if (!path || !*path) return k2_error_set(err, K2_BAD_INPUT, "tokenizer kind \"%s\" needs a path", *kind);
    if (stat(path, &st) != 0) return k2_error_set(err, K2_NOT_FOUND, "%.300s: there is no such file or directory", path);
    if (!S_ISDIR(st.st_mode)) {
        const size_t n = strlen(path);
        if (automatic) *kind = n > 5 && strcmp(path + n - 5, ".json") == 0 ? "json" : "tiktoken";
        *file = k2_strdup(path);
        return K2_OK;
    }
    for (size_t i = 0; i < K2_COUNT(files); i++) {
        if (!automatic && strcmp(*kind, files[i].kind) != 0) continue;
        *file = k2_asprintf("%s/%s", path, files[i].file);
        *kind = files[i].kind;
        if (k2_file_exists(*file)) return K2_OK;
        k2_free(*file);
        *file = NULL;
        if (automatic) *kind = "auto";
    }
    return k2_error_set(err, K2_NOT_FOUND, "%.300s: no tokenizer file is known there; looked for %s", path,
                        strcmp(*kind, "json") == 0 ? "tokenizer.json"
                                                   : "tokenizer.json, tiktoken.model, qwen.tiktoken and cl100k_base.tiktoken");
}

k2_code k2_tokenizer_load(const k2_tokenizer_spec *spec, k2_tokenizer **out, k2_error *err)
{
    const char *kind = spec->kind;
    char *file = NULL;
    loader *load = NULL;
    bool known = strcmp(kind, "auto") == 0;
    for (size_t i = 0; i < K2_COUNT(kinds); i++) known |= strcmp(kind, kinds[i].kind) == 0;
    if (!known)
        return k2_error_set(err, K2_UNSUPPORTED,
                            "tokenizer kind \"%.64s\" is not supported; supported: \"byte\", \"tiktoken\", \"json\", \"auto\"",
                            kind);
    k2_code code = strcmp(kind, "byte") == 0 ? K2_OK : find_file(spec->path, &kind, &file, err);
    if (code != K2_OK) return code;
    for (size_t i = 0; i < K2_COUNT(kinds); i++) {
        if (strcmp(kind, kinds[i].kind) != 0) continue;
        kind = kinds[i].kind; /* ours: the caller's may go away */
        load = kinds[i].load;
    }
    k2_tokenizer *t = k2i_tokenizer_new(kind);
    code = load(t, spec->path, file, spec->pattern, err);
    if (code == K2_OK) {
        code = k2i_tokenizer_finish(t, err);
        if (code != K2_OK && file) k2_error_prefix(err, "%.300s", file);
    }
    if (code == K2_OK)
        *out = t;
    else
        k2_tokenizer_close(t);
    k2_free(file);
    return code;
}

static k2_code file_digest(const char *path, size_t bytes_max, k2_digest_stream *s, k2_error *err)
{
    char *bytes = NULL;
    size_t n = 0;
    k2_code code = k2_file_read(path, bytes_max, &bytes, &n, err);
    if (code != K2_OK) return code;
    k2_digest_update(s, &n, sizeof n);
    k2_digest_update(s, bytes, n);
    k2_free(bytes);
    return K2_OK;
}

k2_code k2_tokenizer_fingerprint(const k2_tokenizer_spec *spec, k2_digest *out, k2_error *err)
{
    const char *kind = spec->kind, *pattern = spec->pattern ? spec->pattern : "";
    char *file = NULL, *config = NULL;
    k2_code code = strcmp(kind, "byte") == 0 ? K2_OK : find_file(spec->path, &kind, &file, err);
    if (code != K2_OK) return code;
    k2_digest_stream *s = k2_digest_begin();
    k2_digest_update(s, kind, strlen(kind) + 1);
    k2_digest_update(s, pattern, strlen(pattern) + 1);
    if (file) config = config_beside(file);
    if (file) code = file_digest(file, K2_TOKEN_FILE_MAX, s, err);
    if (code == K2_OK && file && k2_file_exists(config)) code = file_digest(config, CONFIG_BYTES_MAX, s, err);
    k2_digest digest = k2_digest_end(s);
    if (code == K2_OK) *out = digest;
    k2_free(config);
    k2_free(file);
    return code;
}

k2_code k2_tokenizer_open(const char *kind, const char *path, k2_tokenizer **out, k2_error *err)
{
    return k2_tokenizer_load(&(k2_tokenizer_spec){.kind = kind, .path = path}, out, err);
}

/* ---- after reading ----------------------------------------------------------------------------------------------------- */

/* The layout that the names of the added tokens stand for. What it is made of never comes from text, whatever the file says. */
static void find_layout(k2_tokenizer *t)
{
    static const k2i_layout *const layouts[] = {&k2i_layout_byte, &k2i_layout_kimi, &k2i_layout_chatml};
    for (size_t i = 0; i < K2_COUNT(layouts) && !t->layout; i++) {
        uint32_t have = 0;
        if (t->bytes_only != (layouts[i] == &k2i_layout_byte)) continue;
        while (have < layouts[i]->required && k2i_added_named(&t->added, layouts[i]->controls[have])) have++;
        if (have == layouts[i]->required) t->layout = layouts[i];
    }
    for (uint32_t i = 0; t->layout && i < K2I_CONTROLS_MAX; i++) {
        const k2i_added *a = t->layout->controls[i] ? k2i_added_named(&t->added, t->layout->controls[i]) : NULL;
        t->controls[i] = a ? (int32_t)a->id : -1;
        if (a) t->added.list[a - t->added.list].flags |= K2I_ADDED_CONTROL;
    }
}

/* Added tokens have bytes, too: those that are text when decoded. Where a vocabulary lists them as well, they must be the same.
 */
static k2_code added_to_vocab(k2_tokenizer *t, k2_error *err)
{
    for (uint32_t i = 0; i < t->added.count; i++) {
        const k2i_added *a = &t->added.list[i];
        if (a->id < t->vocab.count && t->vocab.tokens[a->id].n) {
            const k2i_token *have = &t->vocab.tokens[a->id];
            if (have->n != a->n || memcmp(t->vocab.blob + have->at, a->name, a->n) != 0)
                return k2_error_set(err, K2_BAD_INPUT, "added token \"%.100s\": id %u is that of another token", a->name,
                                    a->id);
            continue;
        }
        k2_code code = k2i_vocab_put(&t->vocab, a->id, a->name, a->n, false, err);
        if (code != K2_OK) return k2_error_prefix(err, "added token \"%.100s\"", a->name);
    }
    return K2_OK;
}

k2_code k2i_tokenizer_finish(k2_tokenizer *t, k2_error *err)
{
    find_layout(t);
    k2_code code = k2i_vocab_finish(&t->vocab, err);
    if (code == K2_OK) code = added_to_vocab(t, err);
    if (code == K2_OK) code = k2i_added_finish(&t->added, t->nfc, err);
    if (code != K2_OK) return code;
    for (int i = 0; i < K2I_MARKS; i++) {
        const k2i_added *a = t->mark_names[i] ? k2i_added_named(&t->added, t->mark_names[i]) : NULL;
        if (t->mark_names[i] && !a)
            return k2_error_set(err, K2_BAD_INPUT, "\"%.100s\" begins, ends or pads texts, but there is no such token",
                                t->mark_names[i]);
        if (a) t->marks[i] = (int32_t)a->id;
    }
    if (t->layout) t->stops[t->stop_count++] = t->controls[t->layout->turn_end];
    if (t->marks[K2I_EOS] >= 0 && !(t->stop_count && t->stops[0] == t->marks[K2I_EOS]))
        t->stops[t->stop_count++] = t->marks[K2I_EOS];
    if (!t->bytes_only) t->cache = k2i_cache_new();
    return K2_OK;
}

/* ---- what it is ---------------------------------------------------------------------------------------------------------- */

const char *k2_tokenizer_kind(const k2_tokenizer *t)
{
    return t->kind;
}

uint32_t k2_tokenizer_vocab(const k2_tokenizer *t)
{
    return t->vocab.count;
}

int32_t k2_tokenizer_bos(const k2_tokenizer *t)
{
    return t->marks[K2I_BOS];
}

int32_t k2_tokenizer_eos(const k2_tokenizer *t)
{
    return t->marks[K2I_EOS];
}

int32_t k2_tokenizer_pad(const k2_tokenizer *t)
{
    return t->marks[K2I_PAD];
}

const int32_t *k2_tokenizer_stops(const k2_tokenizer *t, bool chat, size_t *count)
{
    const bool eos = t->marks[K2I_EOS] >= 0;
    *count = chat ? t->stop_count : eos;
    return chat || !eos ? t->stops : t->stops + t->stop_count - 1; /* EOS stands last */
}

const char *k2_tokenizer_special_name(const k2_tokenizer *t, int32_t id)
{
    const k2i_added *a = k2i_added_of(&t->added, id);
    return a && a->flags & K2I_ADDED_CONTROL ? a->name : NULL;
}

int32_t k2_tokenizer_special_id(const k2_tokenizer *t, const char *name)
{
    const k2i_added *a = k2i_added_named(&t->added, name);
    return a && a->flags & K2I_ADDED_CONTROL ? (int32_t)a->id : -1;
}

/* ---- text to ids --------------------------------------------------------------------------------------------------------- */

typedef struct encoder {
    const k2_tokenizer *t;
    k2_tokens *out;
    bool trusted;
} encoder;

static k2_code take_piece(void *arg, const unsigned char *bytes, size_t n, k2_error *err)
{
    const encoder *e = arg;
    return k2i_piece_encode(&e->t->vocab, e->t->cache, bytes, n, e->out, err);
}

static k2_code encode_part(encoder *e, unsigned trie, const unsigned char *text, size_t n, k2_error *err);

/* Text between added tokens: from the names before normalisation to those behind it to pieces. */
static k2_code encode_between(encoder *e, unsigned trie, const unsigned char *text, size_t n, k2_error *err)
{
    if (n == 0) return K2_OK;
    if (trie == 1) return k2i_split_run(&e->t->split, text, n, take_piece, e, err);
    unsigned char *composed = e->t->nfc ? k2i_nfc(text, n, &n) : NULL;
    k2_code code = encode_part(e, 1, composed ? composed : text, n, err);
    k2_free(composed);
    return code;
}

static k2_code encode_part(encoder *e, unsigned trie, const unsigned char *text, size_t n, k2_error *err)
{
    k2_code code = K2_OK;
    for (size_t at = 0; at < n && code == K2_OK;) {
        const k2i_found f = k2i_added_find(&e->t->added, trie, e->trusted, text, n, at);
        code = encode_between(e, trie, text + at, f.begin - at, err);
        if (code == K2_OK && f.added && !k2_tokens_push(e->out, &(int32_t){(int32_t)f.added->id}, 1))
            code = k2_error_set(err, K2_LIMIT, "more than %zu tokens", e->out->count_max);
        at = f.end;
    }
    return code;
}

static k2_code encode_bytes(const char *text, size_t n, k2_tokens *out, k2_error *err)
{
    int32_t ids[256];
    for (size_t at = 0; at < n;) {
        const size_t some = K2_MIN(n - at, K2_COUNT(ids));
        for (size_t i = 0; i < some; i++) ids[i] = (unsigned char)text[at + i];
        if (!k2_tokens_push(out, ids, some)) return k2_error_set(err, K2_LIMIT, "more than %zu tokens", out->count_max);
        at += some;
    }
    return K2_OK;
}

static k2_code encode_pieces(encoder *e, k2i_cuts *cuts, const unsigned char *text, size_t n, k2_error *err)
{
    k2_code code = K2_OK;
    if (!cuts) return encode_part(e, 0, text, n, err);
    for (size_t at = 0, len; at < n && code == K2_OK; at += len) {
        len = k2i_cuts_next(cuts, text + at, n - at);
        code = encode_part(e, 0, text + at, len, err);
    }
    return code;
}

static k2_code encode(const k2_tokenizer *t, k2i_cuts *cuts, const char *text, size_t n, bool trusted, k2_tokens *out,
                      k2_error *err)
{
    const size_t mark = out->count;
    k2_code code;
    if (t->bytes_only) {
        code = encode_bytes(text, n, out, err);
    } else {
        encoder e = {.t = t, .out = out, .trusted = trusted};
        unsigned char *valid = k2i_lossy((const unsigned char *)text, n, &n);
        code = encode_pieces(&e, cuts, valid ? valid : (const unsigned char *)text, n, err);
        k2_free(valid);
    }
    if (code != K2_OK) out->count = mark;
    return code;
}

k2_code k2i_encode_next(const k2_tokenizer *t, k2i_cuts *cuts, const char *text, size_t n, k2_tokens *out, k2_error *err)
{
    return encode(t, cuts, text, n, false, out, err);
}

k2_code k2_tokenizer_encode(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out, k2_error *err)
{
    return encode(t, t->cuts ? &(k2i_cuts){0} : NULL, text, n, false, out, err);
}

k2_code k2_tokenizer_encode_trusted(const k2_tokenizer *t, const char *text, size_t n, k2_tokens *out, k2_error *err)
{
    return encode(t, t->cuts ? &(k2i_cuts){0} : NULL, text, n, true, out, err);
}

/* ---- ids to text --------------------------------------------------------------------------------------------------------- */

static bool feed_one(const k2_tokenizer *t, k2_token_stream *s, int32_t id, k2_buf *out)
{
    const k2i_token *token = &t->vocab.tokens[id];
    const k2i_added *a = k2i_added_of(&t->added, id);
    bool fits = true;
    /* A special id, and one that stands for nothing, end whatever was begun. */
    if (token->n == 0 || (a && a->flags & K2I_ADDED_HIDDEN)) return k2i_utf8_flush(s, out);
    for (uint32_t i = 0; fits && i < token->n; i++) fits = k2i_utf8_byte(s, t->vocab.blob[token->at + i], out);
    return fits;
}

k2_code k2_token_stream_feed(const k2_tokenizer *t, k2_token_stream *s, const int32_t *ids, size_t count, k2_buf *out,
                             k2_error *err)
{
    const size_t mark = out->len;
    const k2_token_stream before = *s;
    k2_code code = K2_OK;
    for (size_t i = 0; i < count && code == K2_OK; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= k2_tokenizer_vocab(t))
            code = k2_error_set(err, K2_BAD_INPUT, "token %zu: id %d is not in 0..%u", i, ids[i], k2_tokenizer_vocab(t) - 1);
        else if (!feed_one(t, s, ids[i], out))
            code = k2_error_set(err, K2_LIMIT, "token %zu: the text is longer than %zu bytes", i, out->cap_max);
    }
    if (code != K2_OK) {
        *s = before;
        out->len = mark;
        if (out->data) out->data[mark] = 0;
    }
    return code;
}

bool k2_token_stream_end(k2_token_stream *s, k2_buf *out)
{
    return k2i_utf8_flush(s, out);
}

k2_code k2_tokenizer_decode(const k2_tokenizer *t, const int32_t *ids, size_t count, k2_buf *out, k2_error *err)
{
    const size_t mark = out->len;
    k2_token_stream s = {0};
    k2_code code = k2_token_stream_feed(t, &s, ids, count, out, err);
    if (code != K2_OK) return code;
    if (k2_token_stream_end(&s, out)) return K2_OK;
    out->len = mark;
    if (out->data) out->data[mark] = 0;
    return k2_error_set(err, K2_LIMIT, "the text of %zu tokens is longer than %zu bytes", count, out->cap_max);
}
