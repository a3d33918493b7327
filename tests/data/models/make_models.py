#!/usr/bin/env python3
"""Makes the tiny GGUF models of this folder, and their reference logits, from Hugging Face models with random weights.

  make_models.py SOURCE    SOURCE/NAME/{config.json, meta.json, model.safetensors, reference.safetensors}

The references are the logits of transformers 5.24 in float32 (eager attention), two sequences each. pip: gguf, safetensors,
numpy, torch. Weights keep their stored values (F32, BF16), so logits must agree to float32 rounding.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import save_file
from safetensors import safe_open

NAMES = ["llama", "llama3-rope", "qwen2"]
FAMILIES = ["qwen3_moe", "glm4", "gemma3", "deepseek_v2"]  # their references: hf/NAME
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "deepseek_v2": "deepseek2"}  # where GGUF's name is another
LAYER = {
    "input_layernorm.weight": "attn_norm.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias", "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias", "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight", "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate_up_proj.weight": "ffn_up.weight", "mlp.gate.weight": "ffn_gate_inp.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_self_attn_layernorm.weight": "post_attention_norm.weight", "post_mlp_layernorm.weight": "post_ffw_norm.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight", "self_attn.kv_b_proj.weight": "attn_kv_b.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight", "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
GEMMA = {"post_attention_layernorm.weight": "post_attention_norm.weight"}


def gguf_name(name, arch):
    if name.startswith("model.layers."):
        layer, rest = name[len("model.layers."):].split(".", 1)
        return f"blk.{layer}.{GEMMA.get(rest, LAYER[rest]) if arch == 'gemma3' else LAYER[rest]}"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]


def interleave(w, heads):
    """The row order of llama-family GGUF files: rotary pairs become neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load(path):
    """{name: (stored dtype, float32 array)}; numpy has no bfloat16, so its bits are widened here."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    out = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = raw[8 + size + begin:8 + size + end]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, np.float32)
        out[name] = (entry["dtype"], array.reshape(entry["shape"]))
    return out


def gguf_tensors(stored, arch):
    """(name, stored dtype, array) of each tensor; those of experts stacked, as GGUF has them."""
    stacks = {}
    for name, (dtype, array) in stored.items():
        parts = name.split(".mlp.experts.")
        if len(parts) == 1:
            yield gguf_name(name, arch), dtype, array
            continue
        expert, module, _ = parts[1].split(".")
        layer = parts[0].rsplit(".", 1)[1]
        stacks.setdefault((f"blk.{layer}.ffn_{module.removesuffix('_proj')}_exps.weight", dtype), {})[int(expert)] = array
    for (name, dtype), experts in stacks.items():
        yield name, dtype, np.stack([experts[i] for i in range(len(experts))])


def latent_keys(w, config):
    """DeepSeek-V2 as llama.cpp's converter writes it now: one KV head of the cached key's dims."""
    rope, rank, nope = config["qk_rope_head_dim"], config["kv_lora_rank"], config["qk_nope_head_dim"]
    w.add_kv_lora_rank(rank)
    w.add_key_length(rank + rope)
    w.add_value_length(rank)
    w.add_key_length_mla(nope + rope)
    w.add_value_length_mla(config["v_head_dim"])
    w.add_rope_dimension_count(rope)
    w.add_leading_dense_block_count(config["first_k_dense_replace"])
    w.add_expert_count(config["n_routed_experts"])
    w.add_expert_used_count(config["num_experts_per_tok"])
    w.add_expert_shared_count(config["n_shared_experts"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_expert_weights_scale(config["routed_scaling_factor"])
    w.add_expert_weights_norm(config["norm_topk_prob"])
    scaling = config["rope_scaling"]
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(scaling["factor"])
    w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def split_latent(name, array, config):
    """W_UK, transposed, and W_UV of every head: two matrices in newer GGUF files."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    by_head = array.reshape(heads, nope + config["v_head_dim"], array.shape[-1])
    yield name.replace("kv_b", "k_b"), by_head[:, :nope].swapaxes(1, 2)
    yield name.replace("kv_b", "v_b"), by_head[:, nope:]


def make(source, name, out):
    config = json.loads((source / name / "config.json").read_text())
    meta = json.loads((source / name / "meta.json").read_text())
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    w = gguf.GGUFWriter(out / f"{name}.gguf", arch)
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(1 if arch == "deepseek2" else kv_heads)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    if config.get("head_dim", 0) * heads not in (0, config["hidden_size"]):
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    if "partial_rotary_factor" in config:
        w.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    if arch == "gemma3":
        w.add_sliding_window(config["sliding_window"])
        w.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
        w.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    if arch == "deepseek2":
        latent_keys(w, config)
    if arch == "qwen3moe":
        w.add_expert_count(config["num_local_experts"])
        w.add_expert_used_count(config["num_experts_per_tok"])
        w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    letters = {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}
    tokens = [letters[b] for b in range(256)]
    tokens[255] = "th"  # byte FF never occurs in UTF-8; a GGUF tokenizer has at least one merge
    w.add_token_list(tokens)
    w.add_token_types([1] * 256)
    w.add_token_merges(["t h"])
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        used = np.array(meta["rope"]["all"]["inv_freq"])
        dims = config["head_dim"]
        plain = config["rope_theta"] ** (-np.arange(0, dims, 2) / dims)
        w.add_tensor("rope_freqs.weight", (plain / used).astype(np.float32))
    tensors = []
    for target, dtype, array in gguf_tensors(load(source / name / "model.safetensors"), arch):
        parts = split_latent(target, array, config) if "attn_kv_b." in target else [(target, array)]
        tensors += [(part, dtype, values) for part, values in parts]
    for target, dtype, array in tensors:
        if arch == "llama" and ("attn_q." in target or "attn_k." in target):
            array = interleave(array, heads if "attn_q." in target else kv_heads)
        if arch == "gemma3" and target.endswith("norm.weight"):
            array = array + 1
        if dtype == "BF16" and array.ndim > 1:
            bits = (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)
            w.add_tensor(target, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16,
                         raw_shape=(*array.shape[:-1], array.shape[-1] * 2))
        else:
            w.add_tensor(target, np.ascontiguousarray(array))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if name in FAMILIES:
        return
    with safe_open(source / name / "reference.safetensors", "np") as f:
        tensors = {k: f.get_tensor(k) for k in ("input_ids", "input_ids_short", "logits", "logits_short")}
    save_file({k: v.astype(np.int32) if k.startswith("input") else v for k, v in tensors.items()},
              out / f"{name}.reference.safetensors")


if __name__ == "__main__":
    for model in NAMES + FAMILIES:
        make(pathlib.Path(sys.argv[1]), model, pathlib.Path(__file__).parent)
