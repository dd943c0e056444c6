/* k2rl - the door: picks the sub-command. */
#include "common/config/config.h"
#include "common/data/data.h"
#include "common/weights/weights.h"
#include "master/master.h"
#include "proxy/proxy.h"
#include "rollout/rollout.h"
#include "trainer/trainer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static int config_main(int argc, char **argv);
static int version_main(int argc, char **argv);

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"master", "run a training: master, replay buffer, and on one machine all workers too", k2_master_main},
    {"trainer", "one trainer rank (started by the master)", k2_trainer_main},
    {"rollout", "one inference engine: a worker of a master, or alone on a model directory", k2_rollout_main},
    {"proxy", "OpenAI-compatible endpoint in front of engines", k2_proxy_main},
    {"data", "make and look at data sets", k2_data_main},
    {"ckpt", "look at and verify model directories", k2_weights_main},
    {"config", "print the reference page of all configuration keys", config_main},
    {"version", "print the version", version_main},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: k2rl COMMAND [options]      (k2rl COMMAND --help tells more)\n\n");
    for (size_t i = 0; i < K2_COUNT(commands); i++) fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n  k2rl master --cfg configs/quickstart.json    is a good first one\n");
}

static int config_main(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "k2rl config: found \"%s\", expected no argument\n", argv[1]);
        return 2;
    }
    char *page = k2_config_markdown();
    int rc = fputs(page, stdout) < 0 || fflush(stdout) != 0;
    k2_free(page);
    return rc;
}

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("k2rl %s\n", K2_VERSION);
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a peer that went away is an error code, not a death */
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    const char *word = argv[1], *names[K2_COUNT(commands)];
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        usage(stdout);
        return 0;
    }
    for (size_t i = 0; i < K2_COUNT(commands); i++) {
        if (strcmp(word, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
        names[i] = commands[i].name;
    }
    const char *near = k2_str_nearest(word, names, K2_COUNT(names));
    fprintf(stderr, "k2rl: %.60s: unknown command%s%s%s\n", word, near ? ", did you mean " : "", near ? near : "", near ? "?" : "");
    return 2;
}
