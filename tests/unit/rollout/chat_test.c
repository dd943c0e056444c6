/* chat - chats with tools as tokens, from a request's body and from a line of a prompt file: as Hugging Face's transformers and
 * tiktoken make them (tests/interop/token/chats.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cjson/cJSON.h>
#include <cmocka.h>
#include <string.h>

#include "common/data/data.h"
#include "master/io_int.h"
#include "rollout/generate_int.h"

#define FOLDER K2_SOURCE_DIR "/tests/unit/token/vectors"

static k2_tokenizer *tokenizer;

static void check(const k2_tokens *got, const cJSON *want, const char *line)
{
    if (got->count != (size_t)cJSON_GetArraySize(want)) fail_msg("%zu ids: %s", got->count, line);
    const cJSON *id = want->child;
    for (size_t i = 0; i < got->count; i++, id = id->next) assert_int_equal(got->ids[i], id->valueint);
}

static void as_a_request(const char *body, size_t n, k2_tokens *out)
{
    k2_openai_request r, again;
    k2_openai_error e;
    k2_error err;
    k2_buf written;
    k2_buf_init(&written, 1 << 20);
    if (!k2_openai_parse_request(body, n, true, &r, &e)) fail_msg("%s", e.message);
    k2_openai_write_request(&written, &r, NULL); /* as a proxy passes it on */
    assert_true(k2_openai_parse_request(written.data, written.len, true, &again, &e));
    assert_int_equal(k2i_chat_render(tokenizer, &again, out, &err), K2_OK);
    k2_openai_request_fini(&r);
    k2_openai_request_fini(&again);
    k2_buf_fini(&written);
}

static void as_a_prompt(const char *body, size_t n, k2_tokens *out)
{
    k2_prompts *p;
    k2_error err;
    k2_buf line;
    k2_buf_init(&line, 1 << 20);
    k2_buf_append(&line, body, n - 1); /* without the last brace */
    k2_buf_puts(&line, ",\"answer\":\"\"}");
    if (k2_prompts_parse("p", line.data, line.len, NULL, &p, &err) != K2_OK) fail_msg("%s", err.text);
    assert_int_equal(k2m_prompt_render(tokenizer, k2_prompts_at(p, 0), out, &err), K2_OK);
    k2_prompts_free(p);
    k2_buf_fini(&line);
}

static void ids_are_those_of_the_template(void **state)
{
    (void)state;
    char *lines = NULL;
    size_t n = 0, count = 0, body_n;
    const char *body;
    k2_tokens ids;
    k2_error err;
    k2_tokens_init(&ids, 10000);
    assert_int_equal(k2_tokenizer_open("auto", FOLDER "/kimi", &tokenizer, &err), K2_OK);
    assert_int_equal(k2_file_read(FOLDER "/chats.jsonl", 1 << 20, &lines, &n, &err), K2_OK);
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n"), count++) {
        cJSON *tree = cJSON_Parse(line);
        const cJSON *want = cJSON_GetObjectItem(tree, "ids");
        assert_true(k2_json_member(line, strlen(line), "body", &body, &body_n));
        k2_tokens_clear(&ids);
        as_a_request(body, body_n, &ids);
        check(&ids, want, line);
        k2_tokens_clear(&ids);
        as_a_prompt(body, body_n, &ids);
        check(&ids, want, line);
        cJSON_Delete(tree);
    }
    assert_true(count >= 7);
    k2_free(lines);
    k2_tokens_fini(&ids);
    k2_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_those_of_the_template)};
    return cmocka_run_group_tests_name("rollout_chat", tests, NULL, NULL);
}
