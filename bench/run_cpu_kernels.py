#!/usr/bin/env python3
"""The CPU kernels alone: attention from codes beside a plain read of the same bytes, encoding, matrix products.

  bench/run_cpu_kernels.py [--build FOLDER]

FOLDER holds attention_cpu_bench and matmul_cpu_bench (configure with -DBGTQ_BUILD_BENCH=ON). Writes
bench/results/cpu_kernels.json: a row a benchmark, the median of the repetitions, times in nanoseconds.
"""
import argparse
import pathlib
import tempfile

import results

PROGRAMS = {
    "attention_cpu_bench": ".",
    # Products of whole layers, and two shapes beside OpenBLAS.
    "matmul_cpu_bench": "model/|shape/.*/(1536x576|8960x1536)x(1|512)/",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/cpu_kernels.json")
    arguments = parser.parse_args()
    result = {**results.header(), "repetitions": arguments.repetitions, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "rows.json")
        for program, chosen in PROGRAMS.items():
            measured = results.run_json(
                [arguments.build / program, f"--benchmark_filter={chosen}", f"--benchmark_out={out}",
                 "--benchmark_out_format=json", f"--benchmark_repetitions={arguments.repetitions}",
                 "--benchmark_report_aggregates_only=true", "--benchmark_min_time=0.2"], out)
            known = {"name", "run_name", "run_type", "family_index", "per_family_instance_index", "threads",
                     "repetitions", "iterations", "aggregate_name", "aggregate_unit", "time_unit", "cpu_time"}
            scale = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}
            for row in measured["benchmarks"]:
                if row["aggregate_name"] != "median":
                    continue
                nanoseconds = row["real_time"] * scale[row["time_unit"]]
                result["rows"].append({"program": program, "name": row["run_name"], "ns": round(nanoseconds, 1),
                                       **{k: v for k, v in row.items() if k not in known and k != "real_time"}})
    results.write(arguments.out, result)
    for row in result["rows"]:
        extra = ", ".join(f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float) and k != "ns")
        print(f"{row['name']:<40} {row['ns']:>14.0f} ns  {extra}")


if __name__ == "__main__":
    main()
