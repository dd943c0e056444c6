/* why: the command line of `k2rl why`: asks a running master, or reads what a dead one left in its journal. */
#include "master/io_int.h"
#include "master/master.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_NS     (3 * K2_NS_PER_S) /* the master answers after half a second; a stopped one never */
#define PROMPT_TOKENS 8192u             /* room for prompts while a journal is read: nothing is generated from them */

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
    k2_config config;
    const char *dir, *url; /* dir NULL with --master */
    bool json;
    k2_loop *loop;
    k2_code code;
    bool answered;
    k2_msg reply;
} why;

/* ---- a running master ------------------------------------------------------------------------------------------------------
 */

/* The kernel's letter for a process of this machine ('T' = stopped), 0 when it cannot be told. */
static char process_state(const why *y, uint64_t pid)
{
    char path[64], text[512];
    if (!y->dir || pid == 0) return 0;
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : 0;
}

static uint32_t depth_of(const k2_msg_waits *w, uint32_t i)
{
    uint32_t depth = 0;
    for (uint64_t p = w->parents.items[i]; p > 0 && p <= i && depth < 8; p = w->parents.items[p - 1]) depth++;
    return depth;
}

static void print_wait(const why *y, const k2_msg_waits *w, uint32_t i)
{
    char pid[32] = "no process", left[64] = "no deadline", silent[48] = "";
    uint64_t ms = w->left_ms.items[i];
    char state = process_state(y, w->pids.items[i]);
    if (w->pids.items[i]) snprintf(pid, sizeof pid, "pid %llu", (unsigned long long)w->pids.items[i]);
    if (ms == 0) snprintf(left, sizeof left, "deadline passed");
    if (ms > 0 && ms != UINT64_MAX) snprintf(left, sizeof left, "deadline in %.1f s", (double)ms / 1000);
    if (w->silent_ms.items[i] >= K2M_SILENT_NS / K2_NS_PER_MS)
        snprintf(silent, sizeof silent, ", silent for %.1f s", (double)w->silent_ms.items[i] / 1000);
    printf("%*s%s: %s (%s), since %.1f s, %s%s%s%s\n", (int)(2 + 2 * depth_of(w, i)), "", w->what.items[i], w->owners.items[i],
           pid, (double)w->since_ms.items[i] / 1000, left, silent, state == 'T' ? ", stopped by a signal" : "",
           w->culprit == i + 1 ? "  <== culprit" : "");
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
        k2_buf_printf(&b, ", \"pid\": %llu, \"since_ms\": %llu, \"left_ms\": ", (unsigned long long)w->pids.items[i],
                      (unsigned long long)w->since_ms.items[i]);
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
    return w->owners.count == n && w->parents.count == n && w->pids.count == n && w->since_ms.count == n &&
           w->left_ms.count == n && w->silent_ms.count == n && w->culprit <= n;
}

static void on_reply(void *arg, k2_code code, const k2_msg *reply)
{
    why *y = arg;
    y->code = code;
    y->answered = code == K2_OK;
    if (y->answered) k2_msg_copy(&y->reply, reply);
    k2_loop_stop(y->loop);
}

static k2_code ask(why *y, const char *url, k2_error *err)
{
    y->loop = k2_loop_new();
    k2_net_client *client = k2_net_dial(y->loop, url, err);
    k2_code code = client ? K2_OK : err->code;
    if (client) {
        code = k2_net_request(client, &(k2_msg){.type = K2_MSG_WHY}, ANSWER_NS, on_reply, y);
        if (code == K2_OK) k2_loop_run(y->loop);
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
    for (uint32_t i = 0; i < r->waits.what.count; i++) print_wait(y, &r->waits, i);
    return K2_OK;
}

/* The run's lock is held, but nobody answers: then the master is the culprit. */
static k2_code blame_master(const why *y, const k2_error *busy, k2_error *err)
{
    const char *at = strstr(busy->text, "pid ");
    uint64_t pid = at ? strtoull(at + 4, NULL, 10) : 0;
    char state = process_state(y, pid);
    if (state == 0) return err->code; /* it has ended meanwhile */
    bool stopped = state == 'T';
    if (y->json)
        printf("{\"alive\": true, \"phase\": null, \"culprit\": 1, \"waits\": [{\"id\": 1, \"parent\": 0, \"what\": \"the "
               "master does "
               "not answer\", \"owner\": \"master-0\", \"pid\": %llu, \"since_ms\": %llu, \"left_ms\": 0, \"silent_ms\": "
               "%llu}]}\n",
               (unsigned long long)pid, (unsigned long long)(ANSWER_NS / K2_NS_PER_MS),
               (unsigned long long)(ANSWER_NS / K2_NS_PER_MS));
    else
        printf("the master does not answer: master-0 (pid %llu), silent for %.1f s at least%s  <== culprit\n",
               (unsigned long long)pid, (double)ANSWER_NS / 1e9, stopped ? ", stopped by a signal" : "");
    return K2_OK;
}

/* ---- a dead run
 * -------------------------------------------------------------------------------------------------------------- */

static void no_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

typedef struct reading {
    k2m_core *core;
    k2_code code;
    k2_error *err;
} reading;

static bool apply(void *arg, const k2_journal_record *r)
{
    reading *x = arg;
    x->code = k2m_core_apply(x->core, r->type, r->bytes, r->len, x->err);
    return x->code == K2_OK;
}

static void print_dead(const why *y, const k2m_core *m)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    uint32_t waiting = n.queued - n.queued_resumed;
    if (y->json) {
        printf("{\"alive\": false, \"finished\": %s, \"iteration\": %llu, \"iterations\": %llu, \"version\": %llu, "
               "\"batch_taken\": %llu, \"checkpoint\": %lld, \"running\": %u, \"cut\": %u, \"waiting\": %u, \"unscored\": %u, "
               "\"scored\": %u",
               m->finished ? "true" : "false", (unsigned long long)m->iteration, (unsigned long long)y->config.iterations,
               (unsigned long long)n.step_consumed, (unsigned long long)n.step_taken,
               m->checkpoint.exists ? (long long)m->checkpoint.number : -1LL, n.running, n.queued_resumed, waiting, n.finished,
               n.scored);
        return;
    }
    printf("no master runs in %s; its journal says:\n", y->dir);
    printf("  %llu of %llu iterations have ended%s; weights version %llu\n", (unsigned long long)m->iteration,
           (unsigned long long)y->config.iterations, m->finished ? ", the run has ended" : "",
           (unsigned long long)n.step_consumed);
    if (n.step_taken > n.step_consumed)
        printf("  the batch of step %llu was being trained\n", (unsigned long long)n.step_taken);
    if (m->checkpoint.exists)
        printf("  last checkpoint: step_%07llu, of iteration %llu\n", (unsigned long long)m->checkpoint.number,
               (unsigned long long)m->checkpoint.iteration);
    else
        printf("  no checkpoint yet\n");
    printf("  trajectories in flight: %u; cut and waiting: %u; not begun: %u; finished without a reward: %u; scored: %u\n",
           n.running, n.queued_resumed, waiting, n.finished, n.scored);
}

/* Who went down last, and what first: of a run that has ended as it should it says nothing. */
static void print_exits(const why *y, const k2m_core *m)
{
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    if (!m->finished || y->json) k2m_exits_show(y->dir, y->json, &b);
    if (y->json) k2_buf_puts(&b, "}\n");
    fwrite(b.data, 1, b.len, stdout);
    k2_buf_fini(&b);
}

static k2_code look_back(why *y, k2_journal *journal, k2_error *err)
{
    k2m_core_config cc = {
        .config = &y->config, .prompts = {.length_max = PROMPT_TOKENS}, .checkpoints_dir = "", .record = no_record};
    reading x = {.err = err};
    k2_code code = k2m_core_new(&cc, &x.core, err);
    if (code != K2_OK) return code;
    code = k2_journal_read(journal, 0, apply, &x, err);
    if (code == K2_OK) code = x.code;
    if (code == K2_OK) {
        print_dead(y, x.core);
        print_exits(y, x.core);
    }
    k2m_core_free(x.core);
    return code;
}

/* ---- which of them
 * ------------------------------------------------------------------------------------------------------------- */

static k2_code look(why *y, k2_error *err)
{
    char url[K2_NET_URL_MAX];
    char *manifest = k2_asprintf("%s/manifest.json", y->dir), *config = k2_asprintf("%s/config.json", y->dir);
    char *dir = k2_asprintf("%s/journal", y->dir);
    k2_journal *journal = NULL;
    char *data = k2_asprintf("%s/data.mdb", dir);
    k2_code code = K2_OK;
    if (!k2_file_exists(manifest) || !k2_file_exists(data))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: no run is here (manifest.json and journal/data.mdb expected)", y->dir);
    if (code == K2_OK) code = k2_config_load(&y->config, config, err);
    if (code == K2_OK) {
        k2_journal_config jc = {.kind = K2_JOURNAL_LMDB, .dir = dir, .map_bytes = y->config.run_journal_mb << 20};
        k2_error busy;
        code = k2_journal_open(&jc, &journal, &busy); /* free: no master lives. It is closed again at once. */
        if (code == K2_BUSY) {
            code = K2_OK;
            if (y->config.master_listen[0])
                snprintf(url, sizeof url, "%.200s", y->config.master_listen);
            else
                code = k2_net_url_for_dir(y->dir, url, err);
            if (code == K2_OK) code = ask(y, url, err);
            if (code == K2_TIMEOUT) code = blame_master(y, &busy, err);
        } else if (code == K2_OK) {
            code = look_back(y, journal, err);
        } else {
            *err = busy;
        }
        k2_journal_close(journal);
    }
    k2_free(manifest);
    k2_free(config);
    k2_free(dir);
    k2_free(data);
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
    k2_config_defaults(&y.config);
    char *standard = k2_strdup(y.config.run_dir); /* the run's own configuration is read over it */
    y.dir = operands == 1 ? argv[1] : y.url ? NULL : standard;
    if (code == K2_OK) code = y.url ? ask(&y, y.url, &err) : look(&y, &err);
    if (code != K2_OK) fprintf(stderr, "k2rl why: %s\n", err.text);
    k2_msg_free(&y.reply);
    k2_free(standard);
    return k2_code_exit(code);
}
