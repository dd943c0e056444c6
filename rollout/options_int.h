/* options - the command line of `k2rl rollout`, and the two programs behind it. */
#ifndef K2_ROLLOUT_OPTIONS_INT_H
#define K2_ROLLOUT_OPTIONS_INT_H

#include "common/config/config.h"
#include "common/http/http.h"

typedef struct k2i_options {
    const char *master; /* a worker of this master, */
    const char *model;  /* or a model directory to serve alone */
    const char *name;   /* of the served model */
    uint64_t index, nonce;
    char host[K2_HTTP_HOST_MAX];
    uint16_t port;
    k2_config config; /* defaults with the --set of the command line; a worker's comes from its master */
    bool help;
} k2i_options;

/* BAD_INPUT names the option; out is undefined then. */
k2_code k2i_options_parse(int argc, char **argv, k2i_options *out, k2_error *err);

/* Give the exit status. */
int k2i_worker_run(const k2i_options *o);
int k2i_serve_run(const k2i_options *o);

#endif
