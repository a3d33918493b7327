#!/usr/bin/env python3
"""Times llama.cpp (through the C API of llama-cpp-python) as `blockgtq bench` times us. Run by hand.

  pip install llama-cpp-python numpy        # in a virtual environment; builds llama.cpp
  bench/llama_cpp_speed.py MODEL.gguf -p 512 -d 0,4096,7900 -t 2 -o llama_cpp.json

Prompts of -p tokens, and -n tokens decoded one at a time at each depth, from a cache that really holds that many
tokens of the text. The default cache, f16 without flash attention, is llama.cpp's fastest on CPUs at depth.
Figures are tokens a second, the median of --runs. AMX is refused (peers/refuse_amx.c) unless --amx: the AMX path
faults on some virtual machines.
"""
import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


def refuse_amx():
    """Starts this program again with the shim preloaded; returns when it is already there."""
    if os.environ.get("BGTQ_AMX_REFUSED"):
        return
    with tempfile.TemporaryDirectory() as folder:
        shim = os.path.join(folder, "refuse_amx.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(ROOT / "bench/peers/refuse_amx.c"), "-o", shim, "-ldl"],
                       check=True)
        preload = " ".join(filter(None, (shim, os.environ.get("LD_PRELOAD"))))
        done = subprocess.run([sys.executable, *sys.argv],
                              env={**os.environ, "LD_PRELOAD": preload, "BGTQ_AMX_REFUSED": "1"})
    sys.exit(done.returncode)


class Peer:
    """One model and one context of llama.cpp."""

    def __init__(self, lib, path, cache, flash_attention, context, threads):
        self.lib = lib
        lib.llama_backend_init()
        model = lib.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(str(path).encode(), model)
        if not self.model:
            sys.exit(f"{path}: llama.cpp could not load it")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, 512, 512
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = CACHE_TYPES[cache]
        params.flash_attn_type = int(flash_attention)
        params.offload_kqv = False
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"llama.cpp refuses cache {cache} with flash attention {'on' if flash_attention else 'off'}")
        self.batch = lib.llama_batch_init(512, 0, 1)
        self.position = 0

    def tokenize(self, text, limit):
        vocabulary = self.lib.llama_model_get_vocab(self.model)
        buffer = (self.lib.llama_token * (len(text) + 16))()
        count = self.lib.llama_tokenize(vocabulary, text, len(text), buffer, len(buffer), False, False)
        if count < limit:
            sys.exit(f"the text has {count} tokens, {limit} are needed")
        return list(buffer[:limit])

    def rewind(self, position):
        memory = self.lib.llama_get_memory(self.context)
        if position == 0:
            self.lib.llama_memory_clear(memory, True)
        elif not self.lib.llama_memory_seq_rm(memory, 0, position, -1):
            sys.exit(f"llama.cpp could not roll back to {position} tokens")
        self.position = position

    def feed(self, tokens):
        """Runs tokens in batches of 512; logits of the last one only."""
        for start in range(0, len(tokens), 512):
            part = tokens[start:start + 512]
            batch = self.batch
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, self.position + i, 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i + 1 == len(tokens)
            if self.lib.llama_decode(self.context, batch) != 0:
                sys.exit(f"llama_decode failed at position {self.position}")
            self.position += len(part)
        self.lib.llama_synchronize(self.context)


def timed(work, tokens):
    start = time.perf_counter()
    work()
    return tokens / (time.perf_counter() - start)


def row(test, depth, runs):
    print(f"llama.cpp {test} @ {depth}: {statistics.median(runs):.2f} t/s", file=sys.stderr, flush=True)
    return {"test": test, "depth": depth, "tokens_per_second": round(statistics.median(runs), 2),
            "runs": [round(r, 2) for r in runs]}


def measure(peer, arguments, depths):
    tokens = peer.tokenize(arguments.text.read_bytes()[:400_000], max([arguments.prompt, *depths]) + arguments.new)
    peer.feed(tokens[:64])  # first touch of the weights
    runs = []
    for _ in range(arguments.runs):
        peer.rewind(0)
        runs.append(timed(lambda: peer.feed(tokens[:arguments.prompt]), arguments.prompt))
    rows = [row(f"pp{arguments.prompt}", 0, runs)]
    for depth in sorted(depths):
        if depth > peer.position:
            peer.feed(tokens[peer.position:depth])
        runs = []
        for _ in range(arguments.runs):
            peer.rewind(depth)
            runs.append(timed(lambda: [peer.feed([t]) for t in tokens[depth:depth + arguments.new]], arguments.new))
        peer.rewind(depth)
        rows.append(row(f"tg{arguments.new}", depth, runs))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--new", type=int, default=32)
    parser.add_argument("-d", "--depths", default="0,4096,7900")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-f", "--text", type=pathlib.Path, default=ROOT / "data/wikitext2_test.txt")
    parser.add_argument("--cache", choices=CACHE_TYPES, default="f16")
    parser.add_argument("--flash-attention", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--amx", action="store_true", help="let llama.cpp use AMX")
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if not arguments.amx:
        refuse_amx()
    try:
        import llama_cpp as lib
    except ImportError as error:
        sys.exit(f"llama-cpp-python is missing ({error}); see --help")
    silent = lib.llama_log_callback(lambda level, text, user: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    depths = [int(d) for d in arguments.depths.split(",")]
    context = -(-(max([arguments.prompt, *depths]) + arguments.new) // 256) * 256
    peer = Peer(lib, arguments.model, arguments.cache, arguments.flash_attention, context, arguments.threads)
    with open(arguments.model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    result = {
        "engine": "llama.cpp", "version": f"llama-cpp-python {lib.__version__}", "model": arguments.model.name,
        "model_sha256": digest, "threads": arguments.threads, "cache": arguments.cache,
        "flash_attention": arguments.flash_attention, "amx": arguments.amx,
        "system_info": lib.llama_print_system_info().decode().strip(),
        "rows": measure(peer, arguments, depths),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
