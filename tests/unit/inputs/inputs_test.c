/* Inputs of a run: what counts as the same, what is refused by name, and what goes along into a checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/inputs/inputs.h"
#include "common/weights/weights.h"
#include "tests/support/tiny_dims.h"

#define RANKS "YQ== 0\nYg== 1\n" /* a, b */

static char dir[64];

static char *at(const char *name)
{
    return k2_asprintf("%s/%s", dir, name);
}

static void put(const char *name, const char *text)
{
    char *path = at(name), *parent = k2_strdup(path);
    *strrchr(parent, '/') = 0;
    assert_int_equal(k2_dir_make(parent, NULL), K2_OK);
    assert_int_equal(k2_file_write_atomic(path, text, strlen(text), NULL), K2_OK);
    k2_free(parent);
    k2_free(path);
}

static bool holds(const char *name, const char *text)
{
    char *path = at(name), *found = NULL;
    size_t n = 0;
    bool same = k2_file_read(path, 4096, &found, &n, NULL) == K2_OK && strcmp(found, text) == 0;
    k2_free(found);
    k2_free(path);
    return same;
}

static void model_put(const char *name, uint32_t layers)
{
    k2_dims d = tiny_dims();
    d.num_hidden_layers = layers;
    char *path = at(name);
    k2_error err;
    put(name, "");
    if (k2_weights_dims_write(&d, path, &err) != K2_OK) fail_msg("%s", err.text);
    k2_free(path);
}

static k2_config config_make(const char *kind, const char *tokenizer)
{
    k2_config c;
    k2_config_defaults(&c);
    snprintf(c.model_dir, sizeof(c.model_dir), "%s/model", dir);
    snprintf(c.tokenizer_kind, sizeof(c.tokenizer_kind), "%s", kind);
    if (tokenizer[0]) snprintf(c.tokenizer_path, sizeof(c.tokenizer_path), "%s/%s", dir, tokenizer);
    return c;
}

static void refused(const k2_config *c, const k2_inputs *masters, const char *says)
{
    k2_error err = {0};
    k2_code code = k2_inputs_check(c, masters, &err);
    if (code != K2_BAD_INPUT || !strstr(err.text, says)) fail_msg("%s: \"%s\"", k2_code_name(code), err.text);
}

static void others_are_refused_by_name(void **state)
{
    (void)state;
    k2_inputs masters, again;
    model_put("model/config.json", 1);
    put("model/tiktoken.model", RANKS);
    put("model/tokenizer_config.json", "{}");
    k2_config c = config_make("tiktoken", "");
    assert_int_equal(k2_inputs_read(&c, &masters, NULL), K2_OK);
    assert_int_equal(k2_inputs_check(&c, &masters, NULL), K2_OK);
    put("model/tokenizer_config.json", "{\"bos_token\": \"a\"}");
    refused(&c, &masters, "/model: the tokenizer here is not the master's");
    put("model/tokenizer_config.json", "{}");
    put("model/tiktoken.model", RANKS "YWI= 2\n");
    refused(&c, &masters, "tokenizer here");
    put("model/tiktoken.model", RANKS);
    snprintf(c.tokenizer_pattern, sizeof(c.tokenizer_pattern), "qwen");
    refused(&c, &masters, "tokenizer here");
    c.tokenizer_pattern[0] = 0;
    assert_int_equal(k2_inputs_check(&c, &masters, NULL), K2_OK);
    model_put("model/config.json", 2);
    refused(&c, &masters, "/model/config.json: the model here is not the master's");
    assert_int_equal(k2_inputs_check(&c, &(k2_inputs){0}, NULL), K2_OK); /* nothing was told */
    /* The same tokenizer in a place of its own is the same one; so is any model.dir to kind "byte". */
    put("elsewhere/tiktoken.model", RANKS);
    put("elsewhere/tokenizer_config.json", "{}");
    c = config_make("auto", "elsewhere");
    assert_int_equal(k2_inputs_read(&c, &again, NULL), K2_OK);
    assert_true(k2_digest_equal(again.tokenizer, masters.tokenizer) && !k2_digest_equal(again.model, masters.model));
    c = config_make("tiktoken", "nowhere");
    assert_int_equal(k2_inputs_check(&c, &masters, NULL), K2_NOT_FOUND);
}

static void copy(const k2_config *c, const char *name)
{
    char *to = at(name);
    k2_error err;
    assert_int_equal(k2_dir_make(to, NULL), K2_OK);
    if (k2_inputs_copy(c, to, &err) != K2_OK) fail_msg("%s", err.text);
    k2_free(to);
}

static void files_go_along(void **state)
{
    (void)state;
    put("model/tiktoken.model", RANKS);
    put("model/generation_config.json", "{\"eos_token_id\": 1}");
    put("model/chat_template.jinja", "a");
    put("model/optimizer.state", "not this one");
    put("other/tokenizer.json", "{}");
    put("other/chat_template.jinja", "b");
    put("qwen/ranks", RANKS);
    put("qwen/tokenizer_config.json", "{\"x\": 1}");

    k2_config c = config_make("tiktoken", "");
    copy(&c, "one");
    assert_true(holds("one/tiktoken.model", RANKS) && holds("one/generation_config.json", "{\"eos_token_id\": 1}"));
    assert_true(holds("one/chat_template.jinja", "a"));
    char *none = at("one/optimizer.state");
    assert_false(k2_file_exists(none));
    k2_free(none);

    c = config_make("json", "other"); /* its own place wins */
    copy(&c, "two");
    assert_true(holds("two/tokenizer.json", "{}") && holds("two/chat_template.jinja", "b"));

    c = config_make("tiktoken", "qwen/ranks"); /* one file, by the name that goes with its pattern */
    snprintf(c.tokenizer_pattern, sizeof(c.tokenizer_pattern), "qwen");
    copy(&c, "three");
    assert_true(holds("three/qwen.tiktoken", RANKS) && holds("three/tokenizer_config.json", "{\"x\": 1}"));

    c = config_make("byte", ""); /* no files, no harm */
    c.model_dir[0] = 0;
    copy(&c, "four");
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/k2rl_inputs_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(dir, NULL) == K2_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(others_are_refused_by_name, setup, teardown),
                                       cmocka_unit_test_setup_teardown(files_go_along, setup, teardown)};
    return cmocka_run_group_tests_name("inputs", tests, NULL, NULL);
}
