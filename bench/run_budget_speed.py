#!/usr/bin/env python3
"""CPU time of plans: a budget over all heads against equal bits at the same bytes, and gathering moments.

  bench/run_budget_speed.py [--models smollm2-135m,qwen2.5-coder-0.5b]

One thread, whose CPU time is taken, so that other programs on the machine matter little: a decoded token's is the
difference of two runs of different length. The two sides of a round run one after the other, and the ratio of each round
is taken. The budget plan comes of few probes (what a plan costs in time does not depend on how well its bytes are spent).
Moments: `generate` with and without --moments. Writes bench/results/budget_speed.json, models that it did not run kept.
"""
import argparse
import pathlib
import resource
import statistics
import tempfile

import results
from run_studies import header, replace_model


def table(model):
    lines = []
    for name, rounds in model["rounds"].items():
        ratios = [new / old for old, new in rounds]
        lines.append([model["model"], name, *(f"{1000 * statistics.median(side):.2f}" for side in zip(*rounds)),
                      f"{100 * (statistics.median(ratios) - 1):+.1f}%",
                      f"{100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f}%"])
    return results.markdown(["model", "what", "CPU ms before", "after", "median change", "of rounds"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("-d", "--depth", type=int, default=4096)
    parser.add_argument("-n", "--new", type=int, default=96, help="decoded tokens that are timed")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plans", type=pathlib.Path, help="keeps the plans here")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/budget_speed.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.plans or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        out, prompt = work / "out.json", work / "prompt.txt"
        prompt.write_text((results.ROOT / "data/northanger_abbey.txt").read_text()[:1000])
        for model in arguments.models.split(","):
            flat, budget, moments = (work / f"{model}.{name}" for name in ("flat", "budget", "moments"))

            def run(command, *options):
                return results.run_json([arguments.binary, command, "-m", results.model_path(model), "--device", "cpu", "-t",
                                         "1", *options, "--json", out], out)

            def stored_bytes(plan):
                return results.run_json([arguments.binary, "inspect", plan, "--json", out], out)["bytes_per_token_per_head"]

            def seconds(*command):
                """CPU time of a command."""
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                run(*command)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

            def token(command, *options):
                short, long = (seconds(command, *options, "-n", n) for n in (4, 4 + arguments.new))
                return (long - short) / arguments.new

            if not flat.exists():
                run("calibrate", "-K", 3, "-V", 3, "-o", flat)
            if not budget.exists():
                run("calibrate", "--budget-bytes", stored_bytes(flat), "--no-buffer", "--tokens", 512, "--probe-tokens", 64,
                    "--probe-positions", 8, "-o", budget)
            deep = ("-p", 0, "-d", arguments.depth, "--fill", 256, "-r", 1)
            rounds = {f"a token at {arguments.depth:,}, budget": [], "a prompt of 512, budget": [],
                      "a token of generate, moments": []}
            decoded, prompts, with_moments = rounds.values()
            written = ("--plan", flat, "-f", prompt, "--temp", 0, "--ignore-eos", "-c", 1024)
            for _ in range(arguments.rounds):
                decoded.append([token("bench", "--plan", plan, "--no-buffer", *deep) for plan in (flat, budget)])
                prompts.append([seconds("bench", "--plan", plan, "--no-buffer", "-n", 0, "-p", 512, "-d", 0, "-r", 2) -
                                seconds("bench", "--plan", plan, "--no-buffer", "-n", 0, "-p", 512, "-d", 0, "-r", 1)
                                for plan in (flat, budget)])
                with_moments.append([token("generate", *written), token("generate", *written, "--moments", moments)])
                replace_model(arguments.out, {"model": model, **header(), "depth": arguments.depth,
                                              "bytes": {"flat": stored_bytes(flat), "budget": stored_bytes(budget)},
                                              "rounds": rounds})
            print(table({"model": model, "rounds": rounds}))


if __name__ == "__main__":
    main()
