#!/usr/bin/env python3
"""Compares GGUF files that `blockgtq convert` wrote as llama.cpp (llama-cpp-python) and as blockgtq read them. By hand.

  pip install llama-cpp-python safetensors numpy        # in a virtual environment; builds llama.cpp
  bench/convert_llama_cpp.py build/blockgtq -o bench/results/convert_llama_cpp.json

Models: the tiny ones of tests/data/models/hf, each with a tokenizer of bytes, as F32, F16 and Q8_0: logits of every position of
a text (float32 caches), then the tokens that llama.cpp chooses greedily, which blockgtq must rank first as well wherever its
two largest logits are further apart than the difference allowed. Texts end where llama.cpp would leave out a sliding window.
Tokenizers: tests/data/text/tokenizers, ids of the texts of tokenizers.json.
"""
import argparse
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

import llama_cpp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / "tests/data/models/hf"
NAMES = ["llama", "llama3-rope", "mistral-nemo", "mistral-swa", "qwen2", "qwen3", "qwen3-v5config", "qwen3_moe", "glm", "glm4",
         "gemma3", "olmo2", "phi3", "deepseek_v2"]
TOKENIZERS = ["llama3", "qwen2", "smollm", "glm4", "olmo2", "mistral-nemo", "deepseek-v2", "deepseek-coder", "deepseek-v3",
              "gpt-4o"]
GREEDY = 12
# llama.cpp rounds activations to fp16, or to 8 bits; the models' logits have a standard deviation of 2. A router's choice
# may turn on that rounding: mixtures are judged in F32, and stated in the other types.
ALLOWED = {"f32": 0.01, "f16": 0.06, "q8_0": 0.5}
MIXTURES = ["qwen3_moe", "deepseek_v2"]


def byte_tokenizer():
    """GPT-2's alphabet, one merge, two special tokens in the places of bytes that no UTF-8 text has."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    letters = {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}
    vocab = {letters[b]: b for b in range(253)} | {"th": 255}
    special = [{"id": 253, "content": "<s>"}, {"id": 254, "content": "<|im_end|>"}]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [token | flags for token in special], "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "h"]], "ignore_merges": False}}


def run(binary, *arguments):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True)
    if done.returncode:
        sys.exit(f"{arguments}: {done.stderr.decode()}")


def convert(binary, folder, out, kind):
    run(binary, "convert", "-m", folder, "-o", out, "--type", kind, "--json", out.with_suffix(".json"))
    return json.loads(out.with_suffix(".json").read_text())


class Peer:
    """A file in llama.cpp."""

    def __init__(self, path, vocab_only=False):
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers, params.vocab_only, params.use_extra_bufts = 0, vocab_only, False
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            sys.exit(f"{path}: llama.cpp could not load it")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def close(self):
        llama_cpp.llama_model_free(self.model)

    def tokenize(self, text, special):
        raw = text.encode()
        buffer = (llama_cpp.llama_token * (len(raw) + 16))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), False, special)
        return list(buffer[:count])

    def logits(self, ids, greedy):
        """[len(ids) + greedy, vocabulary], and the ids with those chosen."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 512, 512, 512, 1, 1
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        context = llama_cpp.llama_init_from_model(self.model, params)
        vocabulary = llama_cpp.llama_vocab_n_tokens(self.vocab)
        batch = llama_cpp.llama_batch_init(512, 0, 1)
        rows, ids = [], list(ids)
        fed = 0
        while True:
            batch.n_tokens = len(ids) - fed
            for i in range(batch.n_tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = ids[fed + i], fed + i, 1
                batch.seq_id[i][0], batch.logits[i] = 0, True
            if llama_cpp.llama_decode(context, batch):
                sys.exit("llama.cpp failed to decode")
            for i in range(batch.n_tokens):
                rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocabulary,)).copy())
            fed = len(ids)
            if greedy == 0:
                break
            ids.append(int(rows[-1].argmax()))
            greedy -= 1
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return np.stack(rows), ids


def as_long_as_lite(folder, layers=27):
    """DeepSeek-V2-Lite's number of layers, by which llama.cpp knows that queries have no latent: the mixtures repeated."""
    config = json.loads((folder / "config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()  # bfloat16, which numpy does not have
    size = 8 + int.from_bytes(raw[:8], "little")
    tensors = {name: (entry, raw[size:][slice(*entry["data_offsets"])])
               for name, entry in json.loads(raw[8:size]).items() if name != "__metadata__"}
    for layer in range(config["num_hidden_layers"], layers):
        source = f"model.layers.{config['first_k_dense_replace'] + layer % 2}."
        tensors |= {f"model.layers.{layer}." + name.removeprefix(source): tensor
                    for name, tensor in list(tensors.items()) if name.startswith(source)}
    header, end = {}, 0
    for name, (entry, data) in tensors.items():
        header[name] = entry | {"data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    data = b"".join(data for _, data in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))


def compare_model(binary, name, kind, work):
    folder = work / f"model-{NAMES.index(name)}"  # llama.cpp expects Phi-3's own tokens where a name holds "phi3"
    if not folder.exists():
        shutil.copytree(MODELS / name, folder)
        if name == "gemma3":  # llama.cpp knows no other scale of attention than 1 / sqrt(head_dim)
            config = json.loads((folder / "config.json").read_text())
            config["query_pre_attn_scalar"] = config["head_dim"]
            (folder / "config.json").write_text(json.dumps(config))
        if name == "deepseek_v2":
            as_long_as_lite(folder)
        (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>"}))
    path = work / f"{name}.{kind}.gguf"
    made = convert(binary, folder, path, kind)
    with safe_open(MODELS / name / "reference.safetensors", "np") as reference:
        ids = [int(i) for i in reference.get_tensor("input_ids")]
    config = json.loads((folder / "config.json").read_text())
    if any("sliding window" in difference for difference in made["differences"]):
        ids = ids[:config["sliding_window"] - GREEDY]
    peer = Peer(path)
    theirs, with_greedy = peer.logits(ids, GREEDY)
    text = "the quick th brown <s> fox<|im_end|> é\n"
    tokens = peer.tokenize(text, True)
    peer.close()
    (work / "ids.json").write_text(json.dumps(with_greedy))
    run(binary, "logits", "-m", path, "--recipe", "fp32", "--activations", "float", "--tokens", work / "ids.json", "-o",
        work / "logits.safetensors")
    ours = load_file(work / "logits.safetensors")["logits"]
    difference = float(np.abs(ours - theirs).max())
    top = np.sort(ours, axis=1)
    margin = top[:, -1] - top[:, -2]
    clear = margin > 2 * ALLOWED[kind]
    same = ours.argmax(1) == theirs.argmax(1)
    run(binary, "tokenize", "-m", path, "--special", "-p", text, "--json", work / "tokens.json")
    return {"model": name, "type": kind, "positions": len(with_greedy), "max_logit_difference": round(difference, 4),
            "logit_sd": round(float(ours.std()), 2), "same_first": int(same.sum()), "clear": int(clear.sum()),
            "clear_and_same": int((clear & same).sum()),
            "same_tokens": json.loads((work / "tokens.json").read_text())["ids"] == tokens}


def compare_tokenizer(binary, name, work):
    folder = work / f"tokenizer-{name}"
    shutil.copytree(MODELS / "llama", folder)
    tokenizer = json.loads((ROOT / f"tests/data/text/tokenizers/{name}.json").read_text())
    # Tokens that take the spaces beside them along: GGUF files cannot say so (convert lists them).
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if not t["lstrip"] and not t["rstrip"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tensors = load_file(folder / "model.safetensors")
    for tensor in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[tensor] = np.resize(tensors[tensor], (1000, tensors[tensor].shape[1]))
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 1000}))
    path = work / f"tokenizer-{name}.gguf"
    convert(binary, folder, path, "f16")
    peer = Peer(path, vocab_only=True)
    texts = [t for t in json.loads((ROOT / "tests/data/text/tokenizers.json").read_text())["texts"] if t and "\0" not in t]
    different = []
    for text in texts:
        run(binary, "tokenize", "-m", path, "--special", "-p", text, "--json", work / "tokens.json")
        if json.loads((work / "tokens.json").read_text())["ids"] != peer.tokenize(text, True):
            different.append(text)
    peer.close()
    return {"tokenizer": name, "texts": len(texts), "different": different}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--tokenizers", default=",".join(TOKENIZERS))
    options = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        models = [compare_model(options.binary, name, kind, work) for name in filter(None, options.models.split(","))
                  for kind in ALLOWED]
        tokenizers = [compare_tokenizer(options.binary, name, work) for name in filter(None, options.tokenizers.split(","))]
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"command": " ".join(["bench/convert_llama_cpp.py", *sys.argv[1:]]), "commit": commit,
              "machine": platform.processor() or platform.machine(), "llama_cpp_python": llama_cpp.__version__,
              "allowed": ALLOWED, "models": models, "tokenizers": tokenizers}
    pathlib.Path(options.output).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    failed = [m for m in models if not m["same_tokens"] or (m["type"] == "f32" or m["model"] not in MIXTURES) and
              (m["clear"] != m["clear_and_same"] or m["max_logit_difference"] > ALLOWED[m["type"]])]
    failed += [t for t in tokenizers if t["different"]]
    for row in models + tokenizers:
        print(row, "FAILED" if row in failed else "")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
