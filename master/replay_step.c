/* replay_step: the command line of `k2rl replay-step`, and a step of a dead run taken out of its journal. */
#include "master/io_int.h"
#include "master/master.h"
#include "master/recovered_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1u << 20)

typedef unsigned long long ull;

static const char help[] = "usage: k2rl replay-step DIR [--json]\n"
                           "       k2rl replay-step RUN_DIR --step N [--json]\n"
                           "\n"
                           "Repeats one step alone, with the code and the bits of the run. DIR is an entry of "
                           "RUN_DIR/quarantine: a step that met NaN or\n"
                           "infinity, a prompt that ended its engines, a reward that failed. The second form takes a step of a "
                           "run whose master does not\n"
                           "run, as long as its journal has the batch: those since its last checkpoint. Status: 0 it came out "
                           "as in the run, 1 it did\n"
                           "not, 2 bad input.\n"
                           "\n"
                           "  --step N   this step of the run\n"
                           "  --json     one JSON object\n"
                           "  --here     a reward: score it in this very process, which it may end\n"
                           "  --help     this text\n";

/* ---- a step out of a journal ----------------------------------------------------------------------------------------------
 */

static k2_code journal_load(const char *dir, const k2_config *c, k2m_core **out, k2_error *err)
{
    char *path = k2_asprintf("%s/journal", dir), *data = k2_asprintf("%s/data.mdb", path);
    k2_journal_config jc = {.kind = K2_JOURNAL_LMDB, .dir = path, .map_bytes = c->run_journal_mb << 20};
    k2_journal *journal = NULL;
    k2_code code =
        k2_file_exists(data) ? k2_journal_open(&jc, &journal, err) : k2_error_set(err, K2_NOT_FOUND, "%s: no run is here", dir);
    if (code == K2_OK) code = k2m_recovered(c, journal, out, err);
    k2_journal_close(journal);
    k2_free(data);
    k2_free(path);
    return code;
}

static k2_code step_known(const k2m_core *m, const char *dir, uint64_t step, k2_error *err)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    uint64_t first = m->checkpoint.step + 1;
    if (m->checkpoint.exists && step >= first && step <= n.step_taken) return K2_OK;
    if (!m->checkpoint.exists || n.step_taken < first)
        return k2_error_set(err, K2_NOT_FOUND, "%s: its journal has no batches: none was made since its last checkpoint", dir);
    return k2_error_set(err, K2_NOT_FOUND, "%s: its journal has no batch of step %llu, only those of %llu to %llu", dir,
                        (ull)step, (ull)first, (ull)n.step_taken);
}

static k2_code config_copy(k2_quarantine *q, const char *from, k2_error *err)
{
    char *text = NULL;
    size_t n;
    k2_code code = k2_file_read(from, CONFIG_BYTES_MAX, &text, &n, err);
    if (code == K2_OK) code = k2_quarantine_put(q, "config.json", text, n, err);
    k2_free(text);
    return code;
}

static k2_code batches_put(k2_quarantine *q, const k2m_core *m, uint64_t from, uint64_t to, k2_error *err)
{
    k2_code code = K2_OK;
    for (uint64_t s = from; s <= to && code == K2_OK; s++) {
        k2_buf bytes;
        k2_buf_init(&bytes, (size_t)1 << 40);
        code = k2m_batch_encode(m, s, &bytes, err);
        if (code == K2_OK) code = k2_quarantine_put_batch(q, s, bytes.data, bytes.len, err);
        k2_buf_fini(&bytes);
    }
    return code;
}

/* The run's last checkpoint and the batches since, as if the step had been put aside. */
static k2_code entry_make(const char *dir, uint64_t step, k2_quarantine **q, k2_quarantine_note *note, k2_error *err)
{
    k2_config config;
    k2m_core *m = NULL;
    char *path = k2_asprintf("%s/config.json", dir), *start = NULL;
    k2_config_defaults(&config);
    k2_code code = k2_config_load(&config, path, err);
    if (code == K2_OK) code = journal_load(dir, &config, &m, err);
    if (code == K2_OK) code = step_known(m, dir, step, err);
    if (code == K2_OK) {
        *note = (k2_quarantine_note){.kind = K2_QUARANTINE_STEP,
                                     .number = step,
                                     .seed = config.seed,
                                     .batch_first = m->checkpoint.step + 1,
                                     .batch_last = step,
                                     .weights = k2m_digest_of(m, step - 1),
                                     .result = k2m_digest_of(m, step)};
        snprintf(note->error, sizeof note->error, "out of the journal of %.400s", dir);
        start = k2_asprintf("%s/checkpoints/step_%07llu", dir, (ull)m->checkpoint.number);
        code = k2_quarantine_begin(dir, K2_QUARANTINE_STEP, UINT64_MAX, UINT64_MAX, q, err); /* a number that no step has */
    }
    if (code == K2_OK) code = config_copy(*q, path, err);
    if (code == K2_OK) code = batches_put(*q, m, note->batch_first, step, err);
    if (code == K2_OK) code = k2_quarantine_link_start(*q, start, err);
    k2m_core_free(m);
    k2_free(start);
    k2_free(path);
    return code;
}

static int refuse(const k2_error *err)
{
    fprintf(stderr, "k2rl replay-step: %s\n", err->text);
    return 2;
}

static int step_of_run(const char *dir, uint64_t step, bool json, const k2_replay_step_ops *ops)
{
    k2_quarantine *q = NULL;
    k2_quarantine_note note;
    k2_error err = {0};
    k2_code code = entry_make(dir, step, &q, &note, &err);
    int status = code == K2_OK ? ops->step(k2_quarantine_dir(q), &note, json) : refuse(&err);
    k2_quarantine_drop(q);
    return status;
}

/* ---- an entry -------------------------------------------------------------------------------------------------------------
 */

/* An engine takes its weights from a directory, which the trainer makes out of the entry. */
static int prompt_again(const char *dir, const k2_quarantine_note *note, bool json, const k2_replay_step_ops *ops)
{
    char model[] = "/tmp/k2rl-replay-XXXXXX";
    k2_error err = {0};
    if (!mkdtemp(model)) {
        k2_error_set(&err, K2_IO, "%s: cannot be made", model);
        return refuse(&err);
    }
    int status = ops->weights(dir, note, model, &err) == K2_OK ? ops->prompt(dir, note, model, json) : refuse(&err);
    (void)k2_dir_remove(model, NULL);
    return status;
}

int k2_replay_step_main(int argc, char **argv, const k2_replay_step_ops *ops)
{
    bool json = false, here = false, asked = false;
    uint64_t step = UINT64_MAX;
    int operands = 0;
    k2_error err = {0};
    k2_quarantine_note note;
    const k2_option options[] = {
        {.name = "--step", .u64 = &step}, {.name = "--json", .flag = &json}, {.name = "--here", .flag = &here}};
    k2_code code = k2_args_parse(argv + 1, argc - 1, options, K2_COUNT(options), &operands, &asked, &err);
    if (code == K2_OK && asked) {
        fputs(help, stdout);
        return 0;
    }
    if (code == K2_OK && operands != 1)
        code = k2_error_set(&err, K2_BAD_INPUT, "expected one directory; k2rl replay-step --help tells more");
    if (code == K2_OK && step != UINT64_MAX) return step_of_run(argv[1], step, json, ops);
    if (code == K2_OK) code = k2_quarantine_read(argv[1], &note, &err);
    if (code == K2_OK && here && note.kind != K2_QUARANTINE_REWARD)
        code = k2_error_set(&err, K2_BAD_INPUT, "--here: only a reward can be repeated so");
    if (code != K2_OK) return refuse(&err);
    if (here) return ops->here(argv[1]);
    if (note.kind == K2_QUARANTINE_PROMPT) return prompt_again(argv[1], &note, json, ops);
    return note.kind == K2_QUARANTINE_REWARD ? ops->reward(argv[1], &note, json) : ops->step(argv[1], &note, json);
}
