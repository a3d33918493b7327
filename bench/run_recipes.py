#!/usr/bin/env python3
"""The cache recipes side by side: mean KL divergence to the fp16 cache, with what each stores.

  bench/run_recipes.py [--models smollm2-135m,...]

Writes bench/results/recipes.json and prints a markdown table. WikiText-2 test, the first window of 768 tokens, every
position, strict, the same protection for all (4 sinks, 64 recent tokens exact), calibrated on WikiText-2 train. Recipes
without a packed kernel are simulated; bytes are what the method stores, norms, scales and zero points included.
"""
import argparse
import pathlib
import tempfile

import results

PROTECTION = ["--sinks", "4", "--recent", "64"]
# (recipe, K bits, V bits), None: the recipe has one width of its own.
RECIPES = [("aligned", 2, 2), ("aligned", 3, 3), ("aligned", 4, 4), ("paper", 2, 2), ("paper", 3, 3), ("paper", 4, 4),
           ("uniform", 2, 2), ("uniform", 3, 3), ("uniform", 4, 4), ("kivi", 2, 2), ("kivi", 4, 4),
           ("kivi-scale-only", 2, 2), ("kivi-scale-only", 3, 3), ("pmkvq", 3, 3),
           ("turboquant-3bit", None, None), ("turboquant-k3v4", None, None), ("turboquant-4bit", None, None),
           ("turboquant-k8v4", None, None), ("q4_0", None, None), ("q8_0", None, None), ("fp8", None, None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seed", type=int, default=2, help="of the rotations")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/recipes.json")
    arguments = parser.parse_args()
    result = {**results.header(), "seed": arguments.seed, "rows": []}
    table = []
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        for model in arguments.models.split(","):
            path = results.model_path(model)
            for recipe, k, v in RECIPES:
                bits = [] if k is None else ["-K", k, "-V", v]
                cache = ["--recipe", recipe, *bits]
                if recipe in ("aligned", "paper", "uniform"):
                    plan = pathlib.Path(folder, f"{model}.{recipe}.{k}.{v}.safetensors")
                    results.run_json([arguments.binary, "calibrate", "-m", path, "--device", "cpu", "-t", arguments.threads,
                                      *cache, "-s", arguments.seed, "-o", plan, "--json", out], out)
                    cache = ["--plan", plan]
                else:
                    cache += ["-s", arguments.seed]
                scored = results.run_json(
                    [arguments.binary, "perplexity", "-m", path, "--device", "cpu", "-t", arguments.threads, *cache,
                     *PROTECTION, "-f", results.ROOT / "data/wikitext2_test.txt", "-c", 768, "--chunks", 1, "--score", "all",
                     "--kld", "--strict", "--json", out], out)
                row = {"model": model, "recipe": recipe, "k_bits": k, "v_bits": v,
                       **{key: scored[key] for key in ("bytes_per_token_per_head", "simulated", "ppl", "ppl_fp16", "kld_mean",
                                                       "kld_p99", "top1", "top10_overlap")}}
                result["rows"].append(row)
                results.write(arguments.out, result)
                table.append([model, recipe + ("" if k is None else f" K{k}V{v}"),
                              f"{row['bytes_per_token_per_head']:.1f}", f"{row['kld_mean']:.4f}",
                              f"{100 * row['top1']:.1f}%", f"{row['ppl']:.2f}", "simulated" if row["simulated"] else "packed"])
    print(results.markdown(["model", "recipe", "B a token a head", "mean KLD", "same top token", "PPL", "cache"], table))


if __name__ == "__main__":
    main()
