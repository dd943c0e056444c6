/* rollout_main - the command line of `k2rl rollout`. */
#include "rollout/rollout.h"

#include <stdio.h>
#include <string.h>

#include "rollout/options_int.h"

#define WORKER_LISTEN "127.0.0.1:0"
#define ALONE_LISTEN  "127.0.0.1:8000"

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: k2rl rollout --master URL --index I [--nonce N] [--listen HOST:PORT]\n"
        "       k2rl rollout --model DIR [--listen HOST:PORT] [--name NAME] [--set rollout.KEY=VALUE]...\n\n"
        "The first form is a worker of a run; the master starts it. The second serves a Hugging Face model directory, such as "
        "a\n"
        "checkpoint's, under the OpenAI interface: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics.\n\n"
        "  --master URL        control address of the master\n"
        "  --index I           number of this worker, from 0\n"
        "  --nonce N           number that the master knows this start by\n"
        "  --model DIR         directory with config.json and model.safetensors\n"
        "  --listen HOST:PORT  where to serve; port 0 takes a free one (" WORKER_LISTEN "; alone " ALONE_LISTEN ")\n"
        "  --name NAME         name of the served model (k2rl)\n"
        "  --set KEY=VALUE     any configuration key; those under rollout. and tokenizer. are used\n");
}

/* The value behind option i, NULL with an error where there is none. */
static const char *value_of(int argc, char **argv, int *i, k2_error *err)
{
    if (*i + 1 < argc) return argv[++*i];
    k2_error_set(err, K2_BAD_INPUT, "%s: found nothing behind it, expected a value", argv[*i]);
    return NULL;
}

static k2_code take_number(const char *name, const char *text, uint64_t *out, k2_error *err)
{
    if (k2_str_u64(text, out)) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "%s: found \"%.60s\", expected a whole number", name, text);
}

static k2_code take_option(const char *name, const char *value, k2i_options *o, k2_error *err)
{
    if (strcmp(name, "--master") == 0)
        o->master = value;
    else if (strcmp(name, "--model") == 0)
        o->model = value;
    else if (strcmp(name, "--name") == 0)
        o->name = value;
    else if (strcmp(name, "--index") == 0)
        return take_number(name, value, &o->index, err);
    else if (strcmp(name, "--nonce") == 0)
        return take_number(name, value, &o->nonce, err);
    else if (strcmp(name, "--set") == 0)
        return k2_config_set(&o->config, value, err);
    else if (k2_hostport_parse(value, o->host, &o->port, err) != K2_OK)
        return k2_error_prefix(err, "%s", name);
    return K2_OK;
}

k2_code k2i_options_parse(int argc, char **argv, k2i_options *out, k2_error *err)
{
    static const char *const names[] = {"--master", "--index", "--nonce", "--model", "--listen", "--name", "--set", "--help"};
    memset(out, 0, sizeof *out);
    k2_config_defaults(&out->config);
    out->name = "k2rl";
    bool has_index = false;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        bool known = false;
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
            out->help = true;
            return K2_OK;
        }
        for (size_t k = 0; k < K2_COUNT(names); k++) known = known || strcmp(name, names[k]) == 0;
        if (!known) {
            const char *near = k2_str_nearest(name, names, K2_COUNT(names));
            return k2_error_set(err, K2_BAD_INPUT, "%.60s: unknown option%s%s%s", name, near ? ", did you mean " : "",
                                near ? near : "", near ? "?" : "");
        }
        const char *value = value_of(argc, argv, &i, err);
        if (!value || take_option(name, value, out, err) != K2_OK) return err->code;
        has_index = has_index || strcmp(name, "--index") == 0;
    }
    if (!out->master == !out->model) return k2_error_set(err, K2_BAD_INPUT, "expected one of --master URL and --model DIR");
    if (out->master && !has_index) return k2_error_set(err, K2_BAD_INPUT, "--master: expected --index I with it");
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
