/* Any bytes as a prompt file; what is taken must be whole, and its lines must give the same prompts again.
 *     build/fuzz/prompts_fuzz tests/fuzz/data/corpus_prompts */
#include "common/data/data.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const k2_prompts_limits limits = {.answer_optional = true};
    k2_prompts *p = NULL, *again = NULL;
    k2_error err;
    if (k2_prompts_parse("fuzz", (const char *)data, size, &limits, &p, &err) != K2_OK) {
        K2_ASSERT(strncmp(err.text, "fuzz", 4) == 0 && !p);
        return 0;
    }
    k2_buf lines;
    k2_buf_init(&lines, size + 1);
    for (size_t i = 0; i < k2_prompts_count(p); i++) {
        const k2_prompt *item = k2_prompts_at(p, i);
        K2_ASSERT(item->message_count > 0 && strcmp(item->messages[item->message_count - 1].role, "user") == 0);
        for (uint32_t m = 0; m < item->message_count; m++)
            K2_ASSERT(k2_utf8_valid(item->messages[m].content, strlen(item->messages[m].content)));
        K2_ASSERT(strlen(item->json) == item->json_bytes && *item->id);
        k2_buf_puts(&lines, item->json);
        k2_buf_puts(&lines, "\n");
    }
    /* Automatic ids hang on line numbers, so without blank lines two files may differ there, and only there. */
    if (k2_prompts_parse("fuzz", lines.data, lines.len, &limits, &again, &err) == K2_OK) {
        K2_ASSERT(k2_prompts_count(p) == k2_prompts_count(again));
        K2_ASSERT(k2_digest_equal(k2_prompts_fingerprint(p), k2_prompts_fingerprint(again)));
    }
    k2_prompts_free(p);
    k2_prompts_free(again);
    k2_buf_fini(&lines);
    return 0;
}
