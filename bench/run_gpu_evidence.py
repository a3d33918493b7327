#!/usr/bin/env python3
"""The studies of docs/results.md that want a GPU, within a time limit: caches by depth to 16K, needles to 16K; and how
long a budget's calibration takes there.

  bench/run_gpu_evidence.py --binary BLOCKGTQ --models FOLDER -o FOLDER [--weights FILE] [--seconds 200]
  bench/run_gpu_evidence.py --merge FOLDER

Runs bench/run_studies.py: depth (aligned at K3V3 and K2V2 over two texts), then needle (fp16, aligned), each until it
is done or its time is up, and then, in what time is left, calibrate with a budget of --budget bytes. uniform is left
out: its fp16 norms are not for GPUs. The folder gets depth.json, needle.json, plots, and evidence.json: what was done,
what was left out, in how many seconds. What a step had finished when its time was up counts for the next run with the same folder. --weights: the
model's file where it is not the one of bench/results.py. --merge puts depth.json and needle.json into bench/results/, the
plots into docs/images/, and makes docs/results.md again.
"""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import readme_tables
import results
import run_studies

DEPTH_SHARE = 0.55  # of the seconds, at most
STOP_SECONDS = 15   # that a command has to stop in when it is asked to


def run_until(command, environment, log, seconds):
    """Runs a command, asks it to stop after so many seconds; returns its exit status, None where it was stopped."""
    with open(log, "ab") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, env=environment,
                                   start_new_session=True)
        try:
            return process.wait(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
        end = time.monotonic() + STOP_SECONDS
        try:  # until the last of its processes is gone: the device is then free for the next step
            while time.monotonic() < end:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        return None


def model_folder(arguments):
    """Where the studies look for the model: the folder named, or one that shows --weights under the model's name."""
    if arguments.weights is None:
        return arguments.models
    folder = pathlib.Path(tempfile.gettempdir()) / "blockgtq-evidence"  # plans are kept here too, for the next run
    folder.mkdir(exist_ok=True)
    link = folder / results.MODEL_FILES[arguments.model]
    link.unlink(missing_ok=True)
    link.symlink_to((arguments.models / arguments.weights).resolve())
    return folder


def steps(arguments):
    """(name, share of the seconds that it may use, arguments of run_studies.py)"""
    return [
        ("depth", DEPTH_SHARE, ["--runs", "aligned", "--depths", arguments.depths, "--texts", arguments.texts, "--span",
                                arguments.span]),
        ("needle", 1, ["--caches", arguments.caches, "--tasks", arguments.tasks, "--lengths", arguments.lengths, "--depths",
                       arguments.needle_depths, "--trials", arguments.trials]),
    ]


def budget(arguments, environment, model, seconds):
    """What `calibrate --budget-bytes` says of itself, from no probes on."""
    plan, told = arguments.out / "budget.bgtq.safetensors", arguments.out / "budget.json"
    for path in [told, *arguments.out.glob(f"{plan.name}*")]:
        path.unlink(missing_ok=True)
    status = run_until([arguments.binary.resolve(), "calibrate", "-m", model, "--device", arguments.device, "-t",
                        arguments.threads, "--budget-bytes", arguments.budget, "--no-buffer", "-o", plan, "--json", told],
                       environment, arguments.out / "budget.log", seconds)
    if status != 0:
        return {"outcome": "time was up" if status is None else f"exit status {status}"}
    made = json.loads(told.read_text())
    return {"outcome": "done", **{key: made[key] for key in ("seconds", "bytes_per_token_per_head", "k_bits", "v_bits",
                                                             "budget")}}


def measure(arguments):
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder = model_folder(arguments)
    environment = {**os.environ, "BGTQ_MODELS": str(folder)}
    begin = time.monotonic()
    report = {"device": arguments.device, "seconds_allowed": arguments.seconds, "steps": []}
    for name, share, options in steps(arguments):
        step = time.monotonic()
        left = arguments.seconds * share - (step - begin) - STOP_SECONDS
        status = run_until(
            [sys.executable, results.ROOT / "bench/run_studies.py", name, "--models", arguments.model, "--binary",
             arguments.binary.resolve(), "--device", arguments.device, "-t", arguments.threads, "--work",
             arguments.out / "work", "-o", arguments.out / f"{name}.json", *options],
            environment, arguments.out / f"{name}.log", left)
        outcome = "done" if status == 0 else ("time was up" if status is None else f"exit status {status}")
        report["steps"].append({"step": name, "outcome": outcome, "seconds": round(time.monotonic() - step, 1)})
        note_weights(arguments, arguments.out / f"{name}.json")
        results.write(arguments.out / "evidence.json", report)
        print(f"{name}: {outcome}, {report['steps'][-1]['seconds']} s; log in {arguments.out / f'{name}.log'}", flush=True)
    left = arguments.seconds - STOP_SECONDS - (time.monotonic() - begin)
    if left > 0:
        report["budget"] = budget(arguments, environment, folder / results.MODEL_FILES[arguments.model], left)
        print(f"budget: {report['budget']}")
        results.write(arguments.out / "evidence.json", report)
    if not any(step["outcome"] == "done" for step in report["steps"]):
        sys.exit("no study was finished")


def note_weights(arguments, path):
    """Names other weights, and the command that this was a part of, in a result file."""
    if not path.exists():
        return
    result = json.loads(path.read_text())
    for model in result["models"]:
        if arguments.weights is not None:
            model["weights"] = pathlib.Path(arguments.weights).name
        model["within"] = shlex.join(["bench/run_gpu_evidence.py", "--seconds", f"{arguments.seconds:g}"])
    results.write(path, result)


def merge(folder):
    for study in ("depth", "needle"):
        path = folder / f"{study}.json"
        if not path.exists():
            print(f"{study}: nothing to merge", file=sys.stderr)
            continue
        for model in json.loads(path.read_text())["models"]:
            run_studies.replace_model(results.ROOT / f"bench/results/{study}.json", model)
            print(f"{study}: {model['model']}", file=sys.stderr)
    for plot in folder.glob("*.svg"):
        shutil.copyfile(plot, run_studies.PLOTS / plot.name)
    readme_tables.main()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("--models", type=pathlib.Path, default=results.MODELS, help="folder of model files")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", choices=results.MODEL_FILES)
    parser.add_argument("--weights", help="its file in that folder, where it has another name or type")
    parser.add_argument("-o", "--out", type=pathlib.Path)
    parser.add_argument("--merge", type=pathlib.Path, help="put this folder's results into the project")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--depths", default="256,1024,4096,8192,16384")
    parser.add_argument("--texts", default="2")
    parser.add_argument("--span", default="64")
    parser.add_argument("--caches", default="fp16,aligned K3V3,aligned K2V2")
    parser.add_argument("--tasks", default="single,multikey,vartrack")
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--needle-depths", default="0,50,100")
    parser.add_argument("--trials", default="2")
    parser.add_argument("--budget", default="51.85", help="stored bytes a token a head (51.85: those of K3V3 at D = 64)")
    arguments = parser.parse_args()
    if arguments.merge is not None:
        merge(arguments.merge)
    elif arguments.out is None:
        parser.error("name a folder with -o, or one to --merge")
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
