#!/usr/bin/env python3
"""Makes diagnose.json: the figures of `blockgtq diagnose` for one made-up query head, worked out with rotation matrices
in double precision. Partial RoPE (6 of 8 dims rotate) with an attention factor.

  make_diagnose.py OUT.json      pip: numpy
"""
import json
import sys

import numpy as np

TOKENS, DIM, ROTARY, BASE, FACTOR, SCALE = 32, 8, 6, 100.0, 1.25, 0.4
rng = np.random.default_rng(7)


def rotation(position):
    """[DIM, DIM] in block order: pairs (2i, 2i+1) turn by position * BASE^(-2i / ROTARY), the last pair stays."""
    matrix = np.eye(DIM)
    for i in range(ROTARY // 2):
        a = position * BASE ** (-2 * i / ROTARY)
        matrix[2 * i:2 * i + 2, 2 * i:2 * i + 2] = FACTOR * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    return matrix


q, k = (rng.standard_normal((TOKENS, DIM)).round(4) for _ in range(2))
decoded = (k + 0.35 * rng.standard_normal((TOKENS, DIM))).round(4)  # rotation undone

offsets = np.linspace(-1024, 1024, 50)
errors = [abs((rotation(t + o) @ q[t]) @ (rotation(t) @ (k[t] - decoded[t]))) for t in range(TOKENS) for o in offsets]

kl, overlap = [], []
turned = [np.stack([rotation(t) @ x[t] for t in range(TOKENS)]) for x in (q, k, decoded)]
for t in range(10, TOKENS):  # queries that see more than ten tokens, their own included
    exact, test = (SCALE * (keys[:t + 1] @ turned[0][t]) for keys in turned[1:])
    p, r = np.exp(exact) / np.exp(exact).sum(), np.exp(test) / np.exp(test).sum()
    kl.append((p * np.log(p / r)).sum())
    overlap.append(len(set(np.argsort(-exact)[:10]) & set(np.argsort(-test)[:10])) / 10)

json.dump({"head_dim": DIM, "rotary_dims": ROTARY, "freq_base": BASE, "attention_factor": FACTOR, "scale": SCALE,
           "queries": q.tolist(), "keys": k.tolist(), "decoded": decoded.tolist(), "mae": float(np.mean(errors)),
           "kl": float(np.mean(kl)), "overlap": float(np.mean(overlap))}, open(sys.argv[1], "w"))
