#!/usr/bin/env python3
"""make_blocks.py OUT.json [MODEL.gguf ...]: blocks of every tensor type this project reads, with their values.

Per type: random bytes (scales made finite and of ordinary size), and for the types that the given models
hold, the first blocks of a real tensor. Values come from gguf-py (pip install gguf numpy), an independent
decoder. blocks.json was made with gguf 0.19.0 from SmolLM2-135M-Instruct.Q4_1.gguf and the Qwen2.5-Coder
files that tests/data/llama_cpp names.
"""
import base64
import json
import sys

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Byte offsets of the half-precision scales in a block.
HALVES = {T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]


def row(kind, source, raw):
    values = dequantize(raw.reshape(1, -1), kind).astype(np.float32).reshape(-1)
    return {"type": kind.name, "type_id": int(kind), "source": source,
            "blocks": base64.b64encode(raw.tobytes()).decode(),
            "values": base64.b64encode(values.tobytes()).decode()}


def main():
    rng = np.random.default_rng(20)
    rows = []
    for kind in TYPES:
        elements, size = GGML_QUANT_SIZES[kind]
        count = max(3, 96 // elements)
        if kind in (T.F32, T.BF16):
            words = rng.standard_normal(count).astype(np.float32).view(np.uint32)
            raw = words if kind == T.F32 else (words >> 16).astype(np.uint16)
            raw = raw.view(np.uint8)
        else:
            raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
            for at in HALVES[kind]:
                scale = (rng.standard_normal(count) * 0.1).astype(np.float16)
                raw[:, at:at + 2] = scale.view(np.uint8).reshape(count, 2)
            raw = raw.reshape(-1)
        rows.append(row(kind, "random bytes", raw))
    for path in sys.argv[2:]:
        seen = set()
        for tensor in gguf.GGUFReader(path).tensors:
            kind = tensor.tensor_type
            if kind in seen:
                continue
            seen.add(kind)
            elements, size = GGML_QUANT_SIZES[kind]
            count = max(2, 64 // elements)
            raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)[:count * size].copy()
            rows.append(row(kind, f"{path.rsplit('/', 1)[-1]}: {tensor.name}", raw))
    with open(sys.argv[1], "w") as out:
        json.dump({"gguf_py": "0.19.0", "rows": rows}, out, indent=0)
    print(len(rows), "rows")


main()
