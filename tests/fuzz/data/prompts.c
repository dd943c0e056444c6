/* Prompt files and other lines of JSON. What is taken is whole, and its lines give the same prompts again. */
#include <string.h>

#include "common/data/data.h"
#include "common/data/jsonl_int.h"
#include "tests/fuzz/harness/parser.h"

static void check_message(const k2_prompt_message *m)
{
    K2_ASSERT(k2_utf8_valid(m->content, strlen(m->content)));
    K2_ASSERT((strcmp(m->role, "tool") == 0) == (m->tool_call_id != NULL));
    K2_ASSERT(m->call_count == 0 || strcmp(m->role, "assistant") == 0);
    for (uint32_t i = 0; i < m->call_count; i++)
        K2_ASSERT(*m->calls[i].id && *m->calls[i].name && k2_utf8_valid(m->calls[i].arguments, strlen(m->calls[i].arguments)));
}

/* Written one a line, the prompts are the same; only automatic ids, which hang on line numbers, can clash then. */
static void check_same_again(const k2_prompts *p, const k2_prompts_limits *limits)
{
    k2_prompts *again = NULL;
    k2_buf lines;
    k2_buf_init(&lines, 1u << 24);
    for (size_t i = 0; i < k2_prompts_count(p); i++) {
        const k2_prompt *item = k2_prompts_at(p, i);
        K2_ASSERT(item->message_count > 0);
        const char *last = item->messages[item->message_count - 1].role;
        K2_ASSERT(strcmp(last, "user") == 0 || strcmp(last, "tool") == 0);
        for (uint32_t m = 0; m < item->message_count; m++) check_message(&item->messages[m]);
        if (item->tools) K2_ASSERT(item->tools[0] == '[' && k2_utf8_valid(item->tools, strlen(item->tools)));
        K2_ASSERT(strlen(item->json) == item->json_bytes && *item->id);
        k2_buf_puts(&lines, item->json);
        k2_buf_puts(&lines, "\n");
    }
    if (k2_prompts_parse("again", lines.data, lines.len, limits, &again, NULL) == K2_OK) {
        K2_ASSERT(k2_prompts_count(p) == k2_prompts_count(again));
        K2_ASSERT(k2_digest_equal(k2_prompts_fingerprint(p), k2_prompts_fingerprint(again)));
    }
    k2_prompts_free(again);
    k2_buf_fini(&lines);
}

static bool prompts(const uint8_t *bytes, size_t n)
{
    const k2_prompts_limits limits = {.answer_optional = true};
    k2_prompts *p = NULL;
    k2_error err;
    if (k2_prompts_parse("prompts", (const char *)bytes, n, &limits, &p, &err) != K2_OK) {
        K2_ASSERT(strncmp(err.text, "prompts", 7) == 0 && !p);
        return false;
    }
    check_same_again(p, &limits);
    k2_prompts_free(p);
    return true;
}

/* As `k2rl data jsonl2idx` reads: one field of every line. */
static bool lines(const uint8_t *bytes, size_t n)
{
    k2i_jsonl j = {.name = "lines", .bytes = (const char *)bytes, .n = n, .line_bytes_max = 4096};
    const char *line;
    size_t len;
    k2_error err;
    k2_code code;
    while ((code = k2i_jsonl_next(&j, &line, &len, &err)) == K2_OK) {
        const cJSON *field;
        cJSON *object;
        const k2i_place at = {.name = "lines", .line = j.line};
        code = k2i_jsonl_object(at, line, len, &object, &err);
        if (code != K2_OK) break;
        code = k2i_jsonl_field(at, object, "text", &field, &err);
        cJSON_Delete(object);
        if (code != K2_OK) break;
    }
    K2_ASSERT(code == K2_NOT_FOUND || strncmp(err.text, "lines:", 6) == 0);
    return code == K2_NOT_FOUND;
}

const k2_parser k2_parsers[] = {
    {.name = "prompts", .take = prompts},
    {.name = "lines of JSON", .take = lines},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
