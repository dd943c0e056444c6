"""The weights of a Hugging Face directory of ours as a GGUF file for llama.cpp (architecture deepseek2, f32 or f16 matrices).

kv_b is stored split by head, as llama.cpp wants it for attention over the latent cache: attn_k_b [head][latent][nope] and attn_v_b
[head][v][latent]. The vocabulary is a made-up one of bytes: only ids go in and out.
"""
import json
import math
import os
import struct

import numpy
import safetensors.numpy

ALIGN = 32
F32, F16 = 0, 1
U32, I32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, value):
    if kind == STRING:
        return text(value)
    return struct.pack({U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<B"}[kind], value)


class Writer:
    def __init__(self):
        self.pairs, self.tensors = [], []

    def put(self, key, kind, value):
        self.pairs.append(text(key) + struct.pack("<I", kind) + scalar(kind, value))

    def put_array(self, key, kind, values):
        body = b"".join(scalar(kind, value) for value in values)
        self.pairs.append(text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body)

    def tensor(self, name, values, half):
        kind = F16 if half and values.ndim > 1 else F32
        self.tensors.append((name, numpy.ascontiguousarray(values, dtype=numpy.float16 if kind == F16 else numpy.float32), kind))

    def write(self, path):
        offset, table = 0, b""
        for name, values, kind in self.tensors:
            shape = values.shape[::-1]  # theirs begin with the fastest
            table += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)
            offset += (values.nbytes + ALIGN - 1) // ALIGN * ALIGN
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs)) + b"".join(self.pairs) + table
        with open(path, "wb") as file:
            file.write(head + b"\0" * (-len(head) % ALIGN))
            for _, values, _ in self.tensors:
                file.write(values.tobytes() + b"\0" * (-values.nbytes % ALIGN))


def header(out, c):
    key = "deepseek2."
    latent, rope, nope, value = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    out.put("general.architecture", STRING, "deepseek2")
    numbers = {
        "vocab_size": c["vocab_size"], "context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
        "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": 1, "attention.q_lora_rank": c["q_lora_rank"],
        "attention.kv_lora_rank": latent, "attention.key_length": latent + rope, "attention.value_length": latent,
        "attention.key_length_mla": nope + rope, "attention.value_length_mla": value, "rope.dimension_count": rope,
        "leading_dense_block_count": c["first_k_dense_replace"], "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"],
        "expert_shared_count": c["n_shared_experts"], "expert_gating_func": 2}
    for name, number in numbers.items():
        out.put(key + name, U32, number)
    out.put(key + "attention.layer_norm_rms_epsilon", FLOAT, c["rms_norm_eps"])
    out.put(key + "rope.freq_base", FLOAT, c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    out.put(key + "expert_weights_scale", FLOAT, c["routed_scaling_factor"])
    out.put(key + "expert_weights_norm", BOOL, c["norm_topk_prob"])
    vocab = c["vocab_size"]
    assert vocab > 256, "the made-up vocabulary has a token for every byte"
    out.put("tokenizer.ggml.model", STRING, "llama")
    out.put_array("tokenizer.ggml.tokens", STRING, [f"<0x{i:02X}>" if i < 256 else f"<s{i}>" for i in range(vocab)])
    out.put_array("tokenizer.ggml.scores", FLOAT, [0.0] * vocab)
    out.put_array("tokenizer.ggml.token_type", I32, [6 if i < 256 else 3 for i in range(vocab)])
    out.put("tokenizer.ggml.bos_token_id", U32, c["bos_token_id"])
    out.put("tokenizer.ggml.eos_token_id", U32, c["eos_token_id"])
    out.put("tokenizer.ggml.unknown_token_id", U32, c["eos_token_id"])
    out.put("tokenizer.ggml.add_bos_token", BOOL, False)


def layer(out, c, weights, i, half):
    heads, latent, nope, value = c["num_attention_heads"], c["kv_lora_rank"], c["qk_nope_head_dim"], c["v_head_dim"]

    def get(name):
        return weights[f"model.layers.{i}.{name}"]

    def put(name, values):
        out.tensor(f"blk.{i}.{name}", values, half and not name.startswith(("ffn_gate_inp", "exp_probs")))

    kv_b = get("self_attn.kv_b_proj.weight").reshape(heads, nope + value, latent)
    put("attn_k_b.weight", kv_b[:, :nope, :].transpose(0, 2, 1))
    put("attn_v_b.weight", kv_b[:, nope:, :])
    same = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_output": "self_attn.o_proj"}
    for theirs, ours in same.items():
        put(theirs + ".weight", get(ours + ".weight"))
    kinds = ("gate", "up", "down")
    if i < c["first_k_dense_replace"]:
        for kind in kinds:
            put(f"ffn_{kind}.weight", get(f"mlp.{kind}_proj.weight"))
        return
    put("ffn_gate_inp.weight", get("mlp.gate.weight"))
    put("exp_probs_b.bias", get("mlp.gate.e_score_correction_bias"))
    for kind in kinds:
        put(f"ffn_{kind}_shexp.weight", get(f"mlp.shared_experts.{kind}_proj.weight"))
        experts = [get(f"mlp.experts.{e}.{kind}_proj.weight") for e in range(c["n_routed_experts"])]
        put(f"ffn_{kind}_exps.weight", numpy.stack(experts))


def convert(directory, path, half):
    """Returns the number of bytes of all weights."""
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    weights = safetensors.numpy.load_file(os.path.join(directory, "model.safetensors"))
    out = Writer()
    header(out, config)
    out.tensor("token_embd.weight", weights["model.embed_tokens.weight"], half)
    for i in range(config["num_hidden_layers"]):
        layer(out, config, weights, i, half)
    out.tensor("output_norm.weight", weights["model.norm.weight"], half)
    out.tensor("output.weight", weights["lm_head.weight"], half)
    out.write(path)
    return sum(math.prod(values.shape) * values.itemsize for _, values, _ in out.tensors)
