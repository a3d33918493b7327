"""Writes pre_tokenizer_pieces.json: how the published patterns cut a set of texts.

Two independent engines must agree: the Python package `regex` and Hugging Face `tokenizers`.
  pip install regex tokenizers sentencepiece gguf && python make_pieces.py
"""
import json
import pathlib
import random

import regex
import tokenizers
from tokenizers import Regex, pre_tokenizers

import make_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
PATTERNS = {  # applied one after the other, each inside the pieces of the one before
    "smollm": [r"\p{N}", GPT2],
    "qwen2": [LLAMA3 % r"\p{N}"],
    "llama-bpe": [LLAMA3 % r"\p{N}{1,3}"],
    "gpt-2": [GPT2],
    "tekken": [make_tokenizers.TEKKEN],
    "gpt-4o": [make_tokenizers.GPT4O],
    "deepseek-llm": make_tokenizers.DEEPSEEK2 + [r"\p{N}"],
    "deepseek-coder": make_tokenizers.CODER + [r"\p{N}"],
    "deepseek-v3": make_tokenizers.DEEPSEEK3,
}


def with_regex(patterns, text):
    pieces = [text]
    for pattern in patterns:
        cut = []
        for piece in pieces:
            at = 0
            for m in regex.finditer(pattern, piece, regex.MULTILINE):
                cut += [piece[at:m.start()], m.group()]
                at = m.end()
            cut.append(piece[at:])
        pieces = [p for p in cut if p]
    return pieces


def with_tokenizers(patterns, text):
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


HAND = [
    "Hello, world!  It's 12345 o'clock.", "I'M YOU'RE he'll THEY'VE don'T 'S 's", "a  b   c\n\n  d \n e\t\tf   ",
    "price 1234567, 3.14 and x2y33", "   leading", "trailing   ", "\r\n\r\nx\r\n  y", "()[]{}...\n\n!!", "_snake_case $var #tag",
    "e\u0301 caf\u00e9 na\u00efve", "\u4f60\u597d\uff0c\u4e16\u754c 42\u5e74", "\u0661\u0662\u0663 \u00bd \u2167 x\u00b2",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f", "\u180e x\u180ey", "\U0001f600\U0001f680 ok \U0001f468\u200d\U0001f469",
    " 5", "  5", "\n5", "x 5 y", "'", "''s", "'ll'", " 's", "\u2019s", "a'b'c",
]
ALPHABET = ["a", "B", "s", "'", "'s", "'LL", "1", "23", "4567", " ", "  ", "\n", "\r\n", "\t", ".", "!?", "\u00e9", "\u4e2d",
            "\u00a0", "\u3000", "\u0301", "\u00bd", "\u0662", "\U0001f600", "_", "\x00", "\x1f", "\u200d", "\u0085"]


def main():
    rng = random.Random(7)
    texts = HAND + ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 14))) for _ in range(400)]
    out = {"versions": {"regex": regex.__version__, "tokenizers": tokenizers.__version__}, "cases": []}
    for text in texts:
        row = {"text": text}
        for name, patterns in PATTERNS.items():
            pieces = with_regex(patterns, text)
            other = with_tokenizers(patterns, text)
            assert pieces == other, (name, text, pieces, other)
            row[name] = [len(p.encode()) for p in pieces]
        out["cases"].append(row)
    path = pathlib.Path(__file__).with_name("pre_tokenizer_pieces.json")
    rows = ",\n".join(json.dumps(r, separators=(",", ":")) for r in out["cases"])
    path.write_text('{"versions": %s, "cases": [\n%s\n]}\n' % (json.dumps(out["versions"]), rows))


if __name__ == "__main__":
    main()
