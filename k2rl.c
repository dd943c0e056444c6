/* k2rl - the door: picks the sub-command. */
#include "common/ckpt/ckpt.h"
#include "common/config/config.h"
#include "common/data/data.h"
#include "common/net/net.h"
#include "common/stack/stack.h"
#include "master/master.h"
#include "proxy/proxy.h"
#include "rollout/rollout.h"
#include "trainer/trainer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int config_main(int argc, char **argv);
static int version_main(int argc, char **argv);
static int replay_step_main(int argc, char **argv);

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"master", "run a training: master, replay buffer, and on one machine all workers too", k2_master_main},
    {"trainer", "one trainer rank (started by the master)", k2_trainer_main},
    {"rollout", "one inference engine: a worker of a master, or alone on a model directory", k2_rollout_main},
    {"proxy", "OpenAI-compatible endpoint in front of engines", k2_proxy_main},
    {"top", "how a run goes: roles, leases, queues, rates, live", k2_top_main},
    {"why", "who is blocking a run, down to the process; or where a dead one stood", k2_why_main},
    {"trace", "what every process of a run did last, as a Chrome trace; which rank missed which collective", k2_trace_main},
    {"replay-step", "repeat what a run put aside: a bad step, a prompt that ends engines, a failed reward", replay_step_main},
    {"stacks", "call stacks of all processes of a run, outliers first", k2_stacks_main},
    {"data", "make and look at data sets", k2_data_main},
    {"ckpt", "look at, verify and convert model directories", k2_ckpt_main},
    {"config", "print the reference page of all configuration keys", config_main},
    {"version", "print the version", version_main},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: k2rl COMMAND [options]      (k2rl COMMAND --help tells more)\n\n");
    for (size_t i = 0; i < K2_COUNT(commands); i++) fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n  k2rl master --cfg configs/quickstart.json    is a good first one\n");
}

/* Commands without options. True when all is said. */
static bool no_options(int argc, char **argv, const char *what, int *status)
{
    bool help = false;
    k2_error err;
    k2_code code = k2_args_parse(argv + 1, argc - 1, NULL, 0, NULL, &help, &err);
    if (code != K2_OK) fprintf(stderr, "k2rl %s: %s\n", argv[0], err.text);
    if (help) printf("usage: k2rl %s\n\n%s\n", argv[0], what);
    *status = k2_code_exit(code);
    return code != K2_OK || help;
}

static int config_main(int argc, char **argv)
{
    int rc;
    if (no_options(argc, argv, "Prints the reference page of all configuration keys, as Markdown.", &rc)) return rc;
    char *page = k2_config_markdown();
    rc = fputs(page, stdout) < 0 || fflush(stdout) != 0;
    k2_free(page);
    return rc;
}

static int version_main(int argc, char **argv)
{
    int rc;
    if (no_options(argc, argv, "Prints the version.", &rc)) return rc;
    printf("k2rl %s\n", K2_VERSION);
    return 0;
}

/* A crash reports itself. Who may look at our stacks beside root: the master and its children; that is our parent, or
 * ourselves. The command that takes stacks must not take its own in a circle. */
static void arm(const char *word)
{
    if (strcmp(word, "stacks") != 0) k2_stack_arm(strcmp(word, "master") == 0 ? getpid() : getppid());
}

/* What was put aside belongs to one role or the other. */
static int replay_step_main(int argc, char **argv)
{
    static const k2_replay_step_ops ops = {.step = k2_trainer_repeat,
                                           .weights = k2_trainer_weights,
                                           .prompt = k2_rollout_repeat_prompt,
                                           .reward = k2_rollout_repeat_reward,
                                           .here = k2_rollout_reward_here};
    return k2_replay_step_main(argc, argv, &ops);
}

int main(int argc, char **argv)
{
    k2_net_process_begin();
    k2_memory_begin();
    signal(SIGPIPE, SIG_IGN); /* a peer that went away is an error code, not a death */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow any further (ulimit -f) */
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
        if (strcmp(word, commands[i].name) == 0) {
            arm(word);
            k2_net_process_end(commands[i].run(argc - 1, argv + 1));
        }
        names[i] = commands[i].name;
    }
    const char *near = k2_str_nearest(word, names, K2_COUNT(names));
    fprintf(stderr, "k2rl: unknown command \"%.60s\"%s%s%s\n", word, near ? "; did you mean " : "", near ? near : "",
            near ? "?" : "");
    return 2;
}
