/* tell - see generate_int.h. */
#include "rollout/generate_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 24u /* "token_id:" and ten digits */

/* The id's own text in `scratch`; "token_id:N" where it is no text, or no whole characters: names must tell tokens apart, and
 * half a character looks like any other half. */
static const char *name_of(const k2i_generation *g, int32_t id, char number[NAME_MAX_BYTES])
{
    k2_buf *scratch = &g->s->name;
    k2_buf_clear(scratch);
    bool text = !g->tokens_as_ids && (uint32_t)id < k2_tokenizer_vocab(g->s->served.tokenizer) &&
                k2_tokenizer_decode(g->s->served.tokenizer, &id, 1, scratch, NULL) == K2_OK && scratch->len > 0 &&
                !strstr(scratch->data, "\xef\xbf\xbd");
    if (text) return scratch->data;
    snprintf(number, NAME_MAX_BYTES, "token_id:%d", id);
    return number;
}

static uint64_t chars_in(const char *text, size_t bytes)
{
    uint64_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Characters that this token adds to the text of those before it. */
static uint64_t chars_of(k2i_choice *c, int32_t id)
{
    const k2_tokenizer *t = c->g->s->served.tokenizer;
    k2_buf *scratch = &c->g->s->name;
    k2_buf_clear(scratch);
    if ((uint32_t)id >= k2_tokenizer_vocab(t)) return 0;
    (void)k2_token_stream_feed(t, &c->teller, &id, 1, scratch, NULL);
    return chars_in(scratch->data, scratch->len);
}

static void tell_tops(const k2i_generation *g, const k2i_top *tops, uint32_t count, k2_openai_list *out)
{
    char number[NAME_MAX_BYTES];
    for (uint32_t i = 0; i < count && tops[i].id >= 0; i++)
        k2_openai_list_top(out, name_of(g, tops[i].id, number), tops[i].logp);
}

void k2i_tell(k2i_choice *c, uint32_t from, uint32_t to, k2_openai_list *out)
{
    const k2i_request *r = &c->job.req;
    char number[NAME_MAX_BYTES];
    for (uint32_t i = from; i < to; i++) {
        bool prompt = i < r->prompt_len;
        uint32_t drawn = prompt ? 0 : i - r->prompt_len;
        float logp = !prompt ? r->logps[drawn] : i > 0 ? r->prompt_logps[i] : NAN;
        uint64_t added = chars_of(c, r->tokens[i]);
        const char *name = name_of(c->g, r->tokens[i], number);
        /* Its own text stands behind what it makes of a character that was broken off. */
        uint64_t own = name == number ? added : chars_in(name, strlen(name));
        k2_openai_list_token(out, name, logp, c->told_chars + added - K2_MIN(own, added));
        if (!prompt)
            tell_tops(c->g, r->tops + (size_t)drawn * r->top_count, r->top_count, out);
        else if (i > 0)
            tell_tops(c->g, r->prompt_tops + (size_t)i * r->prompt_top_count, K2_MIN(r->top_count, r->prompt_top_count), out);
        c->told_chars += added;
    }
}

void k2i_tell_skip(k2i_choice *c, uint32_t from, uint32_t to)
{
    if (!c->g->logprobs || c->g->bare) return;
    for (uint32_t i = from; i < to; i++) c->told_chars += chars_of(c, c->job.req.tokens[i]);
}

static void put_scored(const k2i_generation *g, k2_buf *out, bool first, int32_t id, float logp, uint32_t rank)
{
    char number[NAME_MAX_BYTES];
    k2_buf_printf(out, "%s\"%d\":{\"logprob\":%.9g,\"rank\":%u,\"decoded_token\":", first ? "" : ",", id,
                  (double)fmaxf(logp, -3.4028235e38f), rank);
    const char *name = name_of(g, id, number);
    k2_buf_json_string(out, name, strlen(name));
    k2_buf_puts(out, "}");
}

void k2i_tell_prompt(const k2i_choice *c, k2_buf *out)
{
    const k2i_request *r = &c->job.req;
    uint32_t tops = K2_MIN(c->g->prompt_tops, r->prompt_top_count);
    k2_buf_puts(out, "[null");
    for (uint32_t i = 1; i < r->prompt_len; i++) {
        const k2i_top *top = r->prompt_tops + (size_t)i * r->prompt_top_count;
        bool own = false;
        k2_buf_puts(out, ",{");
        for (uint32_t k = 0; k < tops && top[k].id >= 0; k++) {
            put_scored(c->g, out, k == 0, top[k].id, top[k].logp, k + 1);
            own |= top[k].id == r->tokens[i];
        }
        if (!own) put_scored(c->g, out, tops == 0, r->tokens[i], r->prompt_logps[i], r->prompt_ranks[i]);
        k2_buf_puts(out, "}");
    }
    k2_buf_puts(out, "]");
}
