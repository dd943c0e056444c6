/* prompts: which one a group gets. By epochs it follows from the group's number; by priority (data.sampling) it is drawn with
 * probability proportional to 1 - success, as Kimi k1.5 does, from what trained steps have told of each prompt.
 *
 * What is counted, and when: a group counts when the step that it is in was trained (its CONSUME is in the journal), never
 * before. Groups are begun between steps only, so the rates that a draw sees are those of all steps before it, whatever came
 * late, was asked twice, or died; and recovery counts the same groups where it reads the same records. Rates are whole numbers
 * and a draw walks over sums of them, so neither depends on the order of additions. */
#include "master/core_int.h"

#include <string.h>

#include "common/base/planted.h"

static uint32_t prompt_count(const k2m_core *m)
{
    return m->c.prompts.count;
}

/* ---- by epochs ---------------------------------------------------------------------------------------------------------- */

/* Fisher-Yates over places [from, to) with draws of (epoch, place). */
static void places_shuffle(k2m_core *m, uint64_t epoch, uint32_t from, uint32_t to)
{
    for (uint32_t i = to; i > from + 1; i--) {
        uint32_t k = from + (uint32_t)k2_rand_below(m->c.config->seed, K2_STREAM_SHUFFLE, epoch, i, i - from);
        uint32_t t = m->order[i - 1];
        m->order[i - 1] = m->order[k];
        m->order[k] = t;
    }
}

/* The order of one epoch, shuffled whole or each difficulty for itself, so that any group's prompt can be found from its number
 * alone. */
static void shuffle(k2m_core *m, uint64_t epoch)
{
    const k2m_prompts *p = &m->c.prompts;
    for (uint32_t i = 0; i < p->count; i++) m->order[i] = p->easy_first ? p->easy_first[i] : i;
    for (uint32_t from = 0, to; from < p->count && m->c.config->data_shuffle; from = to) {
        to = p->easy_first ? from + 1 : p->count;
        while (to < p->count && p->difficulty[p->easy_first[to]] == p->difficulty[p->easy_first[from]]) to++;
        places_shuffle(m, epoch, from, to);
    }
    m->order_epoch = epoch + 1;
}

/* ---- by priority -------------------------------------------------------------------------------------------------------- */

/* What a prompt weighs: 1 - success, no less than data.priority.floor. One that nobody has seen has no success. */
static uint64_t weight(const k2m_core *m, uint32_t prompt)
{
    uint32_t rate = m->rates.rate[prompt];
    uint64_t least = K2_MAX((uint64_t)(m->c.config->data_priority_floor * K2M_RATE_ONE), 1ull);
    return K2_MAX((uint64_t)K2M_RATE_ONE - (rate == K2M_RATE_UNSEEN ? 0 : rate), least);
}

/* sums is a binary indexed tree: sums[i - 1] holds the weights of the last (i & -i) prompts up to the i-th. */
static void sums_add(k2m_core *m, uint32_t prompt, uint64_t more)
{
    for (uint32_t i = prompt + 1; i <= prompt_count(m); i += i & -i)
        m->rates.sums[i - 1] += more; /* more may wrap: it is less */
}

/* The prompt in whose stretch of [0, all weights) the place lies. */
static uint32_t sums_find(const k2m_core *m, uint64_t place)
{
    uint32_t at = 0, bit = 1;
    while (bit <= prompt_count(m) / 2) bit *= 2;
    for (; bit > 0; bit /= 2)
        if (at + bit <= prompt_count(m) && m->rates.sums[at + bit - 1] <= place) {
            at += bit;
            place -= m->rates.sums[at - 1];
        }
    return at;
}

static uint64_t sums_total(const k2m_core *m)
{
    uint64_t total = 0;
    for (uint32_t i = prompt_count(m); i > 0; i -= i & -i) total += m->rates.sums[i - 1];
    return total;
}

bool k2m_rates_on(const k2m_core *m)
{
    return strcmp(m->c.config->data_sampling, "priority") == 0 && prompt_count(m) > 0;
}

void k2m_rates_reset(k2m_core *m, uint64_t step)
{
    k2m_rates *r = &m->rates;
    r->step = step;
    r->seen = r->solved = 0;
    r->total = 0;
    if (!k2m_rates_on(m)) return;
    memset(r->rate, 0xff, prompt_count(m) * sizeof *r->rate);
    memset(r->sums, 0, prompt_count(m) * sizeof *r->sums);
    for (uint32_t i = 0; i < prompt_count(m); i++) sums_add(m, i, weight(m, i));
}

static bool solved(const k2m_core *m, uint32_t prompt)
{
    return m->rates.rate[prompt] != K2M_RATE_UNSEEN && m->rates.rate[prompt] >= K2M_RATE_SOLVED;
}

bool k2m_rates_set(k2m_core *m, uint64_t prompt, uint32_t rate)
{
    k2m_rates *r = &m->rates;
    if (prompt >= prompt_count(m) || rate > K2M_RATE_ONE || !k2m_rates_on(m)) return false;
    uint32_t p = (uint32_t)prompt;
    bool seen = r->rate[p] != K2M_RATE_UNSEEN;
    uint64_t before = weight(m, p);
    r->solved -= solved(m, p);
    r->total -= seen ? r->rate[p] : 0;
    r->rate[p] = rate;
    r->seen += !seen;
    r->solved += solved(m, p);
    r->total += rate;
    sums_add(m, p, weight(m, p) - before);
    return true;
}

/* Success of a group: the share of its members that did not fail. What was dropped did not: more of it would teach nothing. */
static double success(const k2m_core *m, uint64_t group, uint32_t size)
{
    uint32_t wrong = 0;
    for (uint32_t k = 0; k < size; k++) {
        k2_replay_info info;
        (void)k2_replay_find(m->replay, k2_replay_id(group, k), &info);
        bool scored = info.state == K2_REPLAY_SCORED || info.state == K2_REPLAY_CONSUMED;
        wrong += scored && !(info.reward >= m->c.config->reward_correct);
    }
    return 1 - (double)wrong / size;
}

void k2m_rates_group(k2m_core *m, uint64_t group)
{
    k2_replay_info info;
    if (!k2m_rates_on(m) || k2_replay_find(m->replay, k2_replay_id(group, 0), &info) != K2_OK) return;
    uint32_t rate = info.prompt < prompt_count(m) ? m->rates.rate[info.prompt] : 0;
    double old = rate == K2M_RATE_UNSEEN ? 0 : (double)rate / K2M_RATE_ONE;
    double now = old + m->c.config->data_priority_rate * (success(m, group, info.group_size) - old);
    (void)k2m_rates_set(m, info.prompt, (uint32_t)(K2_MIN(K2_MAX(now, 0.0), 1.0) * K2M_RATE_ONE + 0.5));
}

void k2m_rates_count(k2m_core *m)
{
    uint64_t consumed = k2_replay_count(m->replay).step_consumed, group;
    uint32_t size;
    if (!k2m_rates_on(m) || consumed == m->rates.step) return;
    bool next = consumed == m->rates.step + 1; /* else a snapshot was read: its rates came before it */
    m->rates.step = consumed;
    for (uint32_t at = 0; next && k2_replay_group_next(m->replay, consumed, &at, &group, &size);) k2m_rates_group(m, group);
}

k2m_success k2m_core_success(const k2m_core *m)
{
    const k2m_rates *r = &m->rates;
    if (!k2m_rates_on(m)) return (k2m_success){.on = false};
    return (k2m_success){.on = true,
                         .prompts = prompt_count(m),
                         .seen = r->seen,
                         .solved = r->solved,
                         .mean = r->seen ? (double)r->total / r->seen / K2M_RATE_ONE : 0};
}

/* ---- the next group ----------------------------------------------------------------------------------------------------- */

uint32_t k2m_core_prompt_of(k2m_core *m, uint64_t group)
{
    uint64_t epoch = group / prompt_count(m);
    if (k2m_rates_on(m) && epoch >= m->c.config->data_priority_after)
        return sums_find(m, k2_rand_below(m->c.config->seed, K2_STREAM_PROMPT, group, 0, sums_total(m)));
    if (m->order_epoch != epoch + 1) shuffle(m, epoch);
    return m->order[group % prompt_count(m)];
}
