#!/usr/bin/env python3
"""Times cuDNN's fp16 GQA decode attention on the shapes of attention_gpu_bench, runs that program, and writes both.

  attention_gpu.py --bench build/attention_gpu_bench --out bench/results/attention.json

cuDNN runs through PyTorch: scaled_dot_product_attention with its cuDNN backend and enable_gqa (K and V are not
repeated), in a CUDA graph over as many K/V sets as exceed the L2 cache, median of 15 replays.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile

WORKING_SET = 400 << 20


def median_us(torch, replay, repeats=15, warmups=4):
    times = []
    for i in range(repeats + warmups):
        before, after = torch.cuda.Event(True), torch.cuda.Event(True)
        before.record()
        replay()
        after.record()
        torch.cuda.synchronize()
        if i >= warmups:
            times.append(before.elapsed_time(after) * 1e3)
    return sorted(times)[len(times) // 2]


def cudnn_us(torch, batch, q_heads, kv_heads, head_dim, context):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    sets = max(1, -(-WORKING_SET // (batch * kv_heads * context * head_dim * 4)))
    half = dict(device="cuda", dtype=torch.float16)
    query = torch.randn(batch, q_heads, 1, head_dim, **half)
    keys = [torch.randn(batch, kv_heads, context, head_dim, **half) for _ in range(sets)]
    values = [torch.randn(batch, kv_heads, context, head_dim, **half) for _ in range(sets)]

    def attend():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            for k, v in zip(keys, values):
                scaled_dot_product_attention(query, k, v, enable_gqa=True)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attend()
        attend()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend()
    return median_us(torch, graph.replay) / sets


def commit():
    if os.environ.get("BGTQ_COMMIT"):  # a copy of the tree without its history
        return os.environ["BGTQ_COMMIT"]
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the attention_gpu_bench program")
    parser.add_argument("--out", required=True, help="the JSON file to write")
    args = parser.parse_args()
    import torch

    with tempfile.TemporaryDirectory() as folder:
        rows_file = os.path.join(folder, "rows.json")
        code = subprocess.run([args.bench, rows_file]).returncode
        if code != 0:
            print(f"{args.bench} failed ({code}): no results written", file=sys.stderr)
            return code
        with open(rows_file, encoding="utf-8") as file:
            rows = json.load(file)
    known = {}
    for row in rows:
        key = tuple(row[k] for k in ("batch", "q_heads", "kv_heads", "head_dim", "context"))
        if key not in known:
            known[key] = round(cudnn_us(torch, *key), 2)
            torch.cuda.empty_cache()
        row["cudnn_us"] = known[key]
        row["ratio"] = round(row["cudnn_us"] / row["us"], 3)
    properties = torch.cuda.get_device_properties(0)
    result = {
        "machine": f"{properties.name}, {properties.multi_processor_count} SMs, {platform.processor() or platform.machine()}",
        "libraries": f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, CUDA {torch.version.cuda}",
        "commit": commit(),
        "command": " ".join(sys.argv),
        "notes": "K {4 bit: 2 units, 3: 4, 2: 2}, V 3 bit, 8-bit log norms: 100 bytes a token a KV head. Times are a "
                 "layer's, query preparation to final output; the schedule, once a step, is apart (schedule_us). "
                 "overlapped_us: the same layers, each started while the one before it ends.",
        "rows": rows,
    }
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
    with open(args.out, "w", encoding="utf-8") as file:
        head = {k: v for k, v in result.items() if k != "rows"}
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        file.write(json.dumps(head, indent=1)[:-2] + ",\n \"rows\": [\n  " + lines + "\n ]\n}\n")
    print(f"{'shape':>18} {'mean':>4} {'us':>8} {'overlap':>8} {'cuDNN':>8} {'read':>8} {'ratio':>6} {'share':>6}")
    for r in rows:
        shape = f"{r['batch']}, {r['q_heads']}/{r['kv_heads']}, {r['context'] // 1024}K"
        print(f"{shape:>18} {r['mean_units']:>4} {r['us']:>8.1f} {r['overlapped_us']:>8.1f} {r['cudnn_us']:>8.1f} {r['read_us']:>8.1f} "
              f"{r['ratio']:>6.2f} {r['read_us'] / r['us']:>6.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
