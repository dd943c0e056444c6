/* Files of ranks as tiktoken has them: "base64(bytes) rank" lines. The rank is the id and the order of merging. */
#include "common/token/token_int.h"

#include <stdio.h>
#include <string.h>

/* Special tokens that follow the ranks where no tokenizer_config.json names any: first id behind the last rank, names, and how
 * many more of a numbered name. */
static const struct special_names {
    const char *pattern;
    uint32_t skip;        /* ids between the last rank and the first name */
    const char *names[8]; /* "": an id without a name; the last is NULL */
    const char *numbered; /* printf form */
    uint32_t numbered_count;
    const char *eos;
} specials[] = {
    {"qwen", 0, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, "<|extra_%u|>", 205, "<|endoftext|>"},
    {"cl100k", 1, {"<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"}, NULL, 0, "<|endoftext|>"},
};
/* Kimi's ids behind the ranks that have no name. Its own program makes two more, for which the model has no row. */
#define KIMI_RESERVED 256u

/* Decode standard base64 with padding: bytes written, 0 where it is none. out has room for n / 4 * 3. */
static size_t base64(const char *s, size_t n, unsigned char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = 0;
    if (n == 0 || n % 4 != 0) return 0;
    const unsigned pads = s[n - 1] != '=' ? 0 : s[n - 2] != '=' ? 1 : 2;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *digit = i + k >= n - pads ? digits : s[i + k] ? strchr(digits, s[i + k]) : NULL;
            if (!digit) return 0;
            bits = bits << 6 | (uint32_t)(digit - digits);
        }
        for (int k = 0; k < 3; k++) out[len++] = (unsigned char)(bits >> (16 - 8 * k));
    }
    for (unsigned i = 0; i < pads; i++)
        if (out[--len] != 0) return 0; /* bits behind the end */
    return len;
}

static bool number(const char *s, size_t n, uint32_t *out)
{
    uint32_t value = 0;
    if (n == 0 || n > 9 || (n > 1 && s[0] == '0')) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        value = value * 10 + (uint32_t)(s[i] - '0');
    }
    *out = value;
    return true;
}

static k2_code take_line(k2_tokenizer *t, const char *line, size_t n, k2_error *err)
{
    unsigned char bytes[K2I_TOKEN_BYTES_MAX + 4];
    const char *space = memchr(line, ' ', n);
    const size_t coded = space ? (size_t)(space - line) : n;
    uint32_t rank;
    if (coded > (K2I_TOKEN_BYTES_MAX + 2) / 3 * 4)
        return k2_error_set(err, K2_LIMIT, "a token of more than %u bytes", K2I_TOKEN_BYTES_MAX);
    if (!space || !number(space + 1, n - coded - 1, &rank))
        return k2_error_set(err, K2_BAD_INPUT, "expected base64, a space and a rank");
    const size_t len = base64(line, coded, bytes);
    if (len == 0) return k2_error_set(err, K2_BAD_INPUT, "the token is not base64");
    return k2i_vocab_put(&t->vocab, rank, bytes, len, true, err);
}

k2_code k2i_tiktoken_parse(k2_tokenizer *t, const char *bytes, size_t n, k2_error *err)
{
    k2_code code = K2_OK;
    size_t line_number = 1;
    for (size_t at = 0; at < n; line_number++) {
        const char *newline = memchr(bytes + at, '\n', n - at);
        const size_t len = newline ? (size_t)(newline - bytes) - at : n - at;
        if (len) code = take_line(t, bytes + at, len, err);
        if (code != K2_OK) return k2_error_prefix(err, "line %zu", line_number);
        at += len + 1;
    }
    if (t->vocab.count == 0) return k2_error_set(err, K2_BAD_INPUT, "there are no ranks");
    for (uint32_t i = 0; i < t->vocab.count; i++)
        if (t->vocab.tokens[i].n == 0) return k2_error_set(err, K2_BAD_INPUT, "rank %u is missing", i);
    t->vocab.whole = true;
    return k2i_vocab_merge_all(&t->vocab, err);
}

static void name_specials(k2_tokenizer *t, const struct special_names *s)
{
    const uint8_t flags = K2I_ADDED_CONTROL | K2I_ADDED_HIDDEN;
    uint32_t id = t->vocab.count + s->skip;
    for (size_t i = 0; s->names[i]; i++) k2i_added_put(&t->added, id++, s->names[i], strlen(s->names[i]), flags);
    for (uint32_t i = 0; i < s->numbered_count; i++) {
        char name[64];
        const int n = snprintf(name, sizeof name, s->numbered, i);
        k2i_added_put(&t->added, id++, name, (size_t)n, flags);
    }
    if (!t->mark_names[K2I_EOS]) t->mark_names[K2I_EOS] = k2_strdup(s->eos);
}

/* Ids behind Kimi's ranks that nothing named so far. */
static void reserve_kimi(k2_tokenizer *t)
{
    bool named[KIMI_RESERVED] = {false};
    const uint32_t base = t->vocab.count, count = t->added.count;
    for (uint32_t i = 0; i < count; i++)
        if (t->added.list[i].id >= base && t->added.list[i].id - base < KIMI_RESERVED) named[t->added.list[i].id - base] = true;
    for (uint32_t i = 0; i < KIMI_RESERVED; i++) {
        char name[64];
        const int n = snprintf(name, sizeof name, "<|reserved_token_%u|>", base + i);
        if (!named[i]) k2i_added_put(&t->added, base + i, name, (size_t)n, K2I_ADDED_CONTROL | K2I_ADDED_HIDDEN);
    }
}

k2_code k2i_tiktoken_pattern(k2_tokenizer *t, const char *pattern, k2_error *err)
{
    const char *text = k2i_pattern_named(pattern);
    if (!text || strcmp(pattern, "gpt2") == 0)
        return k2_error_set(err, K2_UNSUPPORTED,
                            "tokenizer pattern \"%.64s\" is not supported; supported: \"kimi\", \"qwen\", \"cl100k\"", pattern);
    for (size_t i = 0; i < K2_COUNT(specials) && t->added.count == 0; i++)
        if (strcmp(pattern, specials[i].pattern) == 0) name_specials(t, &specials[i]);
    t->cuts = strcmp(pattern, "kimi") == 0;
    if (t->cuts) reserve_kimi(t);
    return k2i_split_add(&t->split, text, err);
}
