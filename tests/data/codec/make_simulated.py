#!/usr/bin/env python3
"""Writes simulated.bin beside this file: what the formats of the simulated recipes read back, in numpy.

A second implementation, from the formats' public descriptions; tests/codec/simulated_test.cc compares.
Needs numpy.

Layout, little-endian float32, D = 64, T = 72, C = 48: keys [T, D] (after RoPE, block order, positions 0..),
values [T, D], calibration keys [C, D] (before RoPE, block order), calibration values [C, D], then for each case of
CASES in order the keys and the values as read back, [T, D] each.
"""
import os

import numpy as np

D, T, C = 64, 72, 48
BASE = 10000.0
f16 = lambda x: np.asarray(x).astype(np.float16).astype(np.float32)
f32 = np.float32


def rotate(keys):
    """RoPE in block order: channels (2j, 2j + 1) turn by position * BASE^(-2j / D)."""
    angle = np.arange(len(keys))[:, None] * BASE ** (-np.arange(D // 2) * 2.0 / D)
    x = keys.astype(np.float64).reshape(len(keys), D // 2, 2)
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([x[..., 0] * c - x[..., 1] * s, x[..., 0] * s + x[..., 1] * c], -1).reshape(-1, D).astype(f32)


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def uniform(x, low, high, bits):
    """Codes over [low, high] with fp16 scale and zero; arrays broadcast."""
    steps = f32(2 ** bits - 1)
    scale, zero = f16((high - low) / steps), f16(low)
    with np.errstate(divide='ignore', invalid='ignore'):
        code = np.rint(np.clip((x - zero) / scale, 0, steps))
    return np.where(scale == 0, zero, zero + scale * code).astype(f32)


def kivi_values(v, bits):
    g = v.reshape(len(v), D // 32, 32)
    return uniform(g, g.min(-1, keepdims=True), g.max(-1, keepdims=True), bits).reshape(v.shape)


def kivi(k, v, ck, cv, bits):
    out = np.concatenate([uniform(g, g.min(0), g.max(0), bits) for g in np.split(k, range(32, len(k), 32))])
    return out, kivi_values(v, bits)


def kivi_scale_only(k, v, ck, cv, bits):
    before, out = rotate(ck), []
    for g in np.split(k, range(32, len(k), 32)):
        out.append(uniform(g, before.min(0), before.max(0), bits))
        before = g
    return np.concatenate(out), kivi_values(v, bits)


def inverse(scale):
    return np.where(scale == 0, f32(0), f32(1) / np.where(scale == 0, f32(1), scale))


def q8_0(x):
    b = x.astype(f32).reshape(-1, 32)
    d = np.abs(b).max(1, keepdims=True) / f32(127)
    y = b * inverse(d)
    code = np.sign(y) * np.floor(np.abs(y) + f32(0.5))  # half away from zero
    return (code * f16(d)).reshape(x.shape)


def q4_0(x):
    b = x.astype(f32).reshape(-1, 32)
    d = np.take_along_axis(b, np.abs(b).argmax(1)[:, None], 1) / f32(-8)
    code = np.minimum(15, np.trunc(b * inverse(d) + f32(8.5)))
    return ((code - 8) * f16(d)).reshape(x.shape)


def llama_cpp(quantise):
    h = hadamard(64)
    # NEOX pairs channel j with j + D/2: block order's (2j, 2j + 1).
    order = np.arange(D).reshape(2, D // 2).T.ravel()

    def run(k, v, ck, cv):
        model = np.empty_like(k)
        model[:, order] = k
        read = quantise((model @ h).astype(f32)) @ h
        return read[:, order], quantise((v @ h).astype(f32)) @ h
    return run


def e4m3(x):
    """Nearest of the 256 values of FP8 E4M3 (fn), ties to the even code, saturating."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    grid = np.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    a = np.minimum(np.abs(x).astype(np.float64), 448)
    low = np.clip(np.searchsorted(grid, a, side='right') - 1, 0, 125)
    below, above = a - grid[low], grid[low + 1] - a
    code = np.where((above < below) | ((above == below) & (low % 2 == 1)), low + 1, low)
    return (np.sign(x) * grid[code]).astype(f32)


def fp8(k, v, ck, cv):
    ks = f32(np.hypot(ck[:, 0::2], ck[:, 1::2]).max()) / f32(224)
    vs = np.abs(cv).max() / f32(224)
    return e4m3(k / ks) * ks, e4m3(v / vs) * vs


def lloyd_max(bits):
    """Centroids of the unit normal by iteration on a fine grid."""
    x = np.linspace(-8, 8, 3200001)
    p = np.exp(-x * x / 2)
    c0, c1 = np.concatenate([[0], np.cumsum(p)]), np.concatenate([[0], np.cumsum(p * x)])
    c = np.linspace(-2, 2, 2 ** bits)
    for _ in range(3000):
        edge = np.concatenate([[0], np.searchsorted(x, (c[1:] + c[:-1]) / 2), [len(x)]])
        c = (c1[edge[1:]] - c1[edge[:-1]]) / (c0[edge[1:]] - c0[edge[:-1]])
    return c


def turboquant(key_bits, value_bits):
    h = hadamard(D)

    def values(v):
        low, last = v.min(1, keepdims=True), f32(2 ** value_bits - 1)
        scale = np.maximum((v.max(1, keepdims=True) - low) / last, f32(1e-8))
        code = np.clip(np.trunc((v - low) / scale + f32(0.5)), 0, last)
        return (code * f16(scale) + f16(low)).astype(f32)

    def keys(k):
        if key_bits == 8:
            return e4m3(k)
        c = lloyd_max(key_bits)
        norm = np.linalg.norm(k.astype(np.float64), axis=1, keepdims=True)
        y = (k / norm) @ h * np.sqrt(D)
        read = c[np.searchsorted((c[1:] + c[:-1]) / 2, y, side='right')]
        return read / np.linalg.norm(read, axis=1, keepdims=True) * f16(norm) @ h
    return lambda k, v, ck, cv: (keys(k), values(v))


CASES = [
    lambda *a: kivi(*a, 2), lambda *a: kivi_scale_only(*a, 2), llama_cpp(q8_0), llama_cpp(q4_0), fp8,
    turboquant(8, 4), turboquant(4, 4), turboquant(3, 4), turboquant(3, 3),
]


def main():
    rng = np.random.default_rng(7)
    size = np.exp(rng.normal(0, 0.7, D))  # channels of different sizes, one with a mean
    mean = np.where(np.arange(D) == 10, 6.0, 0.0)
    sample = lambda n, m: (rng.normal(0, 1, (n, D)) * size + m).astype(f32)
    k, v, ck, cv = rotate(sample(T, mean)), sample(T, 0), sample(C, mean), sample(C, 0)
    v[5] = 0.25  # a value without a range
    arrays = [k, v, ck, cv]
    for case in CASES:
        arrays += case(k, v, ck, cv)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'simulated.bin')
    np.concatenate([np.asarray(a, dtype='<f4').ravel() for a in arrays]).tofile(path)


if __name__ == '__main__':
    main()
