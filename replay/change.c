/* replay: the changes. Each is checked and applied by one k2i_on_ function, which the public function calls before it gives the
 * record to the sink, and recovery calls with the record: there is no second way to change the state. */
#include "replay/replay_int.h"

#include <math.h>
#include <string.h>

#include "common/base/planted.h"

static unsigned long long ull(uint64_t v)
{
    return v;
}

/* "trajectory 5120 (queued): finish is not possible" */
static k2_code refuse(const k2i_trajectory *t, uint64_t id, const char *what, k2_error *err)
{
    if (!t) return k2_error_set(err, K2_BAD_INPUT, "trajectory %llu (unknown): %s", ull(id), what);
    return k2_error_set(err, K2_BAD_INPUT, "trajectory %llu (%s, %u tokens): %s", ull(id),
                        k2_replay_state_name((k2_replay_state)t->state), t->generated, what);
}

static void set_state(k2_replay *r, k2i_trajectory *t, k2_replay_state s)
{
    uint32_t before = k2i_blocks_of(r, t);
    k2i_count_state(r, t, -1);
    t->state = (uint8_t)s;
    k2i_count_state(r, t, 1);
    r->blocks_reserved = r->blocks_reserved - before + k2i_blocks_of(r, t);
}

k2_code k2i_on_group(k2_replay *r, const k2i_rec_group *x, const int32_t *tokens, k2_error *err)
{
    if (x->group < r->counts.next_group)
        return k2i_group_find(r, x->group)
                   ? K2_CANCELED
                   : k2_error_set(err, K2_BAD_INPUT, "group %llu: ids must rise; the next is %llu or more", ull(x->group),
                                  ull(r->counts.next_group));
    if (x->group >= K2_REPLAY_GROUP_ID_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "group %llu: ids end below %llu", ull(x->group), K2_REPLAY_GROUP_ID_MAX);
    if (x->size < 1 || x->size > r->config.group_size_max)
        return k2_error_set(err, K2_BAD_INPUT, "group %llu: %u members; 1 to %u are possible", ull(x->group), x->size,
                            r->config.group_size_max);
    if (x->count < 1 || x->count > r->config.prompt_tokens_max)
        return k2_error_set(err, K2_BAD_INPUT, "group %llu: a prompt of %u tokens; 1 to %u are possible", ull(x->group),
                            x->count, r->config.prompt_tokens_max);
    uint64_t need = k2i_blocks_for(x->count) + (uint64_t)x->size * k2i_blocks_for(r->config.trajectory_tokens_max);
    if (r->free_count == 0 || r->blocks_reserved + need > r->block_count)
        return k2_error_set(err, K2_FULL, "group %llu: %u groups and %llu tokens are held already", ull(x->group),
                            r->counts.groups, ull(r->counts.tokens));
    (void)k2i_group_put(r, x->group, x->prompt, x->size, tokens, x->count);
    r->counts.groups_total++;
    r->counts.trajectories_total += x->size;
    return K2_OK;
}

k2_code k2i_on_start(k2_replay *r, const k2i_rec_start *x, k2_error *err)
{
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, NULL);
    if (!t || t->state != K2_REPLAY_QUEUED) return refuse(t, x->id, "cannot be started", err);
    if (x->until < t->generated || (x->until == t->generated && t->until == 0) || x->until > r->config.trajectory_tokens_max)
        return refuse(t, x->id, "cannot be started: impossible end of the segment", err);
    if (t->until != 0 && t->until != x->until)
        return refuse(t, x->id, "cannot be started: its interrupted segment ends elsewhere", err);
    if (t->until == 0 && t->cuts > 0) {
        if (t->iteration == x->iteration) return refuse(t, x->id, "had its segment in this iteration", err);
        r->counts.resumed_total++;
    }
    t->until = x->until;
    t->iteration = x->iteration;
    set_state(r, t, K2_REPLAY_RUNNING);
    return K2_OK;
}

/* What is known of the chunk must be equal to what came. */
static k2_code compare_known(const k2_replay *r, const k2i_trajectory *t, const k2i_rec_chunk *x, const k2_replay_token *tokens,
                             uint32_t known, k2_error *err)
{
    for (uint32_t i = 0; i < known; i++) {
        k2_replay_token have;
        k2i_chain_copy(r, t->head, t->generated, x->position + i, &have, 1);
        if (memcmp(&have, &tokens[i], sizeof have) == 0) continue;
        return k2_error_set(
            err, K2_CORRUPT,
            "trajectory %llu: token %u came twice and differs: id %d log-prob %.9g version %u, then id %d log-prob %.9g "
            "version %u",
            ull(x->id), x->position + i, have.id, (double)have.logp, have.version, tokens[i].id, (double)tokens[i].logp,
            tokens[i].version);
    }
    return K2_OK;
}

static k2_code check_new(const k2_replay *r, const k2i_trajectory *t, uint64_t id, const k2_replay_token *tokens,
                         uint32_t count, k2_error *err)
{
    k2_replay_token last = {.version = 0};
    if (t->generated > 0) k2i_chain_copy(r, t->head, t->generated, t->generated - 1, &last, 1);
    for (uint32_t i = 0; i < count; i++) {
        if (tokens[i].version < last.version) return refuse(t, id, "a token of an older version than the one before it", err);
        if (!isfinite(tokens[i].logp) || tokens[i].logp > 0) return refuse(t, id, "a log-prob that is none", err);
        last = tokens[i];
    }
    return K2_OK;
}

k2_code k2i_on_chunk(k2_replay *r, const k2i_rec_chunk *x, const k2_replay_token *tokens, k2_error *err)
{
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, NULL);
    if (!t) return refuse(t, x->id, "tokens came for it", err);
    if (x->position > t->generated) return refuse(t, x->id, "a gap before the tokens that came", err);
    uint32_t known = K2_MIN(t->generated - x->position, x->count);
    k2_code code = compare_known(r, t, x, tokens, known, err);
    if (code != K2_OK) return code;
    if (known == x->count) return K2_CANCELED;
    if (t->state != K2_REPLAY_RUNNING) return refuse(t, x->id, "tokens came though it does not run", err);
    uint32_t fresh = x->count - known;
    if (fresh > t->until - t->generated) return refuse(t, x->id, "tokens past the end of its segment", err);
    code = check_new(r, t, x->id, tokens + known, fresh, err);
    if (code != K2_OK) return code;
    k2i_chain_append(r, &t->head, &t->tail, t->generated, tokens + known, fresh);
    t->generated += fresh;
    r->counts.tokens += fresh;
    r->counts.generated_total += fresh;
    return K2_OK;
}

k2_code k2i_on_cut(k2_replay *r, const k2i_rec_id *x, k2_error *err)
{
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, NULL);
    if (!t || t->state != K2_REPLAY_RUNNING || t->generated != t->until)
        return refuse(t, x->id, "can only be cut at the end of its segment", err);
    set_state(r, t, K2_REPLAY_QUEUED);
    k2i_count_state(r, t, -1);
    t->cuts++;
    k2i_count_state(r, t, 1);
    t->until = 0;
    r->counts.cut_total++;
    return K2_OK;
}

k2_code k2i_on_requeue(k2_replay *r, const k2i_rec_id *x, k2_error *err)
{
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, NULL);
    if (!t || t->state != K2_REPLAY_RUNNING) return refuse(t, x->id, "cannot be queued again", err);
    set_state(r, t, K2_REPLAY_QUEUED);
    k2i_scan_reset(r);
    return K2_OK;
}

k2_code k2i_on_finish(k2_replay *r, const k2i_rec_finish *x, k2_error *err)
{
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, NULL);
    if (t && (t->state == K2_REPLAY_FINISHED || t->state == K2_REPLAY_SCORED || t->state == K2_REPLAY_CONSUMED))
        return K2_CANCELED;
    if (!t || t->state != K2_REPLAY_RUNNING || x->why < K2_REPLAY_FINISH_STOP || x->why > K2_REPLAY_FINISH_REPETITION)
        return refuse(t, x->id, "cannot be finished", err);
    t->finish = (uint8_t)x->why;
    t->until = 0;
    set_state(r, t, K2_REPLAY_FINISHED);
    r->counts.finished_total++;
    r->counts.repetition_total += x->why == K2_REPLAY_FINISH_REPETITION;
    return K2_OK;
}

k2_code k2i_on_score(k2_replay *r, const k2i_rec_score *x, k2_error *err)
{
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, NULL);
    if (t && (t->state == K2_REPLAY_SCORED || t->state == K2_REPLAY_CONSUMED)) return K2_CANCELED;
    if (!t || t->state != K2_REPLAY_FINISHED || !isfinite(x->reward)) return refuse(t, x->id, "cannot be scored", err);
    t->reward = x->reward;
    set_state(r, t, K2_REPLAY_SCORED);
    return K2_OK;
}

k2_code k2i_on_drop(k2_replay *r, const k2i_rec_drop *x, k2_error *err)
{
    k2i_group *g = NULL;
    k2i_trajectory *t = k2i_trajectory_find(r, x->id, &g);
    if (t && t->state == K2_REPLAY_DROPPED) return K2_CANCELED;
    if (!t || t->state == K2_REPLAY_CONSUMED || g->step != 0) return refuse(t, x->id, "cannot be dropped", err);
    memcpy(t->reason, x->reason, sizeof t->reason);
    t->reason[sizeof t->reason - 1] = 0;
    t->until = 0;
    set_state(r, t, K2_REPLAY_DROPPED);
    r->counts.dropped_total++;
    return K2_OK;
}

k2_code k2i_on_take(k2_replay *r, const k2i_rec_take *x, const uint64_t *groups, k2_error *err)
{
    if (x->step == r->counts.step_taken && x->step > 0) return K2_CANCELED;
    if (x->step != r->counts.step_taken + 1 || r->counts.step_consumed != r->counts.step_taken)
        return k2_error_set(err, K2_BAD_INPUT, "step %llu: cannot take a batch; %llu is taken, %llu is consumed", ull(x->step),
                            ull(r->counts.step_taken), ull(r->counts.step_consumed));
    for (uint64_t i = 0; i < x->count; i++) {
        const k2i_group *g = k2i_group_find(r, groups[i]);
        if (!g || g->step != 0 || !k2i_group_whole(r, g) || (i > 0 && groups[i - 1] >= groups[i]))
            return k2_error_set(err, K2_BAD_INPUT, "step %llu: group %llu is not ready to be taken", ull(x->step),
                                ull(groups[i]));
    }
    for (uint64_t i = 0; i < x->count; i++) k2i_group_find(r, groups[i])->step = x->step;
    r->counts.step_taken = x->step;
    return K2_OK;
}

k2_code k2i_on_consume(k2_replay *r, const k2i_rec_step *x, k2_error *err)
{
    if (x->step <= r->counts.step_consumed) return K2_CANCELED;
    if (x->step != r->counts.step_taken)
        return k2_error_set(err, K2_BAD_INPUT, "step %llu: cannot be consumed; %llu is the last that took a batch",
                            ull(x->step), ull(r->counts.step_taken));
    for (uint32_t k = 0; k < r->counts.groups; k++) {
        const k2i_group *g = &r->groups[r->order[k]];
        if (g->step != x->step) continue;
        for (uint32_t i = 0; i < g->size; i++) {
            k2i_trajectory *t = k2i_member(r, g, i);
            if (t->state != K2_REPLAY_SCORED) continue;
            set_state(r, t, K2_REPLAY_CONSUMED);
            r->counts.consumed_total++;
        }
    }
    r->counts.step_consumed = x->step;
    return K2_OK;
}

k2_code k2i_on_release(k2_replay *r, const k2i_rec_step *x, k2_error *err)
{
    if (x->step <= r->counts.step_released) return K2_CANCELED;
    if (x->step > r->counts.step_consumed)
        return k2_error_set(err, K2_BAD_INPUT, "step %llu: cannot be released; %llu is the last that was consumed",
                            ull(x->step), ull(r->counts.step_consumed));
    uint32_t kept = 0;
    for (uint32_t k = 0; k < r->counts.groups; k++) {
        k2i_group *g = &r->groups[r->order[k]];
        if (g->step != 0 && g->step <= x->step)
            k2i_group_remove(r, g);
        else
            r->order[kept++] = r->order[k];
    }
    r->counts.groups = kept;
    r->counts.step_released = x->step;
    k2i_scan_reset(r);
    return K2_OK;
}

void k2i_on_recover(k2_replay *r)
{
    for (uint32_t k = 0; k < r->counts.groups; k++) {
        const k2i_group *g = &r->groups[r->order[k]];
        for (uint32_t i = 0; i < g->size; i++) {
            k2i_trajectory *t = k2i_member(r, g, i);
            if (t->state == K2_REPLAY_RUNNING) set_state(r, t, K2_REPLAY_QUEUED);
        }
    }
    k2i_scan_reset(r);
}

/* ---- the public side: change, then record ------------------------------------------------------------------------- */

static k2_code emit(k2_replay *r, k2_code code, uint32_t type, const void *head, size_t head_len, const void *body,
                    size_t body_len)
{
    if (code == K2_CANCELED)
        r->counts.duplicates++;
    else if (code != K2_OK && code != K2_FULL)
        r->counts.refused++;
    if (code != K2_OK) return code;
    k2_buf_clear(&r->scratch);
    k2_buf_append(&r->scratch, head, head_len);
    k2_buf_append(&r->scratch, body, body_len);
    K2_ASSERT(!r->scratch.overflow);
    if (type == K2I_CUT && K2_PLANTED(CUT_LOST)) return K2_OK;
    if (type == K2I_CONSUME && K2_PLANTED(TRAINED_TWICE)) return K2_OK;
    if (r->sink.record) r->sink.record(r->sink.arg, type, r->scratch.data, r->scratch.len);
    return K2_OK;
}

k2_code k2_replay_add_group(k2_replay *r, uint64_t group, uint64_t prompt, uint32_t size, const int32_t *tokens, uint32_t count,
                            k2_error *err)
{
    k2i_rec_group x = {.group = group, .prompt = prompt, .size = size, .count = count};
    return emit(r, k2i_on_group(r, &x, tokens, err), K2I_GROUP, &x, sizeof x, tokens, count * sizeof *tokens);
}

k2_code k2_replay_start(k2_replay *r, uint64_t id, uint64_t iteration, uint32_t until, k2_error *err)
{
    k2i_rec_start x = {.id = id, .iteration = iteration, .until = until};
    return emit(r, k2i_on_start(r, &x, err), K2I_START, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_chunk(k2_replay *r, uint64_t id, uint32_t position, const k2_replay_token *tokens, uint32_t count,
                        k2_error *err)
{
    K2_ASSERT(count <= K2_REPLAY_CHUNK_MAX);
    k2i_rec_chunk x = {.id = id, .position = position, .count = count};
    return emit(r, k2i_on_chunk(r, &x, tokens, err), K2I_CHUNK, &x, sizeof x, tokens, count * sizeof *tokens);
}

k2_code k2_replay_cut(k2_replay *r, uint64_t id, k2_error *err)
{
    k2i_rec_id x = {.id = id};
    return emit(r, k2i_on_cut(r, &x, err), K2I_CUT, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_requeue(k2_replay *r, uint64_t id, k2_error *err)
{
    k2i_rec_id x = {.id = id};
    return emit(r, k2i_on_requeue(r, &x, err), K2I_REQUEUE, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_finish_as(k2_replay *r, uint64_t id, k2_replay_finish why, k2_error *err)
{
    k2i_rec_finish x = {.id = id, .why = (uint64_t)why};
    return emit(r, k2i_on_finish(r, &x, err), K2I_FINISH, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_score(k2_replay *r, uint64_t id, double reward, k2_error *err)
{
    k2i_rec_score x = {.id = id, .reward = reward};
    return emit(r, k2i_on_score(r, &x, err), K2I_SCORE, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_drop(k2_replay *r, uint64_t id, const char *reason, k2_error *err)
{
    k2i_rec_drop x = {.id = id};
    memcpy(x.reason, reason, strnlen(reason, sizeof x.reason - 1));
    return emit(r, k2i_on_drop(r, &x, err), K2I_DROP, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_take(k2_replay *r, uint64_t step, uint32_t groups_max, uint32_t *groups_taken, k2_error *err)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->counts.groups && n < groups_max; k++) {
        const k2i_group *g = &r->groups[r->order[k]];
        if (g->step == 0 && k2i_group_whole(r, g)) r->take_list[n++] = g->id;
    }
    k2i_rec_take x = {.step = step, .count = n};
    k2_code code =
        emit(r, k2i_on_take(r, &x, r->take_list, err), K2I_TAKE, &x, sizeof x, r->take_list, n * sizeof *r->take_list);
    if (code == K2_OK && groups_taken) *groups_taken = n;
    return code;
}

k2_code k2_replay_consume(k2_replay *r, uint64_t step, k2_error *err)
{
    k2i_rec_step x = {.step = step};
    return emit(r, k2i_on_consume(r, &x, err), K2I_CONSUME, &x, sizeof x, NULL, 0);
}

k2_code k2_replay_release(k2_replay *r, uint64_t step, k2_error *err)
{
    k2i_rec_step x = {.step = step};
    return emit(r, k2i_on_release(r, &x, err), K2I_RELEASE, &x, sizeof x, NULL, 0);
}

void k2_replay_recover(k2_replay *r)
{
    k2i_on_recover(r);
    (void)emit(r, K2_OK, K2I_RECOVER, NULL, 0, NULL, 0);
}
