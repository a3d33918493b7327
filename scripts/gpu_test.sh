#!/usr/bin/env bash
# Runs the GPU tests and benchmarks on this machine, and writes attention.json, latent.json, e2e.json and
# gpu_models.json.
#   scripts/gpu_test.sh [--build FOLDER] [--out FOLDER] [--sanitize] [--only tests,attention,latent,models,e2e]
# --build FOLDER  holds the programs cuda_*_test, blockgtq-bench-attention, latent_gpu_bench and blockgtq (default:
#                 build-gpu, configured and built here with nvcc when it is missing). A bare GPU machine needs no
#                 library of the project when scripts/gpu_pack.sh filled the folder elsewhere, but cuDNN 9: where the
#                 loader does not find one, PyTorch's is used
# --out FOLDER    of the result files (default: bench/results)
# --sanitize      compute-sanitizer's memcheck and racecheck on the quick cases too
# --only LIST     tests; attention: packed attention beside cuDNN; latent: attention over latents; models: real models
#                 beside the CPU, those that are in BGTQ_MODELS; e2e: shapes with random weights (numpy, 16 GB of disk, minutes)
# BGTQ_COMMIT names the commit where the tree came without its history.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build="$repo_root/build-gpu"
out="$repo_root/bench/results"
sanitize=''
only=tests,attention,latent,models,e2e
while (($#)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --sanitize) sanitize=1; shift ;;
    --only) only=${2:?--only needs a list}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
  esac
done

# wants PART: whether --only names it.
wants() { [[ ,$only, == *,$1,* ]]; }

bench=$build/blockgtq-bench-attention
latent_bench=$build/latent_gpu_bench
if [[ ! -x $bench || ! -x $latent_bench ]] || ! compgen -G "$build/cuda_*_test" > /dev/null; then
  command -v nvcc > /dev/null || die "$build has no test programs and there is no nvcc to build them"
  say "building $build"
  configure "$build" -DCMAKE_BUILD_TYPE=Release -DBGTQ_BUILD_TESTS=ON -DBGTQ_BUILD_BENCH=ON
  cmake --build "$build" -j "$jobs" --target cuda_tests blockgtq-bench-attention latent_gpu_bench blockgtq
fi

# find_library NAME: adds the folder of a library of PyTorch's packages to the loader's, unless the loader has one.
find_library() {
  local folder
  if [[ $(ldconfig -p 2> /dev/null) == *"$1"* ]]; then return; fi
  folder=$(python3 - "$1" << 'PYTHON'
import importlib.util, pathlib, sys

spec = importlib.util.find_spec("nvidia")
for root in spec.submodule_search_locations if spec else []:
    for path in pathlib.Path(root).glob("*/lib/" + sys.argv[1]):
        print(path.parent)
        sys.exit()
PYTHON
  ) || true
  if [[ $folder ]]; then export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; fi
}
find_library libcudnn.so.9
find_library libcudart.so.13
find_library libcublasLt.so.13

if [[ -d $build/lib ]]; then export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; fi

for program in "$build"/cuda_*_test; do
  wants tests || break
  say "$(basename "$program")"
  status=0
  "$program" || status=$?
  if ((status == 77)); then
    say "no GPU here: nothing was tested"
    exit 0
  fi
  ((status == 0)) || die "$(basename "$program") failed"
  if [[ $sanitize ]]; then
    # Racecheck does not see how cuDNN's kernels order their bulk copies: they are left out of it.
    say "compute-sanitizer memcheck, racecheck"
    compute-sanitizer --error-exitcode 1 --tool memcheck "$program" quick
    compute-sanitizer --error-exitcode 1 --tool racecheck --kernel-name-exclude kernel_substring=cudnn "$program" quick
  fi
done

mkdir -p "$out"
BGTQ_COMMIT=${BGTQ_COMMIT:-$(git -C "$repo_root" rev-parse HEAD 2> /dev/null || echo unknown)}
export BGTQ_COMMIT
if wants attention; then
  say "attention"
  "$bench" --commit "$BGTQ_COMMIT" --out "$out/attention.json"
fi
if wants latent; then
  say "attention over latents"
  "$latent_bench" --commit "$BGTQ_COMMIT" --out "$out/latent.json"
fi
if wants models; then
  say "real models"
  python3 "$repo_root/bench/gpu_models.py" --binary "$build/blockgtq" -o "$out/gpu_models.json"
fi
if wants e2e; then
  say "end to end"
  python3 "$repo_root/bench/gpu_e2e.py" --binary "$build/blockgtq" -o "$out/e2e.json"
fi
say "results are in $out"
