#!/usr/bin/env bash
# From a fresh Debian 12 to text generated from a packed KV cache, in one command.
#   scripts/quickstart.sh ["PROMPT"]
# Installs the packages that are missing (root or sudo), builds a Release binary in build/, downloads
# SmolLM2-135M-Instruct, calibrates a 3-bit plan, answers PROMPT, and prints a short table. Can be run again:
# it uses what is there.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
prompt=${1:-"Explain in three sentences why the sky is blue."}
cd "$repo_root"
scripts/install_deps.sh

say "building build/blockgtq"
configure build -DCMAKE_BUILD_TYPE=Release
cmake --build build -j "$jobs" --target blockgtq > build.log 2>&1 || {
  tail -n 40 build.log >&2
  die "the build failed (whole output: build.log)"
}
model=$(scripts/fetch_models.sh smollm2-135m)
plan=$model.K3V3.bgtq.safetensors  # where later runs look for it
out=build/quickstart
mkdir -p "$out"

say "calibrating (bundled text)"
build/blockgtq calibrate -m "$model" -t "$jobs" --recipe aligned -K 3 -V 3 -o "$plan" --json "$out/calibrate.json"

say "answering from the packed cache"
build/blockgtq generate -m "$model" -t "$jobs" --plan "$plan" -p "$prompt" -n 128 --chat --temp 0 \
  --json "$out/generate.json"
echo

say "scoring the packed cache against an fp16 one (a minute or less)"
build/blockgtq inspect "$model" --json "$out/model.json" > /dev/null
build/blockgtq perplexity -m "$model" -t "$jobs" --plan "$plan" -f data/wikitext2_test.txt -c 512 --chunks 4 \
  --strict --kld --json "$out/score.json" > /dev/null

python3 - "$out" << 'PYTHON'
import json, pathlib, sys

def load(name):
    return json.loads(pathlib.Path(sys.argv[1], name + ".json").read_text())

plan, run, model, score = map(load, ("calibrate", "generate", "model", "score"))
heads = model["layers"] * model["kv_heads"]
half = 4 * model["head_dim"] * heads
codes = plan["bytes_per_token_per_head"] * heads
rows = [
    ("SmolLM2-135M-Instruct", "fp16 cache", "packed K3V3 cache"),
    ("KV bytes a token, all layers", f"{half:,}", f"{codes:,.0f} ({half / codes:.1f}x less)"),
    ("perplexity, WikiText-2 test, 4 x 512", f"{score['ppl_fp16']:.2f}", f"{score['ppl']:.2f}"),
    ("mean KL divergence to the fp16 cache", "0", f"{score['kld_mean']:.4f}"),
    ("same most likely token", "100%", f"{100 * score['top1']:.1f}%"),
    ("prompt, tokens a second", "", f"{1e3 * run['prompt_tokens'] / run['prompt_ms']:.0f}"),
    ("answer, tokens a second", "", f"{1e3 * run['decoded'] / run['decode_ms']:.0f}"),
]
widths = [max(len(row[i]) for row in rows) for i in range(3)]
print()
for row in rows:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
print("\nCodes hold every token but the first 4 and the last 64 to 128, which stay in fp16 (the default; scored"
      "\nstrictly: every position as if decoded).")
PYTHON
