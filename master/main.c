/* main: the command line of `k2rl master`. */
#include "master/io_int.h"
#include "master/master.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: k2rl master --cfg FILE [options]\n"
    "\n"
    "Runs a training: starts trainers, rollout workers and the proxy on this machine, and goes on where an earlier start with "
    "the same\n"
    "configuration and run directory ended. Ctrl-C finishes the iteration and saves; a second Ctrl-C stops at once.\n"
    "\n"
    "  --cfg FILE         configuration (JSON); `k2rl config` prints all keys\n"
    "  --set PATH=VALUE   override one key; may be given many times\n"
    "  --run-dir DIR      the same as --set run.dir=DIR\n"
    "  --iterations N     the same as --set iterations=N\n"
    "  --pretrain         trainers only: the same as --set mode=pretrain\n"
    "  --resume           refuse to start unless the run directory holds this run\n"
    "  --dry-run          print the plan (processes, memory, data, ports) and start nothing\n"
    "  --json             the last line on standard output is one JSON object\n"
    "  --help             this text\n";

static k2_code usage(k2_error *err, const char *what, const char *arg)
{
    return k2_error_set(err, K2_BAD_INPUT, "%s \"%.80s\"; k2rl master --help lists the options", what, arg);
}

/* An option that stands for `--set PATH=VALUE`. */
static const char *alias(const char *arg)
{
    static const struct {
        const char *option, *path;
    } list[] = {{"--run-dir", "run.dir"}, {"--iterations", "iterations"}};
    for (size_t i = 0; i < K2_COUNT(list); i++)
        if (strcmp(arg, list[i].option) == 0) return list[i].path;
    return NULL;
}

static k2_code set(k2_config *c, const char *path, const char *value, k2_error *err)
{
    char *assignment = k2_asprintf("%s=%s", path, value);
    k2_code code = k2_config_set(c, assignment, err);
    k2_free(assignment);
    return code;
}

/* The file comes first wherever it stands, then the overrides in their order. */
static k2_code load_config(k2m_run *r, k2_error *err)
{
    const char *file = NULL;
    for (int i = 1; i < r->argc; i++) {
        if (strcmp(r->argv[i], "--cfg") != 0) continue;
        if (file) return usage(err, "a second", "--cfg");
        if (i + 1 == r->argc) return usage(err, "a file is missing behind", "--cfg");
        file = r->argv[++i];
    }
    if (!file) return k2_error_set(err, K2_BAD_INPUT, "--cfg FILE is missing; k2rl master --help lists the options");
    k2_config_defaults(&r->config);
    return k2_config_load(&r->config, file, err);
}

static k2_code parse(k2m_run *r, k2_error *err)
{
    k2_code code = load_config(r, err);
    for (int i = 1; i < r->argc && code == K2_OK; i++) {
        const char *arg = r->argv[i], *path = alias(arg);
        bool takes = path || strcmp(arg, "--cfg") == 0 || strcmp(arg, "--set") == 0;
        if (takes && i + 1 == r->argc) return usage(err, "a value is missing behind", arg);
        if (strcmp(arg, "--cfg") == 0)
            i++;
        else if (strcmp(arg, "--set") == 0)
            code = k2_config_set(&r->config, r->argv[++i], err);
        else if (path)
            code = set(&r->config, path, r->argv[++i], err);
        else if (strcmp(arg, "--pretrain") == 0)
            code = k2_config_set(&r->config, "mode=pretrain", err);
        else if (strcmp(arg, "--resume") == 0)
            r->resume = true;
        else if (strcmp(arg, "--dry-run") == 0)
            r->dry_run = true;
        else if (strcmp(arg, "--json") == 0)
            r->json = true;
        else
            return usage(err, "unknown option", arg);
    }
    return code;
}

int k2_master_main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
    k2m_run run = {.argc = argc, .argv = argv};
    k2_error err = {0};
    k2_journal *journal = NULL;
    int status = 0;
    k2_code code = parse(&run, &err);
    if (code == K2_OK) code = k2m_run_check(&run, &err);
    if (code == K2_OK && run.dry_run)
        k2m_plan_print(&run);
    else if (code == K2_OK && (code = k2m_run_prepare(&run, &journal, &err)) == K2_OK)
        status = k2m_io_run(&run, journal);
    if (code != K2_OK) {
        fprintf(stderr, "k2rl master: %s\n", err.text);
        status = k2_code_exit(code);
    }
    k2m_run_fini(&run);
    return status;
}
