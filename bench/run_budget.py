#!/usr/bin/env python3
"""One byte budget over all heads against the same bytes a head: mean KL divergence to the fp16 cache.

  bench/run_budget.py [--models smollm2-135m,...] [--budgets 3,2] [--texts novel,code,wikipedia] [--windows 2]
  bench/run_budget.py --parts targets ...

Writes bench/results/budget.json and prints markdown tables. Plans are calibrated on WikiText-2 train, or with
--calibrate-on mixed on it and blockgtq's server and command line in turn (bench/texts.py); probes run and plans are
checked on further tokens of the same text. What is scored was not calibrated on: Northanger Abbey, blockgtq's own
sources, WikiText-2 test.
  budgets  flat aligned KbVb, no buffer; and a plan for its stored bytes, --no-buffer. Both scored strictly without buffer
  window   the same with 4 sinks and 64 recent tokens, in the plans and in the scoring
  targets  plans for a divergence (--target-kld), no buffer: what was promised and what the texts show
Rows of other models, parts and budgets in the file stay, when made with the same settings; --work keeps stopped probes.
"""
import argparse
import json
import pathlib
import tempfile

import results
import texts
from run_studies import header, source_text

PARTS = {"budgets": ["--no-buffer"], "window": ["--sinks", "4", "--recent", "64"], "targets": ["--no-buffer"]}


def table(rows):
    lines = []
    for row in rows:
        flat = next((r for r in rows if r["cache"] == "flat" and
                     all(r[k] == row[k] for k in ("part", "model", "text", "asked"))), None)
        change = "" if row["cache"] == "flat" or flat is None else f"{100 * (row['kld_mean'] / flat['kld_mean'] - 1):+.0f}%"
        lines.append([row["part"], row["model"], row["text"], row["asked"], row["cache"],
                      f"{row['bytes_per_token_per_head']:.2f}", results.number(row["kld_mean"]), change,
                      f"{100 * row['top1']:.1f}%"])
    return results.markdown(["part", "model", "text", "asked", "plan", "bytes", "mean KLD", "against flat", "same top token"],
                            lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("--parts", default="budgets")
    parser.add_argument("--budgets", default="3,2", help="bits of the flat plans whose bytes are spent")
    parser.add_argument("--targets", default="0.05")
    parser.add_argument("--texts", default="novel,code,wikipedia")
    parser.add_argument("--calibrate-on", choices=("prose", "mixed"), default="prose")
    parser.add_argument("-c", "--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--probe-tokens", type=int, default=256)
    parser.add_argument("--probe-positions", type=int, default=128)
    parser.add_argument("--check-tokens", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seed", type=int, default=2, help="of the rotations")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("--work", type=pathlib.Path, help="keeps plans and probes here, so that a stopped run goes on")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/budget.json")
    arguments = parser.parse_args()
    for part in arguments.parts.split(","):
        if part not in PARTS:
            parser.error(f"unknown part {part}; known: {', '.join(PARTS)}")

    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or pathlib.Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        out = work / "out.json"
        scored = {"novel": results.ROOT / "data/northanger_abbey.txt", "code": source_text(work / "code.txt"),
                 "wikipedia": results.ROOT / "data/wikitext2_test.txt"}
        shared = {"seed": arguments.seed, "window": arguments.window, "windows": arguments.windows,
                  "probe_tokens": arguments.probe_tokens, "probe_positions": arguments.probe_positions,
                  "check_tokens": arguments.check_tokens}
        if arguments.device.startswith("cuda"):
            shared["gpu"] = results.gpu()
        if arguments.calibrate_on != "prose":
            shared["calibrated_on"] = arguments.calibrate_on
        corpus = work / "corpus.txt"
        prose = texts.calibration_prose()
        corpus.write_text(prose if arguments.calibrate_on == "prose" else
                          texts.calibration_mixed(prose, texts.calibration_code()))
        head = {**header(), **shared}
        result = {**head, "rows": [], "plans": []}
        if arguments.out.is_file():
            old = json.loads(arguments.out.read_text())
            if {k: old.get(k) for k in [*shared, "gpu", "calibrated_on"]} == {"gpu": None, "calibrated_on": None, **shared}:
                result["rows"], result["plans"] = old["rows"], old["plans"]

        def run(command, model, *options):
            return results.run_json([arguments.binary, command, "-m", results.model_path(model), "--device", arguments.device, "-t",
                                     arguments.threads, *options, "--json", out], out)

        def plan_of(part, model, asked, cache, *options):
            path = work / f"{part}.{model}.{asked}.{cache}.safetensors"
            made = run("calibrate", model, "-f", corpus, "-s", arguments.seed, *options, "-o", path)
            made["plan"] = path.name
            plans = [p for p in result["plans"] if p["plan"] != path.name]
            result["plans"] = [*plans, made]
            return path, made

        def score(part, model, asked, cache, path, made):
            for text in arguments.texts.split(","):
                measured = run("perplexity", model, "--plan", path, *PARTS[part], "-f", scored[text], "-c", arguments.window,
                               "--chunks", arguments.windows, "--score", "all", "--kld", "--strict")
                key = {"part": part, "model": model, "text": text, "asked": asked, "cache": cache}
                row = {**key, **{k: measured[k] for k in ("bytes_per_token_per_head", "kld_mean", "kld_p99", "top1", "ppl",
                                                         "ppl_fp16", "tokens", "mode")},
                       "promised_kld": made.get("budget", {}).get("measured_kld")}
                kept = [r for r in result["rows"] if any(r[k] != v for k, v in key.items())]
                result["rows"] = [*kept, row]
                results.write(arguments.out, result)

        for model in arguments.models.split(","):
            probes = ["--probe-tokens", arguments.probe_tokens, "--probe-positions", arguments.probe_positions,
                      "--check-tokens", arguments.check_tokens]
            for part in arguments.parts.split(","):
                if part == "targets":
                    for target in arguments.targets.split(","):
                        asked = f"KLD {target}"
                        score(part, model, asked, "budget", *plan_of(part, model, target, "budget", "--target-kld", target,
                                                                     *PARTS[part], *probes))
                    continue
                for bits in arguments.budgets.split(","):
                    asked = f"K{bits}V{bits}"
                    flat = plan_of(part, model, asked, "flat", "-K", bits, "-V", bits)
                    score(part, model, asked, "flat", *flat)
                    score(part, model, asked, "budget",
                          *plan_of(part, model, asked, "budget", "--budget-bytes", flat[1]["bytes_per_token_per_head"],
                                   *PARTS[part], *probes))
    print(table(result["rows"]))


if __name__ == "__main__":
    main()
