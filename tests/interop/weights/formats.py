#!/usr/bin/env python3
"""How weights are stored: torch, safetensors and transformers read what `k2rl ckpt convert` writes to the bit, and fp8 directories
that torch makes are read as torch dequantises them; our logits on them are transformers' on the dequantised weights.

usage: formats.py HF_MODEL K2RL
Skipped (exit 77) as compare.py is.
"""
import json
import os
import subprocess
import sys
import tempfile

from compare import compare, run, safetensors, torch, transformers

BLOCK = 128


def k2rl(*args):
    done = subprocess.run([sys.argv[2], "ckpt", *args], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"k2rl ckpt {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")


def tensors_of(directory):
    """All tensors, and that the index says of each where it lies and of all how large they are."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return safetensors.torch.load_file(os.path.join(directory, "model.safetensors"))
    with open(index) as f:
        index = json.load(f)
    found = {}
    for shard in sorted(set(index["weight_map"].values())):
        tensors = safetensors.torch.load_file(os.path.join(directory, shard))
        if sorted(tensors) != sorted(name for name, place in index["weight_map"].items() if place == shard):
            sys.exit(f"{directory}: {shard} and the index disagree")
        found.update(tensors)
    if index["metadata"]["total_size"] != sum(t.numel() * t.element_size() for t in found.values()):
        sys.exit(f"{directory}: total_size is wrong")
    return found


def same_bits(what, ours, theirs):
    if sorted(ours) != sorted(theirs):
        sys.exit(f"{what}: other names: {sorted(set(ours) ^ set(theirs))[:4]}")
    for name, tensor in theirs.items():
        mine = ours[name]
        if mine.dtype != tensor.dtype or mine.shape != tensor.shape:
            sys.exit(f"{what}: {name}: {mine.dtype} {tuple(mine.shape)}, expected {tensor.dtype} {tuple(tensor.shape)}")
        if not torch.equal(mine.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)):
            sys.exit(f"{what}: {name}: other bits")
    print(f"{what}: {len(theirs)} tensors equal to the bit")


def is_quantised(name, tensor):
    return tensor.dim() == 2 and "_proj" in name and (".self_attn." in name or ".mlp." in name)


def spread(scale, shape):
    """Scales of blocks as one number for each element."""
    return scale.repeat_interleave(BLOCK, 0)[: shape[0]].repeat_interleave(BLOCK, 1)[:, : shape[1]]


def quantise(tensor):
    rows, columns = (-(-n // BLOCK) for n in tensor.shape)
    scale = torch.stack([torch.stack([
        tensor[r * BLOCK:(r + 1) * BLOCK, c * BLOCK:(c + 1) * BLOCK].abs().max() / 448 for c in range(columns)]) for r in range(rows)])
    return (tensor / spread(scale, tensor.shape)).to(torch.float8_e4m3fn), scale


def dequantise(tensors):
    return {name: t.float() * spread(tensors[name + "_scale_inv"], t.shape) if t.dtype == torch.float8_e4m3fn else t.float()
            for name, t in tensors.items() if not name.endswith("_scale_inv")}


def model_of_blocks():
    """A random model whose matrices have more than one block, none of them whole at the edges."""
    torch.manual_seed(5)
    config = transformers.DeepseekV3Config(
        vocab_size=90, hidden_size=160, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=136,
        kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=66, intermediate_size=300, moe_intermediate_size=132,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
        max_position_embeddings=64, initializer_range=0.08, bos_token_id=0, eos_token_id=1)
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.1)
    return model


def ours_narrowed(tmp, plain):
    """Our rounding is torch's; transformers loads the shards."""
    full = tensors_of(plain)
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        directory = os.path.join(tmp, name)
        k2rl("convert", plain, directory, "--dtype", name, "--shard-bytes", "100000")
        want = {n: t if n.endswith("e_score_correction_bias") else t.to(dtype) for n, t in full.items()}
        same_bits(f"ours as {name} in {len([f for f in os.listdir(directory) if f.endswith('.safetensors')])} shards",
                  tensors_of(directory), want)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, output_loading_info=True)
        wrong = {key: sorted(value) for key, value in info.items() if value}
        if wrong:
            sys.exit(f"{name}: transformers found {wrong}")
        state = model.state_dict()
        for n in ("model.embed_tokens.weight", "model.layers.1.self_attn.o_proj.weight", "model.norm.weight", "lm_head.weight"):
            if not torch.equal(state[n], want[n]):
                sys.exit(f"{name}: transformers holds another {n}")


def ours_quantised(tmp, plain):
    """Our codes and scales are those that torch computes from the same weights."""
    directory, back = os.path.join(tmp, "fp8"), os.path.join(tmp, "fp8-f32")
    k2rl("convert", plain, directory, "--dtype", "fp8", "--shard-bytes", "100000")
    want = {}
    for name, tensor in tensors_of(plain).items():
        if is_quantised(name, tensor):
            want[name], want[name + "_scale_inv"] = quantise(tensor)
        else:
            want[name] = tensor if name.endswith("e_score_correction_bias") else tensor.to(torch.bfloat16)
    same_bits("ours as fp8", tensors_of(directory), want)
    k2rl("convert", directory, back, "--dtype", "f32")
    same_bits("ours as fp8, read again", tensors_of(back), dequantise(want))


def theirs_quantised(tmp, plain, config):
    """A directory laid out as the published one: fp8 projections, bf16 for the rest, the scales in a shard of their own."""
    directory, back, logits = (os.path.join(tmp, name) for name in ("theirs", "theirs-f32", "logits"))
    os.mkdir(directory)
    weights, scales = {}, {}
    for name, tensor in tensors_of(plain).items():
        if is_quantised(name, tensor):
            weights[name], scales[name + "_scale_inv"] = quantise(tensor)
        else:
            weights[name] = tensor if name.endswith("e_score_correction_bias") else tensor.to(torch.bfloat16)
    shards = {"model-00001-of-00002.safetensors": weights, "model-00002-of-00002.safetensors": scales}
    for name, part in shards.items():
        safetensors.torch.save_file({n: t.contiguous() for n, t in part.items()}, os.path.join(directory, name))
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": {n: shard for shard, part in shards.items() for n in part}}, f)
    config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                     "weight_block_size": [BLOCK, BLOCK]}
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    k2rl("verify", directory)
    k2rl("convert", directory, back, "--dtype", "f32")
    same_bits("torch's fp8", tensors_of(back), dequantise({**weights, **scales}))
    run("read", directory, logits)
    compare("torch's fp8 in ours, dequantised in transformers",
            transformers.AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).eval(), logits)


def main():
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors {safetensors.__version__}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="k2_hf_") as tmp:
        plain = os.path.join(tmp, "plain")
        model_of_blocks().save_pretrained(plain)
        with open(os.path.join(plain, "config.json")) as f:
            config = json.load(f)
        ours_narrowed(tmp, plain)
        ours_quantised(tmp, plain)
        theirs_quantised(tmp, plain, config)


if __name__ == "__main__":
    main()
