/* The quickstart's task: same seed same bytes, right answers, the layout of inference, nothing held out is trained on. And the
 * licences' task: made once, and whole or not at all. */
#include "common/data/data.h"
#include "common/token/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const k2_task_sizes small = {.corpus = 2000, .prompts = 300, .heldout = 100, .letters_min = 2, .letters_max = 9};

static char dir[32];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/k2_task_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : -1;
}

static char *in_dir(const char *sub, const char *file)
{
    return k2_asprintf("%s/%s/%s", dir, sub, file);
}

static void write_task(const char *sub, uint64_t seed, const k2_task_sizes *sizes)
{
    char *path = k2_asprintf("%s/%s", dir, sub);
    k2_error err = {0};
    k2_code code = k2_task_quickstart_write(path, seed, sizes, &err);
    if (code != K2_OK) fail_msg("%s", err.text);
    k2_free(path);
}

static bool same_file(const char *a, const char *b, const char *file)
{
    char *path_a = in_dir(a, file), *path_b = in_dir(b, file), *data_a = NULL, *data_b = NULL;
    size_t n_a = 0, n_b = 0;
    k2_error err;
    assert_int_equal(k2_file_read(path_a, 1u << 24, &data_a, &n_a, &err), K2_OK);
    assert_int_equal(k2_file_read(path_b, 1u << 24, &data_b, &n_b, &err), K2_OK);
    bool same = n_a == n_b && memcmp(data_a, data_b, n_a) == 0;
    k2_free(path_a);
    k2_free(path_b);
    k2_free(data_a);
    k2_free(data_b);
    return same;
}

static void same_seed_same_bytes(void **state)
{
    (void)state;
    static const char *const files[] = {"prompts.jsonl", "heldout.jsonl", "corpus.idx", "corpus.bin", "task.json"};
    write_task("a", 7, &small);
    write_task("b", 7, &small);
    write_task("c", 8, &small);
    for (size_t i = 0; i < K2_COUNT(files); i++) {
        assert_true(same_file("a", "b", files[i]));
        assert_false(same_file("a", "c", files[i]));
    }
    /* Sizes of one file do not move the others. */
    k2_task_sizes more = small;
    more.heldout = 200;
    write_task("d", 7, &more);
    assert_true(same_file("a", "d", "prompts.jsonl"));
    assert_true(same_file("a", "d", "corpus.bin"));
}

static void expect_answer(const char *op, const char *s, char *out)
{
    const size_t n = strlen(s);
    char *at = out;
    if (strcmp(op, "copy") == 0 || strcmp(op, "fold") == 0)
        for (size_t i = 0; i < n; i++) *at++ = s[i];
    if (strcmp(op, "back") == 0 || strcmp(op, "fold") == 0)
        for (size_t i = n; i-- > 0;) *at++ = s[i];
    if (strcmp(op, "twin") == 0)
        for (size_t i = 0; i < n; i++) *at++ = s[i], *at++ = s[i];
    *at = 0;
}

static k2_prompts *load(const char *sub, const char *file)
{
    char *path = in_dir(sub, file);
    k2_prompts *p = NULL;
    k2_error err = {0};
    if (k2_prompts_load(path, NULL, &p, &err) != K2_OK) fail_msg("%s", err.text);
    k2_free(path);
    return p;
}

/* Letters of a prompt, after checking everything about it. */
static const char *check_prompt(const k2_prompt *p, const k2_task_sizes *sizes)
{
    char want[64];
    assert_int_equal(p->message_count, 1);
    const char *content = p->messages[0].content, *letters = content + 5;
    const size_t n = strlen(letters);
    assert_in_range(n, sizes->letters_min, sizes->letters_max);
    unsigned seen = 0;
    for (size_t i = 0; i < n; i++) {
        assert_in_range(letters[i], 'a', 'z');
        assert_false(seen >> (letters[i] - 'a') & 1);
        seen |= 1u << (letters[i] - 'a');
    }
    char op[5] = {0};
    memcpy(op, content, 4);
    assert_int_equal(content[4], ' ');
    expect_answer(op, letters, want);
    assert_string_equal(p->answer, want);
    char fields[64];
    snprintf(fields, sizeof fields, "\"op\":\"%s\",\"n\":%zu}", op, n);
    assert_non_null(strstr(p->json, fields));
    return letters;
}

static void prompts_are_right_and_balanced(void **state)
{
    (void)state;
    write_task("a", 7, &small);
    k2_prompts *train = load("a", "prompts.jsonl"), *held = load("a", "heldout.jsonl");
    unsigned words[4] = {0}, lengths[32] = {0};
    assert_int_equal(k2_prompts_count(train), 300);
    assert_int_equal(k2_prompts_count(held), 100);
    for (size_t i = 0; i < 300; i++) {
        const k2_prompt *p = k2_prompts_at(train, i);
        lengths[strlen(check_prompt(p, &small))]++;
        words[strchr("cbtf", p->messages[0].content[0]) - "cbtf"]++;
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(p->messages[0].content, k2_prompts_at(train, j)->messages[0].content);
        for (size_t j = 0; j < 100; j++)
            assert_string_not_equal(p->messages[0].content + 5, k2_prompts_at(held, j)->messages[0].content + 5);
    }
    for (size_t i = 0; i < 4; i++) assert_int_equal(words[i], 75);
    for (size_t n = 2; n <= 9; n++) assert_in_range(lengths[n], 36, 40);
    for (size_t j = 0; j < 100; j++) check_prompt(k2_prompts_at(held, j), &small);
    assert_string_equal(k2_prompts_at(train, 0)->id, "prompts-0");
    assert_string_equal(k2_prompts_at(held, 99)->id, "heldout-99");
    k2_prompts_free(train);
    k2_prompts_free(held);
}

/* Splits a document "IM_USER word letters IM_END IM_ASSISTANT answer IM_END" as text. */
static void split(const int32_t *ids, uint32_t count, char word[8], char letters[32], char answer[64])
{
    char text[128];
    uint32_t n = 0;
    assert_int_equal(ids[0], K2_TOKEN_BYTE_IM_USER);
    assert_int_equal(ids[count - 1], K2_TOKEN_BYTE_IM_END);
    for (uint32_t i = 1; i + 1 < count; i++) {
        if (ids[i] == K2_TOKEN_BYTE_IM_END) {
            assert_int_equal(ids[i + 1], K2_TOKEN_BYTE_IM_ASSISTANT);
            text[n++] = ' ';
            i++;
        } else {
            assert_in_range(ids[i], 0x20, 0x7e);
            text[n++] = (char)ids[i];
        }
    }
    text[n] = 0;
    assert_int_equal(sscanf(text, "%7s %31s %63s", word, letters, answer), 3);
}

static void the_corpus_teaches_skills_but_not_words(void **state)
{
    (void)state;
    static const char *const words[] = {"copy", "back", "twin", "fold"};
    write_task("a", 7, &small);
    char *prefix = in_dir("a", "corpus");
    k2_prompts *held = load("a", "heldout.jsonl");
    k2_idx *x = NULL;
    k2_error err;
    unsigned pairs[4][4] = {{0}};
    assert_int_equal(k2_idx_open(prefix, &x, &err), K2_OK);
    assert_int_equal(k2_idx_dtype_of(x), K2_IDX_UINT16);
    assert_int_equal(k2_idx_sequences(x), 2000);
    assert_int_equal(k2_idx_documents(x), 2000);
    assert_int_equal(k2_idx_check_vocab(x, K2_TOKEN_BYTE_VOCAB, &err), K2_OK);
    for (uint64_t i = 0; i < 2000; i++) {
        int32_t ids[128];
        char word[8], letters[32], answer[64], want[64];
        const uint32_t n = k2_idx_length(x, i);
        assert_in_range(n, 4 + 4 + 1 + 2 + 2, 128);
        assert_int_equal(k2_idx_read(x, i, 0, n, ids, &err), K2_OK);
        split(ids, n, word, letters, answer);
        for (size_t j = 0; j < k2_prompts_count(held); j++)
            assert_string_not_equal(letters, k2_prompts_at(held, j)->messages[0].content + 5);
        for (size_t w = 0; w < 4; w++)
            for (size_t skill = 0; skill < 4; skill++) {
                expect_answer(words[skill], letters, want);
                pairs[w][skill] += strcmp(word, words[w]) == 0 && strcmp(answer, want) == 0;
            }
    }
    for (size_t w = 0; w < 4; w++)
        for (size_t skill = 0; skill < 4; skill++) assert_in_range(pairs[w][skill], 85, 165); /* 125 on average */
    k2_idx_close(x);
    k2_prompts_free(held);
    k2_free(prefix);
}

static void ensure_makes_only_what_is_missing(void **state)
{
    (void)state;
    char *path = k2_asprintf("%s/e", dir), *bin = in_dir("e", "corpus.bin"), *stamp = in_dir("e", "task.json");
    k2_error err;
    k2_task_sizes other = small;
    other.corpus = 10;
    assert_int_equal(k2_task_quickstart_ensure(path, 3, &small, &err), K2_OK);
    /* A mark that stays where nothing is written. */
    char *prompts = in_dir("e", "prompts.jsonl");
    assert_int_equal(k2_file_write_atomic(prompts, "mark", 4, &err), K2_OK);
    assert_int_equal(k2_task_quickstart_ensure(path, 3, &small, &err), K2_OK);
    char *data = NULL;
    size_t n = 0;
    assert_int_equal(k2_file_read(prompts, 1u << 20, &data, &n, &err), K2_OK);
    assert_int_equal(n, 4);
    k2_free(data);
    /* Another seed, other sizes, a missing file: made anew. */
    assert_int_equal(k2_task_quickstart_ensure(path, 4, &small, &err), K2_OK);
    assert_int_equal(k2_file_read(prompts, 1u << 20, &data, &n, &err), K2_OK);
    assert_true(n > 4);
    k2_free(data);
    assert_int_equal(k2_task_quickstart_ensure(path, 4, &other, &err), K2_OK);
    assert_int_equal(unlink(bin), 0);
    assert_int_equal(k2_task_quickstart_ensure(path, 4, &other, &err), K2_OK);
    assert_true(k2_file_exists(bin));
    assert_int_equal(k2_file_write_atomic(stamp, "{}", 2, &err), K2_OK);
    assert_int_equal(k2_task_quickstart_ensure(path, 4, &other, &err), K2_OK);
    k2_free(prompts);
    k2_free(path);
    k2_free(bin);
    k2_free(stamp);
}

/* Four letters have 12 strings of two and 24 each of three and four: the longer ones step in, and every prompt stays unique. */
static void short_strings_run_out(void **state)
{
    (void)state;
    const k2_task_sizes few = {.corpus = 10, .prompts = 150, .heldout = 4, .letters_min = 2, .letters_max = 4, .alphabet = 4};
    write_task("f", 1, &few);
    k2_prompts *p = load("f", "prompts.jsonl");
    unsigned lengths[5] = {0};
    for (size_t i = 0; i < 150; i++) {
        lengths[strlen(check_prompt(k2_prompts_at(p, i), &few))]++;
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(k2_prompts_at(p, i)->messages[0].content, k2_prompts_at(p, j)->messages[0].content);
    }
    assert_in_range(lengths[2], 16, 48); /* its share would be 50 */
    assert_true(lengths[3] + lengths[4] > 100);
    k2_prompts_free(p);
}

static void impossible_sizes(void **state)
{
    (void)state;
    static const struct {
        k2_task_sizes sizes;
        const char *text;
    } cases[] = {
        {{.letters_min = 1}, "letters_min: 1, expected 2 to 16"},
        {{.letters_min = 5, .letters_max = 4}, "letters_max: 4, expected 5 to 16"},
        {{.letters_max = 27}, "letters_max: 27, expected 2 to 16"},
        {{.alphabet = 27}, "alphabet: 27, expected 2 to 26"},
        {{.alphabet = 1}, "alphabet: 1, expected 2 to 26"},
        {{.alphabet = 8, .letters_max = 9}, "letters_max: 9, expected 2 to 8"},
        {{.corpus = 10000001}, "corpus: 10000001, expected 1 to 10000000"},
        {{.prompts = 5000, .letters_min = 2, .letters_max = 2}, "prompts: 5000 prompts are too many"},
        {{.prompts = 100, .heldout = 2000, .letters_min = 2, .letters_max = 2}, "heldout: 2000 prompts are too many"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        char *path = k2_asprintf("%s/none", dir);
        k2_error err = {0};
        assert_int_equal(k2_task_quickstart_write(path, 1, &cases[i].sizes, &err), K2_BAD_INPUT);
        if (!strstr(err.text, cases[i].text)) fail_msg("case %zu: \"%s\"", i, err.text);
        assert_false(k2_file_exists(path));
        k2_free(path);
    }
}

static void put_text(const char *sub, const char *file, const char *text)
{
    char *path = in_dir(sub, file), *parent = k2_asprintf("%s/%s", dir, sub);
    k2_error err;
    assert_int_equal(k2_dir_make(parent, &err), K2_OK);
    assert_int_equal(k2_file_write_atomic(path, text, strlen(text), &err), K2_OK);
    k2_free(path);
    k2_free(parent);
}

static void check_licences(const char *prefix, uint64_t documents, uint64_t tokens)
{
    k2_idx *x = NULL;
    k2_error err;
    assert_int_equal(k2_idx_open(prefix, &x, &err), K2_OK);
    assert_int_equal(k2_idx_documents(x), documents);
    assert_int_equal(k2_idx_tokens(x), tokens);
    k2_idx_close(x);
}

static void licences_are_read_once(void **state)
{
    (void)state;
    char *from = k2_asprintf("%s/texts", dir), *out = k2_asprintf("%s/l", dir), *prefix = in_dir("l", "corpus");
    char *stamp = in_dir("l", "task.json"), *link = in_dir("texts", "link");
    k2_error err = {0};
    assert_int_equal(k2_task_licences_check(from, &err), K2_NOT_FOUND);
    assert_int_equal(k2_task_licences_ensure(out, from, &err), K2_NOT_FOUND);
    if (!strstr(err.text, "/texts: missing, expected the licence texts")) fail_msg("\"%s\"", err.text);
    assert_false(k2_file_exists(out));
    put_text("texts", "one", "may be used");
    put_text("texts", "two", "by all");
    assert_int_equal(symlink("one", link), 0);
    assert_int_equal(k2_task_licences_check(from, &err), K2_OK);
    assert_int_equal(k2_task_licences_ensure(out, from, &err), K2_OK);
    check_licences(prefix, 2, 11 + 6 + 2); /* an EOS behind each */
    /* A text that changes later does not change a run's corpus; a corpus that is not whole is made anew. */
    put_text("texts", "two", "by everybody");
    assert_int_equal(k2_task_licences_ensure(out, from, &err), K2_OK);
    check_licences(prefix, 2, 11 + 6 + 2);
    assert_int_equal(unlink(stamp), 0);
    assert_int_equal(k2_task_licences_ensure(out, from, &err), K2_OK);
    check_licences(prefix, 2, 11 + 12 + 2);
    k2_free(from);
    k2_free(out);
    k2_free(prefix);
    k2_free(stamp);
    k2_free(link);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(same_seed_same_bytes),
        T(prompts_are_right_and_balanced),
        T(the_corpus_teaches_skills_but_not_words),
        T(ensure_makes_only_what_is_missing),
        T(short_strings_run_out),
        T(impossible_sizes),
        T(licences_are_read_once),
    };
    return cmocka_run_group_tests_name("task", tests, NULL, NULL);
}
