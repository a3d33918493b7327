#!/usr/bin/env python3
"""Real models on the GPU beside the CPU: the same quality and the same greedy text.

  bench/gpu_models.py --binary build/blockgtq [--models smollm2-135m,...]

Writes bench/results/gpu_models.json: for each model and cache, mean KLD and perplexity of both devices from one plan
(strict, float activations), and how far greedy texts agree. Models that are not in the cache folder are left out, and
said so.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import results

SETTINGS = {
    "K3V3, no buffer": (3, ["--no-buffer"]),
    "K3V3": (3, []),
    "K2V2": (2, []),
    "K4V4, no buffer": (4, ["--no-buffer"]),
}
PROMPTS = ["Explain in three sentences why the sky is blue.", "Write a Python function that reverses a list."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=results.ROOT / "build/blockgtq")
    parser.add_argument("--models", default=",".join(results.MODEL_FILES), help="names, or files that end in .gguf")
    parser.add_argument("--text", type=pathlib.Path, default=results.ROOT / "data/wikitext2_test.txt")
    parser.add_argument("--chunks", type=int, default=2, help="windows of 768 tokens")
    parser.add_argument("--no-chat", action="store_true", help="prompts as they are: for models without a chat template")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only these caches")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=results.ROOT / "bench/results/gpu_models.json")
    arguments = parser.parse_args()
    result = {**results.header(), "rows": []}
    if os.environ.get("BGTQ_COMMIT"):
        result["commit"] = os.environ["BGTQ_COMMIT"]
    table = []
    for name in arguments.models.split(","):
        model = pathlib.Path(name) if name.endswith(".gguf") else results.MODELS / results.MODEL_FILES[name]
        name = model.stem if name.endswith(".gguf") else name
        if not model.is_file():
            print(f"{name} is left out: {model.name} is not in {model.parent}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            for setting in arguments.setting or SETTINGS:
                bits, flags = SETTINGS[setting]
                plan = pathlib.Path(folder, f"{bits}.safetensors")
                if not plan.exists():
                    results.run_json([arguments.binary, "calibrate", "-m", model, "--device", "cpu", "-K", bits, "-V", bits,
                                      "-o", plan, "--json", out], out)
                row = {"model": name, "setting": setting, "windows": arguments.chunks}
                for device in ("cpu", "cuda"):
                    scored = results.run_json(
                        [arguments.binary, "perplexity", "-m", model, "--device", device, "--plan", plan, *flags, "-f",
                         arguments.text, "-c", 768, "--chunks", arguments.chunks, "--score", "all", "--kld", "--strict",
                         "--json", out], out)
                    row[device] = {k: scored[k] for k in ("ppl", "ppl_fp16", "kld_mean", "top1")}
                row["kld_ratio"] = round(row["cuda"]["kld_mean"] / row["cpu"]["kld_mean"], 4)
                result["rows"].append(row)
                table.append([name, setting, *(f"{row[d]['kld_mean']:.5f}" for d in ("cpu", "cuda")), row["kld_ratio"],
                              *(f"{row[d]['ppl']:.4f}" for d in ("cpu", "cuda"))])
            for prompt in PROMPTS:
                texts = {}
                for device in ("cpu", "cuda"):
                    ran = results.run_json(
                        [arguments.binary, "generate", "-m", model, "--device", device, "--plan",
                         pathlib.Path(folder, "3.safetensors"), "--activations", "float", "-p", prompt,
                         "--no-chat" if arguments.no_chat else "--chat", "-n", 128,
                         "--temp", 0, "--json", out], out)
                    texts[device] = ran["text"]
                same = os.path.commonprefix(list(texts.values()))
                result["rows"].append({"model": name, "prompt": prompt, **texts, "same_characters": len(same),
                                       "equal": texts["cpu"] == texts["cuda"]})
                print(f"{name}: {prompt!r}: {'equal' if texts['cpu'] == texts['cuda'] else f'equal for {len(same)} characters'}"
                      f" of {len(texts['cpu'])}", file=sys.stderr)
    results.write(arguments.out, result)
    print(results.markdown(["model", "cache", "KLD, CPU", "KLD, GPU", "ratio", "PPL, CPU", "PPL, GPU"], table))


if __name__ == "__main__":
    main()
