/* openai_list.c - tokens as "logprobs" tells of them, gathered one by one. Strings and likeliest tokens stand in two growing
 * arrays, so pointers into them are only made when the list is asked for. */
#include "openai_int.h"

#include <string.h>

#define TEXT_MAX ((size_t)1 << 30) /* of one answer: bounded by its tokens already */

void k2_openai_list_init(k2_openai_list *l)
{
    memset(l, 0, sizeof *l);
    k2_buf_init(&l->text, TEXT_MAX);
}

void k2_openai_list_fini(k2_openai_list *l)
{
    k2_buf_fini(&l->text);
    k2_free(l->tokens);
    k2_free(l->tops);
    memset(l, 0, sizeof *l);
}

void k2_openai_list_clear(k2_openai_list *l)
{
    k2_buf_clear(&l->text);
    l->count = l->top_count = 0;
}

static size_t keep(k2_openai_list *l, const char *text)
{
    size_t at = l->text.len;
    bool ok = k2_buf_append(&l->text, text, strlen(text) + 1);
    K2_ASSERT(ok);
    return at;
}

void k2_openai_list_token(k2_openai_list *l, const char *text, float logprob, uint64_t offset)
{
    if (l->count == l->cap) {
        l->cap = K2_MAX(l->cap * 2, (size_t)32);
        l->tokens = k2_realloc_array(l->tokens, l->cap, sizeof *l->tokens);
    }
    l->tokens[l->count++] =
        (k2_openai_token){.text_at = keep(l, text), .tops_at = l->top_count, .logprob = logprob, .offset = offset};
}

void k2_openai_list_top(k2_openai_list *l, const char *text, float logprob)
{
    K2_ASSERT(l->count > 0);
    if (l->top_count == l->top_cap) {
        l->top_cap = K2_MAX(l->top_cap * 2, (size_t)32);
        l->tops = k2_realloc_array(l->tops, l->top_cap, sizeof *l->tops);
    }
    l->tops[l->top_count++] = (k2_openai_top){.text_at = keep(l, text), .logprob = logprob};
    l->tokens[l->count - 1].top_count++;
}

void k2_openai_list_append(k2_openai_list *l, const k2_openai_token *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const k2_openai_token *t = &tokens[i];
        k2_openai_list_token(l, t->text, t->logprob, t->offset);
        for (size_t k = 0; k < t->top_count; k++) k2_openai_list_top(l, t->tops[k].text, t->tops[k].logprob);
    }
}

const k2_openai_token *k2_openai_list_tokens(k2_openai_list *l)
{
    for (size_t i = 0; i < l->top_count; i++) l->tops[i].text = l->text.data + l->tops[i].text_at;
    for (size_t i = 0; i < l->count; i++) {
        l->tokens[i].text = l->text.data + l->tokens[i].text_at;
        l->tokens[i].tops = l->tokens[i].top_count > 0 ? l->tops + l->tokens[i].tops_at : NULL;
    }
    return l->tokens;
}
