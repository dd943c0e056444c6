/* quarantine - what a run put aside because it did harm, with all that is needed to repeat it alone.
 *
 * The noun is an *entry*: a directory RUN_DIR/quarantine/<kind>-<number> that `k2rl replay-step` takes. It is made whole under
 * another name, synced, and renamed: a name without a dot in front is always complete.
 *
 *     quarantine.json       the note (k2_quarantine_note)
 *     config.json           the run's resolved configuration
 *     start/                a checkpoint to begin from: hard links where it is one of the run's, so that it outlives it there
 *     batch-0000007.bin     step, pretrain, prompt: batches to train one after the other from there on
 *     request.json          prompt: the body of the request that killed its engines
 *     item.json             reward: the line that the reward command was given
 *     prompt.json           prompt, reward: the prompt's line of the data set
 *
 * An entry is made by one process at a time; writing blocks, so it belongs on a worker thread. Of entries that are there the
 * first ones stay and new ones are refused: what went wrong first explains what came later.
 */
#ifndef K2_COMMON_QUARANTINE_H
#define K2_COMMON_QUARANTINE_H

#include "common/base/base.h"

/* id, name, what its number is */
#define K2_QUARANTINE_KINDS(X)      \
    X(STEP, "step", "step")         \
    X(PRETRAIN, "pretrain", "step") \
    X(PROMPT, "prompt", "trajectory") \
    X(REWARD, "reward", "trajectory")

typedef enum k2_quarantine_kind {
#define K2_X(id, name, number) K2_QUARANTINE_##id,
    K2_QUARANTINE_KINDS(K2_X)
#undef K2_X
    K2_QUARANTINE_KIND_COUNT
} k2_quarantine_kind;
const char *k2_quarantine_kind_name(k2_quarantine_kind kind);

#define K2_QUARANTINE_NOTE   "quarantine.json"
#define K2_QUARANTINE_ERROR_MAX 512u /* bytes of the reason with its terminator */

typedef struct k2_quarantine_note {
    k2_quarantine_kind kind;
    uint64_t number;         /* of the step, or of the trajectory */
    uint64_t seed;
    uint64_t batch_first, batch_last; /* steps of the batch files; first > last: none */
    k2_digest weights;       /* that it happened with: of start/ after all batches but the last (step), after all (prompt) */
    k2_digest result;        /* step, pretrain: that the run came to; zero: not known */
    uint64_t deaths;         /* of processes that it ended */
    char error[K2_QUARANTINE_ERROR_MAX]; /* one line */
} k2_quarantine_note;

typedef struct k2_quarantine k2_quarantine;

/* k2_quarantine_begin - an empty directory to fill.
 *
 * memory   end it with commit or drop
 * errors   CANCELED: this entry exists; LIMIT: `kept` of them are there; NO_SPACE, IO
 */
k2_code k2_quarantine_begin(const char *run_dir, k2_quarantine_kind kind, uint64_t number, uint64_t kept, k2_quarantine **out,
                            k2_error *err);
/* Where its files go until then. */
const char *k2_quarantine_dir(const k2_quarantine *q);
k2_code k2_quarantine_put(k2_quarantine *q, const char *name, const void *bytes, size_t n, k2_error *err);
k2_code k2_quarantine_put_batch(k2_quarantine *q, uint64_t step, const void *bytes, size_t n, k2_error *err);
/* start/ as hard links to the files of a checkpoint; UNSUPPORTED where the file system has none. */
k2_code k2_quarantine_link_start(k2_quarantine *q, const char *checkpoint, k2_error *err);
/* The note, then the name. path (k2_free it) may be NULL. On an error everything is removed; q is gone either way. */
k2_code k2_quarantine_commit(k2_quarantine *q, const k2_quarantine_note *note, char **path, k2_error *err);
void k2_quarantine_drop(k2_quarantine *q); /* NULL is fine */

/* k2_quarantine_read - the note of an entry.
 *
 * errors   "path: ..." NOT_FOUND; BAD_INPUT names the field that is missing or of a wrong type
 * tests    tests/unit/quarantine/quarantine_test.c
 */
k2_code k2_quarantine_read(const char *dir, k2_quarantine_note *out, k2_error *err);
/* The same for its text; `name` stands for the path in errors. */
k2_code k2_quarantine_parse(const char *name, const char *text, size_t n, k2_quarantine_note *out, k2_error *err);
/* Path of a file in an entry; k2_free it. */
char *k2_quarantine_path(const char *dir, const char *name);
char *k2_quarantine_batch_path(const char *dir, uint64_t step);

#endif
