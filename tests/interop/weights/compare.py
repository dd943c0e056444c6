#!/usr/bin/env python3
"""Model directories both ways: transformers loads what we write, and we load what transformers writes; the logits agree.

usage: compare.py HF_MODEL        (the program built from hf_model.c)
Skipped (exit 77) where torch, transformers or safetensors are missing. K2_PYTHON names another python to run with.
"""
import os
import subprocess
import sys
import tempfile

if os.environ.get("K2_PYTHON") and os.environ.get("K2_PYTHON") != sys.executable:
    os.environ["K2_PYTHON_FIRST"] = os.environ.pop("K2_PYTHON")
    os.execv(os.environ["K2_PYTHON_FIRST"], [os.environ["K2_PYTHON_FIRST"]] + sys.argv)
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
try:
    import numpy
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOKENS = 24
LOGITS_DIFFERENCE_MAX = 1e-4


def run(*args):
    done = subprocess.run([sys.argv[1], *args], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"hf_model {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def logits_of(model, vocab):
    ids = torch.tensor([[(7 * t + 3) % vocab for t in range(TOKENS)]])
    with torch.no_grad():
        return model(ids, use_cache=False).logits[0].numpy()


def compare(what, model, path):
    vocab = model.config.vocab_size
    ours = numpy.fromfile(path, dtype=numpy.float32).reshape(TOKENS, vocab)
    difference = float(numpy.abs(ours - logits_of(model, vocab)).max())
    print(f"{what}: largest difference of a logit {difference:.2e}, logits up to {numpy.abs(ours).max():.2f}")
    if not difference <= LOGITS_DIFFERENCE_MAX:
        sys.exit(f"{what}: {difference} is above {LOGITS_DIFFERENCE_MAX}")


def theirs(directory, shard_size):
    """A random model of transformers' own, saved by transformers."""
    torch.manual_seed(3)
    config = transformers.DeepseekV3Config(
        vocab_size=90, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=12,
        kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, intermediate_size=48, moe_intermediate_size=16,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        max_position_embeddings=64, initializer_range=0.15, bos_token_id=0, eos_token_id=1,
        rope_scaling={"type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5,
                      "original_max_position_embeddings": 32})
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.1)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return model


def main():
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors {safetensors.__version__}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="k2_hf_") as tmp:
        path = os.path.join(tmp, "logits")
        for name in run("names").split():
            directory = os.path.join(tmp, name)
            run("write", name, directory, path)
            tensors = safetensors.torch.load_file(os.path.join(directory, "model.safetensors"))
            model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
            wrong = {key: sorted(value) for key, value in info.items() if value}
            if wrong:
                sys.exit(f"{name}: transformers found {wrong}")
            if type(model).__name__ != "DeepseekV3ForCausalLM":
                sys.exit(f"{name}: loaded as {type(model).__name__}")
            compare(f"{name}, {len(tensors)} tensors of ours in transformers", model.eval(), path)
        for shard_size in ("1GB", "20KB"):
            directory = os.path.join(tmp, f"theirs-{shard_size}")
            model = theirs(directory, shard_size)
            files = [file for file in os.listdir(directory) if file.endswith(".safetensors")]
            run("read", directory, path)
            compare(f"transformers' model in {len(files)} files, in ours", model, path)


if __name__ == "__main__":
    main()
