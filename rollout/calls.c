/* calls - see calls_int.h. */
#include "rollout/calls_int.h"

#include <string.h>

#define TEXT_MAX ((size_t)1 << 30) /* of one answer: bounded by its tokens already */

void k2i_calls_init(k2i_calls *c)
{
    *c = (k2i_calls){0};
    k2_buf_init(&c->held, TEXT_MAX);
    k2_buf_init(&c->id, TEXT_MAX);
    k2_buf_init(&c->content, TEXT_MAX);
}

void k2i_calls_fini(k2i_calls *c)
{
    k2_buf_fini(&c->held);
    k2_buf_fini(&c->id);
    k2_buf_fini(&c->content);
    k2_openai_calls_clear(&c->news);
}

/* It was no call: what was held is text. */
static void give_up(k2i_calls *c)
{
    k2_buf_append(&c->content, c->held.data, c->held.len);
    k2_buf_clear(&c->held);
    c->state = K2I_IN_TEXT;
}

static bool is_space(char ch)
{
    return ch == ' ' || (ch >= '\t' && ch <= '\r');
}

static bool all_space(const char *text, size_t n)
{
    while (n > 0 && is_space(text[n - 1])) n--;
    return n == 0;
}

void k2i_calls_text(k2i_calls *c, const char *text, size_t n)
{
    if (n == 0) return;
    if (c->state == K2I_IN_ARGUMENTS) {
        k2_openai_calls_add(&c->news, c->count - 1, NULL, NULL, text, n);
        return;
    }
    k2_buf_append(&c->held, text, n);
    if (c->state == K2I_IN_ID) k2_buf_append(&c->id, text, n);
    if (c->state == K2I_IN_TEXT || (c->state == K2I_IN_SECTION && !all_space(text, n)) ||
        (c->state == K2I_IN_ID && c->id.len > K2I_CALL_ID_MAX))
        give_up(c);
}

/* The name, of n bytes, in an id of the form functions.NAME:INDEX; the prefix may be missing. The id loses the space around it.
 */
static bool read_id(k2_buf *id, const char **name, size_t *n)
{
    size_t from = 0;
    while (id->len > 0 && is_space(id->data[id->len - 1])) id->len--;
    while (from < id->len && is_space(id->data[from])) from++;
    if (id->data) id->data[id->len] = 0;
    k2_buf_consume(id, from);
    size_t digits = id->len;
    while (digits > 0 && id->data[digits - 1] >= '0' && id->data[digits - 1] <= '9') digits--;
    if (digits == id->len || digits < 2 || id->data[digits - 1] != ':' || memchr(id->data, 0, id->len)) return false;
    const size_t prefix = strncmp(id->data, "functions.", 10) == 0 ? 10 : 0;
    *name = id->data + prefix;
    *n = digits - 1 - prefix;
    return digits - 1 > prefix;
}

static bool begin_call(k2i_calls *c)
{
    const char *name;
    size_t n;
    if (!read_id(&c->id, &name, &n)) return false;
    char *bare = k2_strndup(name, n);
    const bool fits = c->count < K2_OPENAI_CALLS_MAX && k2_openai_calls_add(&c->news, c->count, c->id.data, bare, "", 0);
    k2_free(bare);
    if (!fits) return false;
    c->count++;
    c->called = true;
    c->state = K2I_IN_ARGUMENTS;
    k2_buf_clear(&c->held);
    return true;
}

static void begin_id(k2i_calls *c)
{
    k2_buf_clear(&c->id);
    c->state = K2I_IN_ID;
}

void k2i_calls_mark(k2i_calls *c, k2_token_mark mark, const char *name)
{
    const bool in_arguments = c->state == K2I_IN_ARGUMENTS;
    /* The end of its arguments may be missing. */
    const bool ends_call =
        in_arguments && (mark == K2_TOKEN_CALL_END || mark == K2_TOKEN_CALL_BEGIN || mark == K2_TOKEN_CALLS_END);
    if (in_arguments && !ends_call) {
        k2i_calls_text(c, name, strlen(name));
        return;
    }
    if (ends_call) c->state = K2I_IN_SECTION;
    if (mark == K2_TOKEN_CALL_END && ends_call) return;
    k2_buf_puts(&c->held, name);
    if (c->state == K2I_IN_TEXT && mark == K2_TOKEN_CALLS_BEGIN) {
        c->state = K2I_IN_SECTION;
        c->called = false;
    } else if (c->state == K2I_IN_SECTION && mark == K2_TOKEN_CALL_BEGIN) {
        begin_id(c);
    } else if (c->state == K2I_IN_SECTION && mark == K2_TOKEN_CALLS_END && c->called) {
        k2_buf_clear(&c->held);
        c->state = K2I_IN_TEXT;
    } else if (!(c->state == K2I_IN_ID && mark == K2_TOKEN_CALL_ARGUMENTS && begin_call(c))) {
        give_up(c);
    }
}

void k2i_calls_end(k2i_calls *c)
{
    if (c->state == K2I_IN_ARGUMENTS) return;
    if (c->state == K2I_IN_SECTION && c->called) k2_buf_clear(&c->held); /* space */
    give_up(c);
}

void k2i_calls_told(k2i_calls *c)
{
    k2_buf_clear(&c->content);
    k2_openai_calls_clear(&c->news);
}
