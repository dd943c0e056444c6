/* batch: the groups that a step took, encoded and put where the trainers read them. */
#include "master/io_int.h"

#include <stdio.h>
#include <string.h>

#include "common/flight/flight.h"
#include "common/wire/batch.h"

typedef struct lists {
    k2_batch_trajectory *list;
    int32_t **tokens;
    float **logps;
    uint32_t **versions;
    uint32_t count, capacity;
} lists;

static bool trained(const k2_replay_info *info)
{
    return info->state != K2_REPLAY_DROPPED && info->generated > 0;
}

static void add(const k2_replay *r, lists *l, uint64_t id)
{
    k2_replay_info info;
    if (k2_replay_find(r, id, &info) != K2_OK || !trained(&info)) return;
    if (l->count == l->capacity) {
        l->capacity = l->capacity * 2 + 256;
        l->list = k2_realloc_array(l->list, l->capacity, sizeof *l->list);
        l->tokens = k2_realloc_array(l->tokens, l->capacity, sizeof *l->tokens);
        l->logps = k2_realloc_array(l->logps, l->capacity, sizeof *l->logps);
        l->versions = k2_realloc_array(l->versions, l->capacity, sizeof *l->versions);
    }
    uint32_t n = info.generated, p = info.prompt_tokens, at = l->count++;
    k2_replay_token *t = k2_alloc_array(n, sizeof *t);
    l->tokens[at] = k2_alloc_array((size_t)p + n, sizeof **l->tokens);
    l->logps[at] = k2_alloc_array(n, sizeof **l->logps);
    l->versions[at] = k2_alloc_array(n, sizeof **l->versions);
    (void)k2_replay_prompt_tokens(r, info.group, 0, l->tokens[at], p);
    (void)k2_replay_tokens(r, id, 0, t, n);
    for (uint32_t i = 0; i < n; i++) {
        l->tokens[at][p + i] = t[i].id;
        l->logps[at][i] = t[i].logp;
        l->versions[at][i] = t[i].version;
    }
    k2_free(t);
    l->list[at] = (k2_batch_trajectory){.id = id,
                                        .group = info.group,
                                        .prompt = info.prompt,
                                        .reward = (float)info.reward,
                                        .prompt_tokens = p,
                                        .generated_tokens = n,
                                        .finish = (k2_batch_finish)info.finish,
                                        .tokens = l->tokens[at],
                                        .logps = l->logps[at],
                                        .versions = l->versions[at]};
}

static void lists_fini(lists *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        k2_free(l->tokens[i]);
        k2_free(l->logps[i]);
        k2_free(l->versions[i]);
    }
    k2_free(l->list);
    k2_free(l->tokens);
    k2_free(l->logps);
    k2_free(l->versions);
}

static k2_code offer(k2m_io *io, const k2_buf *bytes, k2_error *err)
{
    k2_xfer_segment *fresh;
    k2_code code = k2_xfer_segment_create(io->xfer, bytes->len, &fresh, err);
    if (code != K2_OK) return code;
    memcpy(k2_xfer_segment_memory(fresh), bytes->data, bytes->len);
    k2_xfer_segment_destroy(io->segment); /* the step before is done, or is done anew from this one */
    io->segment = fresh;
    return K2_OK;
}

static void tell(void *arg)
{
    k2m_io *io = arg;
    if (k2_loop_ending(io->loop) || !io->segment) return;
    k2m_io_event(io, &(k2m_event){.type = K2M_EV_BATCH,
                                  .step = io->batch_step,
                                  .locator = k2_xfer_segment_locator(io->segment),
                                  .bytes = k2_xfer_segment_bytes(io->segment),
                                  .digest = io->batch_digest});
}

k2_code k2m_batch_encode(const k2m_core *m, uint64_t step, k2_buf *out, k2_error *err)
{
    lists l = {0};
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(m->replay, step, &at, &group, &size);)
        for (uint32_t k = 0; k < size && !k2m_batch_leaves_out(m, group); k++) add(m->replay, &l, k2_replay_id(group, k));
    k2_code code = k2_batch_encode(step, l.list, l.count, out, err);
    lists_fini(&l);
    return code;
}

/* These lines let anyone count afterwards that no trajectory was trained in two steps, and none in no step. A batch that is
 * made anew after a crash tells the same step and group again. */
static void tell_groups(const k2m_io *io, uint64_t step)
{
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(io->core->replay, step, &at, &group, &size);) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < size && !k2m_batch_leaves_out(io->core, group); k++) {
            k2_replay_info info;
            n += k2_replay_find(io->core->replay, k2_replay_id(group, k), &info) == K2_OK && trained(&info);
        }
        K2_LOG_DEBUG(io->log, "batch step=%llu group=%llu trajectories=%u", (unsigned long long)step, (unsigned long long)group,
                     n);
    }
}

void k2m_batch_make(k2m_io *io, uint64_t step)
{
    k2_buf bytes;
    uint32_t span = k2_flight_begin(K2_FLIGHT_BATCH, step, K2_FLIGHT_NONE, K2_FLIGHT_NONE, 0);
    k2_buf_init(&bytes, (size_t)1 << 40);
    k2_error err = {0};
    k2_code code = k2m_batch_encode(io->core, step, &bytes, &err);
    tell_groups(io, step);
    if (code == K2_OK) code = offer(io, &bytes, &err);
    if (code == K2_OK) {
        io->batch_step = step;
        io->batch_digest = k2_digest_of(bytes.data, bytes.len);
        k2m_reporter_batch(io->reporter, io->core, step);
        if (k2_loop_post(io->loop, tell, io) != K2_OK) tell(io); /* the inbox is full */
    } else {
        k2m_io_event(io, &(k2m_event){.type = K2M_EV_FAULT, .code = code, .text = err.text});
    }
    k2_flight_end_with(span, 2, bytes.len);
    k2_buf_fini(&bytes);
}
