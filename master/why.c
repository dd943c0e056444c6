/* why: the command line of `k2rl why`: asks a running master, or reads what a dead one left in its journal. */
#include "master/find_int.h"
#include "master/look_int.h"
#include "master/master.h"

#include "common/loop/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS   (100 * K2_NS_PER_MS) /* between two looks whether the master has been stopped meanwhile */
#define ANSWER_NS (3 * K2_NS_PER_S)    /* the master answers after half a second; a stopped one never */

static const char help[] =
    "usage: k2rl why [RUN_DIR | --master URL] [--json]\n"
    "\n"
    "Prints who is blocking a run: the chain from the step to the group, trajectory, engine and process, each with its owner, "
    "since\n"
    "when, and its deadline; the culprit is marked. Where no master runs, the journal tells where the run stood. Without "
    "RUN_DIR it\n"
    "is the run.dir that the configuration has by default.\n"
    "\n"
    "  --master URL   control address of the master (ipc://..., tcp://...), where it is not that of RUN_DIR\n"
    "  --json         one JSON object on one line\n"
    "  --help         this text\n";

typedef struct why {
    const char *dir, *url;   /* dir NULL with --master */
    char host[K2M_HOST_MAX]; /* this one */
    bool json;
    uint64_t pid; /* of the master; 0 = not known */
    k2_loop *loop;
    k2_code code;
    bool answered;
    k2_msg reply;
} why;

/* ---- a running master ------------------------------------------------------------------------------------------------------
 */

/* A line and, behind it, what it waits for. */
static void print_wait(const why *y, const k2_msg_waits *w, uint32_t i, int depth)
{
    char pid[K2M_HOST_MAX + 32] = "no process", left[64] = "no deadline", silent[48] = "";
    uint64_t ms = w->left_ms.items[i];
    bool here = w->hosts.items[i][0] == 0 || strcmp(w->hosts.items[i], y->host) == 0;
    char state = here && y->dir ? k2m_process_state(w->pids.items[i]) : 0;
    if (w->pids.items[i])
        snprintf(pid, sizeof pid, "pid %llu%s%s", (unsigned long long)w->pids.items[i], here ? "" : " on ",
                 here ? "" : w->hosts.items[i]);
    if (ms == 0) snprintf(left, sizeof left, "deadline passed");
    if (ms > 0 && ms != UINT64_MAX) snprintf(left, sizeof left, "deadline in %.1f s", (double)ms / 1000);
    if (w->silent_ms.items[i] >= K2M_SILENT_NS / K2_NS_PER_MS)
        snprintf(silent, sizeof silent, ", silent for %.1f s", (double)w->silent_ms.items[i] / 1000);
    printf("%*s%s: %s (%s), since %.1f s, %s%s%s%s\n", 2 + 2 * depth, "", w->what.items[i], w->owners.items[i], pid,
           (double)w->since_ms.items[i] / 1000, left, silent, state == 'T' ? ", stopped by a signal" : "",
           w->culprit == i + 1 ? "  <== culprit" : "");
    for (uint32_t k = i + 1; k < w->what.count; k++)
        if (w->parents.items[k] == i + 1) print_wait(y, w, k, depth + 1);
}

static void print_json(const k2_msg_waits *w)
{
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    k2_buf_puts(&b, "{\"alive\": true, \"run_id\": ");
    k2_buf_json_string(&b, w->run_id, strlen(w->run_id));
    k2_buf_puts(&b, ", \"phase\": ");
    k2_buf_json_string(&b, w->phase, strlen(w->phase));
    k2_buf_printf(&b, ", \"iteration\": %llu, \"version\": %llu, \"culprit\": %llu, \"waits\": [",
                  (unsigned long long)w->iteration, (unsigned long long)w->version, (unsigned long long)w->culprit);
    for (uint32_t i = 0; i < w->what.count; i++) {
        k2_buf_printf(&b, "%s{\"id\": %u, \"parent\": %llu, \"what\": ", i ? ", " : "", i + 1,
                      (unsigned long long)w->parents.items[i]);
        k2_buf_json_string(&b, w->what.items[i], strlen(w->what.items[i]));
        k2_buf_puts(&b, ", \"owner\": ");
        k2_buf_json_string(&b, w->owners.items[i], strlen(w->owners.items[i]));
        k2_buf_printf(&b, ", \"pid\": %llu, \"host\": ", (unsigned long long)w->pids.items[i]);
        k2_buf_json_string(&b, w->hosts.items[i], strlen(w->hosts.items[i]));
        k2_buf_printf(&b, ", \"since_ms\": %llu, \"left_ms\": ", (unsigned long long)w->since_ms.items[i]);
        if (w->left_ms.items[i] == UINT64_MAX)
            k2_buf_puts(&b, "null");
        else
            k2_buf_printf(&b, "%llu", (unsigned long long)w->left_ms.items[i]);
        k2_buf_printf(&b, ", \"silent_ms\": %llu}", (unsigned long long)w->silent_ms.items[i]);
    }
    k2_buf_puts(&b, "]}\n");
    fwrite(b.data, 1, b.len, stdout);
    k2_buf_fini(&b);
}

/* The lists run side by side: a peer that breaks that is not read. */
static bool whole(const k2_msg_waits *w)
{
    uint32_t n = w->what.count;
    return w->owners.count == n && w->parents.count == n && w->pids.count == n && w->hosts.count == n &&
           w->since_ms.count == n && w->left_ms.count == n && w->silent_ms.count == n && w->culprit <= n &&
           n <= K2_WIRE_WAITS_MAX;
}

static void on_reply(void *arg, k2_code code, const k2_msg *reply)
{
    why *y = arg;
    y->code = code;
    y->answered = code == K2_OK;
    if (y->answered) k2_msg_copy(&y->reply, reply);
    k2_loop_stop(y->loop);
}

/* It may have been stopped after it was looked at, or just before: a process that is busy in the kernel stops a little later.
 */
static void look_again(void *arg)
{
    why *y = arg;
    if (k2m_process_state(y->pid) != 'T') return;
    y->code = K2_TIMEOUT;
    k2_loop_stop(y->loop);
}

static k2_code ask(why *y, const char *url, k2_error *err)
{
    y->loop = k2_loop_new();
    k2_net_client *client = k2_net_dial(y->loop, url, err);
    k2_code code = client ? K2_OK : err->code;
    if (client) {
        code = k2_net_request(client, &(k2_msg){.type = K2_MSG_WHY}, ANSWER_NS, on_reply, y);
        k2_timer *again = k2_timer_start(y->loop, LOOK_NS, LOOK_NS, look_again, y);
        if (code == K2_OK) k2_loop_run(y->loop);
        k2_timer_stop(again);
        if (code == K2_OK) code = y->code;
        if (code != K2_OK) k2_error_set(err, code, "%s: the master does not answer: %s", url, k2_code_text(code));
        k2_net_client_close(client);
    }
    k2_loop_free(y->loop);
    if (code != K2_OK) return code;
    const k2_msg *r = &y->reply;
    if (r->type == K2_MSG_REFUSED) return k2_error_set(err, K2_PEER_REFUSED, "%s: refused: %.200s", url, r->refused.text);
    if (r->type != K2_MSG_WAITS || !whole(&r->waits))
        return k2_error_set(err, K2_PEER_PROTOCOL, "%s: the answer is not a wait-for chain", url);
    if (y->json) {
        print_json(&r->waits);
        return K2_OK;
    }
    printf("run %s, iteration %llu, weights %llu, phase %s\n", r->waits.run_id, (unsigned long long)r->waits.iteration + 1,
           (unsigned long long)r->waits.version, r->waits.phase);
    for (uint32_t i = 0; i < r->waits.what.count; i++)
        if (r->waits.parents.items[i] == 0) print_wait(y, &r->waits, i, 0);
    return K2_OK;
}

/* The run's lock is held, but nobody answers: then the master is the culprit. */
static void blame_master(const why *y, uint64_t pid, uint64_t silent_ns, bool stopped)
{
    unsigned long long ms = silent_ns / K2_NS_PER_MS;
    if (y->json)
        printf("{\"alive\": true, \"phase\": null, \"culprit\": 1, \"waits\": [{\"id\": 1, \"parent\": 0, \"what\": \"the "
               "master does not answer%s\", \"owner\": \"master-0\", \"pid\": %llu, \"host\": \"\", \"since_ms\": %llu, "
               "\"left_ms\": null, \"silent_ms\": %llu}]}\n",
               stopped ? ", stopped by a signal" : "", (unsigned long long)pid, ms, ms);
    else
        printf("the master does not answer: master-0 (pid %llu), %s  <== culprit\n", (unsigned long long)pid,
               stopped ? "stopped by a signal" : "silent for 3 s");
}

/* A master that the kernel says is stopped need not be asked: it would not answer. */
static k2_code look(why *y, k2_error *err)
{
    k2m_found run;
    k2_code code = k2m_find(y->dir, &run, err);
    if (code != K2_OK) return code;
    if (run.held && k2m_process_state(run.pid) == 'T') {
        blame_master(y, run.pid, 0, true);
    } else if (run.held) {
        y->pid = run.pid;
        code = ask(y, run.url, err);
        char state = k2m_process_state(run.pid); /* 0: it has ended meanwhile */
        if (code == K2_TIMEOUT && state != 0) {
            blame_master(y, run.pid, ANSWER_NS, state == 'T');
            code = K2_OK;
        }
    } else {
        code = k2m_dead_print(y->dir, &run, y->json, err);
    }
    k2_journal_close(run.journal);
    return code;
}

int k2_why_main(int argc, char **argv)
{
    why y = {0};
    k2_error err = {0};
    int operands = 0;
    bool asked = false;
    const k2_option options[] = {{.name = "--master", .text = &y.url}, {.name = "--json", .flag = &y.json}};
    k2_code code = k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), &operands, &asked, &err);
    if (code == K2_OK && asked) {
        fputs(help, stdout);
        return 0;
    }
    if (code == K2_OK && (operands > 1 || (operands == 1 && y.url)))
        code = k2_error_set(&err, K2_BAD_INPUT, "one RUN_DIR or --master URL; k2rl why --help tells more");
    k2_config standard;
    k2_config_defaults(&standard);
    y.dir = operands == 1 ? argv[1] : y.url ? NULL : standard.run_dir;
    gethostname(y.host, sizeof y.host - 1);
    if (code == K2_OK) code = y.url ? ask(&y, y.url, &err) : look(&y, &err);
    if (code != K2_OK) fprintf(stderr, "k2rl why: %s\n", err.text);
    k2_msg_free(&y.reply);
    return k2_code_exit(code);
}
