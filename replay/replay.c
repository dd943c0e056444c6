/* replay: memory, look-up, and the questions that change nothing. Changes stand in change.c, recovery and snapshots in
 * record.c. */
#include "replay/replay_int.h"

#include <string.h>

#include "common/base/planted.h"

static const char *const state_names[] = {"queued", "running", "finished", "scored", "consumed", "dropped"};

const char *k2_replay_state_name(k2_replay_state s)
{
    K2_ASSERT((unsigned)s < K2_COUNT(state_names));
    return state_names[s];
}

uint32_t k2i_blocks_for(uint64_t tokens)
{
    return (uint32_t)((tokens + K2I_BLOCK_TOKENS - 1) / K2I_BLOCK_TOKENS);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Bytes of the largest record: a chunk, a group with its prompt, a take of everything, a trajectory in a snapshot. */
static size_t scratch_bytes(const k2_replay_config *c)
{
    size_t tokens = K2_MAX(K2_MAX((size_t)c->trajectory_tokens_max, (size_t)K2_REPLAY_CHUNK_MAX), (size_t)c->prompt_tokens_max);
    return sizeof(k2i_rec_snapshot_trajectory) +
           K2_MAX(tokens * sizeof(k2_replay_token), (size_t)c->groups_max * sizeof(uint64_t));
}

uint64_t k2_replay_bytes(const k2_replay_config *c)
{
    uint64_t trajectories = (uint64_t)c->groups_max * c->group_size_max;
    return sizeof(k2_replay) + trajectories * sizeof(k2i_trajectory) +
           c->groups_max * (sizeof(k2i_group) + 2 * sizeof(uint32_t) + sizeof(uint64_t)) +
           (uint64_t)k2i_blocks_for(c->tokens_max) * (sizeof(k2i_block) + sizeof(uint32_t)) + scratch_bytes(c);
}

static k2_code limit(k2_error *err, const char *name, uint64_t found, uint64_t least, uint64_t most)
{
    return k2_error_set(err, K2_LIMIT, "replay: %s is %llu; %llu to %llu are possible", name, (unsigned long long)found,
                        (unsigned long long)least, (unsigned long long)most);
}

static k2_code check_config(const k2_replay_config *c, k2_error *err)
{
    if (c->groups_max < 1 || c->groups_max > K2_REPLAY_GROUPS_MAX)
        return limit(err, "groups_max", c->groups_max, 1, K2_REPLAY_GROUPS_MAX);
    if (c->group_size_max < 1 || c->group_size_max > K2_REPLAY_GROUP_MEMBERS_MAX)
        return limit(err, "group_size_max", c->group_size_max, 1, K2_REPLAY_GROUP_MEMBERS_MAX);
    if (c->trajectory_tokens_max < 1 || c->trajectory_tokens_max > 1u << 22)
        return limit(err, "trajectory_tokens_max", c->trajectory_tokens_max, 1, 1u << 22);
    if (c->prompt_tokens_max < 1 || c->prompt_tokens_max > 1u << 22)
        return limit(err, "prompt_tokens_max", c->prompt_tokens_max, 1, 1u << 22);
    uint64_t group = K2I_BLOCK_TOKENS * ((uint64_t)k2i_blocks_for(c->prompt_tokens_max) +
                                         (uint64_t)c->group_size_max * k2i_blocks_for(c->trajectory_tokens_max));
    if (c->tokens_max < group || c->tokens_max > UINT64_C(1) << 37)
        return limit(err, "tokens_max", c->tokens_max, group, UINT64_C(1) << 37);
    return K2_OK;
}

k2_code k2_replay_new(const k2_replay_config *config, k2_replay **out, k2_error *err)
{
    k2_code code = check_config(config, err);
    if (code != K2_OK) return code;
    k2_replay *r = k2_alloc(sizeof *r);
    r->config = *config;
    r->trajectories = k2_alloc_array((size_t)config->groups_max * config->group_size_max, sizeof *r->trajectories);
    r->groups = k2_alloc_array(config->groups_max, sizeof *r->groups);
    r->order = k2_alloc_array(config->groups_max, sizeof *r->order);
    r->free_slots = k2_alloc_array(config->groups_max, sizeof *r->free_slots);
    r->take_list = k2_alloc_array(config->groups_max, sizeof *r->take_list);
    r->block_count = k2i_blocks_for(config->tokens_max);
    r->blocks = k2_alloc_array(r->block_count, sizeof *r->blocks);
    r->next_block = k2_alloc_array(r->block_count, sizeof *r->next_block);
    k2_buf_init(&r->scratch, scratch_bytes(config));
    r->scratch.data = k2_alloc(scratch_bytes(config) + 1);
    r->scratch.capacity = scratch_bytes(config) + 1;
    k2i_reset(r);
    *out = r;
    return K2_OK;
}

void k2_replay_free(k2_replay *r)
{
    if (!r) return;
    k2_free(r->trajectories);
    k2_free(r->groups);
    k2_free(r->order);
    k2_free(r->free_slots);
    k2_free(r->take_list);
    k2_free(r->blocks);
    k2_free(r->next_block);
    k2_buf_fini(&r->scratch);
    k2_free(r);
}

void k2_replay_sink_set(k2_replay *r, k2_replay_sink sink)
{
    r->sink = sink;
}

/* To the state of a new buffer; refusals counted so far stay, they belong to the process. */
void k2i_reset(k2_replay *r)
{
    uint64_t duplicates = r->counts.duplicates, refused = r->counts.refused;
    r->counts = (k2_replay_counts){.duplicates = duplicates, .refused = refused};
    r->free_count = r->config.groups_max;
    for (uint32_t i = 0; i < r->free_count; i++) r->free_slots[i] = r->free_count - 1 - i;
    for (uint32_t i = 0; i < r->block_count; i++) r->next_block[i] = i + 1 < r->block_count ? i + 1 : K2I_NO_BLOCK;
    r->free_block = 0;
    r->blocks_reserved = 0;
    k2i_scan_reset(r);
}

void k2i_scan_reset(k2_replay *r)
{
    r->scan_resumed = r->scan_new = (k2i_scan){0, 0};
}

/* ---- chains of blocks --------------------------------------------------------------------------------------------- */

void k2i_chain_append(k2_replay *r, uint32_t *head, uint32_t *tail, uint32_t used, const k2_replay_token *tokens,
                      uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, used++) {
        if (used % K2I_BLOCK_TOKENS == 0) {
            uint32_t b = r->free_block;
            K2_ASSERT(b != K2I_NO_BLOCK); /* the reservation at add_group promised it */
            r->free_block = r->next_block[b];
            r->next_block[b] = K2I_NO_BLOCK;
            if (used == 0)
                *head = b;
            else
                r->next_block[*tail] = b;
            *tail = b;
        }
        r->blocks[*tail].token[used % K2I_BLOCK_TOKENS] = tokens[i];
    }
}

void k2i_chain_free(k2_replay *r, uint32_t head)
{
    while (head != K2I_NO_BLOCK) {
        uint32_t next = r->next_block[head];
        r->next_block[head] = r->free_block;
        r->free_block = head;
        head = next;
    }
}

uint32_t k2i_chain_copy(const k2_replay *r, uint32_t head, uint32_t len, uint32_t from, k2_replay_token *out, uint32_t count)
{
    if (from >= len) return 0;
    count = K2_MIN(count, len - from);
    uint32_t b = head;
    for (uint32_t skip = from / K2I_BLOCK_TOKENS; skip > 0; skip--) b = r->next_block[b];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (from + i) % K2I_BLOCK_TOKENS;
        if (i > 0 && at == 0) b = r->next_block[b];
        out[i] = r->blocks[b].token[at];
    }
    return count;
}

/* ---- groups -------------------------------------------------------------------------------------------------------- */

k2i_group *k2i_group_find(const k2_replay *r, uint64_t id)
{
    uint32_t low = 0, high = r->counts.groups;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (r->groups[r->order[mid]].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->counts.groups && r->groups[r->order[low]].id == id ? &r->groups[r->order[low]] : NULL;
}

k2i_trajectory *k2i_trajectory_find(const k2_replay *r, uint64_t id, k2i_group **group)
{
    k2i_group *g = k2i_group_find(r, k2_replay_group_of(id));
    if (!g || k2_replay_index_of(id) >= g->size) return NULL;
    if (group) *group = g;
    return k2i_member(r, g, k2_replay_index_of(id));
}

uint32_t k2i_blocks_of(const k2_replay *r, const k2i_trajectory *t)
{
    return k2i_blocks_for(k2i_open(t) ? r->config.trajectory_tokens_max : t->generated);
}

bool k2i_group_whole(const k2_replay *r, const k2i_group *g)
{
    for (uint32_t i = 0; i < g->size; i++) {
        uint8_t s = k2i_member(r, g, i)->state;
        if (s != K2_REPLAY_SCORED && s != K2_REPLAY_DROPPED) return false;
    }
    return true;
}

/* The present counts follow every change of a state through here. */
void k2i_count_state(k2_replay *r, const k2i_trajectory *t, int sign)
{
    uint32_t *const by_state[] = {&r->counts.queued, &r->counts.running,  &r->counts.finished,
                                  &r->counts.scored, &r->counts.consumed, &r->counts.dropped};
    *by_state[t->state] += (uint32_t)sign;
    if (t->state == K2_REPLAY_QUEUED && t->cuts > 0) r->counts.queued_resumed += (uint32_t)sign;
}

k2i_group *k2i_group_put(k2_replay *r, uint64_t id, uint64_t prompt, uint32_t size, const int32_t *tokens, uint32_t count)
{
    uint32_t slot = r->free_slots[--r->free_count];
    k2i_group *g = &r->groups[slot];
    *g = (k2i_group){.id = id,
                     .prompt = prompt,
                     .size = size,
                     .prompt_tokens = count,
                     .head = K2I_NO_BLOCK,
                     .tail = K2I_NO_BLOCK,
                     .slot = slot};
    for (uint32_t i = 0; i < count; i++) {
        k2_replay_token t = {.id = tokens[i]};
        k2i_chain_append(r, &g->head, &g->tail, i, &t, 1);
    }
    r->blocks_reserved += k2i_blocks_for(count);
    for (uint32_t i = 0; i < size; i++) {
        k2i_trajectory *t = k2i_member(r, g, i);
        *t = (k2i_trajectory){.state = K2_REPLAY_QUEUED, .head = K2I_NO_BLOCK, .tail = K2I_NO_BLOCK};
        k2i_count_state(r, t, 1);
        r->blocks_reserved += k2i_blocks_of(r, t);
    }
    r->order[r->counts.groups++] = slot;
    r->counts.next_group = id + 1;
    return g;
}

void k2i_group_remove(k2_replay *r, k2i_group *g)
{
    for (uint32_t i = 0; i < g->size; i++) {
        k2i_trajectory *t = k2i_member(r, g, i);
        k2i_count_state(r, t, -1);
        r->blocks_reserved -= k2i_blocks_of(r, t);
        r->counts.tokens -= t->generated;
        k2i_chain_free(r, t->head);
    }
    r->blocks_reserved -= k2i_blocks_for(g->prompt_tokens);
    k2i_chain_free(r, g->head);
    r->free_slots[r->free_count++] = g->slot;
}

/* ---- looking ------------------------------------------------------------------------------------------------------- */

static bool due(const k2i_trajectory *t, uint64_t iteration, bool resumed)
{
    if (t->state != K2_REPLAY_QUEUED) return false;
    if (t->until == 0 && t->cuts > 0 && t->iteration + K2_PLANTED(TOO_STALE) >= iteration) return false; /* had its segment */
    return resumed == (t->cuts > 0 || t->until > 0);
}

static bool scan(const k2_replay *r, k2i_scan *at, uint64_t iteration, bool resumed, k2_replay_work *out)
{
    for (; at->group < r->counts.groups; at->group++, at->member = 0) {
        const k2i_group *g = &r->groups[r->order[at->group]];
        for (; at->member < g->size; at->member++) {
            const k2i_trajectory *t = k2i_member(r, g, at->member);
            if (!due(t, iteration, resumed)) continue;
            *out = (k2_replay_work){.id = k2_replay_id(g->id, at->member),
                                    .group = g->id,
                                    .prompt = g->prompt,
                                    .generated = t->generated,
                                    .until = t->until,
                                    .resumed = t->cuts > 0};
            return true;
        }
    }
    return false;
}

k2_code k2_replay_next(k2_replay *r, uint64_t iteration, k2_replay_work *out)
{
    if (r->scan_iteration != iteration) k2i_scan_reset(r);
    r->scan_iteration = iteration;
    if (scan(r, &r->scan_resumed, iteration, true, out) || scan(r, &r->scan_new, iteration, false, out)) return K2_OK;
    return K2_NOT_FOUND;
}

k2_code k2_replay_find(const k2_replay *r, uint64_t id, k2_replay_info *out)
{
    k2i_group *g;
    const k2i_trajectory *t = k2i_trajectory_find(r, id, &g);
    if (!t) return K2_NOT_FOUND;
    *out = (k2_replay_info){.id = id,
                            .group = g->id,
                            .prompt = g->prompt,
                            .iteration = t->iteration,
                            .step = g->step,
                            .state = (k2_replay_state)t->state,
                            .finish = (k2_replay_finish)t->finish,
                            .prompt_tokens = g->prompt_tokens,
                            .generated = t->generated,
                            .until = t->until,
                            .cuts = t->cuts,
                            .group_size = g->size,
                            .reward = t->reward,
                            .reason = t->reason};
    return K2_OK;
}

uint32_t k2_replay_prompt_tokens(const k2_replay *r, uint64_t group, uint32_t from, int32_t *out, uint32_t count)
{
    const k2i_group *g = k2i_group_find(r, group);
    uint32_t n = 0;
    k2_replay_token t;
    while (g && n < count && k2i_chain_copy(r, g->head, g->prompt_tokens, from + n, &t, 1) == 1) out[n++] = t.id;
    return n;
}

uint32_t k2_replay_tokens(const k2_replay *r, uint64_t id, uint32_t from, k2_replay_token *out, uint32_t count)
{
    const k2i_trajectory *t = k2i_trajectory_find(r, id, NULL);
    return t ? k2i_chain_copy(r, t->head, t->generated, from, out, count) : 0;
}

uint32_t k2_replay_spans(const k2_replay *r, uint64_t id, k2_replay_span *out, uint32_t count)
{
    const k2i_trajectory *t = k2i_trajectory_find(r, id, NULL);
    uint32_t spans = 0, last = 0;
    for (uint32_t i = 0, b = t ? t->head : K2I_NO_BLOCK; t && i < t->generated; i++) {
        if (i > 0 && i % K2I_BLOCK_TOKENS == 0) b = r->next_block[b];
        uint32_t v = r->blocks[b].token[i % K2I_BLOCK_TOKENS].version;
        if (i == 0 || v != last) {
            if (spans < count) out[spans] = (k2_replay_span){.version = v, .start = i, .end = i};
            spans++;
        }
        if (spans <= count) out[spans - 1].end = i + 1;
        last = v;
    }
    return spans;
}

bool k2_replay_group_next(const k2_replay *r, uint64_t step, uint32_t *cursor, uint64_t *group, uint32_t *size)
{
    for (; *cursor < r->counts.groups; ++*cursor) {
        const k2i_group *g = &r->groups[r->order[*cursor]];
        if (step != 0 && g->step != step) continue;
        *group = g->id;
        *size = g->size;
        ++*cursor;
        return true;
    }
    return false;
}

uint32_t k2_replay_groups_open(const k2_replay *r)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->counts.groups; k++) n += r->groups[r->order[k]].step == 0;
    return n;
}

uint32_t k2_replay_groups_ready(const k2_replay *r)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->counts.groups; k++) {
        const k2i_group *g = &r->groups[r->order[k]];
        n += g->step == 0 && k2i_group_whole(r, g);
    }
    return n;
}

static bool flat(const k2_replay *r, const k2i_group *g)
{
    const k2i_trajectory *first = NULL;
    for (uint32_t i = 0; i < g->size; i++) {
        const k2i_trajectory *t = k2i_member(r, g, i);
        bool scored = t->state == K2_REPLAY_SCORED || t->state == K2_REPLAY_CONSUMED;
        if (!scored && t->state != K2_REPLAY_DROPPED && !K2_PLANTED(FLAT_BEFORE_WHOLE)) return false;
        if (!scored || t->generated == 0) continue;
        if (first && (float)t->reward != (float)first->reward) return false;
        first = t;
    }
    return true;
}

bool k2_replay_group_flat(const k2_replay *r, uint64_t group)
{
    const k2i_group *g = k2i_group_find(r, group);
    return g && flat(r, g);
}

uint32_t k2_replay_groups_flat(const k2_replay *r)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->counts.groups; k++) {
        const k2i_group *g = &r->groups[r->order[k]];
        n += g->step == 0 && flat(r, g);
    }
    return n;
}

k2_replay_counts k2_replay_count(const k2_replay *r)
{
    return r->counts;
}
