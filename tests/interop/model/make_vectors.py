#!/usr/bin/env python3
"""Make the committed vectors of tests/unit/model/vectors from Hugging Face's DeepseekV3ForCausalLM on random small configs.

usage: make_vectors.py OUT_DIR [SEED [COUNT]]      (exit code 77 with a reason where torch or transformers is missing)

Five configs each turn every switch of the block on in one and off in another; COUNT more (default 8) are drawn at random. The committed files are those of seed 200.

Each case becomes NAME.k2v, little endian:
  8 bytes "K2VEC1\\0\\0"; u32 count of records; then each record:
  u32 bytes of its name, name; u32 kind (0 f32, 1 i32); u32 rank; u32 sizes[rank]; data
Records: "dims" (the numbers of k2_dims, f32, in the order of dims_of), "seq_starts", "tokens", "targets" (i32), "logits" [T,V],
"greedy" (i32: a prompt of GREEDY_PROMPT tokens and GREEDY_TOKENS that follow it greedily), "adamw" (learning rate, betas, eps, weight decay),
then for each weight under its checkpoint name "w:NAME" and, where it is trained, "g:NAME", the gradient of the mean
cross-entropy over all targets, and "a:NAME", the weight after three steps of torch's AdamW on that batch (norm gains do not decay).
The model runs in float64 (but for the casts to f32 that it makes itself) and results are rounded
once, so that the vectors are what f32 arithmetic should come near to. A greedy prompt is taken whose every choice has a lead of
GREEDY_LEAD of the logits' spread: a tie is nobody's to decide.
"""
import random
import struct
import sys

try:
    import numpy as np
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

BASE = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
            intermediate_size=40, moe_intermediate_size=12, n_routed_experts=4, n_shared_experts=1,
            num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=2.5,
            norm_topk_prob=True, max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=10000.0,
            tie_word_embeddings=False)
YARN = dict(rope_type="yarn", factor=8.0, beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
            original_max_position_embeddings=32, rope_theta=10000.0)
CASES = {
    "plain": {},
    "qlora_yarn": dict(q_lora_rank=20, rope=YARN),
    "groups": dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, first_k_dense_replace=0,
                   n_shared_experts=2, moe_intermediate_size=6, routed_scaling_factor=1.0),
    "dense_tied": dict(first_k_dense_replace=2, tie_word_embeddings=True, q_lora_rank=12),
    "odd_sizes": dict(hidden_size=30, num_attention_heads=3, kv_lora_rank=11, qk_nope_head_dim=5, qk_rope_head_dim=6,
                      v_head_dim=7, moe_intermediate_size=9, n_routed_experts=5, num_experts_per_tok=1,
                      norm_topk_prob=False, vocab_size=51, first_k_dense_replace=0,
                      rope=dict(YARN, mscale=0.7, mscale_all_dim=0.5, factor=4.0)),
}


GREEDY_PROMPT, GREEDY_TOKENS, GREEDY_LEAD = 5, 64, 1e-3
ADAMW = dict(lr=2e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)  # Kimi-K2's learning rate


def drawn(rng):
    """A random config: every size and switch of its own."""
    n_group = rng.choice([1, 1, 2, 4])
    experts = n_group * rng.randint(2, 3)
    topk_group = rng.randint(1, n_group)
    layers = rng.randint(1, 3)
    over = dict(vocab_size=rng.randint(40, 90), hidden_size=rng.randint(17, 40), num_hidden_layers=layers,
                q_lora_rank=rng.choice([None, rng.randint(8, 24)]), kv_lora_rank=rng.randint(6, 20),
                qk_nope_head_dim=rng.randint(3, 10), qk_rope_head_dim=2 * rng.randint(1, 5), v_head_dim=rng.randint(4, 10),
                intermediate_size=rng.randint(16, 48), moe_intermediate_size=rng.randint(6, 14), n_routed_experts=experts,
                n_shared_experts=rng.randint(1, 2), num_experts_per_tok=rng.randint(1, min(4, topk_group * experts // n_group)),
                n_group=n_group, topk_group=topk_group, first_k_dense_replace=rng.randint(0, layers),
                routed_scaling_factor=rng.choice([1.0, 2.5, 2.827]), norm_topk_prob=rng.random() < 0.7,
                tie_word_embeddings=rng.random() < 0.3, rms_norm_eps=rng.choice([1e-5, 1e-6]))
    if over["num_experts_per_tok"] == 1:  # a share of one does not depend on its score: its gradient is rounding alone
        over["norm_topk_prob"] = False
    over["num_attention_heads"] = over["num_key_value_heads"] = rng.randint(1, 4)
    theta = rng.choice([10000.0, 50000.0])
    over["rope_theta"] = theta
    if rng.random() < 0.6:
        over["rope"] = dict(rope_type="yarn", factor=rng.choice([4.0, 32.0, 40.0]), beta_fast=rng.choice([1.0, 32.0]), beta_slow=1.0,
                            mscale=rng.choice([1.0, 0.7]), mscale_all_dim=rng.choice([1.0, 0.5]),
                            original_max_position_embeddings=rng.choice([16, 64]), rope_theta=theta)
    return over


def config_of(over):
    c = dict(BASE, **over)
    rope = c.pop("rope", None)
    theta = c.pop("rope_theta")
    c["rope_parameters"] = rope if rope else dict(rope_type="default", rope_theta=theta)
    cfg = DeepseekV3Config(**c, attn_implementation="eager", experts_implementation="eager")
    return cfg


def dims_of(cfg):
    r = cfg.rope_parameters
    yarn = r["rope_type"] == "yarn"
    return [cfg.vocab_size, cfg.hidden_size, cfg.num_hidden_layers, cfg.num_attention_heads, cfg.q_lora_rank or 0,
            cfg.kv_lora_rank, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.v_head_dim, cfg.intermediate_size,
            cfg.moe_intermediate_size, cfg.n_routed_experts, cfg.n_shared_experts, cfg.num_experts_per_tok, cfg.n_group,
            cfg.topk_group, cfg.first_k_dense_replace, cfg.routed_scaling_factor, cfg.norm_topk_prob,
            cfg.tie_word_embeddings, cfg.max_position_embeddings, r["rope_theta"], r["factor"] if yarn else 0,
            r["beta_fast"] if yarn else 0, r["beta_slow"] if yarn else 0, r["mscale"] if yarn else 0,
            r["mscale_all_dim"] if yarn else 0, r["original_max_position_embeddings"] if yarn else 0, cfg.rms_norm_eps]


def checkpoint_tensors(name, value):
    """Model parameter -> (checkpoint name, array) pairs: the fused experts are stored one by one in a checkpoint."""
    if name.endswith("mlp.experts.gate_up_proj"):
        stem = name[: -len("gate_up_proj")]
        half = value.shape[1] // 2
        for e in range(value.shape[0]):
            yield f"{stem}{e}.gate_proj.weight", value[e, :half]
            yield f"{stem}{e}.up_proj.weight", value[e, half:]
    elif name.endswith("mlp.experts.down_proj"):
        stem = name[: -len("down_proj")]
        for e in range(value.shape[0]):
            yield f"{stem}{e}.down_proj.weight", value[e]
    else:
        yield name, value


def write(path, records):
    with open(path, "wb") as f:
        f.write(b"K2VEC1\0\0" + struct.pack("<I", len(records)))
        for name, a in records:
            kind = 1 if a.dtype == np.int32 else 0
            a = np.ascontiguousarray(a, dtype=np.int32 if kind else np.float32)
            f.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<II", kind, a.ndim))
            f.write(struct.pack(f"<{a.ndim}I", *a.shape) + a.tobytes())


def weights_draw(model, g):
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "inv_freq" in name:
                continue
            std = 0.1 if "e_score_correction_bias" in name else 0.25
            p.copy_((torch.randn(p.shape, generator=g, dtype=torch.float64) * std).float().double())
            if "norm" in name:
                p.copy_((1 + 0.3 * p).float().double())


def greedy(model, vocab, g):
    """Tokens of a prompt and of what follows it, every choice with a clear lead."""
    for _ in range(100):
        ids = torch.randint(0, vocab, (GREEDY_PROMPT,), generator=g)
        lead = float("inf")
        with torch.no_grad():
            for _ in range(GREEDY_TOKENS):
                logits = model(input_ids=ids[None]).logits[0, -1]
                best = logits.topk(2)
                lead = min(lead, float((best.values[0] - best.values[1]) / logits.std()))
                ids = torch.cat([ids, best.indices[:1]])
        if lead >= GREEDY_LEAD:
            return ids
    raise SystemExit("no prompt without a near tie in 100: choose another seed")


def loss_of(model, tokens, targets, starts):
    rows = [model(input_ids=tokens[a:b][None]).logits[0] for a, b in zip(starts[:-1], starts[1:])]
    logits = torch.cat(rows)
    keep = targets >= 0
    return logits, torch.nn.functional.cross_entropy(logits[keep], targets[keep])


def adamw_steps(model, tokens, targets, starts):
    decays = [p for n, p in model.named_parameters() if "norm" not in n]
    gains = [p for n, p in model.named_parameters() if "norm" in n]
    optim = torch.optim.AdamW([dict(params=decays), dict(params=gains, weight_decay=0.0)], **ADAMW)
    for _ in range(3):
        optim.zero_grad()
        loss_of(model, tokens, targets, starts)[1].backward()
        optim.step()


def make(path, over, seed):
    torch.manual_seed(seed)
    cfg = config_of(over)
    model = DeepseekV3ForCausalLM(cfg).double().eval()
    g = torch.Generator().manual_seed(seed)
    weights_draw(model, g)
    lens = [1, 7, 13]
    starts = np.concatenate([[0], np.cumsum(lens)])
    tokens = torch.randint(0, cfg.vocab_size, (int(starts[-1]),), generator=g)
    targets = torch.randint(0, cfg.vocab_size, (int(starts[-1]),), generator=g)
    targets[3] = -1
    logits, loss = loss_of(model, tokens, targets, starts)
    loss.backward()
    records = [("dims", np.array(dims_of(cfg), dtype=np.float32)), ("seq_starts", starts.astype(np.int32)),
               ("tokens", tokens.numpy().astype(np.int32)), ("targets", targets.numpy().astype(np.int32)),
               ("logits", logits.detach().numpy()),
               ("greedy", greedy(model, cfg.vocab_size, g).numpy().astype(np.int32)),
               ("adamw", np.array([ADAMW["lr"], *ADAMW["betas"], ADAMW["eps"], ADAMW["weight_decay"]], dtype=np.float32))]
    trained = [n for n, _ in model.named_parameters() if not (n == "lm_head.weight" and cfg.tie_word_embeddings)]

    def record(prefix, array_of):
        params = dict(model.named_parameters())
        for name in trained:
            for out, value in checkpoint_tensors(name, array_of(params[name]).copy()):
                records.append((prefix + out, value))

    record("w:", lambda p: p.detach().numpy())
    record("g:", lambda p: np.zeros(p.shape) if p.grad is None else p.grad.numpy())
    for name, b in model.named_buffers():
        if "e_score_correction_bias" in name:
            records.append(("w:" + name, b.detach().numpy()))
    adamw_steps(model, tokens, targets, starts)
    record("a:", lambda p: p.detach().numpy())
    write(path, records)
    print(path, len(records), "records")


torch.set_num_threads(1)  # small matrices: threads only wait for each other
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 100
count = int(sys.argv[3]) if len(sys.argv) > 3 else 8
rng = random.Random(seed)
CASES.update({f"random_{i}": drawn(rng) for i in range(count)})
for i, (case, over) in enumerate(CASES.items()):
    make(f"{sys.argv[1]}/{case}.k2v", over, seed + i)
