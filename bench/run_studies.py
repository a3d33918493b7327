#!/usr/bin/env python3
"""The studies of docs/results.md: keys alone, caches by depth, what the choice of calibration text changes, needles.

  bench/run_studies.py diagnose [--models smollm2-135m,...]
  bench/run_studies.py predicted [--models smollm2-135m,...]
  bench/run_studies.py depth [--models smollm2-135m,...] [--depths 256,1024,4096,8192] [--texts 1]
  bench/run_studies.py calibration [--model smollm2-135m] [--corpora NAME=FILE,...]
  bench/run_studies.py needle [--models qwen2.5-coder-0.5b,...] [--lengths 1024,4096,16384] [--device cuda]

Each writes bench/results/STUDY.json, models that it did not run kept, and plots to docs/images; with -o FILE into FILE
and beside it. With --work FOLDER a run that was stopped continues there. Depth: WikiText-2 test, strict, aligned with no buffer, sinks and the default
window, and baselines with no buffer and the window. Calibration: WikiText-2 train, Northanger Abbey and blockgtq's own
sources unless --corpora names others.
"""
import argparse
import json
import pathlib
import shlex
import tempfile

import results

PLOTS = results.ROOT / "docs/images"
ALL_RECIPES = "aligned,paper,uniform,kivi,kivi-scale-only,q4_0,q8_0,fp8,turboquant-3bit,turboquant-4bit"
EQUAL_RECIPES = "aligned,paper,uniform,kivi"  # those with budgets to choose from
NEEDLE_CACHES = {"fp16": ["--recipe", "fp16"],
                 **{f"{recipe} K{k}V{v}": ["--recipe", recipe, "-K", k, "-V", v]
                    for recipe in ("aligned", "uniform", "kivi-scale-only") for k, v in ((3, 3), (2, 2))},
                 "q4_0": ["--recipe", "q4_0"]}
# Arguments of one depth-study each.
DEPTH_RUNS = {
    "aligned": ["--recipes", "aligned", "-K", "3,2", "-V", "3,2", "--protection", "none,sinks,window"],
    "uniform": ["--recipes", "uniform", "-K", "3,2", "-V", "3,2", "--protection", "none,window"],
    "baselines": ["--recipes", "uniform,q4_0", "-K", "3", "-V", "3", "--protection", "none,window"],
}


def source_text(path):
    """blockgtq's own sources as one text, in the order of their names."""
    files = sorted(f for folder in ("src/core", "src/codec", "src/formats", "src/text", "src/cache")
                   for f in (results.ROOT / folder).glob("*.cc"))
    path.write_bytes(b"\n".join(f.read_bytes() for f in files))
    return path


def header(device="cpu"):
    """As results.header(), the command without where this machine keeps things; on a GPU, its name as well."""
    kept, arguments = [], iter(shlex.split(results.header()["command"]))
    for argument in arguments:
        if argument in ("--binary", "--work", "-o", "--out"):
            next(arguments)
        else:
            kept.append(argument)
    gpu = {"gpu": results.gpu()} if device.startswith("cuda") else {}
    return {**results.header(), "command": shlex.join(kept), **gpu}


def write_models(arguments, study, measured):
    """Adds a model to the study's file; it names the run that measured it."""
    replace_model(arguments.out or results.ROOT / f"bench/results/{study}.json", {**measured, **header(arguments.device)})


def replace_model(path, measured):
    """Puts a model into a study's file, in place of what that had of it."""
    before = json.loads(path.read_text())["models"] if path.exists() else []
    kept = [model for model in before if model["model"] != measured["model"]]
    order = list(results.MODEL_FILES)
    results.write(path, {"models": sorted([*kept, measured], key=lambda m: order.index(m["model"]))})


def common(arguments, command, model):
    return [arguments.binary, command, "-m", results.model_path(model), "--device", arguments.device, "-t",
            arguments.threads]


def diagnose(arguments, work):
    for model in arguments.models.split(","):
        rows, wins = [], []
        for equal in (False, True):
            out = work / f"diagnose.{model}.{equal}.json"
            done = results.run_json(
                [*common(arguments, "diagnose", model), "-f", results.ROOT / "data/wikitext2_test.txt", "--calibration",
                 results.ROOT / "data/wikitext2_train.txt", "--recipes", EQUAL_RECIPES if equal else arguments.recipes,
                 "-K", arguments.bits, *(["--equal-bytes"] if equal else []), "-s", arguments.seed, "--plot",
                 work / f"plots.{model}.{equal}", "--json", out], out)
            for recipe, widths in done["mae_mean"].items():
                rows += [{"recipe": recipe, "k_bits": float(bits), "equal_bytes": equal,
                          "simulated": done["simulated"][recipe],
                          **{key: done[key][recipe][bits] for key in
                             ("k_bytes_per_token_per_head", "mae_mean", "kl_mean", "overlap_mean")}} for bits in widths]
            wins += [{**win, "equal_bytes": equal} for win in done["wins"]]
        copy_plots(arguments, work / f"plots.{model}.False", f"diagnose-{model}-",
                   ("kl.svg", "fingerprint-aligned-K3.svg", "fingerprint-paper-K3.svg"))
        write_models(arguments, "diagnose", {"model": model, "seed": int(arguments.seed), "rows": rows, "wins": wins})


def predicted(arguments, work):
    """Logit errors of aligned by layer, as calibration predicts them and as another text measures them."""
    for model in arguments.models.split(","):
        out = work / f"predicted.{model}.json"
        done = results.run_json(
            [*common(arguments, "diagnose", model), "-f", results.ROOT / "data/wikitext2_test.txt", "--calibration",
             results.ROOT / "data/wikitext2_train.txt", "--recipes", "aligned", "-K", arguments.bits, "--tokens",
             arguments.tokens, "-s", arguments.seed, "--plot", work / f"plots.{model}", "--json", out], out)
        copy_plots(arguments, work / f"plots.{model}", f"diagnose-{model}-", ("predicted.svg",))
        layers = {bits: [{key: layer[key]["aligned"][bits] for key in ("logit_rms", "predicted_logit_rms")}
                         for layer in done["per_layer"]] for bits in arguments.bits.split(",")}
        write_models(arguments, "predicted", {"model": model, "seed": int(arguments.seed), "tokens": int(arguments.tokens),
                                              "layers": layers})


def depth(arguments, work):
    for model in arguments.models.split(","):
        rows, settings = [], {}
        for name in arguments.runs.split(","):
            out = work / f"depth.{model}.{name}.json"
            done = results.run_json(
                [*common(arguments, "depth-study", model), "-f", results.ROOT / "data/wikitext2_test.txt", "-s",
                 arguments.seed, "--depths", arguments.depths, "--span", arguments.span, "--texts", arguments.texts,
                 *DEPTH_RUNS[name], *(["--no-attention"] if arguments.no_attention else []), "-o",
                 out.with_suffix(".jsonl"), "--plot", work / f"plots.{model}.{name}", "--json", out], out)
            check_whole(done, work)
            rows += [{key: row[key] for key in row if key != "attention_error_per_layer"} for row in done["rows"]]
            settings = {key: done[key] for key in ("depths", "span", "texts", "mode", "activations", "device")}
            if name == "aligned":
                copy_plots(arguments, work / f"plots.{model}.{name}", f"depth-{model}-",
                           ("kld-by-depth.svg", "attention-by-layer.svg"))
            write_models(arguments, "depth", {"model": model, "seed": int(arguments.seed), **settings, "rows": rows})


def needle(arguments, work):
    for model in arguments.models.split(","):
        rows = []
        for name, cache in NEEDLE_CACHES.items():
            if arguments.caches and name not in arguments.caches.split(","):
                continue
            out = work / f"needle.{model}.{name.replace(' ', '-')}.json"
            done = results.run_json(
                [*common(arguments, "needle", model), *cache, "--lengths", arguments.lengths, "--depths",
                 arguments.depths, "--trials", arguments.trials, "--tasks", arguments.tasks, *([] if arguments.chat else ["--no-chat"]),
                 *(["--strict"] if arguments.strict else []), "-o", out.with_suffix(".jsonl"), "--json", out], out)
            check_whole(done, work)
            rows.append({"cache": name,
                         **{key: done[key] for key in ("average", "average_ci_low", "average_ci_high", "samples",
                                                       "bytes_per_token_per_head", "simulated", "mode")},
                         "by_length": {str(length): mean_of_cells(done["tasks"], length)
                                       for length in map(int, arguments.lengths.split(","))}})
            write_models(arguments, "needle",
                         {"model": model, **{key: getattr(arguments, key) for key in ("tasks", "lengths", "depths", "device")},
                          "trials": int(arguments.trials), "rows": rows})


def mean_of_cells(tasks, length):
    """Every task counts alike, as in the command's own table."""
    means = [[cell["score"] for cell in task["cells"] if cell["length"] == length] for task in tasks.values()]
    return sum(sum(scores) / len(scores) for scores in means) / len(means)


def check_whole(done, work):
    if done["stopped"]:
        raise SystemExit(f"stopped; run again with --work {work} to continue")


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
    asked = {"--texts": ",".join(map(str, texts)), "--lengths": arguments.lengths, "--offsets": arguments.offsets,
             "--seeds": arguments.seeds, "-K": "3,2", "-V": "3,2", "--protection": arguments.protection,
             "-f": results.ROOT / "data/wikitext2_test.txt", "--chunks": arguments.chunks,
             "--needle-tasks": arguments.needle_tasks, "--needle-lengths": arguments.needle_lengths,
             "--needle-depths": arguments.needle_depths, "--trials": arguments.trials, "-o": out.with_suffix(".jsonl"),
             "--plot": work / "plots.calibration", "--json": out}
    done = results.run_json([*common(arguments, "calibrate-study", arguments.model), *sum(map(list, asked.items()), [])], out)
    check_whole(done, work)
    copy_plots(arguments, work / "plots.calibration", f"calibration-{arguments.model}-", ("kld-by-tokens.svg",))
    results.write(arguments.out or results.ROOT / "bench/results/calibration.json",
                  {**done, **header(), "model_name": arguments.model})


def copy_plots(arguments, folder, prefix, names):
    """Those that the page of results shows; a run without attention's errors has no plot of them."""
    to = arguments.out.parent if arguments.out else PLOTS
    for name in names:
        if (folder / name).exists():
            (to / (prefix + name)).write_bytes((folder / name).read_bytes())


STUDIES = {"diagnose": diagnose, "predicted": predicted, "depth": depth, "calibration": calibration, "needle": needle}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="study", required=True)
    of_diagnose, of_predicted, of_depth, of_calibration, of_needle = map(commands.add_parser, STUDIES)
    for each in (of_diagnose, of_predicted, of_depth, of_calibration, of_needle):
        each.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
        each.add_argument("--device", default="cpu")
        each.add_argument("-t", "--threads", type=int, default=2)
        each.add_argument("--work", type=pathlib.Path, help="keep unfinished results here and continue from them")
        each.add_argument("-o", "--out", type=pathlib.Path)
    of_diagnose.add_argument("--models", default="smollm2-135m")
    of_diagnose.add_argument("--recipes", default=ALL_RECIPES)
    of_diagnose.add_argument("-K", "--bits", default="2,3,4")
    of_diagnose.add_argument("-s", "--seed", default="2", help="of the rotations")
    of_predicted.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    of_predicted.add_argument("--tokens", default="2048")
    of_predicted.add_argument("-K", "--bits", default="2,3,4")
    of_predicted.add_argument("-s", "--seed", default="2", help="of the rotations")
    of_depth.add_argument("--models", default="smollm2-135m")
    of_depth.add_argument("--runs", default="aligned,baselines", help="some of: " + ", ".join(DEPTH_RUNS))
    of_depth.add_argument("--depths", default="256,1024,4096,8192")
    of_depth.add_argument("--span", default="64")
    of_depth.add_argument("--texts", default="1")
    of_depth.add_argument("--no-attention", action="store_true", help="logits alone")
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
    of_needle.add_argument("--models", default="qwen2.5-coder-0.5b")
    of_needle.add_argument("--caches", help="some of: " + ", ".join(NEEDLE_CACHES))
    of_needle.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    of_needle.add_argument("--depths", default="0,25,50,75,100")
    of_needle.add_argument("--tasks", default="single,distractor,multi,multikey,multivalue,multiquery,vartrack")
    of_needle.add_argument("--trials", default="3")
    of_needle.add_argument("--strict", action="store_true")
    of_needle.add_argument("--chat", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = arguments.work or pathlib.Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        STUDIES[arguments.study](arguments, work)


if __name__ == "__main__":
    main()
