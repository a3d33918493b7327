#!/usr/bin/env python3
"""Speed of plans on the CPU: a budget over all heads against equal bits at the same bytes, and gathering moments.

  bench/run_budget_speed.py [--models smollm2-135m,qwen2.5-coder-0.5b]

For an idle machine: the pairs of a round run one after the other, and the ratio of each is taken. The budget plan comes
of few probes (what a plan costs in time does not depend on how well its bytes are spent). Moments: `generate` with and
without --moments. Writes bench/results/budget_speed.json, models that it did not run kept.
"""
import argparse
import pathlib
import statistics
import tempfile

import results
from run_studies import header, replace_model


def table(model):
    lines = []
    for name in ("decode", "prompt", "decode with moments", "prompt with moments"):
        ratios = [new / old for old, new in model["rounds"][name]]
        lines.append([model["model"], name, *(f"{statistics.median(side):.2f}" for side in zip(*model["rounds"][name])),
                      f"{100 * (statistics.median(ratios) - 1):+.1f}%",
                      f"{100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f}%"])
    return results.markdown(["model", "what", "tokens/s before", "after", "median change", "of rounds"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("-d", "--depth", type=int, default=4096)
    parser.add_argument("-n", "--new", type=int, default=32)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plans", type=pathlib.Path, help="keeps the plans here, for a run whose timing is brief")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/budget_speed.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.plans or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        out = work / "out.json"
        for model in arguments.models.split(","):
            path = results.model_path(model)

            def run(command, *options):
                return results.run_json([arguments.binary, command, "-m", path, "--device", "cpu", "-t",
                                         arguments.threads, *options, "--json", out], out)

            flat, budget = work / f"{model}.flat", work / f"{model}.budget"
            made = {}
            if not flat.exists():
                run("calibrate", "-K", 3, "-V", 3, "-o", flat)
            made["flat"] = results.run_json([arguments.binary, "inspect", flat, "--json", out], out)
            if not budget.exists():
                run("calibrate", "--budget-bytes", made["flat"]["bytes_per_token_per_head"], "--no-buffer", "--tokens", 512,
                    "--probe-tokens", 64, "--probe-positions", 8, "-o", budget)
            made["budget"] = results.run_json([arguments.binary, "inspect", budget, "--json", out], out)

            def speeds(plan, *test):
                return run("bench", "--plan", plan, "--no-buffer", "-r", 1, *test)["rows"][0]["tokens_per_second"]

            rounds = {"decode": [], "prompt": [], "decode with moments": [], "prompt with moments": []}
            prompt = work / "prompt.txt"
            prompt.write_text((results.ROOT / "data/northanger_abbey.txt").read_text()[:4000])
            moments = work / f"{model}.moments"

            def generated(*options):
                done = run("generate", "--plan", flat, "-f", prompt, "-n", 96, "-b", 256, "--temp", 0, "--ignore-eos",
                           *options)
                return done["decoded"] / done["decode_ms"] * 1000, done["prompt_tokens"] / done["prompt_ms"] * 1000

            for _ in range(arguments.rounds):
                for what, test in {"decode": ["-p", 0, "-n", arguments.new, "-d", arguments.depth, "--fill", 512],
                                   "prompt": ["-p", 512, "-n", 0, "-d", 0]}.items():
                    rounds[what].append([speeds(plan, *test) for plan in (flat, budget)])
                without, with_moments = generated(), generated("--moments", moments)
                for i, what in enumerate(("decode with moments", "prompt with moments")):
                    rounds[what].append([without[i], with_moments[i]])
            measured = {"model": model, **header(), "depth": arguments.depth, "new": arguments.new,
                        "bytes": {name: plan["bytes_per_token_per_head"] for name, plan in made.items()}, "rounds": rounds}
            replace_model(arguments.out, measured)
            print(table(measured))


if __name__ == "__main__":
    main()
