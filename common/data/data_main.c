/* `k2rl data`: the table of sub-commands, their help, and exit statuses. */
#include "commands_int.h"
#include "common/data/data.h"

#include <stdio.h>
#include <string.h>

static k2_code task_write(const char *name, const char *dir, uint64_t seed, const k2_task_sizes *sizes, k2_error *err)
{
    static const k2_task_sizes none = {0};
    if (strcmp(name, "quickstart") == 0) {
        k2_code code = k2_task_quickstart_write(dir, seed, sizes, err);
        if (code == K2_OK)
            printf("%s: %s, %s, %s.idx and %s.bin written\n", dir, K2_TASK_PROMPTS_FILE, K2_TASK_HELDOUT_FILE,
                   K2_TASK_CORPUS_PREFIX, K2_TASK_CORPUS_PREFIX);
        return code;
    }
    if (strcmp(name, "licences") != 0)
        return k2_error_set(err, K2_BAD_INPUT, "unknown task \"%.64s\", expected quickstart or licences", name);
    if (memcmp(sizes, &none, sizeof none) != 0)
        return k2_error_set(err, K2_BAD_INPUT, "licences: found an option with a size, expected --out alone");
    k2_code code = k2_task_licences_write(dir, NULL, err);
    if (code == K2_OK) printf("%s: %s.idx and %s.bin written\n", dir, K2_TASK_CORPUS_PREFIX, K2_TASK_CORPUS_PREFIX);
    return code;
}

k2_code k2i_data_task(char **args, int count, k2_error *err)
{
    k2_task_sizes sizes = {0};
    uint64_t seed = 1;
    const char *dir = NULL;
    const k2_option options[] = {
        {.name = "--out", .text = &dir},
        {.name = "--seed", .u64 = &seed},
        {.name = "--corpus", .u32 = &sizes.corpus},
        {.name = "--prompts", .u32 = &sizes.prompts},
        {.name = "--heldout", .u32 = &sizes.heldout},
        {.name = "--letters-min", .u32 = &sizes.letters_min},
        {.name = "--letters-max", .u32 = &sizes.letters_max},
        {.name = "--alphabet", .u32 = &sizes.alphabet},
    };
    int operands = 0;
    k2_code code = k2_args_parse(args, count, options, K2_COUNT(options), &operands, NULL, err);
    if (code != K2_OK) return code;
    if (operands != 1)
        return k2_error_set(err, K2_BAD_INPUT, "%d operands, expected the name of one task: quickstart or licences", operands);
    if (!dir) return k2_error_set(err, K2_BAD_INPUT, "--out DIR is missing");
    return task_write(args[0], dir, seed, &sizes, err);
}

static const struct {
    const char *name;
    k2_code (*run)(char **args, int count, k2_error *err);
    const char *usage, *what, *options;
} commands[] = {
    {"text2idx", k2i_data_text2idx, "k2rl data text2idx OUT_PREFIX FILE|DIR... [--split] [--tokenizer DIR]",
     "Write text files as Megatron token files OUT_PREFIX.idx and OUT_PREFIX.bin, the tokenizer's end of text behind each "
     "document.",
     "  FILE      one document a file; a second name of a file that was read before is skipped\n"
     "  DIR       its regular files in the order of their names; links and sub-directories are left out\n"
     "  --split   documents are the paragraphs: runs of lines between blank ones\n"
     "  --tokenizer DIR   its ids: a directory with tokenizer.json or tiktoken.model, or such a file (default: bytes)\n"
     "  --pattern NAME    kimi, qwen or cl100k, for ranks in a file of another name\n"},
    {"jsonl2idx", k2i_data_jsonl2idx, "k2rl data jsonl2idx OUT_PREFIX FILE|DIR... [--field NAME] [--tokenizer DIR]",
     "Write one field of JSON lines as Megatron token files, the tokenizer's end of text behind each document.",
     "  --field NAME   the field that holds the text (default: text)\n"
     "  --tokenizer DIR   its ids: a directory with tokenizer.json or tiktoken.model, or such a file (default: bytes)\n"
     "  --pattern NAME    kimi, qwen or cl100k, for ranks in a file of another name\n"},
    {"tokens", k2i_data_tokens, "k2rl data tokens [--tokenizer DIR] TEXT|-",
     "Show the tokens of a text, or of standard input: a line for each with its id and its bytes.",
     "  --tokenizer DIR   its ids: a directory with tokenizer.json or tiktoken.model, or such a file (default: bytes)\n"
     "  --pattern NAME    kimi, qwen or cl100k, for ranks in a file of another name\n"
     "  --trusted         names of special tokens in the text are special tokens\n"
     "  --ids             print the ids alone\n"
     "  --decode          TEXT is ids, and their text is printed\n"},
    {"show", k2i_data_show, "k2rl data show PREFIX|FILE.jsonl [--tokenizer DIR]",
     "Check a token file or a prompt file, and print its counts, its fingerprint and its first item.",
     "  --tokenizer DIR   its ids: a directory with tokenizer.json or tiktoken.model, or such a file (default: bytes)\n"
     "  --pattern NAME    kimi, qwen or cl100k, for ranks in a file of another name\n"},
    {"task", k2i_data_task, "k2rl data task quickstart|licences --out DIR [options]",
     "Generate a task: a corpus for pretraining and, for quickstart, prompts to train on and held-out prompts to measure with.",
     "  quickstart        word games, drawn anew for each seed\n"
     "  licences          the licence texts of a Debian (" K2_TASK_LICENCES_DIR "): a corpus only; takes no sizes\n"
     "  --out DIR         where to write corpus.idx, corpus.bin, prompts.jsonl, heldout.jsonl\n"
     "  --seed N          the same seed and sizes give the same files (default: 1)\n"
     "  --corpus N        documents (default: 20000)\n"
     "  --prompts N       training prompts (default: 4096)\n"
     "  --heldout N       held-out prompts (default: 256)\n"
     "  --letters-min N   letters of a prompt (default: 2)\n"
     "  --letters-max N   (default: 10)\n"
     "  --alphabet N      letters come from the first N of a to z (default: 16)\n"},
};

static void help_all(FILE *to)
{
    fprintf(to, "usage: k2rl data COMMAND ... (--help behind a command says more)\n\n");
    for (size_t i = 0; i < K2_COUNT(commands); i++) fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].what);
}

static bool asks_for_help(const char *arg)
{
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static int unknown_command(const char *name)
{
    const char *names[K2_COUNT(commands)];
    for (size_t i = 0; i < K2_COUNT(commands); i++) names[i] = commands[i].name;
    const char *nearest = k2_str_nearest(name, names, K2_COUNT(names));
    fprintf(stderr, "k2rl data: unknown command \"%.64s\"; %s%s%s\n", name, nearest ? "did you mean " : "see k2rl data --help",
            nearest ? nearest : "", nearest ? "?" : "");
    return 2;
}

int k2_data_main(int argc, char **argv)
{
    k2_error err = {0};
    if (argc < 2) {
        fprintf(stderr, "k2rl data: a command is missing: text2idx, jsonl2idx, tokens, show or task\n");
        return 2;
    }
    if (asks_for_help(argv[1])) {
        help_all(stdout);
        return 0;
    }
    for (size_t i = 0; i < K2_COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        for (int a = 2; a < argc; a++) {
            if (!asks_for_help(argv[a])) continue;
            printf("usage: %s\n\n%s\n%s%s", commands[i].usage, commands[i].what, *commands[i].options ? "\n" : "",
                   commands[i].options);
            return 0;
        }
        k2_code code = commands[i].run(argv + 2, argc - 2, &err);
        if (code != K2_OK) fprintf(stderr, "k2rl data %s: %s\n", commands[i].name, err.text);
        return k2_code_exit(code);
    }
    return unknown_command(argv[1]);
}
