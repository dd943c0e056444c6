/* Score requests, what a reward command writes, and numbers in texts. What was read and is written again is read the same. */
#include <math.h>
#include <string.h>

#include "rollout/reward_int.h"
#include "tests/fuzz/harness/parser.h"

static bool batch(const uint8_t *body, size_t n)
{
    k2i_score_batch b, again;
    k2_openai_error err;
    if (!k2i_score_parse((const char *)body, n, &b, &err)) {
        K2_ASSERT(err.status == 400 && err.message[0]);
        return false;
    }
    k2_buf out;
    k2_buf_init(&out, 64u << 20);
    k2_buf_puts(&out, "{\"items\":[");
    for (uint32_t i = 0; i < b.count; i++) {
        if (i) k2_buf_puts(&out, ",");
        k2i_score_write_item(&b.items[i], &out);
    }
    k2_buf_puts(&out, "]}");
    const bool read = k2i_score_parse(out.data, out.len, &again, &err);
    K2_ASSERT(read && again.count == b.count);
    for (uint32_t i = 0; i < b.count; i++) {
        const k2i_score_item *x = &b.items[i], *y = &again.items[i];
        K2_ASSERT(x->trajectory == y->trajectory && strcmp(x->text, y->text) == 0 && strcmp(x->prompt, y->prompt) == 0 &&
                  strcmp(x->answer, y->answer) == 0);
    }
    k2i_score_batch_fini(&again);
    k2i_score_batch_fini(&b);
    k2_buf_fini(&out);
    return true;
}

static bool line(const char *text, size_t n)
{
    double reward = NAN;
    k2_error err = {0};
    const k2_code code = k2i_score_parse_line(text, n, 7, &reward, &err);
    K2_ASSERT(code == K2_OK ? isfinite(reward) : err.text[0] && isnan(reward));
    return code == K2_OK;
}

static bool one_line(const uint8_t *text, size_t n)
{
    return line((const char *)text, n);
}

static bool output(k2_parser_pieces *in, k2_buf *seen)
{
    k2_buf buf;
    const uint8_t *bytes;
    size_t n;
    k2_code code = K2_OK;
    k2_buf_init(&buf, 256);
    while (code != K2_LIMIT && k2_parser_piece(in, &bytes, &n)) {
        const char *data = (const char *)bytes;
        while (n > 0 && (code = k2i_score_line(&buf, &data, &n)) == K2_OK) {
            k2_buf_printf(seen, "[%zu %d]", buf.len, line(buf.data ? buf.data : "", buf.len));
            k2_buf_clear(&buf);
        }
    }
    k2_buf_fini(&buf);
    return code != K2_LIMIT;
}

static bool numbers(const uint8_t *bytes, size_t n)
{
    const char *text = (const char *)bytes;
    double v = 0, r = 0;
    char detail[K2I_SCORE_DETAIL_MAX];
    (void)n;
    const bool found = k2i_last_number(text, &v);
    K2_ASSERT(!found || isfinite(v));
    const bool scored = k2i_reward_numeric(text, text, 0, &r, detail);
    K2_ASSERT(scored == found && (!found || r == 1) && k2i_reward_exact(text, text) == 1);
    return found;
}

const k2_parser k2_parsers[] = {
    {.name = "score request", .take = batch, .text = true, .prefixes_refused = true},
    {.name = "line of a reward command", .take = one_line},
    {.name = "output of a reward command", .stream = output},
    {.name = "numbers in a text", .take = numbers, .text = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
