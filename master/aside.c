/* aside: a prompt that ended its workers, or an answer whose reward failed, goes into quarantine. What it needs is gathered
 * here at once, since the run goes on; the disk is a pool thread's.
 *
 * The weights of a prompt are not copied: the master has none. The run's last checkpoint is linked into the entry, where it
 * outlives its removal from the run, and the batches since then are written beside it: few, and they lead to the same bits. */
#include "master/io_int.h"

#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

typedef struct job {
    k2m_io *io;
    k2_quarantine_note note;
    uint64_t kept;
    char *run_dir, *config, *start; /* start: the checkpoint, NULL: none is needed */
    k2_buf prompt, body;            /* body: request.json or item.json */
    k2_buf *batches;                /* of note.batch_first on */
    char *path;
    k2_error err;
} job;

static uint64_t batch_count(const job *j)
{
    return j->note.batch_last >= j->note.batch_first ? j->note.batch_last - j->note.batch_first + 1 : 0;
}

/* ---- on the loop ---- */

static const k2_prompt *prompt_of(const k2m_io *io, uint64_t id)
{
    k2_replay_info info;
    if (id & K2M_EVAL_BIT) return k2_prompts_at(io->run->heldout.list, id & ~K2M_EVAL_BIT);
    return k2_replay_find(io->core->replay, id, &info) == K2_OK ? k2_prompts_at(io->run->train.list, info.prompt) : NULL;
}

static k2_code batches_take(job *j, const k2m_core *m, k2_error *err)
{
    k2_code code = K2_OK;
    j->note.batch_first = m->checkpoint.step + 1;
    j->note.batch_last = m->force_version;
    j->batches = k2_alloc_array(batch_count(j), sizeof *j->batches);
    for (uint64_t i = 0; i < batch_count(j); i++) {
        k2_buf_init(&j->batches[i], (size_t)1 << 40);
        if (code == K2_OK) code = k2m_batch_encode(m, j->note.batch_first + i, &j->batches[i], err);
    }
    return code;
}

static job *job_new(k2m_io *io, const k2m_action *a)
{
    const k2m_core *m = io->core;
    job *j = k2_alloc(sizeof *j);
    *j = (job){.io = io, .kept = io->run->config.policy_kept, .run_dir = k2_strdup(io->run->config.run_dir)};
    j->note = (k2_quarantine_note){.kind = a->kind,
                                   .number = a->id,
                                   .seed = io->run->config.seed,
                                   .batch_first = 1, /* no batches */
                                   .weights = m->force_digest,
                                   .deaths = a->deaths};
    snprintf(j->note.error, sizeof j->note.error, "%s", a->text[0] ? a->text : "no reason was given");
    j->config = k2_strdup(io->config_json);
    k2_buf_init(&j->prompt, K2M_ANSWER_BYTES_MAX);
    k2_buf_init(&j->body, K2M_ANSWER_BYTES_MAX);
    const k2_prompt *prompt = prompt_of(io, a->id);
    if (prompt) k2_buf_append(&j->prompt, prompt->json, prompt->json_bytes);
    return j;
}

/* ---- on a pool thread ---- */

static k2_code fill(const job *j, k2_quarantine *q, k2_error *err)
{
    const char *body = j->note.kind == K2_QUARANTINE_PROMPT ? "request.json" : "item.json";
    k2_code code = k2_quarantine_put(q, "config.json", j->config, strlen(j->config), err);
    if (code == K2_OK) code = k2_quarantine_put(q, "prompt.json", j->prompt.data, j->prompt.len, err);
    if (code == K2_OK) code = k2_quarantine_put(q, body, j->body.data, j->body.len, err);
    for (uint64_t i = 0; i < batch_count(j) && code == K2_OK; i++)
        code = k2_quarantine_put_batch(q, j->note.batch_first + i, j->batches[i].data, j->batches[i].len, err);
    if (code == K2_OK && j->start) code = k2_quarantine_link_start(q, j->start, err);
    return code;
}

static void work(void *arg)
{
    job *j = arg;
    k2_quarantine *q;
    j->err.code = K2_OK;
    if (k2_quarantine_begin(j->run_dir, j->note.kind, j->note.number, j->kept, &q, &j->err) != K2_OK) return;
    if (fill(j, q, &j->err) == K2_OK)
        (void)k2_quarantine_commit(q, &j->note, &j->path, &j->err);
    else
        k2_quarantine_drop(q);
}

static void done(void *arg)
{
    job *j = arg;
    const char *kind = k2_quarantine_kind_name(j->note.kind);
    if (j->err.code == K2_OK && j->path)
        K2_LOG_WARN(j->io->log, "put aside kind=%s trajectory=%llu dir=%s", kind, (ull)j->note.number, j->path);
    else if (j->err.code != K2_CANCELED) /* there already: that one was first */
        K2_LOG_ERROR(j->io->log, "not put aside kind=%s trajectory=%llu: %s", kind, (ull)j->note.number, j->err.text);
    for (uint64_t i = 0; j->batches && i < batch_count(j); i++) k2_buf_fini(&j->batches[i]);
    k2_free(j->batches);
    k2_buf_fini(&j->body);
    k2_buf_fini(&j->prompt);
    k2_free(j->path);
    k2_free(j->start);
    k2_free(j->config);
    k2_free(j->run_dir);
    k2_free(j);
}

void k2m_put_aside(k2m_io *io, const k2m_action *a)
{
    job *j = job_new(io, a);
    const k2m_core *m = io->core;
    if (a->kind == K2_QUARANTINE_PROMPT) {
        k2m_call_body(io, a, &j->body);
        j->start = k2_asprintf("%s/step_%07llu", io->checkpoints_dir, (ull)m->checkpoint.number);
        if (batches_take(j, m, &j->err) != K2_OK) {
            done(j);
            return;
        }
    } else {
        k2m_call_item(io, a->id, &j->body);
    }
    k2_loop_work_surely(io->loop, work, done, j);
}
