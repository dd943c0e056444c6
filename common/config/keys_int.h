/* keys_int - the table of configuration keys; struct, parser, printer, help page and identity are expansions of it.
 *
 * Not for inclusion by anyone but config.h. A row gives: member, dotted path, default, [least, most | choices], class, meaning.
 *   class  SAME   part of what a run computes: a resumed run must have the same value
 *          FREE   how and where it runs: may differ between two starts of one run
 */
#define K2_CONFIG_KEYS(U64, F64, BOOL, STR, ENUM, LIST)                                                                          \
    U64(seed, "seed", 1, 0, UINT64_MAX, SAME, "every random draw of a run is a function of this number")                         \
    ENUM(mode, "mode", "partial", "partial|sync|pretrain", SAME,                                                                 \
         "partial: long answers are cut at rollout.budget_tokens and resumed; sync: answers run to their end; "                  \
         "pretrain: trainers only")                                                                                              \
    U64(iterations, "iterations", 40, 0, 100000000, FREE, "iterations of reinforcement learning")                                \
                                                                                                                                 \
    STR(run_dir, "run.dir", "runs/default", FREE, "where everything that a run writes goes")                                     \
    U64(run_checkpoint_every, "run.checkpoint_every", 10, 1, 1000000, FREE,                                                      \
        "iterations (in pretraining: tens of steps) between checkpoints")                                                        \
    U64(run_checkpoints_kept, "run.checkpoints_kept", 2, 1, 1000, FREE, "older checkpoints are removed; 1 acts as 2")            \
    ENUM(run_checkpoint_dtype, "run.checkpoint_dtype", "f32", "f32|bf16", FREE,                                                  \
        "type of the weights in checkpoints; with bf16 the optimizer's file holds them in f32, so that a resumed run is the same") \
    U64(run_shard_bytes, "run.shard_bytes", 5000000000, 0, UINT64_C(1) << 53, FREE,                                              \
        "weights in one file of a checkpoint, in bytes, at most; 0: one file")                                                   \
    U64(run_eval_every, "run.eval_every", 10, 0, 1000000, FREE, "iterations between evaluations; 0 = only before and after")     \
    U64(run_journal_mb, "run.journal_mb", 1024, 16, 1048576, FREE, "largest size of the journal, in MiB")                        \
    U64(run_flight_kib, "run.flight_kib", 1024, 0, 65536, FREE,                                                                   \
        "size of each process's flight recorder (k2rl trace), in KiB: 0 = off, else at least 64")                                \
                                                                                                                                 \
    STR(model_config, "model.config", "", SAME, "Hugging Face config.json with the sizes of a new model")                        \
    STR(model_dir, "model.dir", "", SAME, "Hugging Face model directory to start from, instead of a new model")                  \
    F64(model_init_std, "model.init_std", 0.02, 0, 10, SAME, "standard deviation of new weights")                                \
    ENUM(model_compute, "model.compute", "f32", "f32|bf16", SAME,                                                                \
         "what trainer and engine multiply matrices in; with bf16 operands are rounded to it, sums and the weights that are "    \
         "trained stay f32")                                                                                                     \
    ENUM(tokenizer_kind, "tokenizer.kind", "byte", "byte|tiktoken|json|auto", SAME,                                              \
         "byte: no file; tiktoken: tiktoken.model or another file of ranks; json: tokenizer.json; auto: what tokenizer.path holds") \
    STR(tokenizer_path, "tokenizer.path", "", SAME,                                                                              \
        "the tokenizer's directory or file, on every machine of the run; empty: model.dir, unless the kind is byte")             \
    ENUM(tokenizer_pattern, "tokenizer.pattern", "", "|kimi|qwen|cl100k", SAME,                                                  \
         "tiktoken: how text is cut into words; empty: what goes with the file's name")                                          \
                                                                                                                                 \
    STR(data_prompts, "data.prompts", "", SAME, "training prompts, JSONL")                                                       \
    STR(data_heldout, "data.heldout", "", SAME, "held-out prompts for evaluation, JSONL")                                        \
    STR(data_corpus, "data.corpus", "", SAME, "pretraining corpus: prefix of the .idx and .bin files")                           \
    ENUM(data_task, "data.task", "", "|quickstart|licences", SAME,                                                               \
         "generate the files above, where missing: quickstart, word games (all three); licences, the licence texts of a Debian " \
         "(the corpus)")                                                                                                         \
    U64(data_task_corpus, "data.task_corpus", 20000, 1, 100000000, SAME, "quickstart: documents of its corpus")                      \
    U64(data_task_prompts, "data.task_prompts", 4096, 1, 100000000, SAME, "quickstart: training prompts")                          \
    U64(data_task_heldout, "data.task_heldout", 256, 1, 1000000, SAME, "quickstart: held-out prompts")                             \
    BOOL(data_shuffle, "data.shuffle", true, SAME, "shuffle prompts anew in every epoch")                                        \
    BOOL(data_curriculum, "data.curriculum", false, SAME,                                                                        \
         "in every epoch, prompts in order of their field \"difficulty\", a number, least first; those of one difficulty are shuffled") \
    ENUM(data_sampling, "data.sampling", "epochs", "epochs|priority", SAME,                                                      \
         "epochs: every prompt once in each; priority: drawn with probability proportional to 1 - its success rate (Kimi k1.5)") \
    F64(data_priority_rate, "data.priority.rate", 0.5, 1e-3, 1, SAME,                                                            \
        "weight of a prompt's newest group in its success rate, which begins at 0")                                              \
    F64(data_priority_floor, "data.priority.floor", 0.05, 0, 1, SAME,                                                            \
        "least of 1 - success rate, so that solved prompts are still seen now and then")                                         \
    U64(data_priority_after, "data.priority.after", 0, 0, 1000000, SAME,                                                         \
        "epochs before prompts are drawn by priority: in order, or by data.curriculum")                                          \
                                                                                                                                 \
    STR(master_listen, "master.listen", "", FREE,                                                                                \
        "control address of the master, tcp://HOST:PORT; empty = a socket in the run directory")                                 \
    U64(master_lease_ms, "master.lease_ms", 10000, 100, 3600000, FREE,                                                           \
        "a worker that says nothing for this long is taken for dead")                                                            \
    U64(master_start_timeout_ms, "master.start_timeout_ms", 60000, 100, 86400000, FREE, "time for all workers to appear")        \
    U64(master_step_timeout_ms, "master.step_timeout_ms", 600000, 100, 86400000, FREE,                                           \
        "deadline of one command (a training step, a weight transfer)")                                                          \
    U64(master_restarts_max, "master.restarts_max", 10, 0, 1000000, FREE,                                                        \
        "restarts of one worker within ten minutes before the run gives up")                                                     \
    U64(master_inflight_max, "master.inflight_max", 1024, 1, 65536, FREE, "requests that the master keeps open at the proxy")    \
                                                                                                                                 \
    U64(trainer_ranks, "trainer.ranks", 1, 1, 4096, FREE, "data-parallel trainer processes; the result does not depend on it")   \
    U64(trainer_threads, "trainer.threads", 0, 0, 1024, FREE, "threads of one rank; 0 = cores / ranks")                          \
    U64(trainer_grad_lanes, "trainer.grad_lanes", 2, 1, 64, SAME,                                                                \
        "gradient sums kept apart until the end of a step; a multiple of trainer.ranks, and what makes ranks not matter")        \
    U64(trainer_micro_tokens, "trainer.micro_tokens", 2048, 16, 1048576, SAME, "most tokens of one packed micro-batch")          \
    ENUM(trainer_recompute, "trainer.recompute", "none", "none|selective|full", FREE,                                            \
         "what the forward does not keep but the backward computes again, to save memory; the result does not depend on it")     \
    ENUM(trainer_loss, "trainer.loss", "mirror", "mirror|grpo|dapo|gspo|cispo|rloo|reinforce++", SAME,                           \
         "policy loss: mirror descent of Kimi k1.5/K2, or one of the others by its usual name")                                  \
    F64(trainer_tau, "trainer.tau", 0.1, 1e-6, 1000, SAME, "mirror: weight of the log-ratio")                                    \
    F64(trainer_clip_low, "trainer.clip_low", 0.2, 0, 1, SAME, "ratio is clipped below 1 - this (gspo: try 3e-4)")               \
    F64(trainer_clip_high, "trainer.clip_high", 0.28, 0, 100, SAME, "ratio is clipped above 1 + this (gspo: try 4e-4)")          \
    ENUM(trainer_old_segments, "trainer.old_segments", "mask", "mask|correct", SAME,                                             \
         "an answer's segments before its last: kept out of the loss, or importance-corrected as a last one of older weights is")  \
    BOOL(trainer_correction, "trainer.correction", true, SAME, "per-token importance correction between engine and trainer")     \
    ENUM(trainer_correction_kind, "trainer.correction_kind", "tis", "tis|icepop", SAME,                                          \
         "outside of its bounds a correction is set to the bound (tis), or its token leaves the loss (icepop: try 0.5 and 5)")   \
    F64(trainer_correction_min, "trainer.correction_min", 0, 0, 1, SAME, "lower bound of the correction")                        \
    F64(trainer_correction_max, "trainer.correction_max", 2, 1, 1000, SAME, "upper bound of the correction")                     \
    F64(trainer_balance_weight, "trainer.balance_weight", 0, 0, 1000, SAME,                                                      \
        "coefficient of DeepSeek's sequence-wise auxiliary loss (Kimi K2: 1e-4), averaged over sequences; 0 = off")              \
    F64(trainer_kl_weight, "trainer.kl.weight", 0, 0, 1000, SAME,                                                                \
        "what the distance to a frozen reference model costs (GRPO: 0.04 in the loss); 0 = off, and no such model is held")      \
    ENUM(trainer_kl_place, "trainer.kl.place", "loss", "loss|reward", SAME,                                                      \
         "loss: added to it; reward: taken from it, by reinforce++ token by token, by the others of the whole answer")           \
    ENUM(trainer_kl_estimator, "trainer.kl.estimator", "k3", "k1|k2|k3", SAME,                                                   \
         "of a token, from x = log pi - log pi_ref: x (reinforce++ in the reward), x^2 / 2, e^-x - 1 + x (GRPO)")                \
    STR(trainer_kl_reference, "trainer.kl.reference", "", SAME,                                                                  \
        "Hugging Face directory of the reference model, on every trainer's machine; empty: model.dir, where nothing is pretrained") \
    F64(trainer_length_weight, "trainer.length_reward.weight", 0, 0, 1000, SAME,                                                 \
        "share of k1.5's length reward within a group: the shorter of right answers are worth more; 0 = off")                    \
    U64(trainer_length_from, "trainer.length_reward.from_step", 0, 0, 100000000, SAME, "first step that has it")                 \
    U64(trainer_overlong_tokens, "trainer.overlong_tokens", 0, 0, 1048576, SAME,                                                 \
        "DAPO's soft punishment: over this many last tokens below rollout.max_tokens an answer loses up to 1; 0 = off")          \
    U64(trainer_epochs, "trainer.epochs", 1, 1, 64, SAME, "passes over the batch of one iteration")                              \
    U64(trainer_minibatches, "trainer.minibatches", 1, 1, 256, SAME, "optimizer steps in one pass, over groups in order of id")  \
    BOOL(trainer_reset_optimizer, "trainer.reset_optimizer", false, SAME, "forget the optimizer's moments in each iteration")    \
    ENUM(trainer_optimizer, "trainer.optimizer.kind", "adamw", "adamw|muon", SAME,                                               \
         "muon: matrices by Muon, embeddings, lm_head and norms by AdamW with the same learning rate; pretraining, too")         \
    F64(trainer_lr, "trainer.optimizer.lr", 1e-3, 0, 10, SAME, "peak learning rate")                                             \
    F64(trainer_beta1, "trainer.optimizer.beta1", 0.9, 0, 0.999999, SAME, "AdamW: decay of the first moment")                    \
    F64(trainer_beta2, "trainer.optimizer.beta2", 0.95, 0, 0.999999, SAME, "AdamW: decay of the second moment")                  \
    F64(trainer_eps, "trainer.optimizer.eps", 1e-8, 1e-20, 1, SAME, "AdamW: added to the root of the second moment")             \
    F64(trainer_weight_decay, "trainer.optimizer.weight_decay", 0.0, 0, 10, SAME, "decoupled weight decay")                      \
    F64(trainer_momentum, "trainer.optimizer.momentum", 0.95, 0, 0.999999, SAME, "Muon: decay of the momentum")                  \
    BOOL(trainer_nesterov, "trainer.optimizer.nesterov", false, SAME, "Muon: look ahead, as Moonlight does and Kimi K2 does not") \
    F64(trainer_qk_clip, "trainer.optimizer.qk_clip", 0, 0, 1e6, SAME,                                                           \
        "largest attention score; heads beyond it are scaled down after the update (MuonClip: 100); 0 = off")                    \
    F64(trainer_clip_norm, "trainer.optimizer.clip_norm", 1.0, 0, 1e9, SAME, "largest gradient norm; 0 = no clipping")           \
    ENUM(trainer_schedule, "trainer.schedule.kind", "constant", "constant|cosine|wsd", SAME, "learning-rate schedule")           \
    U64(trainer_warmup_steps, "trainer.schedule.warmup_steps", 0, 0, 100000000, SAME, "linear warm-up")                          \
    U64(trainer_decay_steps, "trainer.schedule.decay_steps", 0, 0, 1000000000, SAME,                                             \
        "cosine: steps of the whole decay; wsd: steps of the last decay; counted to trainer.schedule.total_steps")               \
    U64(trainer_total_steps, "trainer.schedule.total_steps", 0, 0, 1000000000, SAME, "wsd: step at which the decay has ended")   \
    F64(trainer_min_lr, "trainer.schedule.min_lr", 0, 0, 10, SAME, "learning rate at the end of the decay")                      \
    F64(trainer_bias_update_rate, "trainer.bias_update_rate", 0.0, 0, 1, SAME,                                                   \
        "step of the router's selection bias towards even load; 0 = fixed")                                                      \
                                                                                                                                 \
    U64(pretrain_steps, "pretrain.steps", 0, 0, 1000000000, SAME,                                                                \
        "steps on the corpus: before the first iteration, or the whole run in mode pretrain")                                    \
    U64(pretrain_batch_sequences, "pretrain.batch_sequences", 64, 1, 1048576, SAME, "sequences of one step")                     \
    U64(pretrain_sequence_tokens, "pretrain.sequence_tokens", 128, 2, 1048576, SAME,                                             \
        "longest sequence; longer documents are cut into such windows")                                                          \
    F64(pretrain_lr, "pretrain.optimizer.lr", 3e-3, 0, 10, SAME, "AdamW: peak learning rate in pretraining")                     \
    F64(pretrain_weight_decay, "pretrain.optimizer.weight_decay", 0.0, 0, 10, SAME, "AdamW: decay in pretraining")               \
    F64(pretrain_clip_norm, "pretrain.optimizer.clip_norm", 1.0, 0, 1e9, SAME, "largest gradient norm in pretraining")           \
    ENUM(pretrain_schedule, "pretrain.schedule.kind", "cosine", "constant|cosine|wsd", SAME, "schedule in pretraining")          \
    U64(pretrain_warmup_steps, "pretrain.schedule.warmup_steps", 20, 0, 100000000, SAME, "linear warm-up")                       \
    U64(pretrain_decay_steps, "pretrain.schedule.decay_steps", 0, 0, 1000000000, SAME,                                           \
        "as in trainer.schedule; 0 = all of pretrain.steps")                                                                     \
    F64(pretrain_min_lr, "pretrain.schedule.min_lr", 0, 0, 10, SAME, "learning rate at the end of the decay")                    \
                                                                                                                                 \
    U64(rollout_workers, "rollout.workers", 1, 1, 12000, FREE, "rollout processes; the result does not depend on it")            \
    U64(rollout_threads, "rollout.threads", 0, 0, 1024, FREE,                                                                    \
        "threads of one engine; 0 = cores / workers, fewer for a small model")                                                   \
    U64(rollout_group_size, "rollout.group_size", 8, 1, 1024, SAME, "trajectories sampled for one prompt")                       \
    U64(rollout_groups, "rollout.groups", 32, 1, 65536, SAME, "prompts in work in one iteration, resumed ones included")         \
    U64(rollout_refill_max, "rollout.refill_max", 0, 0, 65535, SAME,                                                             \
        "DAPO's dynamic sampling: groups of equal rewards leave the batch and others are begun for them, so many an iteration; 0 = off") \
    U64(rollout_budget_tokens, "rollout.budget_tokens", 32, 1, 1048576, SAME,                                                    \
        "new tokens that one trajectory may get in one iteration before it is cut")                                              \
    U64(rollout_max_tokens, "rollout.max_tokens", 64, 1, 1048576, SAME, "most tokens of one answer")                             \
    F64(rollout_temperature, "rollout.temperature", 1.0, 0, 100, SAME, "sampling temperature; 0 = greedy")                       \
    F64(rollout_top_p, "rollout.top_p", 1.0, 1e-6, 1, SAME, "nucleus sampling")                                                  \
    U64(rollout_top_k, "rollout.top_k", 0, 0, 1048576, SAME, "sample from the k likeliest tokens; 0 = all")                      \
    U64(rollout_page_tokens, "rollout.page_tokens", 16, 1, 4096, FREE, "tokens of one page of the latent cache")                 \
    U64(rollout_cache_tokens, "rollout.cache_tokens", 32768, 16, 1073741824, FREE, "tokens that one engine's cache holds")       \
    U64(rollout_batch_max, "rollout.batch_max", 64, 1, 4096, FREE, "requests that one engine decodes at once")                   \
    U64(rollout_queue_max, "rollout.queue_max", 4096, 1, 1048576, FREE, "requests that wait in one engine; more are refused")    \
    U64(rollout_prefill_chunk, "rollout.prefill_chunk", 256, 1, 65536, FREE, "prompt tokens computed in one engine step")        \
    U64(rollout_repetition_min_period, "rollout.repetition.min_period", 1, 1, 4096, SAME, "shortest repeated pattern")           \
    U64(rollout_repetition_max_period, "rollout.repetition.max_period", 8, 1, 4096, SAME, "longest repeated pattern")            \
    U64(rollout_repetition_count, "rollout.repetition.count", 0, 0, 4096, SAME,                                                  \
        "repeats that end an answer early; 0 = off")                                                                             \
    F64(rollout_repetition_penalty, "rollout.repetition.penalty", 0.0, 0, 1000, SAME,                                            \
        "taken from the reward of an answer that ended by repetition")                                                           \
                                                                                                                                 \
    ENUM(reward_kind, "reward.kind", "exact", "exact|numeric|command", SAME, "how an answer is scored")                          \
    LIST(reward_command, "reward.command", SAME, "program and arguments that score answers, JSON lines in and out")              \
    U64(reward_timeout_ms, "reward.timeout_ms", 10000, 1, 3600000, SAME, "hard time limit for one answer")                       \
    F64(reward_correct, "reward.correct", 0.5, -1e9, 1e9, SAME, "an answer with at least this reward counts as right")           \
    F64(reward_tolerance, "reward.tolerance", 1e-6, 0, 1e9, SAME, "numeric: largest relative difference")                        \
    U64(reward_retries, "reward.retries", 2, 0, 100, FREE, "further tries before a trajectory is dropped")                       \
                                                                                                                                 \
    ENUM(policy_nan, "policy.nan", "skip", "skip|stop", FREE,                                                                    \
         "a step that meets NaN or infinity: weights stay as they were and the run goes on, or it stops")                        \
    ENUM(policy_poison, "policy.poison", "drop", "drop|stop", FREE,                                                              \
         "a trajectory that ends its worker three times while it is alone there: its group is dropped, or the run stops")        \
    ENUM(policy_reward, "policy.reward", "drop", "drop|stop", FREE,                                                              \
         "an answer whose reward failed to the last try: its trajectory is dropped, or the run stops")                           \
    ENUM(policy_refill, "policy.refill", "train", "train|stop", FREE,                                                            \
         "more than rollout.refill_max groups have equal rewards: the smaller batch is trained, or the run stops")               \
    U64(policy_max, "policy.max", 1000, 0, UINT64_MAX, FREE,                                                                     \
        "of each of the three, so many at most: one more stops the run; 0 = no limit")                                           \
    U64(policy_kept, "policy.kept", 16, 0, 100000, FREE,                                                                         \
        "entries in RUN_DIR/quarantine; the first ones stay, later ones are only counted")                                       \
                                                                                                                                 \
    STR(proxy_listen, "proxy.listen", "127.0.0.1:0", FREE, "address for clients; port 0 = any free one")                         \
    U64(proxy_queue_max, "proxy.queue_max", 8192, 1, 1048576, FREE, "requests in the proxy; more are refused with 429")          \
    U64(proxy_retries, "proxy.retries", 8, 0, 1000, FREE, "times that one request may move to another engine")                   \
    U64(proxy_health_ms, "proxy.health_ms", 500, 10, 3600000, FREE, "between two health checks of an engine")                    \
    U64(proxy_connect_ms, "proxy.connect_ms", 2000, 1, 3600000, FREE, "deadline of a connection to an engine")                   \
    U64(proxy_stall_ms, "proxy.stall_ms", 30000, 10, 3600000, FREE, "an engine silent for this long in mid-answer has failed")   \
    U64(proxy_wait_ms, "proxy.wait_ms", 60000, 1, 86400000, FREE, "longest wait for an engine that may serve a request")         \
                                                                                                                                 \
    U64(eval_prompts, "eval.prompts", 128, 1, 1000000, FREE, "held-out prompts of one evaluation")                               \
    U64(eval_max_tokens, "eval.max_tokens", 64, 1, 1048576, FREE, "most tokens of one evaluated answer")                         \
                                                                                                                                 \
    ENUM(xfer_transport, "xfer.transport", "shm", "shm|tcp", FREE, "how weights, batches and gradients move")                    \
    U64(xfer_chunk_bytes, "xfer.chunk_bytes", 1048576, 4096, 1073741824, FREE, "bytes that are read, verified and retried as one") \
    U64(xfer_retries, "xfer.retries", 5, 0, 1000, FREE, "tries of one chunk at one source")                                      \
    U64(xfer_deadline_ms, "xfer.deadline_ms", 60000, 1, 86400000, FREE, "deadline of one transfer or collective")                \
                                                                                                                                 \
    ENUM(log_level, "log.level", "info", "error|warn|info|debug", FREE, "least level that is logged")
