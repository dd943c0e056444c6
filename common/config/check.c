/* What must hold between keys. */
#include "common/config/config_int.h"

#include <string.h>

static bool is(const char *value, const char *word)
{
    return strcmp(value, word) == 0;
}

static k2_code check_model(const k2_config *c, k2_error *err)
{
    bool fresh = c->model_config[0], start = c->model_dir[0];
    if (fresh == start)
        return k2_error_set(err, K2_BAD_INPUT, "model.config, model.dir: found %s, expected exactly one of them",
                            fresh ? "both" : "neither");
    if (!is(c->tokenizer_kind, "byte") && fresh && !c->tokenizer_path[0])
        return k2_error_set(err, K2_BAD_INPUT, "tokenizer.path: is empty, expected the place of the tokenizer of kind \"%s\"",
                            c->tokenizer_kind);
    if (is(c->tokenizer_kind, "byte") && c->tokenizer_path[0])
        return k2_error_set(err, K2_BAD_INPUT, "tokenizer.path: found \"%.200s\", but tokenizer.kind \"byte\" reads no file",
                            c->tokenizer_path);
    return K2_OK;
}

static k2_code check_trainer(const k2_config *c, k2_error *err)
{
    if (c->trainer_grad_lanes % c->trainer_ranks != 0)
        return k2_error_set(err, K2_BAD_INPUT, "trainer.ranks: found %llu, expected a divisor of trainer.grad_lanes (%llu)",
                            (unsigned long long)c->trainer_ranks, (unsigned long long)c->trainer_grad_lanes);
    if (is(c->trainer_schedule, "cosine") && c->trainer_decay_steps == 0)
        return k2_error_set(err, K2_BAD_INPUT, "trainer.schedule.decay_steps: found 0, expected the steps of the cosine decay");
    if (is(c->trainer_schedule, "wsd") && c->trainer_total_steps < c->trainer_decay_steps + c->trainer_warmup_steps)
        return k2_error_set(
            err, K2_BAD_INPUT, "trainer.schedule.total_steps: found %llu, expected at least warmup_steps + decay_steps (%llu)",
            (unsigned long long)c->trainer_total_steps, (unsigned long long)(c->trainer_decay_steps + c->trainer_warmup_steps));
    if (c->trainer_overlong_tokens > c->rollout_max_tokens)
        return k2_error_set(err, K2_BAD_INPUT,
                            "trainer.overlong_tokens: found %llu, expected at most rollout.max_tokens (%llu)",
                            (unsigned long long)c->trainer_overlong_tokens, (unsigned long long)c->rollout_max_tokens);
    bool reference = c->trainer_kl_reference[0] || (c->model_dir[0] && c->pretrain_steps == 0);
    if (c->trainer_kl_weight > 0 && !is(c->mode, "pretrain") && !reference)
        return k2_error_set(
            err, K2_BAD_INPUT,
            "trainer.kl.reference: is empty, expected the directory of the reference model (only where model.dir "
            "is given and nothing is pretrained it is model.dir)");
    if (c->trainer_kl_weight > 0 && is(c->trainer_kl_place, "loss") && is(c->trainer_kl_estimator, "k1"))
        return k2_error_set(
            err, K2_BAD_INPUT,
            "trainer.kl.estimator: found \"k1\", expected k2 or k3 for trainer.kl.place \"loss\" (the gradient of k1 does "
            "not depend on the reference)");
    if (c->trainer_min_lr > c->trainer_lr)
        return k2_error_set(err, K2_BAD_INPUT, "trainer.schedule.min_lr: found %g, expected at most trainer.optimizer.lr (%g)",
                            c->trainer_min_lr, c->trainer_lr);
    if (c->pretrain_steps > 0 && c->pretrain_min_lr > c->pretrain_lr)
        return k2_error_set(err, K2_BAD_INPUT,
                            "pretrain.schedule.min_lr: found %g, expected at most pretrain.optimizer.lr (%g)",
                            c->pretrain_min_lr, c->pretrain_lr);
    return K2_OK;
}

static k2_code check_rollout(const k2_config *c, k2_error *err)
{
    if (c->rollout_repetition_min_period > c->rollout_repetition_max_period)
        return k2_error_set(err, K2_BAD_INPUT, "rollout.repetition.min_period: found %llu, expected at most max_period (%llu)",
                            (unsigned long long)c->rollout_repetition_min_period,
                            (unsigned long long)c->rollout_repetition_max_period);
    if (c->rollout_cache_tokens < c->rollout_page_tokens)
        return k2_error_set(err, K2_BAD_INPUT, "rollout.cache_tokens: found %llu, expected at least one page (%llu)",
                            (unsigned long long)c->rollout_cache_tokens, (unsigned long long)c->rollout_page_tokens);
    if (c->rollout_groups + c->rollout_refill_max > 65536)
        return k2_error_set(err, K2_BAD_INPUT, "rollout.refill_max: found %llu, expected at most 65536 - rollout.groups (%llu)",
                            (unsigned long long)c->rollout_refill_max, (unsigned long long)(65536 - c->rollout_groups));
    if ((c->rollout_groups + c->rollout_refill_max) * c->rollout_group_size > 1048576)
        return k2_error_set(
            err, K2_BAD_INPUT, "rollout.groups: %llu groups of %llu trajectories, expected at most 1048576 trajectories",
            (unsigned long long)(c->rollout_groups + c->rollout_refill_max), (unsigned long long)c->rollout_group_size);
    if (is(c->reward_kind, "command") != (c->reward_command.count > 0))
        return k2_error_set(err, K2_BAD_INPUT, "reward.command: found %u items, expected %s for reward.kind \"%s\"",
                            c->reward_command.count, is(c->reward_kind, "command") ? "a program" : "none", c->reward_kind);
    return K2_OK;
}

static k2_code check_data(const k2_config *c, k2_error *err)
{
    if (c->data_curriculum && is(c->data_sampling, "priority") && c->data_priority_after == 0)
        return k2_error_set(err, K2_BAD_INPUT,
                            "data.priority.after: found 0, expected the epochs of data.curriculum before data.sampling "
                            "\"priority\"");
    if (c->data_task[0] && !is(c->tokenizer_kind, "byte"))
        return k2_error_set(err, K2_BAD_INPUT,
                            "data.task: found \"%s\", whose corpus is made of bytes, with tokenizer.kind \"%s\"", c->data_task,
                            c->tokenizer_kind);
    if (is(c->data_task, "quickstart")) return K2_OK;
    if (!is(c->mode, "pretrain") && !c->data_prompts[0])
        return k2_error_set(err, K2_BAD_INPUT, "data.prompts: found nothing, expected a JSONL file for mode \"%s\"", c->mode);
    if (!is(c->mode, "pretrain") && !c->data_heldout[0])
        return k2_error_set(err, K2_BAD_INPUT, "data.heldout: found nothing, expected a JSONL file for mode \"%s\"", c->mode);
    if (c->pretrain_steps > 0 && !c->data_corpus[0] && !c->data_task[0])
        return k2_error_set(err, K2_BAD_INPUT,
                            "data.corpus: found nothing, expected the prefix of a corpus for pretrain.steps");
    return K2_OK;
}

k2_code k2_config_check(const k2_config *c, k2_error *err)
{
    k2_code code = check_model(c, err);
    if (code == K2_OK) code = check_trainer(c, err);
    if (code == K2_OK && !is(c->mode, "pretrain")) code = check_rollout(c, err);
    if (code == K2_OK) code = check_data(c, err);
    if (code == K2_OK && is(c->mode, "pretrain") && c->pretrain_steps == 0)
        code = k2_error_set(err, K2_BAD_INPUT, "pretrain.steps: found 0, expected at least 1 in mode \"pretrain\"");
    if (code == K2_OK && c->run_flight_kib > 0 && c->run_flight_kib < 64)
        code = k2_error_set(err, K2_BAD_INPUT, "run.flight_kib: found %llu, expected 0 or at least 64",
                            (unsigned long long)c->run_flight_kib);
    if (code == K2_OK && !c->run_dir[0]) code = k2_error_set(err, K2_BAD_INPUT, "run.dir: found nothing, expected a directory");
    return code;
}
