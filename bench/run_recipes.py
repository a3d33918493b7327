#!/usr/bin/env python3
"""The cache recipes side by side: mean KL divergence to the fp16 cache, with what each stores.

  bench/run_recipes.py [--models smollm2-135m,...] [--recipes aligned,...] [--bits 3,...] [--resume]

Adds to bench/results/recipes.json, in place of the rows that it measures again, and prints a markdown table. --resume
leaves rows that are there. Each row names its run, with machine, commit and command. WikiText-2 test, the first window
of 768 tokens, every position, strict, the same protection for all (4 sinks, 64 recent tokens exact), calibrated on
WikiText-2 train. Recipes without a packed kernel are simulated; bytes are what the method stores, norms, scales and
zero points included.
"""
import argparse
import json
import pathlib
import tempfile

import results

PROTECTION = ["--sinks", "4", "--recent", "64"]
# (recipe, K bits, V bits), None: the recipe has one width of its own. RECIPE/N: with --memory-tokens N; the window has
# 704 coded tokens at its end.
RECIPES = [("aligned", 2, 2), ("aligned", 3, 3), ("aligned", 4, 4), ("paper", 2, 2), ("paper", 3, 3), ("paper", 4, 4),
           ("uniform", 2, 2), ("uniform", 3, 3), ("uniform", 4, 4), ("kivi", 2, 2), ("kivi", 4, 4),
           ("kivi-scale-only", 2, 2), ("kivi-scale-only", 3, 3), ("pmkvq", 2, 2), ("pmkvq/704", 2, 2), ("pmkvq", 3, 3),
           ("pmkvq/704", 3, 3),
           ("turboquant-3bit", None, None), ("turboquant-k3v4", None, None), ("turboquant-4bit", None, None),
           ("turboquant-k8v4", None, None), ("q4_0", None, None), ("q8_0", None, None), ("fp8", None, None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("--recipes", help="only these")
    parser.add_argument("--bits", help="only these K bits; recipes of one width take part all the same")
    parser.add_argument("--resume", action="store_true", help="keep rows that are there")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seed", type=int, default=2, help="of the rotations")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/recipes.json")
    arguments = parser.parse_args()
    wanted = [(recipe, k, v) for recipe, k, v in RECIPES
              if (not arguments.recipes or recipe.partition("/")[0] in arguments.recipes.split(","))
              and (not arguments.bits or k is None or str(k) in arguments.bits.split(","))]
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": [], "rows": []}
    if result["rows"] and result["seed"] != arguments.seed:
        raise SystemExit(f"{arguments.out} has rows of seed {result['seed']}; name another file with -o")
    result["seed"] = arguments.seed
    result["runs"].append(results.header())
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models.split(","):
            for recipe, k, v in wanted:
                if arguments.resume and any(is_of(row, model, recipe, k, v) for row in result["rows"]):
                    continue
                row = {"model": model, "recipe": recipe, "k_bits": k, "v_bits": v, "run": len(result["runs"]) - 1,
                       **score(arguments, pathlib.Path(folder), model, recipe, k, v)}
                kept = [old for old in result["rows"] if not is_of(old, model, recipe, k, v)]
                result["rows"] = sorted([*kept, row], key=place)
                results.write(arguments.out, result)
                measured.append(row)
    print(results.markdown(
        ["model", "recipe", "B a token a head", "mean KLD", "same top token", "PPL", "cache"],
        [[row["model"], name_of(row),
          f"{row['bytes_per_token_per_head']:.1f}", f"{row['kld_mean']:.4f}", f"{100 * row['top1']:.1f}%",
          f"{row['ppl']:.2f}", "simulated" if row["simulated"] else "packed"] for row in measured]))


def name_of(row):
    """As tables show it: "pmkvq K3V3 in 704 tokens"."""
    recipe, _, memory = row["recipe"].partition("/")
    bits = "" if row["k_bits"] is None else f" K{row['k_bits']}V{row['v_bits']}"
    return recipe + bits + (f" in {memory} tokens" if memory else "")


def is_of(row, model, recipe, k, v):
    return (row["model"], row["recipe"], row["k_bits"], row["v_bits"]) == (model, recipe, k, v)


def place(row):
    return (list(results.MODEL_FILES).index(row["model"]),
            RECIPES.index((row["recipe"], row["k_bits"], row["v_bits"])))


def score(arguments, folder, model, recipe, k, v):
    """One row's figures."""
    path, out = results.model_path(model), folder / "out.json"
    recipe, _, memory = recipe.partition("/")
    cache = ["--recipe", recipe, *([] if k is None else ["-K", k, "-V", v]), *(["--memory-tokens", memory] if memory else [])]
    if recipe in ("aligned", "paper", "uniform"):
        plan = folder / f"{model}.{recipe}.{k}.{v}.safetensors"
        results.run_json([arguments.binary, "calibrate", "-m", path, "--device", "cpu", "-t", arguments.threads, *cache,
                          "-s", arguments.seed, "-o", plan, "--json", out], out)
        cache = ["--plan", plan]
    else:
        cache += ["-s", arguments.seed]
    scored = results.run_json(
        [arguments.binary, "perplexity", "-m", path, "--device", "cpu", "-t", arguments.threads, *cache, *PROTECTION, "-f",
         results.ROOT / "data/wikitext2_test.txt", "-c", 768, "--chunks", 1, "--score", "all", "--kld", "--strict", "--json",
         out], out)
    return {key: scored[key] for key in ("bytes_per_token_per_head", "simulated", "ppl", "ppl_fp16", "kld_mean",
                                         "kld_p99", "top1", "top10_overlap")}


if __name__ == "__main__":
    main()
