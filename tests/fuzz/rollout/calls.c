/* Calls of tools in what a model writes: five bytes stand for the marks, the others for text. However it comes in pieces, the
 * same is told; a call has a name and an id of its form; nothing but marks and the space between calls is lost. */
#include <string.h>

#include "rollout/calls_int.h"
#include "tests/fuzz/harness/parser.h"

static void take_news(k2i_calls *c, k2_buf *text, k2_openai_calls *calls)
{
    k2_buf_append(text, c->content.data, c->content.len);
    const bool fits = k2_openai_calls_append(calls, c->news.list, c->news.count);
    K2_ASSERT(fits);
    k2i_calls_told(c);
}

static void feed(k2i_calls *c, const char *bytes, size_t n)
{
    static const char marks[] = "[](|)"; /* in the order of k2_token_mark, behind TEXT */
    for (size_t i = 0, from = 0; i <= n; i++) {
        const char *mark = i < n ? memchr(marks, bytes[i], 5) : NULL;
        if (i < n && !mark) continue;
        k2i_calls_text(c, bytes + from, i - from);
        if (mark) k2i_calls_mark(c, (k2_token_mark)(1 + (mark - marks)), (char[]){*mark, 0});
        from = i + 1;
    }
}

static void check(const k2_openai_calls *calls, k2_buf *seen)
{
    for (size_t i = 0; i < calls->count; i++) {
        const k2_openai_call *call = &calls->list[i];
        K2_ASSERT(call->index == i && call->id && call->name && call->name[0]);
        const char *prefix = strncmp(call->id, "functions.", 10) == 0 ? call->id + 10 : call->id, *colon = strrchr(prefix, ':');
        K2_ASSERT(colon && strlen(call->name) == (size_t)(colon - prefix) &&
                  memcmp(prefix, call->name, strlen(call->name)) == 0);
        K2_ASSERT(strspn(colon + 1, "0123456789") == strlen(colon + 1) && strlen(call->id) <= K2I_CALL_ID_MAX);
        k2_buf_printf(seen, "<%s %s ", call->id, call->name);
        k2_buf_append(seen, call->arguments.data, call->arguments.len);
        k2_buf_puts(seen, ">");
    }
}

static bool calls(k2_parser_pieces *in, k2_buf *seen)
{
    k2i_calls c;
    k2_openai_calls all = {0};
    const uint8_t *bytes;
    size_t n, taken = 0;
    k2i_calls_init(&c);
    while (k2_parser_piece(in, &bytes, &n)) {
        feed(&c, (const char *)bytes, n);
        take_news(&c, seen, &all);
        taken += n;
    }
    k2i_calls_end(&c);
    take_news(&c, seen, &all);
    K2_ASSERT(seen->len <= taken && c.count == all.count);
    const bool called = all.count > 0;
    check(&all, seen);
    k2_openai_calls_clear(&all);
    k2i_calls_fini(&c);
    return called;
}

const k2_parser k2_parsers[] = {{.name = "calls of tools", .stream = calls}};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
