/* decide: what comes next, from what is true. It is asked after each end of a phase, and after a recovery: there is no other
 * list of the run's steps. */
#include "master/core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/base/planted.h"

#define PRETRAIN_SLICE 10u /* steps of one PRETRAIN command: how often people hear of it */

bool k2m_only_pretrain(const k2m_core *m)
{
    return strcmp(m->c.config->mode, "pretrain") == 0;
}

void k2m_phase_begin(k2m_core *m, k2m_phase p, k2_msg_type type)
{
    k2m_phase_set(m, p);
    k2m_barrier(m, type);
}

static void begin_pretrain(k2m_core *m)
{
    const k2_config *c = m->c.config;
    uint64_t every = 10 * c->run_checkpoint_every, to = m->trainer_pretrain + PRETRAIN_SLICE;
    m->pretrain_from = m->trainer_pretrain;
    to = K2_MIN(to, (m->trainer_pretrain / every + 1) * every); /* slices end where checkpoints are due */
    m->pretrain_to = K2_MIN(to, c->pretrain_steps);
    k2m_phase_begin(m, K2M_PHASE_PRETRAIN, K2_MSG_PRETRAIN);
}

/* The checkpoint that there is has these very weights: only the iteration went on. */
static bool same_weights_saved(const k2m_core *m)
{
    return m->checkpoint.exists && m->checkpoint.step == m->trainer_step && m->checkpoint.pretrain == m->trainer_pretrain;
}

static void begin_save(k2m_core *m)
{
    if (same_weights_saved(m)) {
        m->checkpoint.iteration = m->iteration;
        k2m_record_checkpoint(m);
        k2m_act(m, K2M_ACT_COMPACT);
        k2m_decide(m);
        return;
    }
    /* Numbered by all steps ever taken, so that no checkpoint is written over one that the journal may still name. */
    m->saving = (k2m_checkpoint){.exists = true,
                                 .number = m->trainer_pretrain + m->trainer_step,
                                 .step = m->trainer_step,
                                 .pretrain = m->trainer_pretrain,
                                 .iteration = m->iteration};
    snprintf(m->dir_text, sizeof m->dir_text, "%s/step_%07llu", m->c.checkpoints_dir, (unsigned long long)m->saving.number);
    k2m_phase_begin(m, K2M_PHASE_SAVE, K2_MSG_SAVE);
}

static void begin_batch(k2m_core *m, uint64_t step)
{
    k2m_phase_set(m, K2M_PHASE_BATCH);
    m->batch_step = step;
    k2m_act(m, K2M_ACT_BATCH)->step = step;
    uint64_t group;
    uint32_t size, at = 0;
    for (m->batch_groups = m->batch_flat = 0; k2_replay_group_next(m->replay, step, &at, &group, &size);)
        *(k2m_batch_leaves_out(m, group) ? &m->batch_flat : &m->batch_groups) += 1;
}

static bool saved(const k2m_core *m)
{
    return m->checkpoint.exists && m->checkpoint.step == m->trainer_step && m->checkpoint.pretrain == m->trainer_pretrain &&
           m->checkpoint.iteration == m->iteration;
}

void k2m_stop_begin(k2m_core *m)
{
    k2m_phase_set(m, K2M_PHASE_STOP);
    k2m_stop_all(m);
}

/* The end of the run or of this process: everything saved, then STOP. `whole`: no iteration is left. */
static void finish(k2m_core *m, bool whole)
{
    if (!saved(m)) {
        begin_save(m);
        return;
    }
    if (whole && !m->finished) k2m_record_finished(m);
    k2m_stop_begin(m);
}

static void decide_pretrain(k2m_core *m)
{
    const k2_config *c = m->c.config;
    bool due = m->trainer_pretrain > 0 && m->trainer_pretrain % (10 * c->run_checkpoint_every) == 0;
    if (m->stop_asked || (k2m_only_pretrain(m) && m->trainer_pretrain >= c->pretrain_steps))
        finish(m, m->trainer_pretrain >= c->pretrain_steps);
    else if (due && !saved(m))
        begin_save(m);
    else
        begin_pretrain(m);
}

static bool eval_due(const k2m_core *m)
{
    const k2_config *c = m->c.config;
    if (k2m_core_eval_wanted(m) == 0 || m->stop_asked) return false;
    if (!m->evaluated_before) return true;
    if (m->evaluated_iteration == m->iteration) return false;
    return m->iteration >= c->iterations || (c->run_eval_every > 0 && m->iteration % c->run_eval_every == 0);
}

/* Consumed groups are kept until a checkpoint covers them: one is due when its time has come, or when no room is left for them.
 */
static bool save_due(const k2m_core *m)
{
    const k2_config *c = m->c.config;
    if (!m->checkpoint.exists) return true;
    if (saved(m)) return false;
    k2_replay_counts n = k2_replay_count(m->replay);
    uint32_t groups_max = k2m_replay_config(c, m->c.prompts.length_max).groups_max;
    return (m->iteration > 0 && m->iteration % c->run_checkpoint_every == 0 && m->checkpoint.iteration != m->iteration) ||
           m->journal_pressed || n.groups + k2m_step_groups(c) > groups_max ||
           m->trainer_step - m->checkpoint.step + 2 > m->digest_count;
}

void k2m_decide(k2m_core *m)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    if (m->failing || m->phase >= K2M_PHASE_STOP) return;
    if (!m->trainers_ready) {
        if (!k2m_trainers_up(m) || !k2m_trainers_idle(m)) /* k2m_core_step comes here again when they are */
            k2m_phase_set(m, K2M_PHASE_START);
        else
            k2m_phase_begin(m, K2M_PHASE_JOIN, K2_MSG_JOIN);
    } else if (m->trainer_step == 0 && (k2m_only_pretrain(m) || m->trainer_pretrain < m->c.config->pretrain_steps)) {
        decide_pretrain(m);
    } else if (!m->checkpoint.exists || m->checkpoint.pretrain != m->trainer_pretrain) {
        begin_save(m); /* the start that every recovery may go back to: pretraining is not done twice */
    } else if (m->trainer_step < n.step_consumed && !K2_PLANTED(OLD_VERSION_IN_FORCE)) {
        begin_batch(m, m->trainer_step + 1);
    } else if (!m->published) {
        k2m_phase_begin(m, K2M_PHASE_PUBLISH, K2_MSG_PUBLISH);
    } else if (!k2m_delivered(m)) {
        k2m_phase_set(m, K2M_PHASE_DISTRIBUTE);
        k2m_deliver(m);
    } else if (n.step_taken > n.step_consumed) {
        begin_batch(m, n.step_taken);
    } else if (eval_due(m)) {
        k2m_eval_begin(m);
    } else if (m->iteration >= m->c.config->iterations || m->stop_asked) {
        finish(m, m->iteration >= m->c.config->iterations);
    } else if (save_due(m)) {
        begin_save(m);
    } else {
        k2m_generate_begin(m);
    }
}
