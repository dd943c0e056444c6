/* Merging: short and long words against the definition. */
#include "common/token/token_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define FOLDER K2_SOURCE_DIR "/tests/unit/token/vectors"

/* The definition: of all pairs the one of the lowest rank, the leftmost of equals, until none merges. */
static size_t merge_slowly(const k2i_vocab *v, const unsigned char *bytes, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)v->byte_ids[bytes[i]];
    for (;;) {
        size_t best = 0;
        k2i_pair pair = {.rank = K2I_MERGE_NONE};
        for (size_t i = 0; i + 1 < n; i++) {
            const k2i_pair p = k2i_vocab_pair(v, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
            if (p.rank < pair.rank) {
                pair = p;
                best = i;
            }
        }
        if (pair.rank == K2I_MERGE_NONE) return n;
        ids[best] = (int32_t)pair.id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

/* Few letters, so that many pairs are equal and ranks tie. */
static void fill(unsigned char *bytes, size_t n, uint64_t number)
{
    static const char *const alphabets[] = {"ab", "the ", "aeinorst", " \n", "\xe4\xbd\xa0\xe5\xa5"};
    const char *letters = alphabets[number % K2_COUNT(alphabets)];
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)letters[k2_rand_below(1, K2_STREAM_TEST, number, i, strlen(letters))];
}

static void words_of_any_length_merge_by_definition(void **state)
{
    (void)state;
    enum { LONGEST = 700 };
    k2_tokenizer *t = NULL;
    unsigned char bytes[LONGEST];
    int32_t want[LONGEST];
    k2_tokens ids;
    k2_tokens_init(&ids, LONGEST);
    assert_int_equal(k2_tokenizer_open("json", FOLDER "/gpt2.json", &t, NULL), K2_OK);
    for (uint64_t i = 0; i < 400; i++) {
        const size_t n = i < 150 ? 2 + i : 2 + k2_rand_below(2, K2_STREAM_TEST, i, 0, LONGEST - 2);
        fill(bytes, n, i);
        const size_t count = merge_slowly(&t->vocab, bytes, n, want);
        k2_tokens_clear(&ids);
        assert_int_equal(k2i_piece_encode(&t->vocab, t->cache, bytes, n, &ids, NULL), K2_OK);
        assert_int_equal(ids.count, count);
        assert_memory_equal(ids.ids, want, count * sizeof *want);
    }
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
}

/* A line of a megabyte: with time that grows with the square of its length this test would run into its limit. */
static void a_long_line_ends(void **state)
{
    (void)state;
    static const char *const parts[] = {"a", " ", "\n", "\xe6\xbc\xa2", "ab ", "'"};
    k2_tokenizer *t = NULL;
    k2_tokens ids;
    k2_error err;
    const size_t size = 1u << 20;
    char *line = k2_alloc(size + 4);
    k2_tokens_init(&ids, 2 * size);
    assert_int_equal(k2_tokenizer_open("tiktoken", FOLDER "/kimi", &t, NULL), K2_OK);
    for (size_t i = 0; i < K2_COUNT(parts); i++) {
        size_t n = 0;
        for (const size_t part = strlen(parts[i]); n < size; n += part) memcpy(line + n, parts[i], part);
        k2_buf back;
        k2_buf_init(&back, 2 * size);
        k2_tokens_clear(&ids);
        assert_int_equal(k2_tokenizer_encode(t, line, n, &ids, &err), K2_OK);
        assert_int_equal(k2_tokenizer_decode(t, ids.ids, ids.count, &back, NULL), K2_OK);
        assert_int_equal(back.len, n);
        assert_memory_equal(back.data, line, n);
        k2_buf_fini(&back);
    }
    k2_tokens_fini(&ids);
    k2_tokenizer_close(t);
    k2_free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_any_length_merge_by_definition),
        cmocka_unit_test(a_long_line_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
