#!/usr/bin/env python3
"""make_quantized.py OUT.json: floats and what gguf-py (pip install gguf numpy; 0.19.0) rounds them to, in hexadecimal.

Ordinary values, ties, zeros, one large value among small ones.
"""
import json
import sys

import numpy as np
from gguf.constants import GGMLQuantizationType as T
from gguf.quants import quantize

rng = np.random.default_rng(6)
row = np.concatenate([
    rng.standard_normal(64), rng.standard_normal(32) * 1e-3, np.zeros(32), np.arange(32) - 15.5,
    np.where(np.arange(32) == 7, 1000.0, rng.standard_normal(32)), np.full(32, 0.5) * np.sign(rng.standard_normal(32)),
]).astype(np.float32)
out = {"row": row.tobytes().hex()}
for kind in (T.F16, T.BF16, T.Q8_0):
    data = row.astype(np.float16) if kind == T.F16 else quantize(row.reshape(1, -1), kind)
    out[kind.name] = np.ascontiguousarray(data).tobytes().hex()
with open(sys.argv[1], "w") as f:
    json.dump(out, f, indent=0)
