/* config: strictness, overrides, identity, round trip, and the page that documents the keys. */
#include "common/config/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static k2_code parse(const char *text, k2_config *c, k2_error *err)
{
    k2_config_defaults(c);
    return k2_config_parse(c, text, strlen(text), "x.json", err);
}

static void good_values_are_taken(void **state)
{
    (void)state;
    k2_config c;
    k2_error e = {0};
    const char *text =
        "{\"seed\": \"18446744073709551615\", \"mode\": \"sync\", \"trainer\": {\"ranks\": 2, \"optimizer\": {\"lr\": 0.5}},"
        " \"reward\": {\"kind\": \"command\", \"command\": [\"a\", \"b c\"]}, \"data\": {\"shuffle\": false}}";
    assert_int_equal(parse(text, &c, &e), K2_OK);
    assert_true(c.seed == UINT64_MAX);
    assert_string_equal(c.mode, "sync");
    assert_int_equal(c.trainer_ranks, 2);
    assert_true(c.trainer_lr == 0.5);
    assert_int_equal(c.reward_command.count, 2);
    assert_string_equal(c.reward_command.item[1], "b c");
    assert_false(c.data_shuffle);
}

static void faults_name_place_found_and_expected(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"trainer\": {\"rank\": 1}}", "x.json: trainer.rank: unknown key, did you mean trainer.ranks?"},
        {"{\"sede\": 1}", "x.json: sede: unknown key, did you mean seed?"},
        {"{\"seed\": \"x\"}", "x.json: seed: found a string, expected a whole number (above 2^53 as a decimal string)"},
        {"{\"seed\": -1}", "x.json: seed: found -1, expected a whole number (above 2^53 as a decimal string)"},
        {"{\"iterations\": 1.5}", "x.json: iterations: found 1.5, expected a whole number"},
        {"{\"iterations\": []}", "x.json: iterations: found a list, expected a whole number"},
        {"{\"trainer\": {\"ranks\": 0}}", "x.json: trainer.ranks: found 0, expected 1 to 4096"},
        {"{\"trainer\": 3}", "x.json: trainer: found a number, expected an object"},
        {"{\"trainer\": {\"ranks\": 1, \"ranks\": 1}}", "x.json: trainer.ranks: given twice"},
        {"{\"trainer\": {\"tau\": 1e9}}", "x.json: trainer.tau: found 1e+09, expected 1e-06 to 1000"},
        {"{\"mode\": \"fast\"}", "x.json: mode: found \"fast\", expected one of partial|sync|pretrain"},
        {"{\"data\": {\"shuffle\": 1}}", "x.json: data.shuffle: found a number, expected true or false"},
        {"{\"reward\": {\"command\": [1]}}",
         "x.json: reward.command[0]: found a number, expected a string of at most 255 bytes"},
        {"{\"seed\": 1,\n \"mode\" }", "x.json:2:9: not valid JSON"},
        {"{} x", "x.json:1:4: not valid JSON"},
        {"[]", "x.json: found a list, expected an object"},
        {"", "x.json:1:1: not valid JSON"},
        {"{\"run\": {\"dir\": \"r\xff\"}}", "x.json: is not UTF-8"},
        {"{\"run\": {\"dir\": \"r\\u0000s\"}}", "x.json: holds the character U+0000"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2_config c, before;
        k2_error e = {0};
        k2_config_defaults(&before);
        assert_int_equal(parse(cases[i].text, &c, &e), K2_BAD_INPUT);
        assert_string_equal(e.text, cases[i].want);
        assert_memory_equal(&c, &before, sizeof c);
    }
}

static void every_cut_of_a_file_is_refused(void **state)
{
    (void)state;
    k2_config c;
    k2_error e;
    const char *text = "{\"trainer\": {\"optimizer\": {\"lr\": 0.5}}, \"mode\": \"sync\"}";
    for (size_t n = 0; n < strlen(text); n++) {
        k2_config_defaults(&c);
        assert_int_equal(k2_config_parse(&c, text, n, "x", &e), K2_BAD_INPUT);
    }
}

static void overrides(void **state)
{
    (void)state;
    k2_config c;
    k2_error e = {0};
    k2_config_defaults(&c);
    assert_int_equal(k2_config_set(&c, "trainer.ranks=2", &e), K2_OK);
    assert_int_equal(k2_config_set(&c, "run.dir=runs/a=b", &e), K2_OK);
    assert_int_equal(k2_config_set(&c, "seed=18446744073709551615", &e), K2_OK);
    assert_int_equal(k2_config_set(&c, "reward.command=[\"x\"]", &e), K2_OK);
    assert_string_equal(c.run_dir, "runs/a=b");
    assert_true(c.seed == UINT64_MAX && c.trainer_ranks == 2 && c.reward_command.count == 1);
    assert_int_equal(k2_config_set(&c, "trainer.ranks", &e), K2_BAD_INPUT);
    assert_int_equal(k2_config_set(&c, "trainer.ranks=", &e), K2_BAD_INPUT);
    assert_int_equal(k2_config_set(&c, "trainer.renks=1", &e), K2_BAD_INPUT);
    assert_string_equal(e.text, "--set: trainer.renks: unknown key, did you mean trainer.ranks?");
    assert_int_equal(k2_config_set(&c, "run.dir=r\xff", &e), K2_BAD_INPUT);
    assert_int_equal(k2_config_set(&c, "reward.command=[\"\xff\"]", &e), K2_BAD_INPUT);
    assert_string_equal(e.text, "--set: reward.command: the value is not UTF-8");
}

static void the_printed_form_reads_back(void **state)
{
    (void)state;
    k2_config a, b;
    k2_error e = {0};
    assert_int_equal(parse("{\"seed\": 77, \"trainer\": {\"tau\": 0.3, \"optimizer\": {\"lr\": 1.1e-3}}, \"reward\": "
                           "{\"command\": [\"\\\"q\"]}}",
                           &a, &e),
                     K2_OK);
    char *text = k2_config_json(&a);
    k2_config_defaults(&b);
    assert_int_equal(k2_config_parse(&b, text, strlen(text), "x", &e), K2_OK);
    assert_memory_equal(&a, &b, sizeof a);
    k2_free(text);
}

static void identity_follows_what_a_run_computes(void **state)
{
    (void)state;
    k2_config a, b;
    k2_error e;
    k2_config_defaults(&a);
    b = a;
    k2_config_set(&b, "rollout.workers=3", &e);
    k2_config_set(&b, "trainer.ranks=2", &e);
    k2_config_set(&b, "run.dir=other", &e);
    assert_true(k2_digest_equal(k2_config_identity(&a), k2_config_identity(&b)));
    k2_config_set(&b, "seed=2", &e);
    assert_false(k2_digest_equal(k2_config_identity(&a), k2_config_identity(&b)));
}

/* With all that has no default. */
static k2_config config_complete(void)
{
    k2_config c;
    k2_error e;
    k2_config_defaults(&c);
    k2_config_set(&c, "model.config=m.json", &e);
    k2_config_set(&c, "data.prompts=p", &e);
    k2_config_set(&c, "data.heldout=h", &e);
    return c;
}

static void keys_must_fit_together(void **state)
{
    (void)state;
    static const struct {
        const char *set, *want;
    } cases[] = {
        {"trainer.ranks=3", "trainer.ranks: found 3, expected a divisor of trainer.grad_lanes (2)"},
        {"model.dir=d", "model.config, model.dir: found both, expected exactly one of them"},
        {"data.prompts=", "data.prompts: found nothing, expected a JSONL file for mode \"partial\""},
        {"reward.kind=command", "reward.command: found 0 items, expected a program for reward.kind \"command\""},
        {"run.flight_kib=63", "run.flight_kib: found 63, expected 0 or at least 64"},
        {"trainer.kl.weight=0.1", "trainer.kl.reference: is empty, expected the directory of the reference model (only where "
                                  "model.dir is given and nothing is pretrained it is model.dir)"},
        {"rollout.refill_max=65535", "rollout.refill_max: found 65535, expected at most 65536 - rollout.groups (65504)"},
        {"mode=pretrain", "pretrain.steps: found 0, expected at least 1 in mode \"pretrain\""},
        {"tokenizer.kind=json", "tokenizer.path: is empty, expected the place of the tokenizer of kind \"json\""},
        {"tokenizer.path=here", "tokenizer.path: found \"here\", but tokenizer.kind \"byte\" reads no file"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2_config c = config_complete();
        k2_error e = {0};
        assert_int_equal(k2_config_check(&c, &e), K2_OK);
        assert_int_equal(k2_config_set(&c, cases[i].set, &e), K2_OK);
        assert_int_equal(k2_config_check(&c, &e), K2_BAD_INPUT);
        assert_string_equal(e.text, cases[i].want);
    }
}

/* The gradient of log p - log p_ref does not depend on the reference: as a loss it would hold to nothing. */
static void k1_is_for_the_reward(void **state)
{
    (void)state;
    k2_config c = config_complete();
    k2_error e = {0};
    k2_config_set(&c, "trainer.kl.reference=d", &e);
    k2_config_set(&c, "trainer.kl.weight=0.1", &e);
    k2_config_set(&c, "trainer.kl.estimator=k1", &e);
    k2_config_set(&c, "trainer.kl.place=reward", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_OK);
    k2_config_set(&c, "trainer.kl.place=loss", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_BAD_INPUT);
    assert_non_null(strstr(e.text, "trainer.kl.estimator: found \"k1\", expected k2 or k3"));
    k2_config_set(&c, "trainer.kl.estimator=k3", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_OK);
    /* A decay ends below its peak, in pretraining, too. */
    k2_config_set(&c, "pretrain.steps=10", &e);
    k2_config_set(&c, "pretrain.schedule.min_lr=0.1", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_BAD_INPUT);
    assert_non_null(strstr(e.text, "pretrain.schedule.min_lr: found 0.1, expected at most pretrain.optimizer.lr"));
}

/* A curriculum orders epochs, and without one it would do nothing. */
static void a_curriculum_has_an_epoch(void **state)
{
    (void)state;
    k2_config c = config_complete();
    k2_error e = {0};
    k2_config_set(&c, "data.curriculum=true", &e);
    k2_config_set(&c, "data.sampling=priority", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_BAD_INPUT);
    assert_non_null(strstr(e.text, "data.priority.after: found 0, expected the epochs of data.curriculum"));
    k2_config_set(&c, "data.priority.after=1", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_OK);
}

static void tasks_are_made_of_bytes(void **state)
{
    (void)state;
    k2_config c;
    k2_error e;
    k2_config_defaults(&c);
    k2_config_set(&c, "model.config=m.json", &e);
    k2_config_set(&c, "tokenizer.kind=auto", &e);
    k2_config_set(&c, "tokenizer.path=here", &e);
    k2_config_set(&c, "data.task=licences", &e);
    assert_int_equal(k2_config_check(&c, &e), K2_BAD_INPUT);
    assert_non_null(strstr(e.text, "data.task: found \"licences\", whose corpus is made of bytes"));
}

static void the_page_is_the_table(void **state)
{
    (void)state;
    k2_error e = {0};
    char *page, *want = k2_config_markdown();
    size_t n;
    assert_int_equal(k2_file_read(K2_SOURCE_DIR "/configs/README.md", 1 << 20, &page, &n, &e), K2_OK);
    if (strcmp(page, want) != 0)
        fail_msg("configs/README.md is not what `k2rl config` prints; run: k2rl config > configs/README.md");
    k2_free(page);
    k2_free(want);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        char *page = k2_config_markdown();
        fputs(page, stdout);
        k2_free(page);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_values_are_taken),          cmocka_unit_test(faults_name_place_found_and_expected),
        cmocka_unit_test(every_cut_of_a_file_is_refused), cmocka_unit_test(overrides),
        cmocka_unit_test(the_printed_form_reads_back),    cmocka_unit_test(identity_follows_what_a_run_computes),
        cmocka_unit_test(keys_must_fit_together),         cmocka_unit_test(k1_is_for_the_reward),
        cmocka_unit_test(a_curriculum_has_an_epoch),      cmocka_unit_test(tasks_are_made_of_bytes),
        cmocka_unit_test(the_page_is_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
