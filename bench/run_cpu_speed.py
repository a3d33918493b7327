#!/usr/bin/env python3
"""Speed on the CPU: packed K3V3, our own fp16 cache and llama.cpp, taken in turn in one run.

  bench/run_cpu_speed.py [--llama-python PYTHON]

Writes bench/results/cpu_speed.json and prints a markdown table with the ratios. Each engine is measured --rounds
times, alternately, so that a change of the machine's speed meets all alike; a cell is the median of the rounds.
llama.cpp is measured by bench/llama_cpp_speed.py with the Python of --llama-python (one that has llama-cpp-python);
without it those columns are left out and the result says so.
"""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile

import results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=results.MODEL_FILES, default="smollm2-135m")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("--llama-python", default=os.environ.get("BGTQ_LLAMA_PYTHON", ""))
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--new", type=int, default=32)
    parser.add_argument("-d", "--depths", default="0,4096,7900")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/cpu_speed.json")
    arguments = parser.parse_args()
    model = results.model_path(arguments.model)
    if os.getloadavg()[0] > 0.5:
        # llama.cpp's threads spin at barriers: on a busy machine it loses far more than we do.
        print(f"load average {os.getloadavg()[0]:.1f}: other programs run, the ratios will not be fair", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "rows.json")
        plan = pathlib.Path(folder, "plan.safetensors")
        results.run_json([arguments.binary, "calibrate", "-m", model, "-t", arguments.threads, "--recipe", "aligned",
                          "-K", 3, "-V", 3, "-o", plan, "--json", out], out)
        bench = [arguments.binary, "bench", "-m", model, "-t", arguments.threads, "--json", out]
        # Prompts at depth 0 only: the deepest prompt would pass the model's context.
        tests = [["-p", arguments.prompt, "-n", 0, "-d", 0], ["-p", 0, "-n", arguments.new, "-d", arguments.depths]]
        engines = {
            "K3V3": [[*bench, "--plan", plan, *test] for test in tests],
            "fp16": [[*bench, "--recipe", "fp16", *test] for test in tests],
        }
        if arguments.llama_python:
            engines["llama.cpp f16"] = [[arguments.llama_python, results.ROOT / "bench/llama_cpp_speed.py", model,
                                         "-p", arguments.prompt, "-n", arguments.new, "-d", arguments.depths,
                                         "-t", arguments.threads, "-o", out]]
        else:
            print("no --llama-python: llama.cpp is left out", file=sys.stderr)
        result = {**results.header(), "model": model.name, "threads": arguments.threads,
                  "llama_cpp": "measured" if arguments.llama_python else "left out: no --llama-python", "rounds": []}
        for _ in range(arguments.rounds):
            result["rounds"].append({name: [results.run_json(command, out) for command in commands]
                                     for name, commands in engines.items()})

    cells = {}
    for measured in result["rounds"]:
        for name, outputs in measured.items():
            for row in (row for output in outputs for row in output["rows"]):
                speed = row.get("median_tokens_per_second", row["tokens_per_second"])  # llama_cpp_speed.py: the median
                cells.setdefault((row["test"], row["depth"]), {}).setdefault(name, []).append(speed)
    result["rows"], table = [], []
    for (test, depth), by_engine in sorted(cells.items(), key=lambda c: (not c[0][0].startswith("pp"), c[0])):
        speed = {name: statistics.median(values) for name, values in by_engine.items()}
        row = {"test": test, "depth": depth, "tokens_per_second": speed}
        for other in list(engines)[1:]:
            row[f"K3V3 / {other}"] = round(speed["K3V3"] / speed[other], 3)
        result["rows"].append(row)
        table.append([f"{test} @ d{depth}", *(f"{speed[name]:.1f}" for name in engines),
                      *(f"{speed['K3V3'] / speed[name]:.2f}x" for name in list(engines)[1:])])
    results.write(arguments.out, result)
    print(results.markdown([f"{model.name}, {arguments.threads} threads, tokens/s", *engines,
                            *(f"K3V3 / {name}" for name in list(engines)[1:])], table))


if __name__ == "__main__":
    main()
