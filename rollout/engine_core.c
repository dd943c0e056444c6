/* engine_core - see engine_core_int.h. */
#include "rollout/engine_core_int.h"

#include <string.h>

#include "common/base/planted.h"

typedef struct request_list {
    k2i_request *head, *tail;
    uint32_t count;
} request_list;

struct k2i_core {
    k2i_core_config cfg;
    k2i_pages pages;
    k2i_sampler sampler;
    request_list waiting, running;
    k2i_request **touched_ring; /* [requests_max], each request at most once */
    uint32_t touched_first, touched_count;
    uint32_t *page_tables; /* [batch_max, table_len] */
    uint32_t table_len;
    uint32_t *free_slots, free_slot_count;
    k2i_row *rows; /* [batch_max + prefill_chunk] */
    uint32_t row_count, wanted;
    k2_digest digest;
    bool switching, planned;
    uint64_t switch_deadline_ns;
    k2i_core_stats stats;
};

/* ---- lists -------------------------------------------------------------------------------------------------------- */

static void list_append(request_list *l, k2i_request *r)
{
    r->next = NULL;
    r->prev = l->tail;
    if (l->tail)
        l->tail->next = r;
    else
        l->head = r;
    l->tail = r;
    l->count++;
}

static void list_prepend(request_list *l, k2i_request *r)
{
    r->prev = NULL;
    r->next = l->head;
    if (l->head)
        l->head->prev = r;
    else
        l->tail = r;
    l->head = r;
    l->count++;
}

static void list_remove(request_list *l, k2i_request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        l->head = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        l->tail = r->prev;
    r->prev = r->next = NULL;
    l->count--;
}

static void touch(k2i_core *c, k2i_request *r)
{
    if (r->listed) return;
    r->listed = true;
    c->touched_ring[(c->touched_first + c->touched_count++) % c->cfg.requests_max] = r;
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static uint32_t pages_for(const k2i_core *c, uint32_t tokens)
{
    return (tokens + c->cfg.page_tokens - 1) / c->cfg.page_tokens;
}

k2i_core *k2i_core_new(const k2i_core_config *config)
{
    K2_ASSERT(config->batch_max >= 1 && config->prefill_chunk >= 1 && config->requests_max >= 1);
    K2_ASSERT((uint64_t)config->pages * config->page_tokens >= config->context_max && config->context_max >= 2);
    k2i_core *c = k2_alloc(sizeof *c);
    c->cfg = *config;
    k2i_pages_init(&c->pages, config->pages, config->page_tokens);
    k2i_sampler_init(&c->sampler, config->vocab);
    c->touched_ring = k2_alloc_array(config->requests_max, sizeof(k2i_request *));
    c->table_len = pages_for(c, config->context_max);
    c->page_tables = k2_alloc_array((size_t)config->batch_max * c->table_len, sizeof(uint32_t));
    c->free_slots = k2_alloc_array(config->batch_max, sizeof(uint32_t));
    for (uint32_t i = 0; i < config->batch_max; i++) c->free_slots[i] = config->batch_max - 1 - i;
    c->free_slot_count = config->batch_max;
    c->rows = k2_alloc_array((size_t)config->batch_max + config->prefill_chunk, sizeof(k2i_row));
    return c;
}

void k2i_core_free(k2i_core *c)
{
    if (!c) return;
    k2i_pages_fini(&c->pages);
    k2i_sampler_fini(&c->sampler);
    k2_free(c->touched_ring);
    k2_free(c->page_tables);
    k2_free(c->free_slots);
    k2_free(c->rows);
    k2_free(c);
}

void k2i_core_weights(k2i_core *c, k2_digest digest)
{
    c->digest = digest;
}

k2_code k2i_core_submit(k2i_core *c, k2i_request *r)
{
    K2_ASSERT(r->prompt_len >= 1 && (uint64_t)r->prompt_len + r->new_max <= c->cfg.context_max);
    K2_ASSERT(r->stop_count <= K2I_STOP_IDS_MAX && (!r->prompt_logps || c->cfg.prompt_rows >= 1));
    for (uint32_t i = 0; i < r->prompt_len; i++) K2_ASSERT(r->tokens[i] >= 0 && (uint32_t)r->tokens[i] < c->cfg.vocab);
    /* Finished ones count until they have been given out: the ring of touched ones has room for every request there is. */
    if (c->waiting.count + c->running.count + c->touched_count >= c->cfg.requests_max) return K2_FULL;
    r->len = r->prompt_len;
    r->computed = r->page_count = r->sealed = r->planned = r->cached = r->preempted = r->scored = 0;
    r->running = r->listed = false;
    r->finish = K2I_RUNNING;
    c->stats.waiting_tokens += r->new_max;
    list_append(&c->waiting, r);
    return K2_OK;
}

/* ---- running and not running ---------------------------------------------------------------------------------------- */

static void leave(k2i_core *c, k2i_request *r)
{
    while (r->page_count > 0) k2i_pages_release(&c->pages, r->pages[--r->page_count]);
    r->sealed = r->computed = r->planned = 0;
    c->free_slots[c->free_slot_count++] = r->slot;
    r->running = false;
    list_remove(&c->running, r);
}

static void preempt(k2i_core *c, k2i_request *r)
{
    leave(c, r);
    r->preempted++;
    c->stats.preemptions++;
    list_prepend(&c->waiting, r);
}

static uint32_t undrawn(const k2i_request *r)
{
    return r->new_max - (r->len - r->prompt_len);
}

static void finish(k2i_core *c, k2i_request *r, k2i_finish why)
{
    if (r->running)
        leave(c, r);
    else
        list_remove(&c->waiting, r);
    r->finish = why;
    c->stats.waiting_tokens -= undrawn(r);
    c->stats.finished++;
    c->stats.canceled += why == K2I_CANCELED;
    c->stats.stale += why == K2I_STALE;
    touch(c, r);
}

void k2i_core_end(k2i_core *c, k2i_request *r, k2i_finish why)
{
    K2_ASSERT(!c->planned && why != K2I_RUNNING);
    if (K2_PLANTED(PAGES_LEAKED)) r->page_count = 0;
    if (r->finish == K2I_RUNNING) finish(c, r, why);
}

/* ---- admission ------------------------------------------------------------------------------------------------------ */

/* Its prompt's log-probabilities are wanted, and some are not there yet: it must compute those positions itself. */
static bool scores(const k2i_request *r)
{
    return r->prompt_logps && r->scored + 1 < r->prompt_len;
}

/* Sealed pages that hold this request's next positions: hold them. The last position is always computed, for its logits. */
static void walk_sealed(k2i_core *c, k2i_request *r)
{
    uint32_t pt = c->cfg.page_tokens;
    if (scores(r)) return;
    while (r->computed == r->page_count * pt && r->computed + pt < r->len) {
        uint32_t parent = r->page_count ? r->pages[r->page_count - 1] : K2I_PAGE_NONE;
        uint32_t id = k2i_pages_find(&c->pages, parent, r->tokens + r->computed);
        if (id == K2I_PAGE_NONE) return;
        k2i_pages_hold(&c->pages, id);
        r->pages[r->page_count++] = id;
        r->sealed = r->page_count;
        r->computed += pt;
        c->stats.cached_tokens += pt;
        if (r->preempted == 0) r->cached += pt;
    }
}

/* Pages that running requests will take before each has drawn its next token. */
static uint32_t promised(const k2i_core *c)
{
    uint32_t sum = 0;
    for (const k2i_request *r = c->running.head; r; r = r->next) sum += pages_for(c, r->len + 1) - r->page_count;
    return sum;
}

static bool admit(k2i_core *c, k2i_request *r)
{
    list_remove(&c->waiting, r);
    r->slot = c->free_slots[--c->free_slot_count];
    r->pages = c->page_tables + (size_t)r->slot * c->table_len;
    uint32_t before = promised(c);
    list_append(&c->running, r);
    r->running = true;
    walk_sealed(c, r);
    /* One page of the room stays for each running request, so that admitting does not at once mean preempting. */
    uint32_t need = K2_MIN(pages_for(c, r->len + 1), c->table_len) - r->page_count + before;
    if (c->running.count > 1 && need + c->running.count - 1 > k2i_pages_available(&c->pages)) {
        c->stats.cached_tokens -= r->computed;
        if (r->preempted == 0) r->cached = 0;
        leave(c, r);
        list_prepend(&c->waiting, r);
        return false;
    }
    return true;
}

static void admit_waiting(k2i_core *c)
{
    if (k2_digest_zero(c->digest)) return;
    while (c->waiting.head) {
        k2i_request *r = c->waiting.head;
        if (r->has_digest && !k2_digest_equal(r->digest, c->digest)) {
            finish(c, r, K2I_STALE);
            continue;
        }
        if (c->running.count == c->cfg.batch_max || !admit(c, r)) return;
    }
}

/* ---- planning ------------------------------------------------------------------------------------------------------- */

/* Whether an older request is computing the page that r would compute next. */
static bool page_is_coming(const k2i_core *c, const k2i_request *r)
{
    uint32_t pt = c->cfg.page_tokens, index = r->page_count;
    if (scores(r) || r->computed != index * pt || r->computed + pt >= r->len) return false;
    for (const k2i_request *q = c->running.head; q != r; q = q->next) {
        if (q->page_count <= index || q->sealed > index || q->len < (index + 1) * pt) continue;
        if (index > 0 && (q->sealed < index || q->pages[index - 1] != r->pages[index - 1])) continue;
        if (memcmp(q->tokens + index * pt, r->tokens + index * pt, pt * sizeof *r->tokens) == 0) return true;
    }
    return false;
}

/* Pages for `rows` more positions; the youngest running requests make room. False where r itself had to go. */
static bool reserve(k2i_core *c, k2i_request *r, uint32_t rows)
{
    uint32_t need = pages_for(c, r->computed + rows);
    while (r->page_count < need) {
        uint32_t id = k2i_pages_take(&c->pages);
        if (id != K2I_PAGE_NONE) {
            r->pages[r->page_count++] = id;
            continue;
        }
        k2i_request *youngest = c->running.tail;
        preempt(c, youngest);
        if (youngest == r) return false;
    }
    return true;
}

/* Wanted rows of one request stand behind each other: those of its prompt that have no score yet, or its last one, or both. */
static void plan_rows(k2i_core *c, k2i_request *r, uint32_t rows)
{
    r->want_count = 0;
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t position = r->computed + i;
        bool want = position + 1 == r->len || (scores(r) && position >= r->scored && position + 1 < r->prompt_len);
        if (want && r->want_count++ == 0) {
            r->want_first = position;
            r->want_row = c->wanted;
        }
        c->wanted += want;
        c->rows[c->row_count++] =
            (k2i_row){.token = r->tokens[position], .position = position, .pages = r->pages, .slot = r->slot, .want = want};
    }
    r->planned = rows;
}

/* Rows that r computes in this step; 0: it waits. */
static uint32_t share_of_step(k2i_core *c, k2i_request *r, uint32_t *budget, uint32_t *prompt_rows)
{
    if (r->len - r->computed == 1) {
        c->stats.decode_rows++;
        return 1;
    }
    walk_sealed(c, r);
    if (*budget == 0 || page_is_coming(c, r)) return 0;
    uint32_t rows = K2_MIN(r->len - r->computed, *budget);
    if (scores(r)) {
        rows = K2_MIN(rows, *prompt_rows);
        *prompt_rows -= rows;
    }
    *budget -= rows;
    c->stats.prefill_rows += rows;
    return rows;
}

/* In order of age. A request that is preempted on the way stands behind the one in hand, so no row of it has been planned. */
static void plan_running(k2i_core *c)
{
    uint32_t budget = c->cfg.prefill_chunk, prompt_rows = c->cfg.prompt_rows;
    k2i_request *next;
    for (k2i_request *r = c->running.head; r; r = next) {
        r->planned = 0;
        uint32_t rows = share_of_step(c, r, &budget, &prompt_rows);
        if (rows > 0) {
            if (!reserve(c, r, rows)) return; /* it was the youngest: nobody stands behind it */
            plan_rows(c, r, rows);
        }
        next = r->next;
    }
}

/* Past the deadline of a switch: everyone still running starts anew with the new weights, or ends. */
static void clear_for_switch(k2i_core *c)
{
    while (c->running.tail) {
        k2i_request *r = c->running.tail;
        if (r->training) {
            finish(c, r, K2I_STALE);
            continue;
        }
        if (r->len == r->prompt_len)
            r->scored = 0; /* its prompt is worth something else now; once a token is out, it was told */
        preempt(c, r);
    }
}

k2i_todo k2i_core_plan(k2i_core *c, uint64_t now_ns, const k2i_row **rows, uint32_t *count, uint32_t *wanted)
{
    K2_ASSERT(!c->planned);
    c->row_count = c->wanted = 0;
    if (c->switching && now_ns >= c->switch_deadline_ns) clear_for_switch(c);
    if (c->switching && c->running.count == 0) return K2I_SWITCH;
    if (!c->switching) admit_waiting(c);
    if (c->running.count == 0) return K2I_IDLE;
    plan_running(c);
    K2_ASSERT(c->row_count > 0); /* the oldest one never waits for a page that is coming and never makes room */
    c->planned = true;
    *rows = c->rows;
    *count = c->row_count;
    *wanted = c->wanted;
    return K2I_STEP;
}

/* ---- absorbing ------------------------------------------------------------------------------------------------------ */

static void seal_full(k2i_core *c, k2i_request *r)
{
    uint32_t pt = c->cfg.page_tokens;
    for (uint32_t i = r->sealed; (i + 1) * pt <= r->computed; i++) {
        uint32_t parent = i ? r->pages[i - 1] : K2I_PAGE_NONE;
        r->pages[i] = k2i_pages_seal(&c->pages, r->pages[i], parent, r->tokens + (size_t)i * pt);
        r->sealed = i + 1;
    }
}

static bool is_stop(const k2i_request *r, int32_t token)
{
    for (uint32_t i = 0; i < r->stop_count; i++) {
        if (r->stop_ids[i] == token) return true;
    }
    return false;
}

/* The tokens that the trajectory has generated, over all its parts: the end of the sequence. A cut between two parts must not
 * change what is drawn, nor when it ends. */
static uint32_t generated(const k2i_request *r)
{
    return (uint32_t)K2_MIN(r->position + (r->len - r->prompt_len), (uint64_t)r->len);
}

static bool repeats(const k2i_core *c, const k2i_request *r)
{
    size_t n = generated(r);
    return r->repetition && k2i_repeats(r->tokens + (r->len - n), n, &c->cfg.repetition) > 0;
}

/* The logits of one wanted row, and how its log-probabilities are asked for. */
typedef struct row_view {
    const float *logits;
    uint32_t index;
    k2i_logprob *logprob;
    const void *arg;
} row_view;

/* The `count` likeliest ids by insertion into a short list: nearly every id fails at the first comparison. */
static void likeliest(const k2i_core *c, const row_view *v, uint32_t count, k2i_top *out)
{
    uint32_t n = 0;
    for (uint32_t id = 0; count > 0 && id < c->cfg.vocab; id++) {
        if (n == count && !(v->logits[id] > v->logits[out[n - 1].id])) continue;
        uint32_t at = n < count ? n++ : n - 1;
        for (; at > 0 && v->logits[id] > v->logits[out[at - 1].id]; at--) out[at] = out[at - 1];
        out[at].id = (int32_t)id;
    }
    for (uint32_t i = 0; i < n; i++) out[i].logp = v->logprob(v->arg, v->index, (uint32_t)out[i].id);
    for (; n < count; n++) out[n] = (k2i_top){.id = -1}; /* a vocabulary of fewer ids */
}

/* The row of a prompt's position says what the next token of the prompt is worth. */
static void score(const k2i_core *c, k2i_request *r, const row_view *v, uint32_t position)
{
    int32_t next = r->tokens[position + 1];
    uint32_t rank = 1;
    for (uint32_t id = 0; id < c->cfg.vocab; id++) rank += v->logits[id] > v->logits[next];
    r->prompt_logps[position + 1] = v->logprob(v->arg, v->index, (uint32_t)next);
    r->prompt_ranks[position + 1] = rank;
    likeliest(c, v, r->prompt_top_count, r->prompt_tops + (size_t)(position + 1) * r->prompt_top_count);
    r->scored = position + 1;
}

static void draw(k2i_core *c, k2i_request *r, const row_view *v)
{
    uint32_t drawn = r->len - r->prompt_len, token;
    uint64_t position = (K2_PLANTED(WRONG_POSITION) ? 0 : r->position) + drawn;
    double u = k2_rand_unit(r->seed, K2_STREAM_SAMPLE, r->trajectory, position);
    k2i_behind behind = {.tokens = r->tokens,
                         .len = r->len,
                         .generated = generated(r),
                         .banned = r->stop_ids,
                         .banned_count = r->position + drawn < r->new_min ? r->stop_count : 0};
    if (!k2i_sample(&c->sampler, v->logits, &r->sampling, &behind, u, &token)) {
        finish(c, r, K2I_FAILED);
        return;
    }
    r->tokens[r->len++] = (int32_t)token;
    r->logps[drawn] = v->logprob(v->arg, v->index, token);
    likeliest(c, v, r->top_count, r->tops + (size_t)drawn * r->top_count);
    c->stats.generated++;
    c->stats.waiting_tokens--;
    touch(c, r);
    if (is_stop(r, (int32_t)token))
        finish(c, r, K2I_STOP);
    else if (repeats(c, r))
        finish(c, r, K2I_REPETITION);
    else if (drawn + 1 == r->new_max)
        finish(c, r, K2I_LENGTH);
}

static void absorb_rows(k2i_core *c, k2i_request *r, const float *logits, k2i_logprob *logprob, const void *arg)
{
    for (uint32_t i = 0, n = r->want_count; i < n; i++) {
        uint32_t index = r->want_row + i, position = r->want_first + i;
        row_view v = {.logits = logits + (size_t)index * c->cfg.vocab, .index = index, .logprob = logprob, .arg = arg};
        if (position + 1 < r->prompt_len && r->prompt_logps)
            score(c, r, &v, position);
        else if (r->new_max > 0)
            draw(c, r, &v);
        else
            finish(c, r, K2I_LENGTH);
    }
}

void k2i_core_absorb(k2i_core *c, const float *logits, k2i_logprob *logprob, const void *arg)
{
    K2_ASSERT(c->planned);
    c->planned = false;
    c->stats.steps++;
    k2i_request *next;
    for (k2i_request *r = c->running.head; r; r = next) {
        next = r->next;
        if (r->planned == 0) continue;
        r->computed += r->planned;
        r->planned = 0;
        seal_full(c, r);
        absorb_rows(c, r, logits, logprob, arg);
    }
}

k2i_request *k2i_core_touched(k2i_core *c)
{
    if (c->touched_count == 0) return NULL;
    k2i_request *r = c->touched_ring[c->touched_first];
    c->touched_first = (c->touched_first + 1) % c->cfg.requests_max;
    c->touched_count--;
    r->listed = false;
    return r;
}

/* ---- weights and statistics ----------------------------------------------------------------------------------------- */

void k2i_core_switch_begin(k2i_core *c, uint64_t deadline_ns)
{
    c->switching = true;
    c->switch_deadline_ns = deadline_ns;
}

void k2i_core_switch_done(k2i_core *c, k2_digest digest)
{
    K2_ASSERT(c->running.count == 0);
    c->switching = false;
    c->digest = digest;
    if (!K2_PLANTED(CACHE_KEPT)) k2i_pages_forget(&c->pages);
}

void k2i_core_stats_get(const k2i_core *c, k2i_core_stats *out)
{
    *out = c->stats;
    out->running = c->running.count;
    out->waiting = c->waiting.count;
    out->pages_held = k2i_pages_held(&c->pages);
    out->pages_total = c->pages.count;
    out->evictions = c->pages.evictions;
    out->prefix_hits = c->pages.hits;
}

void k2i_core_check(const k2i_core *c)
{
    k2i_pages_check(&c->pages);
    uint32_t running = 0;
    uint64_t tokens = 0;
    for (const k2i_request *r = c->running.head; r; r = r->next, running++) {
        K2_ASSERT(r->running && r->finish == K2I_RUNNING && r->computed < r->len && r->sealed <= r->page_count);
        K2_ASSERT(pages_for(c, r->computed) <= r->page_count && r->page_count <= c->table_len);
        for (uint32_t i = 0; i < r->page_count; i++) K2_ASSERT(c->pages.page[r->pages[i]].refs > 0);
    }
    K2_ASSERT(running == c->running.count && running + c->free_slot_count == c->cfg.batch_max);
    for (const k2i_request *r = c->waiting.head; r; r = r->next) {
        K2_ASSERT(!r->running && r->page_count == 0);
        tokens += undrawn(r);
    }
    for (const k2i_request *r = c->running.head; r; r = r->next) tokens += undrawn(r);
    K2_ASSERT(tokens == c->stats.waiting_tokens);
    if (running == 0) K2_ASSERT(k2i_pages_held(&c->pages) == 0);
}
