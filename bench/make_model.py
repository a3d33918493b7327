#!/usr/bin/env python3
"""A model file of a known shape with random weights: speed and memory without the real model.

  bench/make_model.py qwen2.5-3b -o MODEL.gguf [--layers N]

F16 matrices, normally distributed so that activations keep their size; every layer is its own. The tokenizer knows the
256 bytes and fills the vocabulary with unused tokens. Needs numpy.
"""
import argparse
import math
import struct

import numpy

SHAPES = {
    # architecture, layers, hidden, feed-forward, heads, KV heads, head dim, vocabulary, context, RoPE base, tied output
    "qwen2.5-3b": ("qwen2", 36, 2048, 11008, 16, 2, 128, 151936, 524288, 1e6, True),
    "llama-3.1-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, 524288, 5e5, False),
    "small-64": ("llama", 4, 576, 1536, 9, 3, 64, 1024, 8192, 1e4, True),
    "small-128": ("qwen2", 4, 1024, 2816, 8, 2, 128, 1024, 131072, 1e6, True),
    "small-256": ("llama", 2, 1024, 2816, 8, 2, 256, 1024, 32768, 1e4, True),
    # One of each family that asks for operations of its own: norms of heads and experts; fused matrices and partial
    # RoPE; norms after; norms of whole projections, and only after; sliding windows, in all layers or, with a RoPE of
    # their own, in five of six.
    "small-qwen3": ("qwen3", 4, 1024, 2816, 8, 2, 128, 1024, 32768, 1e6, True),
    "small-qwen3moe": ("qwen3moe", 4, 1024, 2816, 8, 2, 128, 1024, 32768, 1e6, False),
    "small-chatglm": ("chatglm", 4, 1024, 2816, 8, 2, 128, 1024, 32768, 1e4, False),
    "small-glm4": ("glm4", 4, 1024, 2816, 8, 2, 128, 1024, 32768, 1e4, False),
    "small-olmo2": ("olmo2", 4, 1024, 2816, 8, 8, 64, 1024, 4096, 5e5, False),
    "small-swa": ("llama", 4, 576, 1536, 9, 3, 64, 1024, 8192, 1e4, True),
    "small-gemma3": ("gemma3", 6, 1024, 2816, 4, 1, 256, 1024, 32768, 1e6, False),
}
WINDOWS = {"small-swa": 96, "small-gemma3": 100}
EXPERTS, EXPERTS_USED, EXPERT_INNER = 16, 4, 704
NORM = "norm"
STRING, ARRAY, UINT32, INT32, FLOAT32 = 8, 9, 4, 5, 6


def byte_alphabet():
    """The characters that stand for the 256 bytes in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    if kind == STRING:
        body = text(value)
    elif kind == ARRAY:
        element, values = value
        items = b"".join(text(v) for v in values) if element == STRING else struct.pack(f"<{len(values)}i", *values)
        body = struct.pack("<IQ", element, len(values)) + items
    else:
        body = struct.pack({UINT32: "<I", FLOAT32: "<f"}[kind], value)
    return text(key) + struct.pack("<I", kind) + body


def layer_tensors(arch, blk, hidden, inner, heads, kv_heads, dim):
    """(name, rows, columns, size of the normals; None: ones), 1 row: a vector; NORM: about one. Rows of experts are
    (experts, rows)."""
    fan = hidden ** -0.5
    q, kv = heads * dim, kv_heads * dim
    tensors = [(blk + "attn_output.weight", hidden, q, 0.3 * fan)]
    fused = arch in ("chatglm", "glm4")
    if arch == "chatglm":
        tensors += [(blk + "attn_qkv.weight", q + 2 * kv, hidden, fan), (blk + "attn_qkv.bias", 1, q + 2 * kv, 0.5)]
    else:
        tensors += [(blk + f"attn_{x}.weight", n, hidden, fan) for x, n in (("q", q), ("k", kv), ("v", kv))]
        if arch in ("qwen2", "glm4"):
            tensors += [(blk + f"attn_{x}.bias", 1, n, 0.5) for x, n in (("q", q), ("k", kv), ("v", kv))]
    if arch != "olmo2":
        norm = None if arch in ("llama", "qwen2") else NORM
        tensors += [(blk + "attn_norm.weight", 1, hidden, norm), (blk + "ffn_norm.weight", 1, hidden, norm)]
    if arch in ("glm4", "olmo2", "gemma3"):
        tensors += [(blk + "post_attention_norm.weight", 1, hidden, NORM), (blk + "post_ffw_norm.weight", 1, hidden, NORM)]
    if arch in ("qwen3", "qwen3moe", "olmo2", "gemma3"):
        whole = arch == "olmo2"
        tensors += [(blk + "attn_q_norm.weight", 1, q if whole else dim, NORM),
                    (blk + "attn_k_norm.weight", 1, kv if whole else dim, NORM)]
    if arch == "qwen3moe":
        tensors += [(blk + "ffn_gate_inp.weight", EXPERTS, hidden, fan),
                    (blk + "ffn_gate_exps.weight", (EXPERTS, EXPERT_INNER), hidden, fan),
                    (blk + "ffn_up_exps.weight", (EXPERTS, EXPERT_INNER), hidden, fan),
                    (blk + "ffn_down_exps.weight", (EXPERTS, hidden), EXPERT_INNER, 0.3 * EXPERT_INNER ** -0.5)]
        return tensors
    tensors += [(blk + "ffn_up.weight", 2 * inner if fused else inner, hidden, fan),
                (blk + "ffn_down.weight", hidden, inner, 0.3 * inner ** -0.5)]
    return tensors if fused else tensors + [(blk + "ffn_gate.weight", inner, hidden, fan)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("-s", "--seed", type=int, default=1)
    arguments = parser.parse_args()
    arch, layers, hidden, inner, heads, kv_heads, dim, vocabulary, context, base, tied = SHAPES[arguments.shape]
    layers = arguments.layers or layers

    tensors = [("token_embd.weight", vocabulary, hidden, 0.05), ("output_norm.weight", 1, hidden, None)]
    if not tied:
        tensors.append(("output.weight", vocabulary, hidden, hidden ** -0.5))
    for i in range(layers):
        tensors += layer_tensors(arch, f"blk.{i}.", hidden, inner, heads, kv_heads, dim)

    alphabet = byte_alphabet()
    tokens = alphabet + [f"<unused{i}>" for i in range(vocabulary - 256)]
    metadata = [
        entry("general.architecture", STRING, arch),
        entry(f"{arch}.block_count", UINT32, layers),
        entry(f"{arch}.context_length", UINT32, context),
        entry(f"{arch}.embedding_length", UINT32, hidden),
        entry(f"{arch}.feed_forward_length", UINT32, inner),
        entry(f"{arch}.attention.head_count", UINT32, heads),
        entry(f"{arch}.attention.head_count_kv", UINT32, kv_heads),
        entry(f"{arch}.attention.key_length", UINT32, dim),
        entry(f"{arch}.attention.value_length", UINT32, dim),
        entry(f"{arch}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-6),
        entry(f"{arch}.rope.freq_base", FLOAT32, base),
        *([entry(f"{arch}.rope.dimension_count", UINT32, dim // 2)] if arch in ("chatglm", "glm4") else []),
        *([entry(f"{arch}.attention.sliding_window", UINT32, WINDOWS[arguments.shape])] if arguments.shape in WINDOWS else []),
        *([entry(f"{arch}.expert_count", UINT32, EXPERTS), entry(f"{arch}.expert_used_count", UINT32, EXPERTS_USED),
           entry(f"{arch}.expert_feed_forward_length", UINT32, EXPERT_INNER)] if arch == "qwen3moe" else []),
        entry("tokenizer.ggml.model", STRING, "gpt2"),
        entry("tokenizer.ggml.pre", STRING, "qwen2"),
        entry("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        entry("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * 256 + [5] * (vocabulary - 256))),
        entry("tokenizer.ggml.merges", ARRAY, (STRING, [])),
        entry("tokenizer.ggml.eos_token_id", UINT32, 256),
    ]
    infos, offset = [], 0
    for name, rows, cols, _ in tensors:
        vector = rows == 1
        shape = (cols,) if vector else (cols, *reversed(rows)) if isinstance(rows, tuple) else (cols, rows)
        infos.append(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) +
                     struct.pack("<IQ", 0 if vector else 1, offset))
        offset += (math.prod(shape) * (4 if vector else 2) + 31) // 32 * 32

    random = numpy.random.default_rng(arguments.seed)
    normals = random.standard_normal(1 << 24, dtype=numpy.float32)
    pools = {}  # the normals at every size and type
    with open(arguments.out, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + b"".join(infos))
        out.write(b"\0" * (-out.tell() % 32))
        for _, rows, cols, size in tensors:
            dtype = numpy.float32 if rows == 1 else numpy.float16
            if size is None:
                out.write(numpy.ones(cols, dtype).tobytes())
            elif size == NORM:
                out.write(random.normal(1, 0.2, cols).astype(dtype).tobytes())
            else:
                if (size, dtype) not in pools:
                    pools[size, dtype] = (normals * numpy.float32(size)).astype(dtype)
                pool = pools[size, dtype]
                left, at = math.prod(rows if isinstance(rows, tuple) else (rows,)) * cols, int(random.integers(len(pool)))  # each tensor begins elsewhere
                while left > 0:
                    part = pool[at:at + left]
                    out.write(part)
                    left, at = left - len(part), 0
            out.write(b"\0" * (-out.tell() % 32))


if __name__ == "__main__":
    main()
