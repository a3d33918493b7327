#!/usr/bin/env python3
"""End to end on a GPU: decoding and prompts of models of known shapes (random weights), packed cache beside fp16.

  bench/gpu_e2e.py --binary build/blockgtq [--quick]

Writes bench/results/e2e.json. Models come from bench/make_model.py (needs numpy; 6 to 16 GB of disk each). Depths past
--fill tokens repeat the pages before them: the bytes read are those of a real context. A test that does not fit the
GPU's memory leaves a row that says what was needed. Times include everything a token needs: the step, the logits and
their way to the host.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import results

PACKED = ["--recipe", "aligned", "-K", "3", "-V", "3"]
CACHES = {"packed": PACKED, "fp16": ["--recipe", "fp16"]}
# shape: (sequences, depths, caches)
TESTS = {
    "qwen2.5-3b": [(1, [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], ["packed", "fp16"]),
                   (1, [262144, 524160], ["packed"])],
    # At 128K as many as fit in fp16 beside 8 packed; at 32K what fits of each.
    "llama-3.1-8b": [(8, [131072], ["packed", "fp16"]), (7, [131072], ["fp16"]), (4, [131072], ["packed", "fp16"]),
                     (30, [32768], ["fp16"]), (150, [32768], ["packed"])],
}


def gpu():
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True)
    return done.stdout.strip()


def bench(arguments, model, plan, cache, sequences, depths, extra):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "rows.json")
        cache_flags = ["--plan", plan] if cache == "packed" else CACHES[cache]
        command = [arguments.binary, "bench", "-m", model, "--device", "cuda", *cache_flags, "-B", sequences,
                   "-d", ",".join(map(str, depths)), "--fill", arguments.fill, "-r", 3, "--json", out, *extra]
        command = [str(c) for c in command]
        print("$ " + " ".join(command), file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            message = done.stderr.strip().splitlines()[-1]
            if "wanted" not in message:
                sys.exit(done.stderr)
            return None, message
        return json.loads(out.read_text())["rows"], None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("--shapes", default=",".join(TESTS))
    parser.add_argument("--fill", type=int, default=32768)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("/tmp"), help="where model files are made")
    parser.add_argument("--quick", action="store_true", help="single sequences up to 131072 only")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/e2e.json")
    arguments = parser.parse_args()
    result = {**results.header(), "gpu": gpu(), "rows": []}
    if os.environ.get("BGTQ_COMMIT"):  # a tree without its history
        result["commit"] = os.environ["BGTQ_COMMIT"]

    def add(shape, sequences, context, cache, **fields):
        row = {"shape": shape, "batch": sequences, "context": context, "cache": cache, **fields}
        result["rows"].append(row)
        print(row, flush=True)
        results.write(arguments.out, result)

    for shape in arguments.shapes.split(","):
        start = time.time()
        model = arguments.models / f"{shape}.gguf"
        if not model.exists():
            subprocess.run([sys.executable, results.ROOT / "bench/make_model.py", shape, "-o", model], check=True)
        plan = arguments.models / f"{shape}.plan.safetensors"
        subprocess.run([arguments.binary, "calibrate", "-m", model, "--device", "cuda", *PACKED, "-o", plan], check=True,
                       stdout=subprocess.DEVNULL)
        print(f"{shape}: model and plan in {time.time() - start:.0f} s", file=sys.stderr, flush=True)
        for sequences, depths, caches in TESTS[shape]:
            if arguments.quick and (sequences > 1 or depths[-1] > 131072):
                continue
            for cache in caches:
                rows, error = bench(arguments, model, plan, cache, sequences, depths, ["-p", 0, "-n", 32])
                if error:
                    add(shape, sequences, depths[-1], cache, error=error)
                for row in rows or []:
                    speed = row["median_tokens_per_second"]
                    add(shape, sequences, row["depth"], cache, decode_ms_per_token=round(1e3 * sequences / speed, 4),
                        tokens_per_s=round(speed, 1), kv_bytes=row["kv_bytes"], peak_bytes=row["device_bytes"])
        for context in (4096, 32768):  # whole prompts
            for cache in CACHES:
                rows, error = bench(arguments, model, plan, cache, 1, [0], ["-p", context, "-n", 0])
                row = rows[0]
                add(shape, 1, context, cache, prefill_ms=round(1e3 * context / row["median_tokens_per_second"], 2),
                    peak_bytes=row["device_bytes"])
        model.unlink()


if __name__ == "__main__":
    main()
