#!/usr/bin/env bash
# Runs the GPU tests and the attention benchmark on this machine, and writes bench/results/attention.json.
#   scripts/gpu_test.sh [--build FOLDER] [--out FILE] [--sanitize]
# FOLDER holds decode_attention_test and attention_gpu_bench (default: build-gpu, configured and built here with
# nvcc when it is missing). A bare GPU machine needs no library of the project if they were built elsewhere; the
# benchmark needs a python3 with PyTorch for cuDNN's times. --sanitize adds compute-sanitizer's memcheck and
# racecheck on the quick cases.
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

if [[ ! -x $build/decode_attention_test || ! -x $build/attention_gpu_bench ]]; then
  command -v nvcc > /dev/null || die "$build has no test programs and there is no nvcc to build them"
  say "building $build"
  configure "$build" -DCMAKE_BUILD_TYPE=Release -DBGTQ_BUILD_TESTS=ON -DBGTQ_BUILD_BENCH=ON
  cmake --build "$build" -j "$jobs" --target decode_attention_test attention_gpu_bench
fi

say "tests"
status=0
"$build/decode_attention_test" || status=$?
if ((status == 77)); then
  say "no GPU here: nothing was tested"
  exit 0
fi
((status == 0)) || die "the GPU tests failed"
if [[ $sanitize ]]; then
  for tool in memcheck racecheck; do
    say "compute-sanitizer $tool"
    compute-sanitizer --error-exitcode 1 --tool "$tool" "$build/decode_attention_test" quick
  done
fi

say "benchmark"
python3 "$repo_root/bench/attention_gpu.py" --bench "$build/attention_gpu_bench" --out "$out"
say "wrote $out"
