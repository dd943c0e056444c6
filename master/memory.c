/* memory: all that the core ever holds, sized by the configuration. One list says what there is; new, free and the plan's bytes
 * read it. */
#include <string.h>

#include "master/core_int.h"

#define PIECES 13u

typedef struct piece {
    void **at;
    size_t count, size;
} piece;

uint64_t k2m_step_groups(const k2_config *c)
{
    return c->rollout_groups + c->rollout_refill_max;
}

k2_replay_config k2m_replay_config(const k2_config *c, uint32_t prompt_tokens_max)
{
    k2_replay_config r = {.group_size_max = (uint32_t)c->rollout_group_size,
                          .trajectory_tokens_max = (uint32_t)c->rollout_max_tokens,
                          .prompt_tokens_max = K2_MAX(prompt_tokens_max, 1u)};
    uint64_t kept = K2_MIN(c->run_checkpoint_every, 64) + 2;
    for (;; kept--) {
        r.groups_max = (uint32_t)K2_MIN(k2m_step_groups(c) * kept, K2_REPLAY_GROUPS_MAX);
        uint64_t group = (r.prompt_tokens_max + 63) / 64 + c->rollout_group_size * ((c->rollout_max_tokens + 63) / 64);
        r.tokens_max = r.groups_max * group * 64;
        if (kept <= 2 || k2_replay_bytes(&r) <= K2M_REPLAY_BYTES_MAX) return r;
    }
}

/* A barrier to all trainers, and what one step may do with the others. */
uint32_t k2m_worker_actions(const k2m_core *m)
{
    return m->trainers + K2_MIN(m->worker_count, K2M_STEP_WORKERS);
}

/* The fleet and every capacity, from the configuration alone. */
static void shape(k2m_core *m)
{
    const k2_config *c = m->c.config;
    bool pretrain = strcmp(c->mode, "pretrain") == 0;
    m->trainers = (uint32_t)c->trainer_ranks;
    m->rollouts = pretrain ? 0 : (uint32_t)c->rollout_workers;
    m->has_proxy = !pretrain;
    m->first_rollout = m->trainers;
    m->proxy = m->trainers + m->rollouts;
    m->worker_count = m->trainers + m->rollouts + (m->has_proxy ? 1 : 0);
    K2_ASSERT(m->worker_count <= K2_PEERS_MAX); /* the configuration's limits see to it */
    /* Half of the proxy's places at most: the others are for rewards and for other clients. */
    m->inflight_max = (uint32_t)K2_MIN(c->master_inflight_max, K2_MAX(c->proxy_queue_max / 2, 1));
    m->outbox.capacity = m->inflight_max + 2 * k2m_worker_actions(m) + 4 * K2M_OUTBOX_RESERVE;
    m->asked_count = 4 * m->inflight_max;
    uint32_t groups = k2m_replay_config(c, m->c.prompts.length_max).groups_max;
    m->score_capacity = groups * (uint32_t)c->rollout_group_size + K2M_EVAL_MAX;
    m->suspect_capacity = 2 * m->inflight_max + K2M_SCORES_MAX * K2M_SCORE_ITEMS;
    m->digest_count = groups + 4;
}

static void pieces(k2m_core *m, piece out[PIECES])
{
#define P(member, n)                                                                                                           \
    {                                                                                                                          \
        (void **)&m->member, n, sizeof *m->member                                                                              \
    }
    const piece list[] = {P(workers, m->worker_count),
                          P(outbox.list, m->outbox.capacity),
                          P(asked, m->asked_count),
                          P(score_queue, m->score_capacity),
                          P(score_tries, m->score_capacity),
                          P(suspects, m->suspect_capacity),
                          P(digests, m->digest_count),
                          P(order, m->c.prompts.count),
                          P(rates.rate, k2m_rates_on(m) ? m->c.prompts.count : 0),
                          P(rates.sums, k2m_rates_on(m) ? m->c.prompts.count : 0),
                          P(eval, K2M_EVAL_MAX),
                          P(strs, m->worker_count + 1),
                          P(engines, K2_MIN(m->rollouts + 1, K2_WIRE_ENGINES_MAX))};
#undef P
    _Static_assert(K2_COUNT(list) == PIECES, "all of them");
    memcpy(out, list, sizeof list);
}

k2_code k2m_core_new(const k2m_core_config *config, k2m_core **out, k2_error *err)
{
    k2m_core *m = k2_alloc(sizeof *m);
    m->c = *config;
    shape(m);
    k2_replay_config rc = k2m_replay_config(config->config, config->prompts.length_max);
    k2_code code = k2_replay_new(&rc, &m->replay, err);
    if (code != K2_OK) {
        k2_free(m);
        return code;
    }
    k2_replay_sink_set(m->replay, (k2_replay_sink){.record = config->record, .arg = config->record_arg});
    piece list[PIECES];
    pieces(m, list);
    for (uint32_t i = 0; i < PIECES; i++) *list[i].at = k2_alloc_array(list[i].count, list[i].size);
    k2m_fleet_init(m);
    k2m_rates_reset(m, 0);
    *out = m;
    return K2_OK;
}

void k2m_core_free(k2m_core *m)
{
    if (!m) return;
    piece list[PIECES];
    k2_replay_free(m->replay);
    k2m_fleet_fini(m);
    pieces(m, list);
    for (uint32_t i = 0; i < PIECES; i++) k2_free(*list[i].at);
    k2_free(m);
}

uint64_t k2m_core_bytes(const k2m_core_config *config)
{
    k2m_core *m = k2_alloc(sizeof *m);
    m->c = *config;
    shape(m);
    k2_replay_config rc = k2m_replay_config(config->config, config->prompts.length_max);
    piece list[PIECES];
    uint64_t bytes = sizeof *m + k2_replay_bytes(&rc) + k2m_fleet_bytes(m);
    pieces(m, list);
    for (uint32_t i = 0; i < PIECES; i++) bytes += (uint64_t)list[i].count * list[i].size;
    k2_free(m);
    return bytes;
}
