#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the sources of src/ and apps/.
#   scripts/tidy.sh [FILE...]   all files, or those named
# Files that Highway compiles once per SIMD target (they include hwy/foreach_target.h) are left out unless
# named: clang-tidy would check every line as many times as there are targets, minutes a file.
# Reads the compile commands of build/ (scripts/test.sh or quickstart.sh make it; $BGTQ_BUILD names another).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
command -v clang-tidy > /dev/null || die "clang-tidy is missing; run scripts/install_deps.sh --dev"
cd "$repo_root"
build=${BGTQ_BUILD:-build}
[[ -f $build/compile_commands.json ]] || configure "$build" -DCMAKE_BUILD_TYPE=Release
files=("$@")
if ((${#files[@]} == 0)); then
  # Left out: files compiled once a SIMD target, and the one that includes cuDNN's frontend (two minutes of headers).
  mapfile -t files < <(find src apps -name '*.cc' -exec grep -L -e 'hwy/foreach_target.h' -e 'cudnn_frontend.h' {} + | sort)
fi
say "clang-tidy over ${#files[@]} files"
python3 scripts/tidy_batches.py "$build" "$jobs" "${files[@]}" >&2 || die "clang-tidy found the above"
say "clang-tidy: clean"
