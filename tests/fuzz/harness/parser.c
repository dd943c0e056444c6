/* parser - how a row is run; see parser.h. */
#include "parser.h"

#include <stdio.h>
#include <string.h>

#include "guard.h"

#define SEEN_MAX (1u << 26)

bool k2_parser_piece(k2_parser_pieces *in, const uint8_t **bytes, size_t *n)
{
    if (in->at == in->n) return false;
    const size_t want = in->at == 0 && in->first ? in->first : in->step;
    *n = K2_MIN(want, in->n - in->at);
    *bytes = k2_guard_place(K2_GUARD_END, in->bytes + in->at, *n, 1);
    in->at += *n;
    return true;
}

static bool take_text(const k2_parser *p, k2_guard_side side, const uint8_t *bytes, size_t n)
{
    const size_t len = strnlen((const char *)bytes, n);
    char *text = k2_strndup((const char *)bytes, len);
    const bool taken = p->take(k2_guard_place(side, text, len + 1, 1), len);
    k2_free(text);
    return taken;
}

static bool stream_all(const k2_parser *p, k2_parser_pieces in, k2_buf *seen)
{
    k2_buf_init(seen, SEEN_MAX);
    return p->stream(&in, seen);
}

bool k2_parser_whole(const k2_parser *p, bool at_end, const uint8_t *bytes, size_t n)
{
    const k2_guard_side side = at_end ? K2_GUARD_END : K2_GUARD_START;
    if (p->text) return take_text(p, side, bytes, n);
    if (p->take) return p->take(k2_guard_place(side, bytes, n, K2_MAX(p->align, 1)), n);
    k2_buf seen;
    const bool taken = stream_all(p, (k2_parser_pieces){.bytes = bytes, .n = n, .step = n}, &seen);
    k2_buf_fini(&seen);
    return taken;
}

bool k2_parser_same(const k2_parser *p, const uint8_t *bytes, size_t n, size_t first, size_t step, char why[256])
{
    k2_buf whole, cut;
    const bool a = stream_all(p, (k2_parser_pieces){.bytes = bytes, .n = n, .step = K2_MAX(n, 1)}, &whole);
    const bool b = stream_all(p, (k2_parser_pieces){.bytes = bytes, .n = n, .first = first, .step = step}, &cut);
    const size_t common = K2_MIN(whole.len, cut.len);
    bool same = a == b && (common == 0 || memcmp(whole.data, cut.data, common) == 0);
    if (a && whole.len != cut.len) same = false;
    if (!same)
        snprintf(why, 256, "%s: first piece of %zu, others of %zu: %s and %zu bytes seen, in one piece %s and %zu", p->name,
                 first, step, b ? "taken" : "refused", cut.len, a ? "taken" : "refused", whole.len);
    k2_buf_fini(&whole);
    k2_buf_fini(&cut);
    return same;
}
