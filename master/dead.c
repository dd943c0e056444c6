/* dead: where a run stood that no master runs, as `k2rl why` tells it: from the journal, with the code of recovery, and from
 * the last lines of the master's log. */
#include "master/find_int.h"
#include "master/recovered_int.h"
#include "master/words_int.h"

#include <stdio.h>
#include <string.h>

#define TAIL_BYTES 65536u /* of the log that are looked at */
#define TAIL_LINES 12u    /* that are shown */

/* ---- the log ------------------------------------------------------------------------------------------------------------- */

/* The last lines that warn: waits, exits, failures. They point into `bytes`, which is changed. */
static uint32_t warnings(char *bytes, const char *out[TAIL_LINES])
{
    uint32_t n = 0;
    char *save = NULL;
    for (char *line = strtok_r(bytes, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strstr(line, " WARN ") && !strstr(line, " ERROR ")) continue;
        for (char *c = line; *c; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* it goes to a terminal */
        if (n == TAIL_LINES) memmove(out, out + 1, --n * sizeof *out);
        out[n++] = line;
    }
    return n;
}

static char *read_tail(const char *dir)
{
    char *path = k2_asprintf("%s/logs/master-0.log", dir), *bytes = k2_alloc(TAIL_BYTES + 1);
    bytes[k2m_words_read(path, bytes, TAIL_BYTES)] = 0;
    k2_free(path);
    return bytes;
}

/* ---- words --------------------------------------------------------------------------------------------------------------- */

/* What the phase must have been, as far as the journal knows. */
static const char *stood_at(const k2m_core *m, const k2_replay_counts *n)
{
    if (m->finished) return "ended";
    if (!m->checkpoint.exists) return "pretraining, or the first checkpoint";
    if (n->step_taken > n->step_consumed) return "training";
    return n->running + n->finished > 0 ? "generation" : "between two iterations";
}

/* Who went down last, and what first. */
static void print_exits(const char *dir)
{
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    k2m_exits_show(dir, false, &b);
    if (b.len) fwrite(b.data, 1, b.len, stdout);
    k2_buf_fini(&b);
}

static void print_text(const char *dir, const k2m_found *run, const k2m_core *m, const char *const *lines, uint32_t line_count)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    uint32_t waiting = n.queued - n.queued_resumed;
    printf("no master runs in %s; its journal says:\n", dir);
    printf("  %llu of %llu iterations have ended%s; weights version %llu; it stood at: %s\n", (unsigned long long)m->iteration,
           (unsigned long long)run->config.iterations, m->finished ? ", the run has ended" : "",
           (unsigned long long)n.step_consumed, stood_at(m, &n));
    if (n.step_taken > n.step_consumed)
        printf("  the batch of step %llu was being trained\n", (unsigned long long)n.step_taken);
    if (m->checkpoint.exists)
        printf("  last checkpoint: step_%07llu, of iteration %llu\n", (unsigned long long)m->checkpoint.number,
               (unsigned long long)m->checkpoint.iteration);
    else
        printf("  no checkpoint yet\n");
    printf("  trajectories in flight: %u; cut and waiting: %u; not begun: %u; finished without a reward: %u; scored: %u\n",
           n.running, n.queued_resumed, waiting, n.finished, n.scored);
    if (!m->finished) print_exits(dir);
    if (line_count) printf("the last warnings in %s/logs/master-0.log:\n", dir);
    for (uint32_t i = 0; i < line_count; i++) printf("  %s\n", lines[i]);
}

static void print_json(const char *dir, const k2m_found *run, const k2m_core *m, const char *const *lines, uint32_t line_count)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    k2_buf_printf(&b,
                  "{\"alive\": false, \"finished\": %s, \"iteration\": %llu, \"iterations\": %llu, \"version\": %llu, "
                  "\"stood_at\": \"%s\", \"batch_taken\": %llu, \"checkpoint\": %lld, ",
                  m->finished ? "true" : "false", (unsigned long long)m->iteration, (unsigned long long)run->config.iterations,
                  (unsigned long long)n.step_consumed, stood_at(m, &n), (unsigned long long)n.step_taken,
                  m->checkpoint.exists ? (long long)m->checkpoint.number : -1LL);
    k2_buf_printf(&b, "\"running\": %u, \"cut\": %u, \"waiting\": %u, \"unscored\": %u, \"scored\": %u, \"log\": [", n.running,
                  n.queued_resumed, n.queued - n.queued_resumed, n.finished, n.scored);
    for (uint32_t i = 0; i < line_count; i++) {
        if (i) k2_buf_puts(&b, ", ");
        k2_buf_json_string(&b, lines[i], strlen(lines[i]));
    }
    k2_buf_puts(&b, "]");
    k2m_exits_show(dir, true, &b);
    printf("%s}\n", b.data);
    k2_buf_fini(&b);
}

k2_code k2m_dead_print(const char *dir, const k2m_found *run, bool json, k2_error *err)
{
    k2m_core *m;
    k2_code code = k2m_recovered(&run->config, run->journal, &m, err);
    if (code != K2_OK) return code;
    const char *lines[TAIL_LINES];
    char *bytes = read_tail(dir);
    uint32_t n = warnings(bytes, lines);
    if (json)
        print_json(dir, run, m, lines, n);
    else
        print_text(dir, run, m, lines, n);
    k2_free(bytes);
    k2m_core_free(m);
    return K2_OK;
}
