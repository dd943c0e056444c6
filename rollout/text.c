/* text - see generate_int.h. Text lags behind tokens: a character may be half there, and the end of the text is held back while
 * it could be the beginning of a stop string. Where calls of tools are looked for, their marks stand in the text by name, and
 * it goes through calls.c when it would be sent: stop strings work in calls as in any text. */
#include "rollout/generate_int.h"

#include <string.h>

static void put_mark(k2i_choice *c, int32_t token)
{
    if (c->mark_count == c->mark_cap) {
        c->mark_cap = K2_MAX(c->mark_cap * 2, (size_t)8);
        c->marks = k2_realloc_array(c->marks, c->mark_cap, sizeof *c->marks);
    }
    k2_token_stream_end(&c->decoder, &c->text);
    c->marks[c->mark_count++] = (k2i_mark){.at = c->text.len, .id = token};
    k2_buf_puts(&c->text, k2_tokenizer_special_name(c->g->s->served.tokenizer, token));
}

/* A model may have more ids than its tokenizer (a padded vocabulary): those are no text. */
static void decode_one(k2i_choice *c, int32_t token)
{
    const k2_tokenizer *t = c->g->s->served.tokenizer;
    if ((uint32_t)token >= k2_tokenizer_vocab(t)) return;
    if (c->g->calls && k2_tokenizer_mark(t, token) != K2_TOKEN_TEXT) {
        put_mark(c, token);
        return;
    }
    k2_code code = k2_token_stream_feed(t, &c->decoder, &token, 1, &c->text, NULL);
    K2_ASSERT(code == K2_OK || code == K2_LIMIT);
}

/* The first stop string that ends at or behind `from`; cuts the text there, the stop string included where it is wanted. */
static bool cut_at_stop(k2i_choice *c, size_t from)
{
    const k2i_generation *g = c->g;
    size_t best = SIZE_MAX, bytes = 0;
    for (size_t i = 0; i < g->stop_count; i++) {
        size_t n = strlen(g->stops[i]);
        size_t begin = K2_MAX(from + 1 > n ? from + 1 - n : 0, c->echoed);
        if (c->text.len < begin + n) continue;
        const char *hit = memmem(c->text.data + begin, c->text.len - begin, g->stops[i], n);
        if (!hit || (size_t)(hit - c->text.data) >= best) continue;
        best = (size_t)(hit - c->text.data);
        bytes = n;
        c->stop = g->stops[i];
    }
    if (best == SIZE_MAX) return false;
    c->text.len = K2_MAX(best + (g->include_stop ? bytes : 0), c->tail);
    c->text.data[c->text.len] = 0;
    return true;
}

/* Whether token number i ends the answer as a stop id; its text, if it has one, is then no part of the answer. */
static bool is_stop_token(const k2i_choice *c, uint32_t i)
{
    return !c->g->include_stop && c->job.finish == K2I_STOP && i + 1 == c->job.len;
}

/* Token by token where there are stop strings, for the answer ends with the very token that completes one. */
void k2i_text_decode(k2i_choice *c)
{
    const k2i_request *r = &c->job.req;
    bool stops = c->g->stop_count > 0;
    while (c->decoded < c->job.len && !c->stopped) {
        size_t from = c->text.len;
        uint32_t i = c->decoded++;
        if (!is_stop_token(c, i)) decode_one(c, r->tokens[i]);
        bool early = r->position + (c->decoded - r->prompt_len) <= r->new_min;
        if (stops && c->text.len > from && !early) c->stopped = cut_at_stop(c, from);
    }
    if (c->job.finish == K2I_RUNNING || c->stopped) return;
    size_t from = c->text.len;
    k2_token_stream_end(&c->decoder, &c->text);
    if (stops && c->text.len > from) c->stopped = cut_at_stop(c, from);
}

size_t k2i_text_held(const k2i_choice *c)
{
    size_t held = 0;
    for (size_t i = 0; i < c->g->stop_count; i++) {
        size_t n = K2_MIN(strlen(c->g->stops[i]) - 1, c->text.len);
        while (n > held && memcmp(c->text.data + c->text.len - n, c->g->stops[i], n) != 0) n--;
        held = K2_MAX(held, n);
    }
    return held;
}

/* Forget the first bytes of the text, and marks that begin there. */
static void drop(k2i_choice *c, size_t bytes)
{
    size_t gone = 0;
    k2_buf_consume(&c->text, bytes);
    while (gone < c->mark_count && c->marks[gone].at < bytes) gone++;
    c->mark_count -= gone;
    for (size_t i = 0; i < c->mark_count; i++) {
        c->marks[i] = c->marks[i + gone];
        c->marks[i].at -= bytes;
    }
}

void k2i_text_sent(k2i_choice *c, size_t bytes)
{
    drop(c, c->tail + bytes);
    c->tail = 0;
    c->echoed -= K2_MIN(c->echoed, bytes);
}

/* The text [tail, end) to the calls. Gives where it ended: in front of a mark that is not whole, should more come. */
static size_t to_calls(k2i_choice *c, size_t end, bool last)
{
    const k2_tokenizer *t = c->g->s->served.tokenizer;
    size_t at = c->tail;
    for (size_t i = 0; i < c->mark_count && c->marks[i].at < end; i++) {
        const k2i_mark *m = &c->marks[i];
        const char *name = k2_tokenizer_special_name(t, m->id);
        const size_t behind = m->at + strlen(name);
        if (m->at < at) continue;
        k2i_calls_text(&c->calls, c->text.data + at, m->at - at);
        at = m->at;
        if (behind > end && !last) return at;
        if (behind > end) break; /* a stop string has cut it: it is text */
        k2i_calls_mark(&c->calls, k2_tokenizer_mark(t, m->id), name);
        at = behind;
    }
    if (end > at) k2i_calls_text(&c->calls, c->text.data + at, end - at);
    if (last) k2i_calls_end(&c->calls);
    return end;
}

void k2i_text_parse(k2i_choice *c, size_t bytes, bool last)
{
    k2i_text_sent(c, to_calls(c, c->tail + bytes, last) - c->tail);
}

/* What the choice's own tokens begin with has been told already, but for what was held back. The bytes of a stop string that
 * may have begun stay, as the tail. */
static void prime_tail(k2i_choice *c, size_t held)
{
    size_t keep = c->g->stop_count > 0 ? K2_MIN(c->g->stop_longest - 1, c->text.len) : 0, told = c->text.len - held;
    if (c->g->calls) {
        told = to_calls(c, told, false);
        k2i_calls_told(&c->calls);
    }
    const size_t gone = K2_MIN(c->text.len - keep, told);
    drop(c, gone);
    c->tail = told - gone;
}

void k2i_text_prime(k2i_choice *c, uint64_t position, bool resumed)
{
    const k2i_request *r = &c->job.req;
    uint32_t from = c->g->echo ? 0 : r->prompt_len - (uint32_t)K2_MIN(position, r->prompt_len);
    for (uint32_t i = from; i < r->prompt_len; i++) decode_one(c, r->tokens[i]);
    if (c->g->echo) {
        c->echoed = c->text.len;
        return;
    }
    k2i_tell_skip(c, from, r->prompt_len);
    prime_tail(c, resumed ? k2i_text_held(c) : 0);
}
