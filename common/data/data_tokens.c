/* `k2rl data tokens`: a text as tokens, and tokens as text, to look at. */
#include "commands_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (1u << 28) /* bytes of the text */

k2_code k2i_tokenizer_of(const char *path, const char *pattern, k2_tokenizer **out, k2_error *err)
{
    const k2_tokenizer_spec spec = {.kind = !path ? "byte" : pattern ? "tiktoken" : "auto", .path = path, .pattern = pattern};
    return k2_tokenizer_load(&spec, out, err);
}

bool k2i_token_print(const k2_tokenizer *t, int32_t id)
{
    k2_buf b;
    k2_buf_init(&b, 4096);
    bool shown = k2_tokenizer_decode(t, &id, 1, &b, NULL) == K2_OK && b.len > 0;
    for (size_t i = 0; i < b.len; i++) shown &= (unsigned char)b.data[i] >= 0x20 && b.data[i] != 0x7f;
    shown = shown && !strstr(b.data, "\xef\xbf\xbd");
    if (shown) fwrite(b.data, 1, b.len, stdout);
    k2_buf_fini(&b);
    return shown;
}

static k2_code read_input(k2_buf *b, k2_error *err)
{
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0)
        if (!k2_buf_append(b, piece, n)) return k2_error_set(err, K2_LIMIT, "standard input has more than %u bytes", TEXT_MAX);
    return ferror(stdin) ? k2_error_set(err, K2_IO, "cannot read standard input") : K2_OK;
}

static k2_code decode(const k2_tokenizer *t, const char *text, k2_tokens *ids, k2_error *err)
{
    k2_buf out;
    for (const char *s = text + strspn(text, " \n\t,"); *s; s += strspn(s, " \n\t,")) {
        const size_t n = strcspn(s, " \n\t,");
        char word[16] = "";
        uint64_t id;
        if (n < sizeof word) memcpy(word, s, n);
        if (!k2_str_u64(word, &id) || id > INT32_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "\"%.*s\" is not an id", (int)K2_MIN(n, (size_t)64), s);
        k2_tokens_push(ids, &(int32_t){(int32_t)id}, 1);
        s += n;
    }
    k2_buf_init(&out, TEXT_MAX);
    k2_code code = k2_tokenizer_decode(t, ids->ids, ids->count, &out, err);
    if (code == K2_OK) printf("%s\n", out.data ? out.data : "");
    k2_buf_fini(&out);
    return code;
}

static void print_one(const k2_tokenizer *t, int32_t id, bool alone)
{
    const char *special = k2_tokenizer_special_name(t, id);
    printf("%" PRId32 "%s", id, alone ? "" : "\t");
    if (!alone && special) printf("%s (special)", special);
    if (!alone && !special && !k2i_token_print(t, id)) printf("(bytes that cannot be shown)");
    putchar(alone ? ' ' : '\n');
}

typedef struct tokens_options {
    const char *tokenizer, *pattern;
    bool trusted, ids, decode;
} tokens_options;

static k2_code show(const tokens_options *o, const char *text, size_t n, k2_error *err)
{
    k2_tokenizer *t = NULL;
    k2_tokens ids;
    k2_code code = k2i_tokenizer_of(o->tokenizer, o->pattern, &t, err);
    if (code != K2_OK) return code;
    k2_tokens_init(&ids, TEXT_MAX);
    if (o->decode) {
        code = decode(t, text, &ids, err);
    } else {
        code = (o->trusted ? k2_tokenizer_encode_trusted : k2_tokenizer_encode)(t, text, n, &ids, err);
        for (size_t i = 0; code == K2_OK && i < ids.count; i++) print_one(t, ids.ids[i], o->ids);
        if (code == K2_OK) printf("%s%zu tokens of %zu bytes\n", o->ids ? "\n" : "", ids.count, n);
    }
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
    return code;
}

k2_code k2i_data_tokens(char **args, int count, k2_error *err)
{
    tokens_options o = {0};
    const k2_option options[] = {
        {.name = "--tokenizer", .text = &o.tokenizer}, {.name = "--pattern", .text = &o.pattern},
        {.name = "--trusted", .flag = &o.trusted},     {.name = "--ids", .flag = &o.ids},
        {.name = "--decode", .flag = &o.decode},
    };
    int operands = 0;
    k2_buf b;
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    if (code != K2_OK) return code;
    if (operands != 1)
        return k2_error_set(err, K2_BAD_INPUT, "%d operands, expected one TEXT, or - for standard input", operands);
    k2_buf_init(&b, TEXT_MAX);
    if (strcmp(args[0], "-") == 0)
        code = read_input(&b, err);
    else
        k2_buf_puts(&b, args[0]);
    if (code == K2_OK) code = show(&o, b.data ? b.data : "", b.len, err);
    k2_buf_fini(&b);
    return code;
}
