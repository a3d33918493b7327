#!/usr/bin/env bash
# Compiles the GPU kernels for an architecture that the build does not have, to see that they compile without spilling
# registers to memory; nothing is run. A build for both costs as much again (-DBGTQ_CUDA_ARCHITECTURES, cmake/Cuda.cmake).
#   scripts/compile_cuda.sh [ARCHITECTURE]     default: 80, whose code runs on compute capability 8.0 to 8.9
# Without nvcc nothing is done.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  -*) die "unknown option $1 (see --help)" ;;
esac
architecture=${1:-80}
if ! command -v nvcc > /dev/null; then
  say "no nvcc: the GPU kernels are not compiled"
  exit 0
fi
cd "$repo_root"

compile() {
  local log
  log=$(nvcc -std=c++20 --expt-relaxed-constexpr -Iinclude -I. -gencode "arch=compute_$1,code=sm_$1" -Xptxas -v \
    -cubin -o "$3/$(basename "$2").cubin" "$2" 2>&1) || {
    printf '%s\n' "$log" >&2
    return 1
  }
  if grep -q '[1-9][0-9]* bytes spill' <<< "$log"; then
    printf '%s: registers are spilled:\n%s\n' "$2" "$(grep -B 2 '[1-9][0-9]* bytes spill' <<< "$log")" >&2
    return 1
  fi
  printf 'sm_%s: %s\n' "$1" "$2"
}
export -f compile
cubins=$(mktemp -d)
trap 'rm -rf "$cubins"' EXIT
printf '%s\0' src/cuda/*.cu | xargs -0 -P "$jobs" -I {} bash -c 'compile "$@"' _ "$architecture" {} "$cubins"
