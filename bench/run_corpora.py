#!/usr/bin/env python3
"""What a plan is calibrated on: tokens and kind of text, scored on text of several kinds (bench/texts.py).

  bench/run_corpora.py [--models smollm2-135m,qwen2.5-coder-0.5b] [--lengths 128,512,2048] [--offsets 0,8000]

Mean KL divergence to the fp16 cache, strict, no buffer, aligned K3V3 and K2V2. Writes bench/results/corpora.json, models
that it did not run kept. With --work FOLDER a run that was stopped continues there.
"""
import argparse
import pathlib
import statistics
import tempfile

import results
import texts
from run_studies import check_whole, header, replace_model


def table(model):
    """Mean divergences, a line a kind and length of calibration text, a column a text scored."""
    scored = list(dict.fromkeys(row["scored"] for row in model["rows"]))
    lines = []
    for bits in dict.fromkeys(row["bits"] for row in model["rows"]):
        for kind in dict.fromkeys(row["calibrated_on"] for row in model["rows"]):
            for length in [*model["lengths"], None]:
                means = [statistics.mean(row["kld"] for row in model["rows"]
                                         if (row["bits"], row["calibrated_on"], row["scored"]) == (bits, kind, text)
                                         and length in (row["tokens"], None)) for text in scored]
                lines.append([model["model"], bits, kind, f"{length:,}" if length else "all",
                              *(results.number(m) for m in means), results.number(statistics.geometric_mean(means))])
    return results.markdown(["model", "bits", "calibrated on", "tokens", *scored, "geometric mean"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("--lengths", default="128,512,2048")
    parser.add_argument("--offsets", default="0,8000")
    parser.add_argument("--scored", default="novel,wikipedia,code,german")
    parser.add_argument("--chunks", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-s", "--seed", type=int, default=2, help="of the rotations")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/corpora.json")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or pathlib.Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        prose, code = texts.calibration_prose(), texts.calibration_code()
        for name, text in {"prose": prose, "code": code, "mixed": texts.calibration_mixed(prose, code),
                           "scored.code": texts.scoring_code()}.items():
            (work / f"{name}.txt").write_text(text)
        if "german" in arguments.scored.split(","):
            (work / "scored.german.txt").write_text(texts.german())
        files = {"novel": results.ROOT / "data/northanger_abbey.txt", "wikipedia": results.ROOT / "data/wikitext2_test.txt"}

        for model in arguments.models.split(","):
            rows = []
            for scored in arguments.scored.split(","):
                out = work / f"{model}.{scored}.json"
                done = results.run_json(
                    [arguments.binary, "calibrate-study", "-m", results.model_path(model), "--device", arguments.device, "-t",
                     arguments.threads, "--texts", ",".join(str(work / f"{k}.txt") for k in ("prose", "code", "mixed")),
                     "--lengths", arguments.lengths, "--offsets", arguments.offsets, "--seeds", arguments.seed,
                     "--protection", "none", "-f", files.get(scored, work / f"scored.{scored}.txt"), "-c", "512",
                     "--chunks", arguments.chunks, "--no-needle", "-o", out.with_suffix(".jsonl"), "--json", out], out)
                check_whole(done, work)
                rows += [{"scored": scored, "bits": f"K{plan['k_bits']:g}V{plan['v_bits']:g}",
                          "calibrated_on": plan["text"], "tokens": plan["tokens"], "offset": plan["offset"],
                          "kld": plan["kld_mean"]} for plan in done["plans"]]
                measured = {"model": model, "seed": arguments.seed, "chunks": arguments.chunks,
                            "lengths": [int(n) for n in arguments.lengths.split(",")], **header(arguments.device), "rows": rows}
                replace_model(arguments.out, measured)
            print(table(measured))


if __name__ == "__main__":
    main()
