/* trace: the command line of `k2rl trace`: what the processes of a run, dead or alive, have recorded. */
#include "master/master.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/config/config.h"
#include "common/flight/trace.h"

static const char help[] =
    "usage: k2rl trace [RUN_DIR] [-o FILE] [--last SECONDS] [--json-summary]\n"
    "\n"
    "Merges what the processes of a run have recorded last (RUN_DIR/flight; also of those that were killed) into a Chrome "
    "trace,\n"
    "which https://ui.perfetto.dev and chrome://tracing open. Prints what each process did last and is still in, and which "
    "rank\n"
    "did not enter which collective. The run may be going on. Without RUN_DIR it is the run.dir that the configuration has by\n"
    "default.\n"
    "\n"
    "  -o FILE          where the trace goes (default RUN_DIR/trace.json)\n"
    "  --last SECONDS   only the last part\n"
    "  --json-summary   what is printed is one JSON object on one line\n"
    "  --help           this text\n";

typedef struct options {
    const char *dir, *file;
    double last; /* seconds; 0: all */
    bool json, help;
} options;

static k2_code take_seconds(void *arg, const char *value, k2_error *err)
{
    char *end;
    double seconds = strtod(value, &end);
    if (end == value || *end != 0 || !isfinite(seconds) || seconds <= 0)
        return k2_error_set(err, K2_BAD_INPUT, "--last: found \"%.64s\", expected seconds above 0", value);
    *(double *)arg = seconds;
    return K2_OK;
}

static bool put(void *arg, const void *bytes, size_t n)
{
    return fwrite(bytes, 1, n, arg) == n;
}

/* Beside its place first: whoever looks at it never sees half of one. */
static k2_code write_file(const k2_flight_trace *trace, const char *path, k2_error *err)
{
    char *part = k2_temp_name(path);
    k2_code code = K2_OK;
    k2_temp_clear(path);
    FILE *f = fopen(part, "we");
    if (f == NULL) {
        code = k2_error_errno(err, errno, "%s: cannot create", part);
    } else {
        bool ok = k2_flight_chrome_write(trace, put, f);
        ok = fclose(f) == 0 && ok;
        if (!ok || rename(part, path) != 0) {
            code = k2_error_errno(err, errno, "%s: cannot write", path);
            (void)unlink(part);
        }
    }
    k2_free(part);
    return code;
}

static void skipped(void *arg, const char *text)
{
    (void)arg;
    fprintf(stderr, "k2rl trace: left out: %s\n", text);
}

static k2_code trace_run(const options *o, k2_error *err)
{
    k2_flight_trace *trace;
    k2_flight_collectives c;
    k2_buf out;
    k2_code code = k2_flight_trace_load(o->dir, skipped, NULL, &trace, err);
    if (code != K2_OK) return code;
    if (o->last > 0) k2_flight_trace_last(trace, o->last);
    char *path = o->file ? k2_strdup(o->file) : k2_asprintf("%s/trace.json", o->dir);
    code = write_file(trace, path, err);
    if (code == K2_OK) {
        k2_buf_init(&out, SIZE_MAX / 2);
        k2_flight_collectives_find(trace, &c);
        if (o->json)
            k2_flight_summary_json(trace, &c, &out);
        else
            k2_flight_summary_text(trace, &c, &out);
        fputs(out.data, stdout);
        if (!o->json) printf("trace: %s (https://ui.perfetto.dev opens it)\n", path);
        k2_flight_collectives_fini(&c);
        k2_buf_fini(&out);
    }
    k2_free(path);
    k2_flight_trace_free(trace);
    return code;
}

int k2_trace_main(int argc, char **argv)
{
    options o = {0};
    k2_config config;
    k2_error err = {0};
    int operands = 0;
    const k2_option list[] = {{.name = "-o", .text = &o.file},
                              {.name = "--last", .take = take_seconds, .arg = &o.last},
                              {.name = "--json-summary", .flag = &o.json}};
    k2_code code = k2_args_parse(argv + 1, argc - 1, list, K2_COUNT(list), &operands, &o.help, &err);
    if (code == K2_OK && o.help) {
        fputs(help, stdout);
        return 0;
    }
    if (code == K2_OK && operands > 1)
        code = k2_error_set(&err, K2_BAD_INPUT, "found \"%.80s\", expected one RUN_DIR; k2rl trace --help tells more", argv[2]);
    k2_config_defaults(&config);
    o.dir = operands == 1 ? argv[1] : config.run_dir;
    if (code == K2_OK) code = trace_run(&o, &err);
    if (code != K2_OK) fprintf(stderr, "k2rl trace: %s\n", err.text);
    return k2_code_exit(code);
}
