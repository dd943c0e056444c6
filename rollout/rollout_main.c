/* rollout_main - the command line of `k2rl rollout`. */
#include "rollout/rollout.h"

#include <stdio.h>
#include <string.h>

#include "rollout/options_int.h"

#define WORKER_LISTEN "127.0.0.1:0"
#define ALONE_LISTEN  "127.0.0.1:8000"
#define INDEX_NONE    UINT64_MAX /* --index was not given */

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: k2rl rollout --model DIR [--listen HOST:PORT] [--name NAME] [--set PATH=VALUE ...]\n"
        "       k2rl rollout --master URL --index I [--nonce N] [--listen HOST:PORT]\n\n"
        "The second form is a worker of a run; the master starts it. The first serves a Hugging Face model directory, such as "
        "a\n"
        "checkpoint's, under the OpenAI interface: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics.\n\n"
        "  --master URL        control address of the master\n"
        "  --index I           number of this worker, from 0\n"
        "  --nonce N           number that the master knows this start by\n"
        "  --model DIR         Hugging Face model directory\n"
        "  --listen HOST:PORT  where to serve; port 0 takes a free one (" WORKER_LISTEN "; alone " ALONE_LISTEN ")\n"
        "  --name NAME         name of the served model (k2rl)\n"
        "  --set PATH=VALUE    one key of the configuration, such as rollout.batch_max=8; model.compute and those under "
        "rollout. "
        "and tokenizer. are used\n"
        "  --help              this text\n");
}

static k2_code take_listen(void *arg, const char *value, k2_error *err)
{
    k2i_options *o = arg;
    return k2_hostport_parse(value, o->host, &o->port, err) == K2_OK ? K2_OK : k2_error_prefix(err, "--listen");
}

static k2_code take_set(void *arg, const char *value, k2_error *err)
{
    k2i_options *o = arg;
    return k2_config_set(&o->config, value, err);
}

k2_code k2i_options_parse(int argc, char **argv, k2i_options *out, k2_error *err)
{
    const k2_option options[] = {
        {.name = "--master", .text = &out->master},
        {.name = "--index", .u64 = &out->index},
        {.name = "--nonce", .u64 = &out->nonce},
        {.name = "--model", .text = &out->model},
        {.name = "--listen", .take = take_listen, .arg = out},
        {.name = "--name", .text = &out->name},
        {.name = "--set", .take = take_set, .arg = out},
    };
    memset(out, 0, sizeof *out);
    k2_config_defaults(&out->config);
    out->name = "k2rl";
    out->index = INDEX_NONE;
    k2_code code = k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), NULL, &out->help, err);
    if (code != K2_OK || out->help) return code;
    if (!out->master == !out->model) return k2_error_set(err, K2_BAD_INPUT, "expected one of --master URL and --model DIR");
    if (out->master && out->index == INDEX_NONE) return k2_error_set(err, K2_BAD_INPUT, "--master: expected --index I with it");
    if (strlen(out->name) == 0 || strlen(out->name) > 100)
        return k2_error_set(err, K2_BAD_INPUT, "--name: found %zu bytes, expected 1 to 100", strlen(out->name));
    if (!out->host[0]) return k2_hostport_parse(out->master ? WORKER_LISTEN : ALONE_LISTEN, out->host, &out->port, err);
    return K2_OK;
}

int k2_rollout_main(int argc, char **argv)
{
    k2i_options *o = k2_alloc(sizeof *o);
    k2_error err = {0};
    int rc;
    if (k2i_options_parse(argc, argv, o, &err) != K2_OK) {
        fprintf(stderr, "k2rl rollout: %s\n", err.text);
        rc = k2_code_exit(err.code);
    } else if (o->help) {
        usage(stdout);
        rc = 0;
    } else {
        rc = o->master ? k2i_worker_run(o) : k2i_serve_run(o);
    }
    k2_free(o);
    return rc;
}
