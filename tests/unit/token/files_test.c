/* Tokenizer files that are damaged, hostile, or of a kind that is not supported: one clear error each, which names the place.
 */
#include "common/token/token_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER K2_SOURCE_DIR "/tests/unit/token/vectors"

typedef k2_code parser(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err);

static void check(const char *kind, parser *parse, const char *bytes, size_t n, k2_code want, const char *text)
{
    k2_tokenizer *t = k2i_tokenizer_new(kind);
    k2_error err = {0};
    k2_code code = parse(t, bytes, n, &err);
    if (code == K2_OK) code = k2i_tokenizer_finish(t, &err);
    k2_tokenizer_close(t);
    if (code != want || (text && !strstr(err.text, text)))
        fail_msg("expected %s \"%s\", found %s \"%s\"", k2_code_name(want), text ? text : "", k2_code_name(code), err.text);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------------ */

static void bytes_of_all(k2_buf *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    k2_buf_init(b, 1u << 20);
    for (unsigned i = 0; i < 256; i++) k2_buf_printf(b, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
}

static void ranks(const char *more, k2_code want, const char *text)
{
    k2_buf b;
    bytes_of_all(&b);
    k2_buf_puts(&b, more);
    check("tiktoken", k2i_tiktoken_parse, b.data, b.len, want, text);
    k2_buf_fini(&b);
}

static void damaged_ranks_are_refused(void **state)
{
    (void)state;
    ranks("", K2_OK, NULL);
    ranks("\n\nYWI= 256\n\nYWJj 257", K2_OK, NULL);
    ranks("YWI= 256\r\n", K2_BAD_INPUT, "line 257: expected base64, a space and a rank");
    ranks("YWI=\n", K2_BAD_INPUT, "line 257");
    ranks("YWI= \n", K2_BAD_INPUT, "line 257");
    ranks("YWI= -1\n", K2_BAD_INPUT, "line 257");
    ranks("YWI= 0256\n", K2_BAD_INPUT, "line 257");
    ranks("YWI= 4294967552\n", K2_BAD_INPUT, "line 257");
    ranks("YWI= 999999999\n", K2_LIMIT, "line 257: id 999999999, at most 1048576");
    ranks("YWI 256\n", K2_BAD_INPUT, "line 257: the token is not base64");
    ranks("YW=I 256\n", K2_BAD_INPUT, "line 257: the token is not base64");
    ranks("YWJ= 256\n", K2_BAD_INPUT, "line 257: the token is not base64"); /* bits behind the end */
    ranks("==== 256\n", K2_BAD_INPUT, "line 257: the token is not base64");
    ranks(" 256\n", K2_BAD_INPUT, "line 257: the token is not base64");
    ranks("YWI= 256\nYWJj 256\n", K2_BAD_INPUT, "line 258: id 256 is there twice");
    ranks("YWI= 256\nYWI= 257\n", K2_BAD_INPUT, "line 258: ids 256 and 257 have the same bytes");
    ranks("YWI= 256\nYWJj 258\n", K2_BAD_INPUT, "rank 257 is missing");
    check("tiktoken", k2i_tiktoken_parse, "", 0, K2_BAD_INPUT, "there are no ranks");
    check("tiktoken", k2i_tiktoken_parse, "YWI= 0\n", 7, K2_BAD_INPUT, "no token for the byte 0x00");
    check("tiktoken", k2i_tiktoken_parse, "YQ\0= 0\n", 7, K2_BAD_INPUT, "line 1");
}

static void long_tokens_are_refused(void **state)
{
    (void)state;
    k2_buf b;
    bytes_of_all(&b);
    for (unsigned i = 0; i < K2I_TOKEN_BYTES_MAX / 3 + 1; i++) k2_buf_puts(&b, "YWFh");
    k2_buf_puts(&b, " 256\n");
    check("tiktoken", k2i_tiktoken_parse, b.data, b.len, K2_LIMIT, "line 257");
    k2_buf_fini(&b);
}

static void patterns_go_by_name(void **state)
{
    (void)state;
    k2_tokenizer *t = NULL;
    k2_error err;
    k2_tokenizer_spec spec = {.kind = "tiktoken", .path = FOLDER "/kimi", .pattern = "o200k"};
    assert_int_equal(k2_tokenizer_load(&spec, &t, &err), K2_UNSUPPORTED);
    assert_non_null(strstr(err.text, "\"o200k\" is not supported; supported: \"kimi\", \"qwen\", \"cl100k\""));
    spec.pattern = "gpt2"; /* known inside, for tokenizer.json */
    assert_int_equal(k2_tokenizer_load(&spec, &t, &err), K2_UNSUPPORTED);
    spec = (k2_tokenizer_spec){.kind = "tiktoken", .path = FOLDER "/expected.txt"};
    assert_int_equal(k2_tokenizer_load(&spec, &t, &err), K2_UNSUPPORTED);
    assert_non_null(strstr(err.text, "set tokenizer.pattern"));
    spec = (k2_tokenizer_spec){.kind = "json", .path = FOLDER "/qwen2.json", .pattern = "kimi"};
    assert_int_equal(k2_tokenizer_load(&spec, &t, &err), K2_BAD_INPUT);
    assert_int_equal(k2_tokenizer_open("auto", FOLDER, &t, &err), K2_NOT_FOUND);
    assert_non_null(strstr(err.text, "tiktoken.model"));
    assert_int_equal(k2_tokenizer_open("auto", FOLDER "/gpt2.json", &t, &err), K2_OK);
    assert_string_equal(k2_tokenizer_kind(t), "json");
    k2_tokenizer_close(t);
    t = NULL;
    assert_int_equal(k2_tokenizer_open("auto", "/no/such/place", &t, &err), K2_NOT_FOUND);
    assert_int_equal(k2_tokenizer_open("json", FOLDER "/kimi", &t, &err), K2_NOT_FOUND);
    assert_null(t);
}

/* ---- tokenizer_config.json ---------------------------------------------------------------------------------------------- */

static k2_code parse_config(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err)
{
    k2_buf b;
    bytes_of_all(&b);
    k2_code code = k2i_tiktoken_parse(t, b.data, b.len, err);
    k2_buf_fini(&b);
    if (code == K2_OK) code = k2i_config_parse(t, bytes, n, err);
    return code == K2_OK ? k2i_tiktoken_pattern(t, "kimi", err) : code;
}

static void damaged_configs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        k2_code code;
        const char *text;
    } rows[] = {
        {"{}", K2_OK, NULL},
        {"{\"eos_token\":{\"content\":\"E\"},\"added_tokens_decoder\":{\"256\":{\"content\":\"E\"}}}", K2_OK, NULL},
        {"{\"eos_token\":\"E\"}", K2_BAD_INPUT, "\"E\" begins, ends or pads texts, but there is no such token"},
        {"{\"eos_token\":7}", K2_BAD_INPUT, "eos_token: expected a string"},
        {"[]", K2_BAD_INPUT, "expected a JSON object"},
        {"{", K2_BAD_INPUT, "expected a JSON object"},
        {"{\"added_tokens_decoder\":[]}", K2_BAD_INPUT, "added_tokens_decoder: expected an object"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"E\"}}}", K2_BAD_INPUT, "\"x\" is not an id below"},
        {"{\"added_tokens_decoder\":{\"99999999\":{\"content\":\"E\"}}}", K2_BAD_INPUT, "\"99999999\" is not an id below"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"\"}}}", K2_BAD_INPUT, "added_tokens_decoder.256.content"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"E\",\"special\":1}}}", K2_BAD_INPUT,
         "added_tokens_decoder.256.special"},
        {"{\"added_tokens_decoder\":{\"65\":{\"content\":\"E\"}}}", K2_BAD_INPUT,
         "added token \"E\": id 65 is that of another"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"E\"},\"257\":{\"content\":\"E\"}}}", K2_BAD_INPUT,
         "\"E\" is there twice"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"E\"},\"256\":{\"content\":\"F\"}}}", K2_BAD_INPUT, "id 256"},
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++)
        check("tiktoken", parse_config, rows[i].json, strlen(rows[i].json), rows[i].code, rows[i].text);
}

/* ---- tokenizer.json -------------------------------------------------------------------------------------------------------
 */

/* A sound file with one place changed. */
static void changed(const char *file, const char *find, const char *put, k2_code want, const char *text)
{
    char path[512], *bytes = NULL;
    size_t n = 0;
    k2_buf b;
    snprintf(path, sizeof path, FOLDER "/%s", file);
    assert_int_equal(k2_file_read(path, 1u << 20, &bytes, &n, NULL), K2_OK);
    const char *at = strstr(bytes, find);
    if (!at) fail_msg("%s has no %s", file, find);
    k2_buf_init(&b, 1u << 21);
    k2_buf_append(&b, bytes, (size_t)(at - bytes));
    k2_buf_puts(&b, put);
    k2_buf_puts(&b, at + strlen(find));
    check("json", k2i_tokjson_parse, b.data, b.len, want, text);
    k2_buf_fini(&b);
    k2_free(bytes);
}

static void other_kinds_of_json_are_refused(void **state)
{
    (void)state;
    changed("qwen2.json", "\"NFC\"", "\"NFC\"", K2_OK, NULL);
    changed("qwen2.json", "\"NFC\"", "\"NFKC\"", K2_UNSUPPORTED, "normalizer: type \"NFKC\"");
    changed("qwen2.json", "{\"type\": \"NFC\"}", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
            K2_UNSUPPORTED, "normalizer.normalizers[0]: type \"Lowercase\"");
    changed("qwen2.json", "{\"type\": \"NFC\"}", "{\"type\": \"Sequence\", \"normalizers\": []}", K2_OK, NULL);
    changed("qwen2.json", "\"Isolated\"", "\"Removed\"", K2_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].behavior");
    changed("qwen2.json", "\"invert\": false", "\"invert\": true", K2_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].invert");
    changed("qwen2.json", "\"Split\"", "\"Metaspace\"", K2_UNSUPPORTED, "pre_tokenizer.pretokenizers[0]: type \"Metaspace\"");
    changed("qwen2.json", "\"add_prefix_space\": false", "\"add_prefix_space\": true", K2_UNSUPPORTED,
            "pre_tokenizer.pretokenizers[1].add_prefix_space");
    changed("qwen2.json", "\"type\": \"BPE\"", "\"type\": \"Unigram\"", K2_UNSUPPORTED, "model: type \"Unigram\"");
    changed("qwen2.json", "\"dropout\": null", "\"dropout\": 0.1", K2_UNSUPPORTED, "model.dropout");
    changed("qwen2.json", "\"byte_fallback\": false", "\"byte_fallback\": true", K2_UNSUPPORTED, "model.byte_fallback");
    changed("qwen2.json", "\"dropout\": null", "\"future\": null", K2_UNSUPPORTED, "model.future: is not supported");
    changed("qwen2.json", "\"single_word\": false", "\"single_word\": true", K2_UNSUPPORTED, "added_tokens[0].single_word");
    changed("qwen2.json", "\"truncation\": null", "\"truncation\": {}", K2_UNSUPPORTED, "tokenizer.truncation");
    changed("qwen2.json", "\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}", K2_UNSUPPORTED,
            "post_processor: type \"BertProcessing\"");
    changed("qwen2.json", "\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}", K2_OK, NULL);
}

static void damaged_json_is_refused(void **state)
{
    (void)state;
    changed("qwen2.json", "\"model\"", "\"model\": 1, \"version\"", K2_BAD_INPUT, "model: expected an object");
    changed("qwen2.json", "\"!\": 0", "\"!\": 0, \"!\": 9000", K2_BAD_INPUT,
            "model.vocab[\"!\"]: ids 0 and 9000 have the same bytes");
    changed("qwen2.json", "\"!\": 0", "\"!\": 0, \"!!!!\": 1", K2_BAD_INPUT, "is there twice");
    changed("qwen2.json", "\"!\": 0", "\"!\": -1", K2_BAD_INPUT, "model.vocab[\"!\"]: expected an id below");
    changed("qwen2.json", "\"!\": 0", "\"!\": 0.5", K2_BAD_INPUT, "model.vocab[\"!\"]");
    changed("qwen2.json", "\"!\": 0", "\"!\": 1e30", K2_BAD_INPUT, "model.vocab[\"!\"]");
    changed("qwen2.json", "\"!\": 0, ", "", K2_BAD_INPUT, "is not in model.vocab");
    changed("qwen2.json", "\"merges\": [", "\"merges\": [[\"!\"], ", K2_BAD_INPUT, "model.merges[0]: expected");
    changed("qwen2.json", "\"merges\": [", "\"merges\": [\"! ! !\", ", K2_BAD_INPUT, "model.merges[0]: expected");
    changed("qwen2.json", "\"merges\": [", "\"merges\": [[\"!\", \"~\"], ", K2_BAD_INPUT,
            "model.merges[0]: what they make is not in");
    changed("qwen2.json", "\"merges\": [", "\"merges\": [[\"zqzqzq\", \"~\"], ", K2_BAD_INPUT,
            "model.merges[0]: the left one is not in");
    /* What merges grows, so a circle would have to make a token out of itself and nothing. */
    changed("qwen2.json", "\"merges\": [", "\"merges\": [[\"!\", \"\"], ", K2_BAD_INPUT, "model.merges[0]: expected");
    changed("deepseek.json", "\"merges\": [", "\"merges\": [\"in \", ", K2_BAD_INPUT, "model.merges[0]: expected");
    changed("qwen2.json", "\"id\": 6", "\"id\": 1, \"x\": 6", K2_UNSUPPORTED, "added_tokens[0].x");
    changed("qwen2.json", "\"id\": 600", "\"id\": 5", K2_BAD_INPUT, "id 5 is that of another token");
    changed("qwen2.json", "\"id\": 600", "\"id\": 601", K2_BAD_INPUT, "601");
    changed("qwen2.json", "\"id\": 600", "\"id\": 1048576", K2_BAD_INPUT, "added_tokens[0].id: expected an id below 1048576");
    changed("qwen2.json", "\"content\": \"<|endoftext|>\"", "\"content\": \"\"", K2_BAD_INPUT, "added_tokens[0].content");
    check("json", k2i_tokjson_parse, "", 0, K2_BAD_INPUT, "is not JSON");
    check("json", k2i_tokjson_parse, "{\"model\":null}", 14, K2_UNSUPPORTED, "pre_tokenizer");
    check("json", k2i_tokjson_parse, "{\"a\":\"\xff\"}", 9, K2_BAD_INPUT, "is not UTF-8");
}

static void deep_json_is_refused(void **state)
{
    (void)state;
    k2_buf b;
    k2_buf_init(&b, 1u << 20);
    for (int i = 0; i < 100000; i++) k2_buf_puts(&b, "[");
    check("json", k2i_tokjson_parse, b.data, b.len, K2_BAD_INPUT, "is nested too deep");
    k2_buf_fini(&b);
}

/* ---- patterns -------------------------------------------------------------------------------------------------------------
 */

static void patterns_are_translated_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out; /* NULL: refused */
    } rows[] = {
        {"\\p{N}{1,3}", "\\p{N}{1,3}"},
        {"\\s+(?!\\S)", "\\p{White_Space}+(?!\\P{White_Space})"},
        {"[^\\s\\p{Han}]", "[^\\p{White_Space}\\p{sc:Han}]"},
        {"\\u4e00|(?i:'s|'t)?", "\\x{4e00}|(?i:'s|'t)?"},
        {"[a-z\\]\\-]", "[a-z\\]\\-]"},
        {"(a|b)+", NULL},
        {"(?:a+)*", NULL},
        {"(a{2}){3}", NULL},
        {"\\p{N}{2}+", NULL},
        {"a$", NULL},
        {"^a", NULL},
        {".", NULL},
        {"\\w", NULL},
        {"\\b", NULL},
        {"\\1", NULL},
        {"[a&&b]", NULL},
        {"[a[b]]", NULL},
        {"[]a]", NULL},
        {"(?<=a)b", NULL},
        {"(?R)", NULL},
        {"\\pL", NULL},
        {"\\p{^L}", NULL},
        {"\\u12", NULL},
        {"\\", NULL},
    };
    k2_buf out;
    k2_error err;
    k2_buf_init(&out, 1000);
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        k2_buf_clear(&out);
        const k2_code code = k2i_pattern_translate(rows[i].in, &out, &err);
        if (code != (rows[i].out ? K2_OK : K2_UNSUPPORTED)) fail_msg("%s: %s", rows[i].in, k2_code_name(code));
        if (rows[i].out) assert_string_equal(out.data, rows[i].out);
    }
    k2_buf_fini(&out);
    k2i_split s = {0};
    assert_int_equal(k2i_split_add(&s, "a*", &err), K2_UNSUPPORTED); /* may match nothing */
    assert_int_equal(k2i_split_add(&s, "\\p{sc:Nowhere}", &err), K2_UNSUPPORTED);
    assert_int_equal(k2i_split_add(&s, "[z-a]", &err), K2_UNSUPPORTED);
    assert_int_equal(s.count, 0);
}

static k2_code count_piece(void *arg, const unsigned char *bytes, size_t n, k2_error *err)
{
    (void)bytes;
    (void)n;
    (void)err;
    ++*(size_t *)arg;
    return K2_OK;
}

/* A pattern whose steps grow with a power of the text's length is stopped, with an error. */
static void slow_patterns_are_stopped(void **state)
{
    (void)state;
    enum { N = 20000 };
    k2i_split s = {0};
    k2_error err = {0};
    size_t pieces = 0;
    unsigned char *text = k2_alloc(N);
    memset(text, 'a', N);
    assert_int_equal(k2i_split_add(&s, "a*a*a*a*[bc]", &err), K2_OK);
    assert_int_equal(k2i_split_run(&s, text, N, count_piece, &pieces, &err), K2_LIMIT);
    assert_non_null(strstr(err.text, "takes too many steps"));
    k2i_split_fini(&s);
    k2_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_ranks_are_refused),
        cmocka_unit_test(long_tokens_are_refused),
        cmocka_unit_test(patterns_go_by_name),
        cmocka_unit_test(damaged_configs_are_refused),
        cmocka_unit_test(other_kinds_of_json_are_refused),
        cmocka_unit_test(damaged_json_is_refused),
        cmocka_unit_test(deep_json_is_refused),
        cmocka_unit_test(patterns_are_translated_or_refused),
        cmocka_unit_test(slow_patterns_are_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
