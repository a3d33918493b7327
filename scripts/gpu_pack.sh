#!/usr/bin/env bash
# Gathers what a GPU machine without the project's libraries needs to run scripts/gpu_test.sh: stripped programs, and
# the shared libraries that they link to.
#   scripts/gpu_pack.sh [--build FOLDER] TARGET_FOLDER
# FOLDER: a finished build with tests and benchmarks (default: build-gpu). There: scripts/gpu_test.sh --build
# TARGET_FOLDER
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build="$repo_root/build-gpu"
target=
while (($#)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $1 (see --help)" ;;
    *) target=$1; shift ;;
  esac
done
[[ $target ]] || die "give the folder to fill (see --help)"

mkdir -p "$target/lib"
for program in "$build"/blockgtq "$build"/blockgtq-bench-attention "$build"/latent_gpu_bench "$build"/cuda_*_test; do
  [[ -x $program ]] ||
    die "$program is missing: build blockgtq, blockgtq-bench-attention, latent_gpu_bench and cuda_tests first"
  strip -o "$target/$(basename "$program")" "$program"
done
# Every machine has the C and C++ libraries; the others may be missing.
ldd "$build/blockgtq" | awk '$3 ~ "^/" && $1 !~ /^(libc|libm|libstdc\+\+|libgcc_s|ld-linux.*|libpthread|libdl|librt)\.so/ { print $3 }' |
  while read -r library; do cp -L "$library" "$target/lib/"; done
du -sh "$target"
