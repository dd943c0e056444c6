/* `k2rl ckpt`: the table of sub-commands, their help, and what they share. */
#include "common/ckpt/ckpt.h"
#include "commands_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    k2_code (*run)(char **args, int count, k2_error *err);
    const char *usage, *what, *options;
} commands[] = {
    {"show", k2i_ckpt_show, "k2rl ckpt show DIR [--json]",
     "Print the sizes, files and tensors of a model directory. Reads headers only.",
     "  --json    one JSON object: dims, files with their recorded digests, tensors, totals\n"},
    {"verify", k2i_ckpt_verify, "k2rl ckpt verify DIR",
     "Check a model directory: config.json, index and shards, names and shapes against the sizes, every number finite, "
     "digests.",
     "The weights digest that is printed is the one by which engines and proxies name these weights.\n"
     "Exit status: 0 all is well, 2 the directory is damaged or not one of this model's, 1 it could not be read.\n"},
    {"convert", k2i_ckpt_convert, "k2rl ckpt convert FROM TO [--dtype TYPE] [--shard-bytes N]",
     "Write the model directory FROM as a new one, TO. Nothing is written over; TO comes to be in one step or not at all.",
     "  --dtype TYPE       f32, bf16, f16 or fp8 (e4m3 in blocks of 128 x 128 with scales); default bf16\n"
     "  --shard-bytes N    of weights in one file at most; 0: one file; default 5000000000\n"},
};

static void help(FILE *to)
{
    fprintf(to, "usage: k2rl ckpt COMMAND ...      (k2rl ckpt COMMAND --help tells more)\n\n");
    for (size_t i = 0; i < K2_COUNT(commands); i++) fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].what);
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

static int run(size_t command, int argc, char **argv)
{
    k2_error err = {0};
    if (asks_for_help(argc, argv)) {
        printf("usage: %s\n\n%s\n\n%s", commands[command].usage, commands[command].what, commands[command].options);
        return 0;
    }
    k2_code code = commands[command].run(argv + 2, argc - 2, &err);
    if (code == K2_OK && fflush(stdout) != 0) code = k2_error_set(&err, K2_IO, "cannot write to stdout");
    if (code != K2_OK) fprintf(stderr, "k2rl ckpt %s: %s\n", commands[command].name, err.text);
    return k2_code_exit(code);
}

int k2_ckpt_main(int argc, char **argv)
{
    for (size_t i = 0; i < K2_COUNT(commands) && argc > 1; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return run(i, argc, argv);
    if (asks_for_help(argc, argv)) {
        help(stdout);
        return 0;
    }
    if (argc > 1)
        fprintf(stderr, "k2rl ckpt: unknown command \"%.64s\", expected show, verify or convert\n", argv[1]);
    else
        fprintf(stderr, "k2rl ckpt: a command is missing: show, verify or convert\n");
    return 2;
}

/* ---- shared ------------------------------------------------------------------------------------------------------ */

k2_code k2i_ckpt_dims(const char *dir, k2_dims *out, k2_error *err)
{
    char *path = k2_asprintf("%s/config.json", dir);
    k2_code code = k2_weights_dims_load(path, out, err);
    k2_free(path);
    return code;
}

void k2i_ckpt_meter_move(void *arg, uint64_t done, uint64_t total)
{
    k2i_ckpt_meter *m = arg;
    const unsigned percent = total ? (unsigned)((double)done / (double)total * 100) : 100;
    if (percent == m->shown || !isatty(STDERR_FILENO)) return;
    m->shown = percent;
    fprintf(stderr, "\r%s %3u %% of %.1f GB", m->what, percent, (double)total / 1e9);
    fflush(stderr);
}

void k2i_ckpt_meter_end(k2i_ckpt_meter *m)
{
    if (m->shown) fprintf(stderr, "\n");
}
