/* score_fuzz - score requests, the lines of a reward command, and the numbers in texts. What was read and is written again must
 * be read the same. The first byte picks the parser. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rollout/reward_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void batch(const char *body, size_t n)
{
    k2i_score_batch b;
    k2_openai_error err;
    if (!k2i_score_parse(body, n, &b, &err)) {
        if (err.status != 400 || !err.message[0]) abort();
        return;
    }
    k2_buf out;
    k2_buf_init(&out, 64u << 20);
    k2_buf_puts(&out, "{\"items\":[");
    for (uint32_t i = 0; i < b.count; i++) {
        k2_buf_puts(&out, i ? "," : "");
        k2i_score_write_item(&b.items[i], &out);
    }
    k2_buf_puts(&out, "]}");
    k2i_score_batch again;
    if (!k2i_score_parse(out.data, out.len, &again, &err) || again.count != b.count) abort();
    for (uint32_t i = 0; i < b.count; i++) {
        const k2i_score_item *x = &b.items[i], *y = &again.items[i];
        if (x->trajectory != y->trajectory || strcmp(x->text, y->text) || strcmp(x->prompt, y->prompt) ||
            strcmp(x->answer, y->answer))
            abort();
    }
    k2i_score_batch_fini(&again);
    k2i_score_batch_fini(&b);
    k2_buf_fini(&out);
}

static void line(const char *text, size_t n)
{
    double reward = NAN;
    k2_error err = {0};
    k2_code code = k2i_score_parse_line(text, n, 7, &reward, &err);
    if (code == K2_OK ? !isfinite(reward) : !err.text[0] || !isnan(reward)) abort();
}

static void numbers(const char *text)
{
    double v = 0, r = 0;
    char detail[K2I_SCORE_DETAIL_MAX];
    bool found = k2i_last_number(text, &v);
    if (found && !isfinite(v)) abort();
    if (k2i_reward_numeric(text, text, 0, &r, detail) != found || (found && r != 1)) abort();
    if (k2i_reward_exact(text, text) != 1) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1) return 0;
    char *text = k2_strndup((const char *)data + 1, n - 1); /* as in life, a zero byte stands behind it */
    size_t len = strlen(text);
    if (data[0] == 'b')
        batch(text, len);
    else if (data[0] == 'l')
        line(text, len);
    else
        numbers(text);
    k2_free(text);
    return 0;
}
