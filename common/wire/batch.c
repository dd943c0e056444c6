/* batch: encode and decode of one training step's trajectories. The layout stands in batch.h. */
#include "common/wire/batch.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "views look into little-endian bytes in place");
_Static_assert(sizeof(k2_batch_span) == 12, "a span is three words");

static const char magic[8] = {'K', '2', 'B', 'A', 'T', 'C', 'H', '1'};

/* One row of the table. The three offsets follow from the rows before; they are stored so that a row can be read alone, and the
 * decoder checks them once. */
typedef struct row {
    uint64_t id, group;
    float reward, mean, std;
    uint32_t group_size, prompt_tokens, generated, first_span, spans;
    uint32_t finish, first_generated; /* log-probs and versions of this trajectory start there */
    uint64_t first_token;             /* ids of this trajectory start there */
    uint64_t prompt;
} row;
_Static_assert(sizeof(row) == 72, "the format");

typedef struct header {
    char magic[8];
    uint64_t step, total_bytes;
    uint32_t trajectories, groups;
    uint64_t tokens, generated;
    uint64_t digest_hi, digest_lo;
} header;
_Static_assert(sizeof(header) == K2_BATCH_HEADER_BYTES, "the format");

uint64_t k2_batch_bytes(uint64_t trajectories, uint64_t spans, uint64_t tokens, uint64_t generated)
{
    return sizeof(header) + trajectories * sizeof(row) + spans * sizeof(k2_batch_span) + 4 * tokens + 8 * generated;
}

/* ---- encode ------------------------------------------------------------------------------------------------------ */

static uint32_t count_spans(const k2_batch_trajectory *t)
{
    uint32_t spans = t->generated_tokens ? 1 : 0;
    for (uint32_t i = 1; i < t->generated_tokens; i++) spans += t->versions[i] != t->versions[i - 1];
    return spans;
}

/* Mean and deviation of the group that starts at list[0]; returns its members. */
static uint32_t group_stats(const k2_batch_trajectory *list, uint32_t left, float *mean, float *std)
{
    uint32_t n = 0;
    double sum = 0, square = 0;
    while (n < left && list[n].group == list[0].group) sum += (double)list[n++].reward;
    double m = sum / n;
    for (uint32_t i = 0; i < n; i++) square += ((double)list[i].reward - m) * ((double)list[i].reward - m);
    *mean = (float)m;
    *std = (float)sqrt(square / n);
    return n;
}

static void put_rows(const k2_batch_trajectory *list, uint32_t count, k2_buf *out, header *h)
{
    uint32_t first_span = 0;
    uint64_t first_generated = 0;
    for (uint32_t i = 0; i < count;) {
        float mean, std;
        uint32_t members = group_stats(list + i, count - i, &mean, &std);
        for (uint32_t k = 0; k < members; k++, i++) {
            const k2_batch_trajectory *t = &list[i];
            K2_ASSERT(i == 0 || (t[-1].id < t->id && t[-1].group <= t->group));
            K2_ASSERT(t->prompt_tokens <= K2_BATCH_TOKENS_MAX && t->generated_tokens <= K2_BATCH_TOKENS_MAX);
            K2_ASSERT(first_generated <= UINT32_MAX);
            row r = {.id = t->id,
                     .group = t->group,
                     .prompt = t->prompt,
                     .reward = t->reward,
                     .mean = mean,
                     .std = std,
                     .group_size = members,
                     .prompt_tokens = t->prompt_tokens,
                     .generated = t->generated_tokens,
                     .first_span = first_span,
                     .spans = count_spans(t),
                     .finish = (uint32_t)t->finish,
                     .first_generated = (uint32_t)first_generated,
                     .first_token = h->tokens};
            k2_buf_append(out, &r, sizeof r);
            first_span += r.spans;
            first_generated += r.generated;
            h->tokens += (uint64_t)r.prompt_tokens + r.generated;
        }
        h->groups++;
    }
    h->generated = first_generated;
}

static void put_spans(const k2_batch_trajectory *t, k2_buf *out)
{
    for (uint32_t start = 0; start < t->generated_tokens;) {
        uint32_t end = start + 1;
        while (end < t->generated_tokens && t->versions[end] == t->versions[start]) end++;
        k2_batch_span s = {.version = t->versions[start], .start = start, .end = end};
        k2_buf_append(out, &s, sizeof s);
        start = end;
    }
}

k2_code k2_batch_encode(uint64_t step, const k2_batch_trajectory *list, uint32_t count, k2_buf *out, k2_error *err)
{
    K2_ASSERT(count <= K2_BATCH_TRAJECTORIES_MAX);
    size_t base = out->len;
    header h = {.step = step, .trajectories = count};
    memcpy(h.magic, magic, sizeof magic);
    k2_buf_append(out, &h, sizeof h);
    put_rows(list, count, out, &h);
    for (uint32_t i = 0; i < count; i++) put_spans(&list[i], out);
    for (uint32_t i = 0; i < count; i++)
        k2_buf_append(out, list[i].tokens, 4 * ((size_t)list[i].prompt_tokens + list[i].generated_tokens));
    for (uint32_t i = 0; i < count; i++) k2_buf_append(out, list[i].logps, 4 * (size_t)list[i].generated_tokens);
    for (uint32_t i = 0; i < count; i++) k2_buf_append(out, list[i].versions, 4 * (size_t)list[i].generated_tokens);
    if (out->overflow)
        return k2_error_set(err, K2_NO_MEMORY, "batch of step %llu: more than %zu bytes", (unsigned long long)step,
                            out->cap_max);
    h.total_bytes = out->len - base;
    k2_digest d = k2_digest_of(out->data + base + sizeof h, out->len - base - sizeof h);
    h.digest_hi = d.hi;
    h.digest_lo = d.lo;
    memcpy(out->data + base, &h, sizeof h);
    return K2_OK;
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

/* Where the parts start. Found once from the header and the last row; the rest is arithmetic. */
typedef struct parts {
    const row *rows;
    const k2_batch_span *spans;
    const int32_t *ids;
    const float *logps;
    const uint32_t *versions;
} parts;

static parts find_parts(const unsigned char *bytes, const header *h)
{
    parts p;
    p.rows = (const row *)(const void *)(bytes + sizeof *h);
    const row *last = h->trajectories ? &p.rows[h->trajectories - 1] : NULL;
    p.spans = (const k2_batch_span *)(const void *)(p.rows + h->trajectories);
    p.ids = (const int32_t *)(const void *)(p.spans + (last ? last->first_span + last->spans : 0));
    p.logps = (const float *)(const void *)(p.ids + h->tokens);
    p.versions = (const uint32_t *)(const void *)(p.logps + h->generated);
    return p;
}

static k2_code check_header(const unsigned char *bytes, size_t len, header *h, k2_error *err)
{
    if (len < sizeof *h) return k2_error_set(err, K2_CORRUPT, "batch: %zu bytes, a header has %zu", len, sizeof *h);
    memcpy(h, bytes, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0) return k2_error_set(err, K2_CORRUPT, "batch: no K2BATCH1 at its start");
    if (h->total_bytes != len)
        return k2_error_set(err, K2_CORRUPT, "batch: %zu bytes, its header says %llu", len, (unsigned long long)h->total_bytes);
    uint64_t body = len - sizeof *h;
    if (h->trajectories > K2_BATCH_TRAJECTORIES_MAX || h->trajectories > body / sizeof(row) || h->tokens > body / 4 ||
        h->generated > h->tokens || h->groups > h->trajectories)
        return k2_error_set(err, K2_CORRUPT, "batch: the header's counts do not fit into %zu bytes", len);
    k2_digest d = k2_digest_of(bytes + sizeof *h, (size_t)body);
    if (d.hi != h->digest_hi || d.lo != h->digest_lo) return k2_error_set(err, K2_CORRUPT, "batch: the digest does not match");
    return K2_OK;
}

/* Sums and order of the table: after this find_parts and every row's ranges are inside the bytes. */
static k2_code check_rows(const header *h, const row *rows, size_t len, k2_error *err)
{
    uint64_t tokens = 0, generated = 0, spans = 0;
    uint32_t groups = 0;
    for (uint32_t i = 0; i < h->trajectories; i++) {
        const row *r = &rows[i];
        if (r->first_span != spans || r->first_generated != generated || r->first_token != tokens)
            return k2_error_set(err, K2_CORRUPT, "batch: trajectory %u: ranges do not follow the one before", i);
        if (i > 0 && (rows[i - 1].id >= r->id || rows[i - 1].group > r->group))
            return k2_error_set(err, K2_CORRUPT, "batch: trajectory %u: ids do not rise", i);
        if (r->prompt_tokens > K2_BATCH_TOKENS_MAX || r->generated > K2_BATCH_TOKENS_MAX || r->spans > r->generated ||
            (r->generated > 0 && r->spans == 0))
            return k2_error_set(err, K2_CORRUPT, "batch: trajectory %u: impossible sizes", i);
        if (!isfinite(r->reward) || !isfinite(r->mean) || !isfinite(r->std) || r->finish < K2_BATCH_STOP ||
            r->finish > K2_BATCH_REPETITION)
            return k2_error_set(err, K2_CORRUPT, "batch: trajectory %u: impossible reward or finish", i);
        groups += i == 0 || rows[i - 1].group != r->group;
        tokens += (uint64_t)r->prompt_tokens + r->generated;
        generated += r->generated;
        spans += r->spans;
    }
    if (tokens != h->tokens || generated != h->generated || groups != h->groups ||
        k2_batch_bytes(h->trajectories, spans, tokens, generated) != len)
        return k2_error_set(err, K2_CORRUPT, "batch: the table's sums differ from the header's");
    return K2_OK;
}

static bool spans_match(const row *r, const parts *p)
{
    const k2_batch_span *s = p->spans + r->first_span;
    const uint32_t *versions = p->versions + r->first_generated;
    uint32_t at = 0;
    for (uint32_t k = 0; k < r->spans; k++) {
        if (s[k].start != at || s[k].end <= at || s[k].end > r->generated) return false;
        for (; at < s[k].end; at++)
            if (versions[at] != s[k].version) return false;
    }
    return at == r->generated;
}

k2_code k2_batch_decode(const void *bytes, size_t len, k2_batch *out, k2_error *err)
{
    header h;
    K2_ASSERT(((uintptr_t)bytes & 7) == 0);
    k2_code code = check_header(bytes, len, &h, err);
    if (code == K2_OK) code = check_rows(&h, (const row *)((const char *)bytes + sizeof h), len, err);
    if (code != K2_OK) return code;
    parts p = find_parts(bytes, &h);
    for (uint64_t i = 0; i < h.generated; i++)
        if (!isfinite(p.logps[i]))
            return k2_error_set(err, K2_CORRUPT, "batch: log-prob %llu is not finite", (unsigned long long)i);
    for (uint32_t i = 0; i < h.trajectories; i++)
        if (!spans_match(&p.rows[i], &p))
            return k2_error_set(err, K2_CORRUPT, "batch: trajectory %u: spans and versions disagree", i);
    *out = (k2_batch){.step = h.step,
                      .trajectories = h.trajectories,
                      .groups = h.groups,
                      .tokens = h.tokens,
                      .generated = h.generated,
                      .digest = {h.digest_hi, h.digest_lo},
                      .bytes = bytes,
                      .len = len};
    return K2_OK;
}

void k2_batch_get(const k2_batch *b, uint32_t i, k2_batch_trajectory *out)
{
    K2_ASSERT(i < b->trajectories);
    header h;
    memcpy(&h, b->bytes, sizeof h);
    parts p = find_parts(b->bytes, &h);
    const row *r = &p.rows[i];
    *out = (k2_batch_trajectory){.id = r->id,
                                 .group = r->group,
                                 .prompt = r->prompt,
                                 .reward = r->reward,
                                 .group_mean = r->mean,
                                 .group_std = r->std,
                                 .group_size = r->group_size,
                                 .prompt_tokens = r->prompt_tokens,
                                 .generated_tokens = r->generated,
                                 .finish = (k2_batch_finish)r->finish,
                                 .tokens = p.ids + r->first_token,
                                 .logps = p.logps + r->first_generated,
                                 .versions = p.versions + r->first_generated,
                                 .spans = p.spans + r->first_span,
                                 .span_count = r->spans};
}
