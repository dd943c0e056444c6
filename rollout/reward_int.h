/* reward - how good an answer is: exact match, numeric match, or what the user's own command says.
 *
 * Nouns: an *item* is one answer to score; a *batch* is the items of one POST /k2/score; a *score* is a reward, or the
 * reason why there is none. Scores come back in the order of their items and do not depend on which items came together.
 * The match functions and the reading and writing of JSON are pure; `k2i_rewarder` runs the command on the loop.
 *
 * To the command, on its stdin, one line an item:     {"trajectory":7,"prompt":"..","text":"..","answer":"..","meta":{..}}
 * From it, on its stdout, one line for each, in turn:  {"trajectory":7,"reward":0.5}
 * A trajectory above 2^53 is a decimal string both ways. What it writes to stderr goes to the worker's log.
 */
#ifndef K2_ROLLOUT_REWARD_INT_H
#define K2_ROLLOUT_REWARD_INT_H

#include "common/base/base.h"
#include "common/config/config.h"
#include "common/http/openai.h"
#include "common/log/log.h"
#include "common/loop/loop.h"

#define K2I_SCORE_ITEMS_MAX  4096u     /* items of one batch: a group of the largest size four times over */
#define K2I_SCORE_QUEUE_MAX  16384u    /* items waiting for the command; more is "overloaded" */
#define K2I_SCORE_LINE_MAX   65536u    /* bytes of one line of the command */
#define K2I_SCORE_DETAIL_MAX 256u      /* bytes of a detail with its terminator */

typedef struct k2i_score_item {
    uint64_t trajectory;
    char *prompt, *text, *answer; /* UTF-8; prompt and answer are "" when absent */
    char *meta;                   /* JSON of any kind, "null" when absent */
} k2i_score_item;

typedef struct k2i_score {
    uint64_t trajectory;
    bool ok;       /* false: there is no reward, detail says why */
    double reward; /* finite */
    char detail[K2I_SCORE_DETAIL_MAX];
} k2i_score;

typedef struct k2i_score_batch {
    k2i_score_item *items;
    k2i_score *scores;
    uint32_t count;
} k2i_score_batch;

/* ---- pure -------------------------------------------------------------------------------------------------------- */

/* 1 where text and answer are equal without the white space (ASCII) around them, else 0. */
double k2i_reward_exact(const char *text, const char *answer);

/* k2i_reward_numeric - 1 where the last number in text is the last number in answer, within a relative tolerance.
 *
 *   |a - b| <= tolerance * max(|a|, |b|). A number has digits, perhaps with commas between groups of three, perhaps a
 *   fraction and an exponent; a sign counts where no letter, digit or ')' stands before it ("12-5" ends in 5).
 *
 * errors   0 with a detail where text has no number; false (no reward) where answer has none
 */
bool k2i_reward_numeric(const char *text, const char *answer, double tolerance, double *reward,
                        char detail[K2I_SCORE_DETAIL_MAX]);
/* The last number in a text; false when there is none. Digits beyond what a double holds are rounded. */
bool k2i_last_number(const char *text, double *out);

/* Read the body of POST /k2/score, strictly. On an error batch is empty and need not be finished. */
bool k2i_score_parse(const char *body, size_t n, k2i_score_batch *out, k2_openai_error *err);
void k2i_score_batch_fini(k2i_score_batch *b);
/* {"scores":[{"trajectory","reward","detail"}]}; reward is null where there is none. */
void k2i_score_write(const k2i_score_batch *b, k2_buf *out);
/* One item as a line for the command. */
void k2i_score_write_item(const k2i_score_item *item, k2_buf *out);
/* k2i_score_line - the bytes up to the end of the next line, out of what came in pieces.
 *
 *   Takes them from *data and *n into `line`, which begins empty and has K2I_SCORE_LINE_MAX as its cap.
 *
 * errors   INCOMPLETE: all is taken, the line goes on; LIMIT: it is too long. OK: the line is whole; clear it before the next
 */
k2_code k2i_score_line(k2_buf *line, const char **data, size_t *n);
/* One line of the command: the reward for this trajectory. BAD_INPUT says what is wrong with it. */
k2_code k2i_score_parse_line(const char *line, size_t n, uint64_t trajectory, double *reward, k2_error *err);

/* ---- on the loop --------------------------------------------------------------------------------------------------- */

typedef struct k2i_rewarder k2i_rewarder;

/* Copies what it needs of the configuration. The command starts with the first item. */
k2i_rewarder *k2i_rewarder_new(k2_loop *loop, const k2_config *config, k2_log *log);
/* Kills the command; on_done of unfinished batches does not come. NULL is fine. */
void k2i_rewarder_free(k2i_rewarder *r);

/* k2i_rewarder_score - fill batch->scores, then call on_done(arg), perhaps before this returns.
 *
 * keeps    the command gets one item at a time. An item that it does not answer within reward.timeout_ms, counted from
 *          when it was written, costs it its life and has no reward; when the command ends by itself or
 *          writes something else than the answer, it is started anew and asked once more
 * memory   batch is the caller's and must stay until on_done
 * errors   FULL when K2I_SCORE_QUEUE_MAX items wait; on_done does not come then
 */
k2_code k2i_rewarder_score(k2i_rewarder *r, k2i_score_batch *batch, void (*on_done)(void *arg), void *arg);
/* What the command is at. */
typedef struct k2i_rewarder_state {
    uint32_t waiting;                /* items, the one in work included */
    bool busy;                       /* the command has an item */
    pid_t pid;                       /* of the command; 0: none runs */
    uint64_t trajectory, since_ns, deadline_ns; /* of the item; with busy */
} k2i_rewarder_state;
void k2i_rewarder_state_get(const k2i_rewarder *r, k2i_rewarder_state *out);
/* The caller of this batch has gone: it is forgotten, on_done does not come. */
void k2i_rewarder_cancel(k2i_rewarder *r, const k2i_score_batch *batch);

#endif
