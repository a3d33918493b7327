#!/usr/bin/env python3
"""Fills README's tables of quality, speed and GPUs, and docs/results.md, from the files of bench/results/.

  bench/readme_tables.py

docs/results.md is results_page.py's. In README it writes between the markers <!-- quality -->, <!-- speed --> and
<!-- gpu -->. A row that a file lacks says "not measured".
"""
import json
import re

import results
import results_page
import run_quality

README = results.ROOT / "README.md"


def quality_table(measured):
    rows = {(r["model"], r["recipe"], r["setting"]): r for r in measured["rows"] if r["panel"] == "strict"}
    names = [s[0] for s in run_quality.STRICT_SETTINGS]
    table = []
    for model, reference in run_quality.REFERENCE.items():
        for recipe in run_quality.PANELS["strict"][1]:
            cells = []
            for name in names:
                row = rows.get((model, recipe, name))
                mark = "**" if recipe == "aligned" else ""
                cells.append(f"{row['bytes_per_token_per_head']:.1f} B: {mark}{results.number(row['kld_mean'])}{mark}" if row
                             else "not measured")
            table.append([model, recipe, *cells])
        table.append([model, "numpy reference", *(results.number(v) for v in reference)])
    return results.markdown(["model", "recipe", *names], table)


def windows_table(measured):
    peers = json.loads((results.ROOT / "bench/peers/llama_cpp_perplexity.json").read_text())["models"]
    table = []

    def add(model, name, row):
        table.append([model, name, f"{row['bytes_per_token_per_head']:.1f}", f"{row['ppl']:.2f}",
                      " / ".join(results.number(row[k]) for k in ("kld_mean", "kld_median", "kld_p99")),
                      f"{100 * row['top1']:.1f}%"])

    for model in run_quality.REFERENCE:
        for row in measured["rows"]:
            if row["panel"] == "llama_cpp" and row["model"] == model:
                add(model, f"blockgtq {row['setting']}", row)
        for name in ("q8_0", "q4_0"):
            add(model, f"llama.cpp {name}", peers[model][name])
    return results.markdown(["model", "cache", "B a token a head", "PPL", "KLD mean / median / 99%", "same top token"],
                            table)


def speed_table(measured):
    table = []
    for row in measured["rows"]:
        speed = row["tokens_per_second"]
        kind = "prompt of 512" if row["test"].startswith("pp") else "decode"
        table.append([f"{kind}, depth {row['depth']:,}", *(f"{speed[e]:.0f}" for e in ("K3V3", "fp16", "llama.cpp f16")),
                      *(f"{speed['K3V3'] / speed[e]:.2f}x" for e in ("fp16", "llama.cpp f16"))])
    return results.markdown(["SmolLM2-135M, tokens a second", "K3V3", "our fp16 cache", "llama.cpp f16 (its best)",
                             "K3V3 / fp16", "K3V3 / llama.cpp"], table)


def gpu_section(attention, end_to_end, models):
    rows = {(r["shape"], r["batch"], r["context"], r["cache"], kind): r for r in end_to_end["rows"]
            for kind in ("decode_ms_per_token", "prefill_ms") if kind in r}

    def value(shape, batch, context, cache, kind="decode_ms_per_token"):
        row = rows.get((shape, batch, context, cache, kind))
        return row and row[kind]

    table = []
    for context in (1024, 16384, 32768, 131072, 524160):
        packed, half = (value("qwen2.5-3b", 1, context, cache) for cache in ("packed", "fp16"))
        table.append([f"Qwen2.5-3B shape, one sequence of {round(context / 1024)}K, ms a token", f"{packed:.2f}",
                      f"{half:.2f}" if half else "not measured", f"{half / packed:.2f}x" if half else ""])
    for batches, context in (((4, 4), 131072), ((8, 7), 131072), ((150, 30), 32768)):
        packed, half = (batch * 1e3 / value("llama-3.1-8b", batch, context, cache)
                        for batch, cache in zip(batches, ("packed", "fp16")))
        title = (f"{batches[0]} sequences" if batches[0] == batches[1] else
                 f"{batches[0]} sequences (fp16: {batches[1]}, what fits)" if batches[0] < 10 else
                 f"as many sequences as fit ({batches[0]}, {batches[1]})")
        table.append([f"Llama-3.1-8B shape, {title} of {context // 1024}K, tokens a second", f"{packed:.0f}", f"{half:.0f}",
                      f"{packed / half:.2f}x"])
    packed, half = (value("qwen2.5-3b", 1, 32768, cache, "prefill_ms") for cache in ("packed", "fp16"))
    table.append(["Qwen2.5-3B shape, prompt of 32K, ms", f"{packed:.0f}", f"{half:.0f}", f"{half / packed:.2f}x"])
    layer = {(r["batch"], r["q_heads"], r["context"]): r["ratio"] for r in attention["rows"] if not r["mean_units"]}
    times = {(r["batch"], r["q_heads"], r["context"], r["mean_units"]): r["us"] for r in attention["rows"]}
    longer = [us / times[(*key, 0)] - 1 for (*key, units), us in times.items() if units]
    short = [ratio for (batch, _, context), ratio in layer.items() if batch == 1 and context <= 32768]
    ratios = [r["kld_ratio"] for r in models["rows"] if r.get("setting") == "K3V3"]
    texts = [r["equal"] for r in models["rows"] if "equal" in r and not r["model"].startswith("small")]
    return f"""\
**GPU**, one H200, random weights of known shapes, production mode, default window. `bench/gpu_e2e.py`

{results.markdown(["", "K3V3", "our fp16 cache (cuDNN)", "speed, K3V3 / fp16"], table)}

Decode attention of a layer alone, beside cuDNN's fp16 kernel: {layer[8, 32, 131072]:.2f}x at 8 sequences of 128K (32/8 heads), {layer[1, 32, 131072]:.2f}x at one, {min(short):.2f} to {max(short):.2f}x at 1K to 32K; a plan that removes the key mean takes {min(longer):.0%} to {max(longer):.0%} longer ([docs/kernels.md](docs/kernels.md)). Real models, strict, K3V3 with the default window: divergence on the GPU {min(ratios):.3f} to {max(ratios):.3f} of the CPU's, {sum(texts)} of {len(texts)} greedy texts equal to the last character (`bench/gpu_models.py`).
"""


def main():
    results_page.write()
    quality, windows = results.load("quality.json"), results.load("quality_windows.json")
    speed, kernels = results.load("cpu_speed.json"), results.load("cpu_kernels.json")
    each = {row["name"]: row for row in kernels["rows"]}
    ns = {name: each[name]["ns_per_token"] for name in ("Codes/K3V3_mean", "Read/K3V3_bytes", "Exact/half")}
    sections = {"quality": f"""\
**Quality**: mean KL divergence (nats) to the logits of the same engine's fp16 cache, with stored bytes a token a head (K + V, norms and padding included; fp16: 256 at head dim 64, 512 at 128). WikiText-2 test, first window of 768 tokens, every position, strict, calibrated on 2,048 tokens of WikiText-2 train, float activations, rotations from seed {quality['seed']} (a seed moves a figure by up to 15%). The first four columns have no protected tokens but the sinks named; the last two are the default protection. `bench/run_quality.py`

{quality_table(quality)}

The numpy reference is an independent slow model of `aligned` without the scale search; `paper` and `uniform` follow the published method (fp16 norms, no mean removal; groups of `paper` are padded to 16 dims, which the bytes include).
"""}
    if windows:
        sections["quality"] += f"""
Beside llama.cpp's quantised caches: windows of 512, second halves, 8 windows, each engine against its own f16 cache (llama.cpp's figures include .001 to .003 of noise from its 8-bit activations). `bench/run_quality.py --panels llama_cpp -o bench/results/quality_windows.json`

{windows_table(windows)}
"""
    sections["speed"] = f"""\
**Speed**, engines in turn in one run, 2 threads, int8 activations. `bench/run_cpu_speed.py --llama-python PYTHON`

{speed_table(speed)}

Attention alone, one thread (`bench/run_cpu_kernels.py`): {ns['Codes/K3V3_mean']:.1f} ns a token and KV head from K3V3 codes with the mean (52 B: {each['Codes/K3V3_mean']['bytes_per_second'] / 1e9:.1f} GB/s of codes; a plain read of the same bytes takes {ns['Read/K3V3_bytes']:.1f} ns) against {ns['Exact/half']:.1f} ns for the fp16 kernel, which runs at the memory's speed; [docs/kernels.md](docs/kernels.md) has the rest. Memory at 8,000 tokens of SmolLM2: 40 MiB of cache where fp16 takes 176, and a test holds the process to that and a constant.
"""
    sections["gpu"] = gpu_section(*(results.load(name) for name in ("attention.json", "e2e.json", "gpu_models.json")))
    text = README.read_text()
    for name, body in sections.items():
        text, found = re.subn(f"<!-- {name} -->.*?<!-- /{name} -->",
                              lambda _: f"<!-- {name} -->\n{body}<!-- /{name} -->", text, flags=re.S)
        assert found == 1, f"README.md has no section {name}"
    README.write_text(text)


if __name__ == "__main__":
    main()
