#!/usr/bin/env bash
# Runs the GPU tests and the attention benchmark on this machine, and writes bench/results/attention.json.
#   scripts/gpu_test.sh [--build FOLDER] [--out FILE] [--sanitize]
# FOLDER holds the programs cuda_*_test and blockgtq-bench-attention (default: build-gpu, configured and built here
# with nvcc when it is missing). A bare GPU machine needs no library of the project if they were built elsewhere, but
# cuDNN 9: where the loader does not find one, PyTorch's is used. --sanitize adds compute-sanitizer's memcheck and
# racecheck on the quick cases. BGTQ_COMMIT names the commit where the tree came without its history.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build="$repo_root/build-gpu"
out="$repo_root/bench/results/attention.json"
sanitize=
while (($#)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a file}; shift 2 ;;
    --sanitize) sanitize=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $1 (see --help)" ;;
  esac
done

bench=$build/blockgtq-bench-attention
if [[ ! -x $bench ]] || ! compgen -G "$build/cuda_*_test" > /dev/null; then
  command -v nvcc > /dev/null || die "$build has no test programs and there is no nvcc to build them"
  say "building $build"
  configure "$build" -DCMAKE_BUILD_TYPE=Release -DBGTQ_BUILD_TESTS=ON -DBGTQ_BUILD_BENCH=ON
  cmake --build "$build" -j "$jobs" --target cuda_tests blockgtq-bench-attention
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

for program in "$build"/cuda_*_test; do
  say "$(basename "$program")"
  status=0
  "$program" || status=$?
  if ((status == 77)); then
    say "no GPU here: nothing was tested"
    exit 0
  fi
  ((status == 0)) || die "$(basename "$program") failed"
  if [[ $sanitize ]]; then
    for tool in memcheck racecheck; do
      say "compute-sanitizer $tool"
      compute-sanitizer --error-exitcode 1 --tool "$tool" "$program" quick
    done
  fi
done

say "benchmark"
commit=${BGTQ_COMMIT:-$(git -C "$repo_root" rev-parse HEAD 2> /dev/null || echo unknown)}
"$bench" --commit "$commit" --out "$out"
say "wrote $out"
