#!/usr/bin/env bash
# Runs the GPU tests and the attention benchmark on this machine, and writes bench/results/attention.json.
#   scripts/gpu_test.sh [--build FOLDER] [--out FILE] [--sanitize]
# FOLDER holds the programs cuda_*_test and attention_gpu_bench (default: build-gpu, configured and built here with
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

if [[ ! -x $build/attention_gpu_bench ]] || ! compgen -G "$build/cuda_*_test" > /dev/null; then
  command -v nvcc > /dev/null || die "$build has no test programs and there is no nvcc to build them"
  say "building $build"
  configure "$build" -DCMAKE_BUILD_TYPE=Release -DBGTQ_BUILD_TESTS=ON -DBGTQ_BUILD_BENCH=ON
  cmake --build "$build" -j "$jobs" --target cuda_tests attention_gpu_bench
fi

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
python3 "$repo_root/bench/attention_gpu.py" --bench "$build/attention_gpu_bench" --out "$out"
say "wrote $out"
