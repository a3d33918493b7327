#!/usr/bin/env python3
"""The studies of docs/results.md: caches by depth, and what the choice of calibration text changes.

  bench/run_studies.py depth [--models smollm2-135m,...] [--depths 256,1024,4096,8192] [--texts 1]
  bench/run_studies.py calibration [--model smollm2-135m] [--corpora NAME=FILE,...]

Writes bench/results/depth.json or calibration.json and their plots to docs/images. With --work FOLDER a run that was
stopped continues there. Depth: WikiText-2 test, strict, aligned with no buffer, sinks and the default window, and
baselines with no buffer and the window. Calibration: WikiText-2 train, Northanger Abbey and blockgtq's own sources
unless --corpora names others.
"""
import argparse
import pathlib
import shlex
import tempfile

import results

PLOTS = results.ROOT / "docs/images"
# Arguments of one depth-study each.
DEPTH_RUNS = {
    "aligned": ["--recipes", "aligned", "-K", "3,2", "-V", "3,2", "--protection", "none,sinks,window"],
    "baselines": ["--recipes", "uniform,q4_0", "-K", "3", "-V", "3", "--protection", "none,window"],
}


def source_text(path):
    """blockgtq's own sources as one text, in the order of their names."""
    files = sorted(f for folder in ("src/core", "src/codec", "src/formats", "src/text", "src/cache")
                   for f in (results.ROOT / folder).glob("*.cc"))
    path.write_bytes(b"\n".join(f.read_bytes() for f in files))
    return path


def header():
    """As results.header(), the command without where this machine keeps things."""
    kept, arguments = [], iter(shlex.split(results.header()["command"]))
    for argument in arguments:
        if argument in ("--binary", "--work", "-o", "--out"):
            next(arguments)
        else:
            kept.append(argument)
    return {**results.header(), "command": shlex.join(kept)}


def depth(arguments, work):
    result = {**header(), "seed": arguments.seed, "models": []}
    for model in arguments.models.split(","):
        rows, settings = [], {}
        for name in arguments.runs.split(","):
            out = work / f"depth.{model}.{name}.json"
            done = results.run_json(
                [arguments.binary, "depth-study", "-m", results.model_path(model), "--device", arguments.device, "-t",
                 arguments.threads, "-f", results.ROOT / "data/wikitext2_test.txt", "-s", arguments.seed, "--depths",
                 arguments.depths, "--span", arguments.span, "--texts", arguments.texts, *DEPTH_RUNS[name],
                 *(["--no-attention"] if arguments.no_attention else []), "-o", out.with_suffix(".jsonl"), "--plot",
                 work / f"plots.{model}.{name}", "--json", out], out)
            if done["stopped"]:
                raise SystemExit(f"stopped; run again with --work {work} to continue")
            rows += [{key: row[key] for key in row if key != "attention_error_per_layer"} for row in done["rows"]]
            settings = {key: done[key] for key in ("depths", "span", "texts", "mode", "activations", "device")}
            if name == "aligned":
                copy_plots(work / f"plots.{model}.{name}", f"depth-{model}-")
        result["models"].append({"model": model, **settings, "rows": rows})
        results.write(arguments.out or results.ROOT / "bench/results/depth.json", result)


def calibration(arguments, work):
    corpora = {"wikitext2_train": results.ROOT / "data/wikitext2_train.txt",
               "northanger_abbey": results.ROOT / "data/northanger_abbey.txt", "code": None}
    if arguments.corpora:
        corpora = dict(item.split("=", 1) for item in arguments.corpora.split(","))
    texts = []
    for name, file in corpora.items():
        path = work / f"{name}.txt"
        if file is None:
            texts.append(source_text(path))
        else:
            path.write_bytes(pathlib.Path(file).read_bytes())
            texts.append(path)
    out = work / f"calibration.{arguments.model}.json"
    needle = ["--needle-tasks", arguments.needle_tasks, "--needle-lengths", arguments.needle_lengths, "--needle-depths",
              arguments.needle_depths, "--trials", arguments.trials]
    done = results.run_json(
        [arguments.binary, "calibrate-study", "-m", results.model_path(arguments.model), "--device", arguments.device, "-t",
         arguments.threads, "--texts", ",".join(map(str, texts)), "--lengths", arguments.lengths, "--offsets",
         arguments.offsets, "--seeds", arguments.seeds, "-K", "3,2", "-V", "3,2", "--protection", arguments.protection, "-f",
         results.ROOT / "data/wikitext2_test.txt", "--chunks", arguments.chunks, *needle, "-o", out.with_suffix(".jsonl"),
         "--plot", work / "plots.calibration", "--json", out], out)
    if done["stopped"]:
        raise SystemExit(f"stopped; run again with --work {work} to continue")
    copy_plots(work / "plots.calibration", f"calibration-{arguments.model}-")
    results.write(arguments.out or results.ROOT / "bench/results/calibration.json",
                  {**header(), "model_name": arguments.model, **done})


def copy_plots(folder, prefix):
    PLOTS.mkdir(parents=True, exist_ok=True)
    for plot in sorted(folder.glob("*.svg")):
        (PLOTS / (prefix + plot.name)).write_bytes(plot.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="study", required=True)
    of_depth, of_calibration = commands.add_parser("depth"), commands.add_parser("calibration")
    for each in (of_depth, of_calibration):
        each.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
        each.add_argument("--device", default="cpu")
        each.add_argument("-t", "--threads", type=int, default=2)
        each.add_argument("--work", type=pathlib.Path, help="keep unfinished results here and continue from them")
        each.add_argument("-o", "--out", type=pathlib.Path)
    of_depth.add_argument("--models", default="smollm2-135m")
    of_depth.add_argument("--runs", default=",".join(DEPTH_RUNS))
    of_depth.add_argument("--depths", default="256,1024,4096,8192")
    of_depth.add_argument("--span", default="64")
    of_depth.add_argument("--texts", default="1")
    of_depth.add_argument("--no-attention", action="store_true", help="for GPUs, which have no probes")
    of_depth.add_argument("-s", "--seed", default="2", help="of the rotations")
    of_calibration.add_argument("--model", default="smollm2-135m")
    of_calibration.add_argument("--corpora", help="NAME=FILE,...")
    of_calibration.add_argument("--lengths", default="128,512,2048")
    of_calibration.add_argument("--offsets", default="0,10000,20000")
    of_calibration.add_argument("--seeds", default="2")
    of_calibration.add_argument("--protection", default="none")
    of_calibration.add_argument("--chunks", default="4")
    of_calibration.add_argument("--needle-tasks", default="single,multikey,multivalue,vartrack")
    of_calibration.add_argument("--needle-lengths", default="1024")
    of_calibration.add_argument("--needle-depths", default="0,50,100")
    of_calibration.add_argument("--trials", default="2")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        {"depth": depth, "calibration": calibration}[arguments.study](arguments, work)


if __name__ == "__main__":
    main()
