/* replay: recovery from records, and the snapshot that replaces all earlier ones. */
#include "replay/replay_int.h"

#include <math.h>
#include <string.h>

#include "common/base/planted.h"

static k2_code malformed(uint32_t type, size_t len, k2_error *err)
{
    return k2_error_set(err, K2_CORRUPT, "replay: record of type %u: impossible length of %zu bytes", type, len);
}

/* Fixed part of a record out of its bytes; false when they are fewer. */
static bool head(const void *bytes, size_t len, void *out, size_t n)
{
    if (len < n) return false;
    memcpy(out, bytes, n);
    return true;
}

/* ---- snapshot: writing -------------------------------------------------------------------------------------------- */

static void put(k2_replay *r, uint32_t type)
{
    K2_ASSERT(!r->scratch.overflow);
    if (r->sink.record) r->sink.record(r->sink.arg, type, r->scratch.data ? r->scratch.data : "", r->scratch.len);
}

static void put_group(k2_replay *r, const k2i_group *g)
{
    k2i_rec_snapshot_group x = {
        .group = g->id, .prompt = g->prompt, .step = g->step, .size = g->size, .count = g->prompt_tokens};
    k2_buf_clear(&r->scratch);
    k2_buf_append(&r->scratch, &x, sizeof x);
    for (uint32_t i = 0; i < g->prompt_tokens; i++) {
        k2_replay_token t;
        k2i_chain_copy(r, g->head, g->prompt_tokens, i, &t, 1);
        k2_buf_append(&r->scratch, &t.id, sizeof t.id);
    }
    put(r, K2I_SNAPSHOT_GROUP);
}

static void put_trajectory(k2_replay *r, const k2i_group *g, uint32_t index)
{
    const k2i_trajectory *t = k2i_member(r, g, index);
    k2i_rec_snapshot_trajectory x = {.id = k2_replay_id(g->id, index),
                                     .iteration = t->iteration,
                                     .reward = t->reward,
                                     .generated = t->generated,
                                     .until = t->until,
                                     .cuts = t->cuts,
                                     .state = t->state,
                                     .finish = t->finish};
    memcpy(x.reason, t->reason, sizeof x.reason);
    k2_buf_clear(&r->scratch);
    k2_buf_append(&r->scratch, &x, sizeof x);
    for (uint32_t at = 0, n; at < t->generated; at += n) {
        k2_replay_token some[K2I_BLOCK_TOKENS];
        n = k2i_chain_copy(r, t->head, t->generated, at, some, K2I_BLOCK_TOKENS);
        k2_buf_append(&r->scratch, some, n * sizeof *some);
    }
    put(r, K2I_SNAPSHOT_TRAJECTORY);
}

void k2_replay_snapshot(k2_replay *r)
{
    const k2_replay_counts *c = &r->counts;
    k2i_rec_snapshot x = {.groups = c->groups,
                          .next_group = c->next_group,
                          .step_taken = c->step_taken,
                          .step_consumed = c->step_consumed,
                          .step_released = c->step_released,
                          .groups_total = c->groups_total,
                          .trajectories_total = c->trajectories_total,
                          .generated_total = c->generated_total,
                          .cut_total = c->cut_total,
                          .resumed_total = c->resumed_total,
                          .finished_total = c->finished_total,
                          .consumed_total = c->consumed_total,
                          .dropped_total = c->dropped_total,
                          .repetition_total = c->repetition_total};
    k2_buf_clear(&r->scratch);
    k2_buf_append(&r->scratch, &x, sizeof x);
    put(r, K2I_SNAPSHOT_BEGIN);
    for (uint32_t k = 0; k < c->groups; k++) {
        const k2i_group *g = &r->groups[r->order[k]];
        put_group(r, g);
        for (uint32_t i = 0; i < g->size; i++) put_trajectory(r, g, i);
    }
    k2_buf_clear(&r->scratch);
    put(r, K2I_SNAPSHOT_END);
}

static void digest_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    uint64_t frame[2] = {type, len};
    k2_digest_update(arg, frame, sizeof frame);
    k2_digest_update(arg, bytes, len);
}

/* The snapshot holds everything that records determine, so its digest is the state's. */
k2_digest k2_replay_digest(k2_replay *r)
{
    k2_replay_sink sink = r->sink;
    k2_digest_stream *s = k2_digest_begin();
    r->sink = (k2_replay_sink){.record = digest_record, .arg = s};
    k2_replay_snapshot(r);
    r->sink = sink;
    return k2_digest_end(s);
}

/* ---- snapshot: reading -------------------------------------------------------------------------------------------- */

static k2_code apply_begin(k2_replay *r, const void *bytes, size_t len, k2_error *err)
{
    k2i_rec_snapshot x;
    if (len != sizeof x || !head(bytes, len, &x, sizeof x)) return malformed(K2I_SNAPSHOT_BEGIN, len, err);
    k2i_reset(r);
    k2_replay_counts *c = &r->counts;
    c->step_taken = x.step_taken;
    c->step_consumed = x.step_consumed;
    c->step_released = x.step_released;
    c->groups_total = x.groups_total;
    c->trajectories_total = x.trajectories_total;
    c->generated_total = x.generated_total;
    c->cut_total = x.cut_total;
    c->resumed_total = x.resumed_total;
    c->finished_total = x.finished_total;
    c->consumed_total = x.consumed_total;
    c->dropped_total = x.dropped_total;
    c->repetition_total = x.repetition_total;
    r->snapshot_open = true;
    r->snapshot_next_group = x.next_group;
    return K2_OK;
}

static k2_code apply_snapshot_group(k2_replay *r, const void *bytes, size_t len, k2_error *err)
{
    k2i_rec_snapshot_group x;
    if (!head(bytes, len, &x, sizeof x) || len != sizeof x + (size_t)x.count * sizeof(int32_t))
        return malformed(K2I_SNAPSHOT_GROUP, len, err);
    uint64_t need = k2i_blocks_for(x.count) + (uint64_t)x.size * k2i_blocks_for(r->config.trajectory_tokens_max);
    if (!r->snapshot_open || x.group < r->counts.next_group || x.group >= K2_REPLAY_GROUP_ID_MAX || x.size < 1 ||
        x.size > r->config.group_size_max || x.count < 1 || x.count > r->config.prompt_tokens_max || r->free_count == 0 ||
        r->blocks_reserved + need > r->block_count)
        return k2_error_set(err, K2_CORRUPT, "replay: snapshot: group %llu does not fit here", (unsigned long long)x.group);
    k2i_group *g = k2i_group_put(r, x.group, x.prompt, x.size, (const int32_t *)((const char *)bytes + sizeof x), x.count);
    g->step = x.step;
    return K2_OK;
}

static k2_code apply_snapshot_trajectory(k2_replay *r, const void *bytes, size_t len, k2_error *err)
{
    k2i_rec_snapshot_trajectory x;
    if (!head(bytes, len, &x, sizeof x) || len != sizeof x + (size_t)x.generated * sizeof(k2_replay_token))
        return malformed(K2I_SNAPSHOT_TRAJECTORY, len, err);
    k2i_trajectory *t = k2i_trajectory_find(r, x.id, NULL);
    if (!r->snapshot_open || !t || t->generated != 0 || x.generated > r->config.trajectory_tokens_max ||
        x.until > r->config.trajectory_tokens_max || x.state > K2_REPLAY_DROPPED || x.finish > K2_REPLAY_FINISH_REPETITION ||
        !isfinite(x.reward))
        return k2_error_set(err, K2_CORRUPT, "replay: snapshot: trajectory %llu does not fit here", (unsigned long long)x.id);
    r->blocks_reserved -= k2i_blocks_of(r, t);
    k2i_count_state(r, t, -1);
    k2i_chain_append(r, &t->head, &t->tail, 0, (const k2_replay_token *)((const char *)bytes + sizeof x), x.generated);
    t->generated = x.generated;
    t->until = x.until;
    t->cuts = x.cuts;
    t->iteration = x.iteration;
    t->reward = x.reward;
    t->state = (uint8_t)x.state;
    t->finish = (uint8_t)x.finish;
    memcpy(t->reason, x.reason, sizeof t->reason);
    t->reason[sizeof t->reason - 1] = 0;
    r->counts.tokens += x.generated;
    k2i_count_state(r, t, 1);
    r->blocks_reserved += k2i_blocks_of(r, t);
    return K2_OK;
}

static k2_code apply_end(k2_replay *r, size_t len, k2_error *err)
{
    if (len != 0 || !r->snapshot_open || r->snapshot_next_group < r->counts.next_group)
        return malformed(K2I_SNAPSHOT_END, len, err);
    r->counts.next_group = r->snapshot_next_group + K2_PLANTED(PROMPT_SKIPPED);
    r->snapshot_open = false;
    return K2_OK;
}

/* ---- recovery ------------------------------------------------------------------------------------------------------ */

/* One case of apply: the record is exactly one struct. */
#define FIXED(TYPE, struct_type, call)                                                                                         \
    case TYPE: {                                                                                                               \
        struct_type x;                                                                                                         \
        if (len != sizeof x || !head(bytes, len, &x, sizeof x)) return malformed(type, len, err);                              \
        return call(r, &x, err);                                                                                               \
    }

/* The record is a struct, then `count` items of item_type. */
#define LISTED(TYPE, struct_type, item_type, call)                                                                             \
    case TYPE: {                                                                                                               \
        struct_type x;                                                                                                         \
        if (!head(bytes, len, &x, sizeof x) || (len - sizeof x) % sizeof(item_type) != 0 ||                                    \
            (len - sizeof x) / sizeof(item_type) != x.count)                                                                   \
            return malformed(type, len, err);                                                                                  \
        return call(r, &x, (const item_type *)(const void *)((const char *)bytes + sizeof x), err);                            \
    }

static k2_code apply(k2_replay *r, uint32_t type, const void *bytes, size_t len, k2_error *err)
{
    switch (type) {
        LISTED(K2I_GROUP, k2i_rec_group, int32_t, k2i_on_group)
        FIXED(K2I_START, k2i_rec_start, k2i_on_start)
        LISTED(K2I_CHUNK, k2i_rec_chunk, k2_replay_token, k2i_on_chunk)
        FIXED(K2I_CUT, k2i_rec_id, k2i_on_cut)
        FIXED(K2I_REQUEUE, k2i_rec_id, k2i_on_requeue)
        FIXED(K2I_FINISH, k2i_rec_finish, k2i_on_finish)
        FIXED(K2I_SCORE, k2i_rec_score, k2i_on_score)
        FIXED(K2I_DROP, k2i_rec_drop, k2i_on_drop)
        LISTED(K2I_TAKE, k2i_rec_take, uint64_t, k2i_on_take)
        FIXED(K2I_CONSUME, k2i_rec_step, k2i_on_consume)
        FIXED(K2I_RELEASE, k2i_rec_step, k2i_on_release)
    case K2I_RECOVER:
        if (len != 0) return malformed(type, len, err);
        k2i_on_recover(r);
        return K2_OK;
    case K2I_SNAPSHOT_BEGIN: return apply_begin(r, bytes, len, err);
    case K2I_SNAPSHOT_GROUP: return apply_snapshot_group(r, bytes, len, err);
    case K2I_SNAPSHOT_TRAJECTORY: return apply_snapshot_trajectory(r, bytes, len, err);
    case K2I_SNAPSHOT_END: return apply_end(r, len, err);
    default: return malformed(type, len, err);
    }
}

k2_code k2_replay_apply(k2_replay *r, uint32_t type, const void *bytes, size_t len, k2_error *err)
{
    K2_ASSERT(((uintptr_t)bytes & 3) == 0); /* token records are looked at in place */
    if (r->snapshot_open && (type < K2I_SNAPSHOT_BEGIN || type > K2I_SNAPSHOT_END))
        return k2_error_set(err, K2_CORRUPT, "replay: record of type %u inside a snapshot", type);
    if (type < K2I_GROUP || type > K2I_SNAPSHOT_END)
        return k2_error_set(err, K2_BAD_INPUT, "replay: record of type %u: not one of ours", type);
    k2_error why = {0};
    k2_code code = apply(r, type, bytes, len, &why);
    if (code == K2_OK) return K2_OK;
    return k2_error_set(err, K2_CORRUPT, "replay: record of type %u: %s", type, code == K2_CANCELED ? "came twice" : why.text);
}
