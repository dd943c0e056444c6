/* record: the master's own part of the journal. Part of the pure core. */
#include "master/core_int.h"

#include <string.h>

#include "common/base/planted.h"

/* Everything durable besides the replay buffer; the first record of a compacted journal. */
typedef struct rec_state {
    uint64_t iteration, evaluated_iteration;
    uint64_t checkpoint_number, checkpoint_step, checkpoint_pretrain, checkpoint_iteration;
    uint64_t version; /* of digest: the only one that is needed after a checkpoint */
    k2_digest digest;
    uint32_t checkpoint_exists, evaluated_before, before_correct, before_total, after_correct, after_total, finished, zero;
} rec_state;
typedef struct rec_version {
    uint64_t version;
    k2_digest digest;
} rec_version;
typedef struct rec_iteration {
    uint64_t iteration;
} rec_iteration;
typedef struct rec_deaths {
    uint64_t id;
    uint32_t company, alone, killed, zero;
} rec_deaths;
typedef struct rec_aside {
    uint64_t what, count, step, pretrain;
} rec_aside;
typedef struct rec_eval {
    uint64_t iteration;
    uint32_t correct, total;
} rec_eval;
typedef struct rec_checkpoint {
    uint64_t number, step, pretrain, iteration;
} rec_checkpoint;

typedef struct rec_rates {
    uint64_t step, count, more; /* more = 0: the first of them; count items follow */
} rec_rates;
typedef struct rec_rate {
    uint32_t prompt, rate;
} rec_rate;

typedef struct rec_incarnations {
    uint64_t reserved;
} rec_incarnations;

static void emit(k2m_core *m, uint32_t type, const void *bytes, size_t len)
{
    m->c.record(m->c.record_arg, type, bytes, len);
}

k2_digest k2m_digest_of(const k2m_core *m, uint64_t version)
{
    return m->digests[version % m->digest_count];
}

/* The slot after it is cleared, so that the ring never gives an old version's digest for a new one. */
static void set_digest(k2m_core *m, uint64_t version, k2_digest digest)
{
    m->digests[version % m->digest_count] = digest;
    m->digests[(version + 1) % m->digest_count] = (k2_digest){0, 0};
}

void k2m_record_version(k2m_core *m, uint64_t version, k2_digest digest)
{
    rec_version x = {.version = version, .digest = digest};
    set_digest(m, version, digest);
    emit(m, K2M_REC_VERSION, &x, sizeof x);
}

void k2m_record_iteration(k2m_core *m)
{
    rec_iteration x = {.iteration = m->iteration};
    emit(m, K2M_REC_ITERATION, &x, sizeof x);
}

static void set_eval(k2m_core *m, uint64_t iteration, uint32_t correct, uint32_t total)
{
    if (!m->evaluated_before) {
        m->before_correct = correct;
        m->before_total = total;
    }
    m->evaluated_before = true;
    m->evaluated_iteration = iteration;
    m->after_correct = correct;
    m->after_total = total;
}

void k2m_record_eval(k2m_core *m)
{
    rec_eval x = {.iteration = m->iteration, .correct = m->eval_correct, .total = m->eval_count};
    set_eval(m, x.iteration, x.correct, x.total);
    emit(m, K2M_REC_EVAL, &x, sizeof x);
}

void k2m_record_finished(k2m_core *m)
{
    m->finished = true;
    emit(m, K2M_REC_FINISHED, NULL, 0);
}

/* An incarnation names one process for ever: a master that comes after this one begins behind all that this one may give,
 * whether or not it gave them. The record goes before the process that needs it, as all records do. */
void k2m_record_incarnations(k2m_core *m, uint64_t reserved)
{
    rec_incarnations x = {.reserved = reserved};
    m->incarnations_reserved = reserved;
    emit(m, K2M_REC_INCARNATIONS, &x, sizeof x);
}

void k2m_record_deaths(k2m_core *m, const k2m_suspect *s)
{
    rec_deaths x = {.id = s->id, .company = s->company, .alone = s->alone, .killed = s->killed};
    emit(m, K2M_REC_DEATHS, &x, sizeof x);
}

void k2m_record_aside(k2m_core *m, k2m_aside what)
{
    rec_aside x = {.what = what, .count = m->aside[what], .step = m->aside_step, .pretrain = m->aside_pretrain};
    emit(m, K2M_REC_ASIDE, &x, sizeof x);
}

/* What the records before the state said of deaths and of what was put aside. */
static void record_misdeeds(k2m_core *m)
{
    for (uint32_t i = 0; i < m->suspect_count; i++) k2m_record_deaths(m, &m->suspects[i]);
    for (int i = 0; i < K2M_ASIDE_COUNT; i++)
        if (m->aside[i] > 0) k2m_record_aside(m, (k2m_aside)i);
}

/* Rates of the prompts that were seen, so many in one record. */
static void record_rates(k2m_core *m)
{
    struct {
        rec_rates head;
        rec_rate list[K2M_RATES_CHUNK];
    } x = {.head = {.step = m->rates.step}};
    if (!k2m_rates_on(m) || K2_PLANTED(RATES_FORGOTTEN)) return;
    for (uint32_t i = 0; i <= m->c.prompts.count; i++) {
        bool last = i == m->c.prompts.count;
        if (last || x.head.count == K2M_RATES_CHUNK) {
            emit(m, K2M_REC_RATES, &x, sizeof x.head + x.head.count * sizeof *x.list);
            x.head.count = 0;
            x.head.more = 1;
        }
        if (!last && m->rates.rate[i] != K2M_RATE_UNSEEN)
            x.list[x.head.count++] = (rec_rate){.prompt = i, .rate = m->rates.rate[i]};
    }
}

/* A checkpoint covers everything before it: what consumed groups held is released, and the state is written anew. */
void k2m_record_checkpoint(k2m_core *m)
{
    const k2m_checkpoint *k = &m->checkpoint;
    rec_checkpoint c = {.number = k->number, .step = k->step, .pretrain = k->pretrain, .iteration = k->iteration};
    emit(m, K2M_REC_CHECKPOINT, &c, sizeof c);
    k2_error err;
    if (k->step > k2_replay_count(m->replay).step_released) {
        k2_code code = k2_replay_release(m->replay, k->step, &err);
        K2_ASSERT(code == K2_OK);
    }
    rec_state s = {.iteration = m->iteration,
                   .evaluated_iteration = m->evaluated_iteration,
                   .checkpoint_number = k->number,
                   .checkpoint_step = k->step,
                   .checkpoint_pretrain = k->pretrain,
                   .checkpoint_iteration = k->iteration,
                   .version = k->step,
                   .digest = k2m_digest_of(m, k->step),
                   .checkpoint_exists = 1,
                   .evaluated_before = m->evaluated_before,
                   .before_correct = m->before_correct,
                   .before_total = m->before_total,
                   .after_correct = m->after_correct,
                   .after_total = m->after_total,
                   .finished = m->finished};
    emit(m, K2M_REC_STATE, &s, sizeof s);
    k2m_record_incarnations(m, m->incarnations_reserved); /* what was said before this STATE is about to be forgotten */
    record_misdeeds(m);
    record_rates(m);
    k2_replay_snapshot(m->replay);
}

/* ---- recovery ---------------------------------------------------------------------------------------------------------------
 */

static void apply_state(k2m_core *m, const rec_state *x)
{
    m->iteration = x->iteration;
    m->evaluated_iteration = x->evaluated_iteration;
    m->evaluated_before = x->evaluated_before != 0;
    m->before_correct = x->before_correct;
    m->before_total = x->before_total;
    m->after_correct = x->after_correct;
    m->after_total = x->after_total;
    m->finished = x->finished != 0;
    m->checkpoint = (k2m_checkpoint){.exists = x->checkpoint_exists != 0,
                                     .number = x->checkpoint_number,
                                     .step = x->checkpoint_step,
                                     .pretrain = x->checkpoint_pretrain,
                                     .iteration = x->checkpoint_iteration};
    set_digest(m, x->version, x->digest);
}

static void apply_aside(k2m_core *m, const rec_aside *x)
{
    if (x->what < K2M_ASIDE_COUNT) m->aside[x->what] = x->count;
    m->aside_step = x->step;
    m->aside_pretrain = x->pretrain;
}

static bool apply_rates(k2m_core *m, const void *bytes, size_t len)
{
    rec_rates x;
    rec_rate item;
    if (len < sizeof x) return false;
    memcpy(&x, bytes, sizeof x);
    if ((len - sizeof x) % sizeof item != 0 || (len - sizeof x) / sizeof item != x.count) return false;
    if (!k2m_rates_on(m)) return true; /* who reads a dead run has no prompts, and begins no group */
    if (!x.more) k2m_rates_reset(m, x.step);
    for (uint64_t i = 0; i < x.count; i++) {
        memcpy(&item, (const char *)bytes + sizeof x + i * sizeof item, sizeof item);
        if (!k2m_rates_set(m, item.prompt, item.rate)) return false;
    }
    return true;
}

#define CASE(TYPE, struct_type, ...)                                                                                           \
    case TYPE: {                                                                                                               \
        struct_type x;                                                                                                         \
        if (len != sizeof x) break;                                                                                            \
        memcpy(&x, bytes, sizeof x);                                                                                           \
        __VA_ARGS__;                                                                                                           \
        return K2_OK;                                                                                                          \
    }

k2_code k2m_core_apply(k2m_core *m, uint32_t type, const void *bytes, size_t len, k2_error *err)
{
    if (type >= K2_REPLAY_TYPE_FIRST && type <= K2_REPLAY_TYPE_LAST) {
        k2_code code = k2_replay_apply(m->replay, type, bytes, len, err);
        if (code == K2_OK) k2m_rates_count(m);
        return code;
    }
    switch (type) {
        CASE(K2M_REC_STATE, rec_state, apply_state(m, &x))
        CASE(K2M_REC_VERSION, rec_version, set_digest(m, x.version, x.digest))
        CASE(K2M_REC_ITERATION, rec_iteration, m->iteration = x.iteration; m->finished = false)
        CASE(K2M_REC_DEATHS, rec_deaths, k2m_suspect_set(m, x.id, x.company, x.alone, x.killed))
        CASE(K2M_REC_ASIDE, rec_aside, apply_aside(m, &x))
        CASE(K2M_REC_EVAL, rec_eval, set_eval(m, x.iteration, x.correct, x.total))
        CASE(K2M_REC_CHECKPOINT, rec_checkpoint,
             m->checkpoint = (k2m_checkpoint){
                 .exists = true, .number = x.number, .step = x.step, .pretrain = x.pretrain, .iteration = x.iteration})
        CASE(K2M_REC_INCARNATIONS, rec_incarnations, m->last_incarnation = m->incarnations_reserved = x.reserved)
    case K2M_REC_RATES:
        if (!apply_rates(m, bytes, len)) break;
        return K2_OK;
    case K2M_REC_FINISHED:
        if (len != 0) break;
        m->finished = true;
        return K2_OK;
    default: break;
    }
    return k2_error_set(err, K2_CORRUPT, "journal: record of type %u with %zu bytes is none of ours", type, len);
}
