#!/usr/bin/env python3
"""Logits of tiny models whose RoPE changes with the sequence's length, in float64 by numpy: rope_references.safetensors.

  make_rope_references.py       pip: numpy, safetensors

A sequence of 48 tokens where the model was trained on 32, with the weights of hf/llama and hf/phi3. RoPE as transformers
defines it (modeling_rope_utils.py): `dynamic` takes the base of the sequence's length, theta ((f n / t) - (f - 1)) ^ (d / (d - 2))
for n tokens of t; `longrope` divides the frequencies by long_factor when n > t, and multiplies cos and sin by
sqrt(1 + ln f / ln t). short: the first 32 tokens alone.
"""
import json
import pathlib

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
TRAINED, FACTOR = 32, 4.0
SHORT = [1.0 + 0.05 * j for j in range(8)]
LONG = [1.0 + 0.5 * j for j in range(8)]


def weights(name):
    raw = (HERE / "hf" / name / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    out = {}
    for key, entry in json.loads(raw[8:8 + size]).items():
        if key == "__metadata__":
            continue
        data = raw[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":  # numpy has none: the upper half of a float32
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, np.float32)
        out[key] = array.reshape(entry["shape"]).astype(np.float64)
    return out


def frequencies(config, kind, length):
    dim = config["hidden_size"] // config["num_attention_heads"]
    theta, j = config["rope_theta"], np.arange(0, dim, 2) / dim
    if kind == "dynamic":
        length = max(length, TRAINED)
        base = theta * (FACTOR * length / TRAINED - (FACTOR - 1)) ** (dim / (dim - 2))
        return base ** -j, 1.0
    factors = np.array(LONG if length > TRAINED else SHORT)
    return theta ** -j / factors, np.sqrt(1 + np.log(FACTOR) / np.log(TRAINED))


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, angle, factor):
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    both = np.concatenate([angle, angle], -1)
    return (x * np.cos(both) + turned * np.sin(both)) * factor


def logits(name, kind, ids):
    config = json.loads((HERE / "hf" / name / "config.json").read_text())
    w, n = weights(name), len(ids)
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim, epsilon = config["hidden_size"] // heads, config["rms_norm_eps"]
    frequency, factor = frequencies(config, kind, n)
    angle = np.arange(n)[:, None] * frequency
    window = config.get("sliding_window") or n
    age = np.arange(n)[:, None] - np.arange(n)
    mask = np.where((age < 0) | (age >= window), -np.inf, 0)
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        get = lambda key: w.get(f"model.layers.{layer}.{key}.weight")
        h = norm(x, get("input_layernorm"), epsilon)
        fused = get("self_attn.qkv_proj")
        rows = [get(f"self_attn.{p}_proj") for p in "qkv"] if fused is None else np.split(fused, [heads * dim, (heads + kv) * dim])
        q, k, v = (h @ r.T for r in rows)
        q = rotate(q.reshape(n, heads, dim).swapaxes(0, 1), angle, factor)
        k = rotate(k.reshape(n, kv, dim).swapaxes(0, 1), angle, factor).repeat(heads // kv, 0)
        v = v.reshape(n, kv, dim).swapaxes(0, 1).repeat(heads // kv, 0)
        score = q @ k.swapaxes(1, 2) / np.sqrt(dim) + mask
        score = np.exp(score - score.max(-1, keepdims=True))
        out = (score / score.sum(-1, keepdims=True)) @ v
        x = x + out.swapaxes(0, 1).reshape(n, heads * dim) @ get("self_attn.o_proj").T
        h = norm(x, get("post_attention_layernorm"), epsilon)
        fused = get("mlp.gate_up_proj")
        gate, up = (get("mlp.gate_proj"), get("mlp.up_proj")) if fused is None else np.split(fused, 2)
        gate, up = h @ gate.T, h @ up.T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ get("mlp.down_proj").T
    return norm(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


def main():
    out = {}
    for name, kind in (("llama", "dynamic"), ("phi3", "longrope")):
        with safe_open(HERE / "hf" / name / "reference.safetensors", "np") as file:
            ids, plain = file.get_tensor("input_ids"), file.get_tensor("logits")
        if name == "llama":  # this forward pass is transformers' where RoPE is as it was trained
            assert np.abs(logits(name, kind, ids[:TRAINED]) - plain[:TRAINED]).max() < 1e-4
        out[f"{kind}.long"] = logits(name, kind, ids)[-4:].astype(np.float32)
        out[f"{kind}.short"] = logits(name, kind, ids[:TRAINED])[-4:].astype(np.float32)
    save_file(out, HERE / "rope_references.safetensors")


if __name__ == "__main__":
    main()
