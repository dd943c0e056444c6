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

/* What overrides the file, in the order in which it was given; the file itself may stand anywhere. */
typedef struct overrides {
    const char *file;
    char **list; /* "path=value", each k2_free'd */
    size_t count;
} overrides;

static void override(overrides *o, const char *path, const char *value)
{
    o->list[o->count++] = path ? k2_asprintf("%s=%s", path, value) : k2_strdup(value);
}

static k2_code take_set(void *arg, const char *value, k2_error *err)
{
    (void)err;
    override(arg, NULL, value);
    return K2_OK;
}

static k2_code take_run_dir(void *arg, const char *value, k2_error *err)
{
    (void)err;
    override(arg, "run.dir", value);
    return K2_OK;
}

static k2_code take_iterations(void *arg, const char *value, k2_error *err)
{
    (void)err;
    override(arg, "iterations", value);
    return K2_OK;
}

static k2_code take_file(void *arg, const char *value, k2_error *err)
{
    overrides *o = arg;
    if (o->file) return k2_error_set(err, K2_BAD_INPUT, "--cfg: given twice, \"%.80s\" and \"%.80s\"", o->file, value);
    o->file = value;
    return K2_OK;
}

static k2_code configure(k2m_run *r, const overrides *o, bool pretrain, k2_error *err)
{
    if (!o->file) return k2_error_set(err, K2_BAD_INPUT, "--cfg FILE is missing; k2rl master --help lists the options");
    k2_config_defaults(&r->config);
    k2_code code = k2_config_load(&r->config, o->file, err);
    for (size_t i = 0; i < o->count && code == K2_OK; i++) code = k2_config_set(&r->config, o->list[i], err);
    if (code == K2_OK && pretrain) code = k2_config_set(&r->config, "mode=pretrain", err);
    return code;
}

static k2_code parse(k2m_run *r, bool *asked, k2_error *err)
{
    bool pretrain = false;
    overrides o = {.list = k2_alloc_array((size_t)r->argc, sizeof *o.list)};
    const k2_option options[] = {
        {.name = "--cfg", .take = take_file, .arg = &o},
        {.name = "--set", .take = take_set, .arg = &o},
        {.name = "--run-dir", .take = take_run_dir, .arg = &o},
        {.name = "--iterations", .take = take_iterations, .arg = &o},
        {.name = "--pretrain", .flag = &pretrain},
        {.name = "--resume", .flag = &r->resume},
        {.name = "--dry-run", .flag = &r->dry_run},
        {.name = "--json", .flag = &r->json},
    };
    k2_code code = k2_args_parse(r->argv + 1, r->argc - 1, options, K2_COUNT(options), NULL, asked, err);
    if (code == K2_OK && !*asked) code = configure(r, &o, pretrain, err);
    for (size_t i = 0; i < o.count; i++) k2_free(o.list[i]);
    k2_free(o.list);
    return code;
}

int k2_master_main(int argc, char **argv)
{
    k2m_run run = {.argc = argc, .argv = argv};
    k2_error err = {0};
    k2_journal *journal = NULL;
    int status = 0;
    bool asked = false;
    k2_code code = parse(&run, &asked, &err);
    if (code == K2_OK && asked) {
        fputs(help, stdout);
        return 0;
    }
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
