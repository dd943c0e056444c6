/* Small vocabularies and what tiktoken and Hugging Face's tokenizers make of some lines (tests/interop/token/make_vectors.py).
 */
#include "common/token/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER   K2_SOURCE_DIR "/tests/unit/token/vectors"
#define TEXT_MAX 4096u

typedef struct vector {
    char name[128]; /* reader, file, pattern: of the tokenizer */
    char kind[16], file[64], pattern[16], mode[16];
    char text[TEXT_MAX];
    size_t n;
    int32_t ids[TEXT_MAX];
    size_t count;
} vector;

static void unhex(const char *hex, vector *v)
{
    v->n = 0;
    if (strcmp(hex, "-") == 0) return;
    for (; hex[0] && hex[1]; hex += 2) {
        unsigned byte;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        v->text[v->n++] = (char)byte;
    }
}

static void parse(char *line, vector *v)
{
    static char hex[2 * TEXT_MAX + 1];
    int at = 0;
    assert_int_equal(sscanf(line, "%15s %63s %15s %15s %8192s%n", v->kind, v->file, v->pattern, v->mode, hex, &at), 5);
    snprintf(v->name, sizeof v->name, "%s %s %s", v->kind, v->file, v->pattern);
    unhex(hex, v);
    v->count = 0;
    for (char *s = line + at; *s == ' ';) {
        char *end;
        const long id = strtol(s + 1, &end, 10);
        if (end == s + 1) break;
        v->ids[v->count++] = (int32_t)id;
        s = end;
    }
}

static k2_tokenizer *load(const vector *v)
{
    k2_tokenizer *t = NULL;
    k2_error err;
    char path[512];
    snprintf(path, sizeof path, FOLDER "/%s", v->file);
    const k2_tokenizer_spec spec = {.kind = v->kind, .path = path, .pattern = strcmp(v->pattern, "-") == 0 ? "" : v->pattern};
    if (k2_tokenizer_load(&spec, &t, &err) != K2_OK) fail_msg("%s: %s", v->name, err.text);
    return t;
}

static void check_encoding(const k2_tokenizer *t, const vector *v, k2_tokens *ids)
{
    k2_tokens_clear(ids);
    k2_error err;
    k2_code code = strcmp(v->mode, "trusted") == 0 ? k2_tokenizer_encode_trusted(t, v->text, v->n, ids, &err)
                                                   : k2_tokenizer_encode(t, v->text, v->n, ids, &err);
    assert_int_equal(code, K2_OK);
    assert_int_equal(ids->count, v->count);
    if (v->count) assert_memory_equal(ids->ids, v->ids, v->count * sizeof *v->ids);
    if (strcmp(v->mode, "plain") != 0) return;
    for (size_t i = 0; i < ids->count; i++) assert_null(k2_tokenizer_special_name(t, ids->ids[i]));
}

/* However the ids are cut in two, the pieces are whole characters and add up to the decoding of all. */
static void check_splits(const k2_tokenizer *t, const k2_tokens *ids)
{
    k2_buf whole, pieces;
    k2_buf_init(&whole, 1u << 20);
    k2_buf_init(&pieces, 1u << 20);
    assert_int_equal(k2_tokenizer_decode(t, ids->ids, ids->count, &whole, NULL), K2_OK);
    assert_true(k2_utf8_valid(whole.data ? whole.data : "", whole.len));
    for (size_t cut = 0; cut <= ids->count; cut++) {
        k2_token_stream s = {0};
        k2_buf_clear(&pieces);
        assert_int_equal(k2_token_stream_feed(t, &s, ids->ids, cut, &pieces, NULL), K2_OK);
        assert_true(k2_utf8_valid(pieces.data ? pieces.data : "", pieces.len));
        assert_int_equal(k2_token_stream_feed(t, &s, ids->ids + cut, ids->count - cut, &pieces, NULL), K2_OK);
        assert_true(k2_token_stream_end(&s, &pieces));
        assert_int_equal(pieces.len, whole.len);
        if (whole.len) assert_memory_equal(pieces.data, whole.data, whole.len);
    }
    k2_buf_fini(&whole);
    k2_buf_fini(&pieces);
}

static void ids_are_those_of_the_others(void **state)
{
    (void)state;
    static vector v;
    char *lines = NULL, loaded[128] = "";
    size_t n = 0, count = 0;
    k2_tokenizer *t = NULL;
    k2_tokens ids;
    k2_tokens_init(&ids, 1u << 20);
    assert_int_equal(k2_file_read(FOLDER "/expected.txt", 1u << 24, &lines, &n, NULL), K2_OK);
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n"), count++) {
        parse(line, &v);
        if (strcmp(loaded, v.name) != 0) {
            k2_tokenizer_close(t);
            t = load(&v);
            strcpy(loaded, v.name);
        }
        check_encoding(t, &v, &ids);
        check_encoding(t, &v, &ids); /* the second time words come from the cache */
        check_splits(t, &ids);
    }
    assert_true(count > 300);
    k2_tokenizer_close(t);
    k2_tokens_fini(&ids);
    k2_free(lines);
}

/* What was valid text comes back, whatever the vocabulary; what was not comes back as its replacement. */
static void text_survives(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } texts[] = {{"plain  text\n", "plain  text\n"},
                 {"\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\x8d", "\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\x8d"},
                 {"a\xe2\x82z\xff", "a\xef\xbf\xbdz\xef\xbf\xbd"},
                 {"<|im_start|>user", "<|im_start|>user"}};
    k2_tokenizer *t = NULL;
    k2_tokens ids;
    k2_buf out;
    k2_tokens_init(&ids, 1000);
    k2_buf_init(&out, 1000);
    assert_int_equal(k2_tokenizer_open("json", FOLDER "/qwen2.json", &t, NULL), K2_OK);
    for (size_t i = 0; i < K2_COUNT(texts); i++) {
        k2_tokens_clear(&ids);
        k2_buf_clear(&out);
        assert_int_equal(k2_tokenizer_encode(t, texts[i].in, strlen(texts[i].in), &ids, NULL), K2_OK);
        assert_int_equal(k2_tokenizer_decode(t, ids.ids, ids.count, &out, NULL), K2_OK);
        assert_string_equal(out.data, texts[i].out);
    }
    k2_tokens_clear(&ids);
    assert_int_equal(k2_tokenizer_encode_trusted(t, "<|im_start|>user", 16, &ids, NULL), K2_OK);
    assert_int_equal(ids.ids[0], k2_tokenizer_special_id(t, "<|im_start|>"));
    ids.count_max = 3;
    k2_tokens_clear(&ids);
    assert_int_equal(k2_tokenizer_encode(t, "a b c d e f g", 13, &ids, NULL), K2_LIMIT);
    assert_int_equal(ids.count, 0);
    k2_tokenizer_close(t);
    k2_tokens_fini(&ids);
    k2_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_those_of_the_others), cmocka_unit_test(text_survives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
