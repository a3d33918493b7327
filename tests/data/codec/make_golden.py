#!/usr/bin/env python3
"""Writes the golden record of the packed format: golden_plan.bin and golden_record.bin beside this file.

A second implementation of rotation, quantisation, bit places and norms, in plain Python and from the format's
description alone; tests/codec/golden_test.cc encodes the same input and compares every byte.

Plan: head dim 64, NEOX RoPE base 10000, key groups (width, units) (4, 1), (3, 2), (2, 1), values at 5 bits,
8-bit log norms, mean units 0 and 2. golden_plan.bin: little-endian float32 T [64, 64], T^-T [64, 64], mu [64],
T_v [64, 64]. Input: 64 keys, then 64 values, from Samples(2029) below, at positions 320..383.
"""
import math
import os
import struct

D, TOKENS, FIRST = 64, 64, 320
GROUPS = [(4, 1), (3, 2), (2, 1)]
KEY_REFERENCES, VALUE_WIDTH, VALUE_REFERENCE = [5.0, 7.0, 4.0], 5, 9.0
MASK = (1 << 64) - 1

BOOKS = {
    2: [v / 72.83102 for v in (-110, -33, 33, 110)],
    3: [v / 40.90403 for v in (-88, -55, -31, -10, 10, 31, 55, 88)],
}
for width, scale, magnitudes in ((4, 41.86100, (5, 16, 27, 39, 52, 67, 86, 114)),
                                 (5, 37.31166, (2, 7, 12, 17, 22, 27, 33, 39, 45, 51, 58, 66, 75, 86, 100, 121))):
    BOOKS[width] = [s * (m + 0.5) / scale for s in (1, -1) for m in magnitudes]


def f32(x):
    return struct.unpack('<f', struct.pack('<f', x))[0]


class Samples:
    """Sums of four 16-bit uniforms from a 64-bit linear congruential generator: exact in float32."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        total = 0
        for _ in range(4):
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
            total += self.state >> 48
        return (total - 2 * 65536) / 65536.0

    def take(self, n):
        return [self.next() for _ in range(n)]


def rotation(n, samples):
    """An orthogonal matrix: Gram-Schmidt on rows of samples."""
    rows = []
    for _ in range(n):
        row = samples.take(n)
        for _ in range(2):
            for other in rows:
                dot = sum(a * b for a, b in zip(row, other))
                row = [a - dot * b for a, b in zip(row, other)]
        length = math.sqrt(sum(a * a for a in row))
        rows.append([a / length for a in row])
    return rows


def make_plan():
    samples = Samples(7)
    order = sorted(range(D // 2), key=lambda i: (i * 11) % 32)  # which blocks each group mixes
    scale = [2.0 ** ((i % 5 - 2) / 2) for i in range(D // 2)]
    T, Q = [[0.0] * D for _ in range(D)], [[0.0] * D for _ in range(D)]
    first = 0
    for _, units in GROUPS:
        n = 16 * units
        r = rotation(n, samples)
        for i in range(n):
            for j in range(n):
                block = order[first // 2 + j // 2]
                T[first + i][2 * block + j % 2] = f32(r[i][j] * scale[block])
                Q[first + i][2 * block + j % 2] = f32(r[i][j] / scale[block])
        first += n
    mean = [f32(2 * v) if (d // 16) in (0, 2) else 0.0 for d, v in enumerate(samples.take(D))]
    V = [[f32(v) for v in row] for row in rotation(D, samples)]
    return T, Q, mean, V


def rotated_mean(mean, position):
    out = []
    for j in range(D // 2):
        angle = position * 10000.0 ** (-2.0 * j / D)
        c, s = f32(math.cos(angle)), f32(math.sin(angle))
        x, y = mean[2 * j], mean[2 * j + 1]
        out += [f32(f32(x * c) - f32(y * s)), f32(f32(x * s) + f32(y * c))]
    return out


def quantise(y, width):
    """-> codes, corrected norm."""
    book, n = BOOKS[width], len(y)
    norm = math.sqrt(sum(v * v for v in y))
    codes = [min(range(len(book)), key=lambda c: abs(book[c] - v * math.sqrt(n) / norm)) for v in y]
    return codes, norm * math.sqrt(n) / math.sqrt(sum(book[c] ** 2 for c in codes))


def unit_bytes(width, code_of):
    """code_of(lane, quad, j) -> the unit's width planes of 32 words."""
    words = [[0] * 32 for _ in range(width)]
    for lane in range(32):
        for quad in range(8):
            for j in range(4):
                code, nibble = code_of(lane, quad, j), 4 * ((quad & 1) * 4 + j)
                if width == 2:
                    words[quad >> 2][lane] |= code << (nibble + ((quad >> 1) & 1) * 2)
                    continue
                low = code & 7
                if quad < 6:
                    words[quad >> 1][lane] |= low << nibble
                else:
                    for b in range(3):
                        words[b][lane] |= ((low >> b) & 1) << (nibble + 3)
                for plane in range(3, width):
                    words[plane][lane] |= ((code >> plane) & 1) << (8 * j + 7 - quad)
    return b''.join(struct.pack('<32I', *plane) for plane in words)


def norm_bytes(norms, reference):
    out = bytearray(64)
    for t, norm in enumerate(norms):
        out[(t & 7) * 8 + (t >> 3)] = min(255, max(0, round(32 * math.log2(norm / reference)) + 128))
    return bytes(out)


def apply(matrix, x):
    return [sum(m * v for m, v in zip(row, x)) for row in matrix]


def encode(T, mean, V):
    samples = Samples(2029)
    keys = [samples.take(D) for _ in range(TOKENS)]
    values = [samples.take(D) for _ in range(TOKENS)]
    transformed = [apply(T, [k - m for k, m in zip(key, rotated_mean(mean, FIRST + t))])
                   for t, key in enumerate(keys)]
    units, norms, first = b'', b'', 0
    for (width, count), reference in zip(GROUPS, KEY_REFERENCES):
        coded = [quantise(y[first:first + 16 * count], width) for y in transformed]
        for u in range(count):
            def key_code(lane, quad, j):
                token = 16 * (quad >> 1) + 8 * (quad & 1) + (lane >> 2)
                return coded[token][0][16 * u + 4 * (lane & 3) + j]
            units += unit_bytes(width, key_code)
        norms += norm_bytes([norm for _, norm in coded], reference)
        first += 16 * count
    record = units + norms
    coded = [quantise(apply(V, value), VALUE_WIDTH) for value in values]
    for u in range(D // 16):
        def value_code(lane, quad, j):
            ks, a = quad >> 2, quad & 3
            token = 16 * (2 * ks + (a >> 1)) + 2 * (lane & 3) + (j >> 1) + 8 * (j & 1)
            return coded[token][0][16 * u + (lane >> 2) + 8 * (a & 1)]
        record += unit_bytes(VALUE_WIDTH, value_code)
    return record + norm_bytes([norm for _, norm in coded], VALUE_REFERENCE)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    T, Q, mean, V = make_plan()
    flat = [v for matrix in (T, Q, [mean], V) for row in matrix for v in row]
    with open(os.path.join(here, 'golden_plan.bin'), 'wb') as f:
        f.write(struct.pack(f'<{len(flat)}f', *flat))
    with open(os.path.join(here, 'golden_record.bin'), 'wb') as f:
        f.write(encode(T, mean, V))


if __name__ == '__main__':
    main()
