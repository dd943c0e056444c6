/* `k2rl data`: what the sub-commands write, and exit status 2 with one line for bad usage and bad input. */
#include "common/data/data.h"
#include "common/token/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[32], out_path[64], err_path[64], prefix[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/k2_data_XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(out_path, sizeof out_path, "%s/stdout", dir);
    snprintf(err_path, sizeof err_path, "%s/stderr", dir);
    snprintf(prefix, sizeof prefix, "%s/out", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : -1;
}

static void redirect(FILE *stream, const char *path, int *keep)
{
    fflush(stream);
    *keep = dup(fileno(stream));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(*keep >= 0 && fd >= 0);
    assert_true(dup2(fd, fileno(stream)) >= 0);
    close(fd);
}

static void restore(FILE *stream, int keep)
{
    fflush(stream);
    assert_true(dup2(keep, fileno(stream)) >= 0);
    close(keep);
}

/* Run with both outputs in files. Arguments are copied: options are moved about in them. */
static int run(const char *first, ...)
{
    char *argv[32] = {k2_strdup("data")};
    int argc = 1, keep_out, keep_err;
    va_list ap;
    va_start(ap, first);
    for (const char *arg = first; arg; arg = va_arg(ap, const char *)) argv[argc++] = k2_strdup(arg);
    va_end(ap);
    char *freed[32];
    memcpy(freed, argv, sizeof freed);
    redirect(stdout, out_path, &keep_out);
    redirect(stderr, err_path, &keep_err);
    int status = k2_data_main(argc, argv);
    restore(stdout, keep_out);
    restore(stderr, keep_err);
    for (int i = 0; i < argc; i++) k2_free(freed[i]);
    return status;
}

static void assert_says(const char *path, const char *text)
{
    char *data = NULL;
    size_t n = 0;
    k2_error err;
    assert_int_equal(k2_file_read(path, 1u << 20, &data, &n, &err), K2_OK);
    if (!strstr(data, text)) fail_msg("\"%s\" does not say \"%s\"", data, text);
    k2_free(data);
}

static void assert_one_line(const char *text)
{
    char *data = NULL;
    size_t n = 0;
    k2_error err;
    assert_int_equal(k2_file_read(err_path, 1u << 20, &data, &n, &err), K2_OK);
    assert_ptr_equal(strchr(data, '\n'), data + n - 1);
    k2_free(data);
    assert_says(err_path, text);
}

static const char *put(const char *name, const char *text)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    k2_error err;
    assert_int_equal(k2_file_write_atomic(path, text, strlen(text), &err), K2_OK);
    return path;
}

/* Sequence i of the pair at `prefix` is this text and EOS. */
static void assert_document(uint64_t i, const char *text)
{
    k2_idx *x = NULL;
    k2_error err;
    int32_t ids[256];
    assert_int_equal(k2_idx_open(prefix, &x, &err), K2_OK);
    assert_in_range(i, 0, k2_idx_sequences(x) - 1);
    assert_int_equal(k2_idx_length(x, i), strlen(text) + 1);
    assert_int_equal(k2_idx_read(x, i, 0, k2_idx_length(x, i), ids, &err), K2_OK);
    for (size_t k = 0; k < strlen(text); k++) assert_int_equal(ids[k], (unsigned char)text[k]);
    assert_int_equal(ids[strlen(text)], K2_TOKEN_BYTE_EOS);
    k2_idx_close(x);
}

static void text_files(void **state)
{
    (void)state;
    char a[96], link[96], sub[96];
    strcpy(a, put("a.txt", "first\n\n  \nsecond\nline\n\xff\n"));
    assert_int_equal(run("text2idx", prefix, a, put("b.txt", "b"), NULL), 0);
    assert_says(out_path, "2 documents, 27 tokens");
    assert_document(0, "first\n\n  \nsecond\nline\n\xff\n");
    assert_document(1, "b");
    assert_int_equal(run("text2idx", "--split", prefix, a, NULL), 0);
    assert_document(0, "first");
    assert_document(1, "second\nline\n\xff");
    /* A directory: regular files by name, without links and sub-directories. */
    snprintf(sub, sizeof sub, "%s/d", dir);
    snprintf(link, sizeof link, "%s/d/a-link", dir);
    k2_error err;
    assert_int_equal(k2_dir_make(sub, &err), K2_OK);
    put("d/z", "zz");
    put("d/b", "bb");
    put("d/empty", "");
    assert_int_equal(symlink("z", link), 0);
    snprintf(link, sizeof link, "%s/d/deeper", dir);
    assert_int_equal(k2_dir_make(link, &err), K2_OK);
    assert_int_equal(run("text2idx", prefix, sub, NULL), 0);
    assert_says(out_path, "2 documents, 6 tokens");
    assert_document(0, "bb");
    assert_document(1, "zz");
    /* Named links are followed, but a file counts once. */
    snprintf(link, sizeof link, "%s/d/a-link", dir);
    assert_int_equal(run("text2idx", prefix, link, put("d/z", "zz"), NULL), 0);
    assert_says(out_path, "1 documents, 3 tokens");
    assert_says(err_path, "skipped, another name of a file that was read before");
}

static void json_lines(void **state)
{
    (void)state;
    const char *path = put("t.jsonl", "{\"text\":\"one\",\"body\":\"x\"}\n\n{\"body\":\"\\u00e9\",\"text\":\"two\"}\n");
    assert_int_equal(run("jsonl2idx", prefix, path, NULL), 0);
    assert_document(0, "one");
    assert_document(1, "two");
    assert_int_equal(run("jsonl2idx", prefix, path, "--field=body", NULL), 0);
    assert_document(1, "\xc3\xa9");
    assert_int_equal(run("jsonl2idx", prefix, path, "--field", "none", NULL), 2);
    assert_one_line("t.jsonl:1: \"none\" is missing");
    assert_document(1, "\xc3\xa9"); /* what was there still stands */
    assert_int_equal(run("jsonl2idx", prefix, put("t.jsonl", "{\"text\":\"a\"}\n{\"text\":3}\n"), NULL), 2);
    assert_one_line("t.jsonl:2: text is a number, expected a string");
    assert_int_equal(run("jsonl2idx", prefix, put("t.jsonl", "{\"text\":\"a\"}\n{\"text\""), NULL), 2);
    assert_one_line("t.jsonl:2: is not JSON");
}

static void show(void **state)
{
    (void)state;
    assert_int_equal(run("text2idx", prefix, put("a.txt", "hello"), NULL), 0);
    assert_int_equal(run("show", prefix, NULL), 0);
    assert_says(out_path, "sequences    1\n");
    assert_says(out_path, "first        hello<EOS>\n");
    char idx[80];
    snprintf(idx, sizeof idx, "%s.idx", prefix);
    assert_int_equal(run("show", idx, NULL), 0);
    assert_int_equal(run("show", put("p.jsonl", "{\"prompt\":\"p\",\"answer\":\"a\"}\n{\"prompt\":\"q\"}\n"), NULL), 0);
    assert_says(out_path, "prompts      2\nwith answer  1\n");
    assert_int_equal(run("show", "/nonexistent", NULL), 2);
    assert_one_line("/nonexistent.idx: cannot open");
    char bin[80];
    snprintf(bin, sizeof bin, "%s.bin", prefix);
    assert_int_equal(truncate(bin, 3), 0);
    assert_int_equal(run("show", prefix, NULL), 2);
    assert_one_line(".idx and .bin disagree");
}

static void task(void **state)
{
    (void)state;
    char out[80], path[96];
    snprintf(out, sizeof out, "%s/task", dir);
    assert_int_equal(run("task", "quickstart", "--out", out, "--seed", "5", "--corpus", "20", "--prompts", "8", "--heldout",
                         "4", "--letters-min", "3", "--letters-max", "5", "--alphabet", "10", NULL),
                     0);
    snprintf(path, sizeof path, "%s/corpus", out);
    assert_int_equal(run("show", path, NULL), 0);
    assert_says(out_path, "documents    20\n");
    assert_int_equal(run("task", "quickstart", NULL), 2);
    assert_one_line("--out DIR is missing");
    assert_int_equal(run("task", "slowstart", "--out", out, NULL), 2);
    assert_one_line("unknown task \"slowstart\", expected quickstart or licences");
    assert_int_equal(run("task", "licences", "--out", out, "--corpus", "3", NULL), 2);
    assert_one_line("licences: found an option with a size, expected --out alone");
    assert_int_equal(run("task", "--out", out, NULL), 2);
    assert_int_equal(run("task", "quickstart", "--out", out, "--seed", "x", NULL), 2);
    assert_one_line("--seed: found \"x\", expected a whole number");
    assert_int_equal(run("task", "quickstart", "--out", out, "--corpus", "4294967296", NULL), 2);
    assert_one_line("--corpus: found \"4294967296\", expected a whole number");
    assert_int_equal(run("task", "quickstart", "--out", out, "--letters-max", "99", NULL), 2);
    assert_one_line("letters_max: 99, expected 2 to 16");
}

static void usage(void **state)
{
    (void)state;
    static const char *const commands[] = {"text2idx", "jsonl2idx", "show", "task"};
    assert_int_equal(run(NULL), 2);
    assert_one_line("a command is missing");
    assert_int_equal(run("text2id", NULL), 2);
    assert_one_line("unknown command \"text2id\"; did you mean text2idx");
    assert_int_equal(run("--help", NULL), 0);
    for (size_t i = 0; i < K2_COUNT(commands); i++) {
        assert_says(out_path, commands[i]);
        assert_int_equal(run(commands[i], "--help", NULL), 0);
        assert_says(out_path, "usage: k2rl data");
        assert_int_equal(run("--help", NULL), 0);
    }
    assert_int_equal(run("text2idx", NULL), 2);
    assert_one_line("0 operands, expected OUT_PREFIX and at least one FILE");
    assert_int_equal(run("text2idx", prefix, NULL), 2);
    assert_int_equal(run("text2idx", prefix, "x", "--spilt", NULL), 2);
    assert_one_line("unknown option --spilt; did you mean --split?");
    assert_int_equal(run("text2idx", prefix, "x", "--split=1", NULL), 2);
    assert_one_line("--split takes no value");
    assert_int_equal(run("jsonl2idx", prefix, "x", "--field", NULL), 2);
    assert_one_line("--field: a value is missing");
    assert_int_equal(run("text2idx", prefix, "/nonexistent", NULL), 2);
    assert_one_line("/nonexistent: cannot open");
    assert_int_equal(run("text2idx", prefix, put("empty", ""), NULL), 2);
    assert_one_line("no sequence to write");
    assert_int_equal(run("text2idx", "/nonexistent/x", put("a", "a"), NULL), 2);
    assert_int_equal(run("show", NULL), 2);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(text_files), T(json_lines), T(show), T(task), T(usage)};
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
