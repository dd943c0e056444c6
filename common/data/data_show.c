/* `k2rl data show`: what a prompt file or a token file holds. */
#include "commands_int.h"
#include "common/data/data.h"
#include "common/token/token.h"
#include "idx_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_TOKENS 200u  /* of the first sequence */
#define SHOWN_BYTES  4096u /* of the first prompt */

static void fingerprint_print(k2_digest d)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(d, hex);
    printf("fingerprint  %s\n", hex);
}

static k2_code prompts_show(const char *path, k2_error *err)
{
    const k2_prompts_limits limits = {.answer_optional = true};
    k2_prompts *p = NULL;
    k2_code code = k2_prompts_load(path, &limits, &p, err);
    if (code != K2_OK) return code;
    size_t answered = 0;
    for (size_t i = 0; i < k2_prompts_count(p); i++) answered += k2_prompts_at(p, i)->answer != NULL;
    printf("%s: prompts\nprompts      %zu\nwith answer  %zu\n", path, k2_prompts_count(p), answered);
    fingerprint_print(k2_prompts_fingerprint(p));
    const k2_prompt *first = k2_prompts_at(p, 0);
    printf("first        %.*s\n", (int)K2_MIN(first->json_bytes, (size_t)SHOWN_BYTES), first->json);
    k2_prompts_free(p);
    return K2_OK;
}

/* The beginning of the first sequence: what can be printed as it is, special ids by name, other ids by number. */
static k2_code sequence_print(const k2_idx *x, const k2_tokenizer *t, k2_error *err)
{
    int32_t ids[SHOWN_TOKENS];
    const uint32_t count = K2_MIN(k2_idx_length(x, 0), SHOWN_TOKENS);
    k2_code code = k2_idx_read(x, 0, 0, count, ids, err);
    if (code != K2_OK) return code;
    printf("first        ");
    for (uint32_t i = 0; i < count; i++) {
        const char *special = k2_tokenizer_special_name(t, ids[i]);
        if (special)
            printf("<%s>", special);
        else if (!k2i_token_print(t, ids[i]))
            printf("<%d>", ids[i]);
    }
    printf("%s\n", count < k2_idx_length(x, 0) ? " ..." : "");
    return K2_OK;
}

static k2_code idx_show(const char *prefix, const k2_tokenizer *t, k2_error *err)
{
    k2_idx *x = NULL;
    k2_code code = k2_idx_open(prefix, &x, err);
    if (code != K2_OK) return code;
    uint32_t shortest = UINT32_MAX, longest = 0;
    for (uint64_t i = 0; i < k2_idx_sequences(x); i++) {
        shortest = K2_MIN(shortest, k2_idx_length(x, i));
        longest = K2_MAX(longest, k2_idx_length(x, i));
    }
    printf("%s: token file, %s\n", prefix, k2i_idx_dtype_name(k2_idx_dtype_of(x)));
    printf("documents    %" PRIu64 "\nsequences    %" PRIu64 "\ntokens       %" PRIu64 "\n", k2_idx_documents(x),
           k2_idx_sequences(x), k2_idx_tokens(x));
    printf("lengths      %u to %u, mean %.1f\n", shortest, longest, (double)k2_idx_tokens(x) / (double)k2_idx_sequences(x));
    fingerprint_print(k2_idx_fingerprint(x));
    code = sequence_print(x, t, err);
    k2_idx_close(x);
    return code;
}

static bool has_suffix(const char *s, const char *suffix)
{
    const size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

k2_code k2i_data_show(char **args, int count, k2_error *err)
{
    const char *path = NULL, *pattern = NULL;
    const k2_option options[] = {{.name = "--tokenizer", .text = &path}, {.name = "--pattern", .text = &pattern}};
    int operands = 0;
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    if (code != K2_OK) return code;
    if (operands != 1) return k2_error_set(err, K2_BAD_INPUT, "%d operands, expected one PREFIX or FILE.jsonl", operands);
    if (has_suffix(args[0], ".jsonl")) return prompts_show(args[0], err);
    const bool whole = has_suffix(args[0], ".idx") || has_suffix(args[0], ".bin");
    char *prefix = k2_strndup(args[0], strlen(args[0]) - (whole ? strlen(".idx") : 0));
    k2_tokenizer *t = NULL;
    code = k2i_tokenizer_of(path, pattern, &t, err);
    if (code == K2_OK) code = idx_show(prefix, t, err);
    k2_tokenizer_close(t);
    k2_free(prefix);
    return code;
}
