#!/usr/bin/env python3
"""Quality of the packed cache: KL divergence to the fp16-cache logits of the same run, over models x recipes x widths.

  bench/run_quality.py [--models smollm2-135m,...] [--panels strict,llama_cpp]

Writes bench/results/quality.json and prints markdown tables. Calibrated on WikiText-2 train (bundled), scored on its
test split, strict (every position as if decoded).
  strict      the first window of 768 tokens, every position scored, beside the numpy reference's figures
  llama_cpp   windows of 512, second halves scored, 8 of them, beside llama.cpp's quantised caches
A result that is already in the file, made by the same commit and with the same settings, is kept (--again: measured
anew), so a run can be stopped and taken up.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import results

# (name, K bits, V bits, cache options), in the order of the table's columns.
STRICT_SETTINGS = [
    ("K3V3", 3, 3, ["--no-buffer"]),
    ("K2V2", 2, 2, ["--no-buffer"]),
    ("K4V4", 4, 4, ["--no-buffer"]),
    ("K3V3, 4 sinks", 3, 3, ["--sinks", "4", "--recent", "0"]),
    ("K3V3, 4 sinks + 64 recent", 3, 3, ["--sinks", "4", "--recent", "64"]),
    ("K2V2, 4 sinks + 64 recent", 2, 2, ["--sinks", "4", "--recent", "64"]),
]
LLAMA_SETTINGS = [
    ("K4V4", 4, 4, ["--no-buffer"]),
    ("K3V3", 3, 3, ["--no-buffer"]),
    ("K4V4, 4 sinks + 64 recent", 4, 4, ["--sinks", "4", "--recent", "64"]),
    ("K3V3, 4 sinks + 64 recent", 3, 3, ["--sinks", "4", "--recent", "64"]),
    ("K2V2, 4 sinks + 64 recent", 2, 2, ["--sinks", "4", "--recent", "64"]),
]
PANELS = {
    "strict": (STRICT_SETTINGS, ["aligned", "paper", "uniform"], ["-c", "768", "--chunks", "1", "--score", "all"]),
    "llama_cpp": (LLAMA_SETTINGS, ["aligned"], ["-c", "512", "--chunks", "8", "--score", "half"]),
}
# Mean KLD of the numpy reference, aligned, in the order of STRICT_SETTINGS; "noise of the seed: 15%".
REFERENCE = {
    "smollm2-135m": [0.083, 0.42, 0.027, 0.050, 0.0082, 0.055],
    "qwen2.5-coder-0.5b": [0.068, 0.216, 0.023, 0.036, 0.0053, 0.032],
    "qwen2.5-coder-1.5b": [0.027, 0.122, 0.0093, 0.0185, 0.0017, 0.0094],
}


def cell(row):
    return f"{row['bytes_per_token_per_head']:.1f} B: {row['kld_mean']:.4f}" if row else ""


def print_strict(rows, models):
    names = [s[0] for s in STRICT_SETTINGS]
    table = []
    for model in models:
        for recipe in PANELS["strict"][1]:
            table.append([model, recipe, *(cell(rows.get(("strict", model, recipe, n))) for n in names)])
        table.append([model, "reference (numpy)", *(f"{v}" for v in REFERENCE[model])])
    print("\nMean KLD to the fp16 cache, 768 tokens, every position, strict (stored bytes a token a head, K + V)\n")
    print(results.markdown(["model", "recipe", *names], table))


def print_llama(rows, models):
    peers = json.loads((results.ROOT / "bench/peers/llama_cpp_perplexity.json").read_text())["models"]
    table = []
    for model in models:
        ours = [("blockgtq " + s[0], rows.get(("llama_cpp", model, "aligned", s[0]))) for s in LLAMA_SETTINGS]
        theirs = [(f"llama.cpp {name}", row) for name, row in peers[model].items()]
        for name, row in ours + theirs:
            if not row:
                continue
            kld = [f"{row[k]:.4f}" if k in row else "" for k in ("kld_mean", "kld_median", "kld_p99")]
            top = f"{100 * row['top1']:.1f}%" if "top1" in row else ""
            table.append([model, name, f"{row['bytes_per_token_per_head']:.1f}", f"{row['ppl']:.2f} ± {row['ppl_se']:.2f}",
                          *kld, top])
    print("\nWindows of 512, second halves, 8 windows (each engine against its own f16 cache)\n")
    print(results.markdown(["model", "cache", "B a token a head", "PPL", "KLD mean", "median", "99%", "same top-1"], table))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(results.MODEL_FILES))
    parser.add_argument("--panels", default=",".join(PANELS))
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seed", type=int, default=2, help="of the rotations")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/quality.json")
    arguments = parser.parse_args()
    models, panels = arguments.models.split(","), arguments.panels.split(",")
    for name, known in [*((m, results.MODEL_FILES) for m in models), *((p, PANELS) for p in panels)]:
        if name not in known:
            parser.error(f"unknown {name}; known: {', '.join(known)}")

    head = {**results.header(), "seed": arguments.seed}
    rows = {}
    if arguments.out.is_file() and not arguments.again:
        old = json.loads(arguments.out.read_text())
        if (old["commit"], old["seed"]) == (head["commit"], head["seed"]) and not head["commit"].endswith("+"):
            rows = {(r["panel"], r["model"], r["recipe"], r["setting"]): r for r in old["rows"]}

    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        plans = {}

        def plan_of(model, recipe, k, v):
            key = (model, recipe, k, v)
            if key not in plans:
                path = pathlib.Path(folder, f"{model}.{recipe}.{k}.{v}.safetensors")
                results.run_json([arguments.binary, "calibrate", "-m", results.model_path(model), "-t", arguments.threads,
                                  "-s", arguments.seed, "--recipe", recipe, "-K", k, "-V", v, "-o", path,
                                  "--json", out], out)
                plans[key] = path
            return plans[key]

        for panel in panels:
            settings, recipes, windows = PANELS[panel]
            for model in models:
                for recipe in recipes:
                    for setting, k, v, cache in settings:
                        key = (panel, model, recipe, setting)
                        if key in rows:
                            continue
                        measured = results.run_json(
                            [arguments.binary, "perplexity", "-m", results.model_path(model), "-t", arguments.threads,
                             "--plan", plan_of(model, recipe, k, v), *cache, "-f",
                             results.ROOT / "data/wikitext2_test.txt", *windows, "--kld", "--strict", "--json", out], out)
                        if measured["mode"] != "strict":
                            sys.exit(f"{key}: the program says mode {measured['mode']}, strict was asked for")
                        rows[key] = {"panel": panel, "model": model, "recipe": recipe, "setting": setting, **measured}
                        results.write(arguments.out, {**head, "rows": list(rows.values())})

    results.write(arguments.out, {**head, "rows": list(rows.values())})
    if "strict" in panels:
        print_strict(rows, models)
    if "llama_cpp" in panels:
        print_llama(rows, models)


if __name__ == "__main__":
    main()
