#!/usr/bin/env python3
"""What drift is worth: the default plan against one adapted to running moments, on text of the kind that was run.

  bench/run_drift.py [--models smollm2-135m,qwen2.5-coder-0.5b] [--kinds code,novel,german,chat] [--seeds 2,3]

Of each kind (bench/texts.py) the first --tokens are run with `generate --moments`; `inspect` tells the drift of the
default plan, `calibrate --adapt` makes a new one, and both are scored on later text of the kind: mean KL divergence to
the fp16 cache, strict, no buffer. Chat: the model's own answers (greedy, fp16 cache) to the questions below, some for the
moments, in the model's template, the others scored as plain text. Writes bench/results/drift.json, models that it did
not run kept.
"""
import argparse
import pathlib
import statistics
import tempfile

import results
import texts
from run_studies import header, replace_model

QUESTIONS = [
    "Why is the sky blue?", "Give me three tips for sleeping better.", "How do I boil an egg?",
    "What is the difference between a list and a tuple in Python?", "Write a short poem about autumn.",
    "Explain photosynthesis to a child.", "My laptop does not start. What should I check?",
    "Suggest a name for a bakery.", "What happened in 1969?", "How can I learn to play the guitar?",
    "Write a polite email that asks for a day off.", "What is a good way to save money every month?",
    "Tell me a story about a dragon who is afraid of fire.", "How does a refrigerator work?",
    "Plan a weekend in a city by the sea.", "What should I cook with rice, eggs and spinach?",
]
SCORED_QUESTIONS = 6  # the last ones


def parts(text, run_tokens):
    """The beginning, which is run, and what is scored: far enough behind it for any tokenizer."""
    cut = text.index("\n", 6 * run_tokens)
    return text[:cut], text[cut + 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-coder-0.5b")
    parser.add_argument("--kinds", default="code,novel,german,chat")
    parser.add_argument("--bits", default="3,2")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--answer-tokens", type=int, default=192)
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--seeds", default="2,3", help="of the rotations")
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/drift.json")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    sources = {"code": texts.calibration_code, "german": texts.german,
               "novel": lambda: (results.ROOT / "data/northanger_abbey.txt").read_text()}

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        out, prompt, scored, plan = (work / name for name in ("out.json", "prompt.txt", "scored.txt", "default"))
        for model in arguments.models.split(","):
            def run(command, *options):
                return results.run_json([arguments.binary, command, *options, "--json", out], out)

            def generate(*options):
                return run("generate", "-m", results.model_path(model), "--device", arguments.device, "-t", arguments.threads,
                           "--temp", "0", "--recipe", "fp16", *options)

            def gather(kind, moments):
                """Runs text of the kind with moments; leaves other text of it to be scored."""
                if kind != "chat":
                    first, later = parts(sources[kind](), arguments.tokens)
                    prompt.write_text(first[:3 * arguments.tokens])
                    scored.write_text(later)
                    generate("-f", prompt, "-b", str(arguments.tokens), "-n", "1", "--moments", moments)
                    return
                lines = []
                for question in QUESTIONS[:-SCORED_QUESTIONS]:
                    generate("--chat", "-p", question, "-n", str(arguments.answer_tokens), "--moments", moments)
                for question in QUESTIONS[-SCORED_QUESTIONS:]:
                    answer = generate("--chat", "-p", question, "-n", str(arguments.answer_tokens))["text"]
                    lines.append(f"User: {question}\nAssistant: {answer.strip()}\n")
                scored.write_text("\n".join(lines))

            def kld(of_plan):
                return run("perplexity", "-m", results.model_path(model), "--device", arguments.device, "-t", arguments.threads,
                           "--plan", of_plan, "--no-buffer", "-f", scored, "-c", "512", "--chunks", arguments.chunks,
                           "--score", "all", "--kld", "--strict")["kld_mean"]

            rows = []
            for kind in kinds:
                moments = work / f"{model}.{kind}.moments"
                gather(kind, moments)
                for bits in arguments.bits.split(","):
                    for seed in arguments.seeds.split(","):
                        run("calibrate", "-m", results.model_path(model), "--device", arguments.device, "-K", bits, "-V", bits,
                            "-s", seed, "-o", plan)
                        made = run("calibrate", "-m", results.model_path(model), "--device", arguments.device, "--adapt", moments,
                                   "--plan", plan, "-o", work / "adapted")
                        rows.append({"kind": kind, "bits": f"K{bits}V{bits}", "seed": int(seed),
                                     "moments_tokens": made["calibration_tokens"], "drift": made["drift"]["mean"],
                                     "drift_worst": made["drift"]["worst"], "kld_default": kld(plan),
                                     "kld_adapted": kld(work / "adapted")})
            measured = {"model": model, "chunks": arguments.chunks, "tokens": arguments.tokens, **header(arguments.device), "rows": rows}
            replace_model(arguments.out, measured)
            print(table(measured))


def table(model):
    lines = []
    for kind, bits in dict.fromkeys((row["kind"], row["bits"]) for row in model["rows"]):
        rows = [row for row in model["rows"] if (row["kind"], row["bits"]) == (kind, bits)]
        was, now = (statistics.mean(row[key] for row in rows) for key in ("kld_default", "kld_adapted"))
        lines.append([model["model"], kind, bits, rows[0]["moments_tokens"],
                      f"{statistics.geometric_mean(row['drift'] for row in rows):.2f}",
                      f"{max(row['drift_worst'] for row in rows):.1f}", results.number(was), results.number(now),
                      f"{100 * (now / was - 1):+.0f}%"])
    return results.markdown(["model", "text", "bits", "tokens looked at", "drift", "worst head", "KLD default",
                             "KLD adapted", "change"], lines)


if __name__ == "__main__":
    main()
