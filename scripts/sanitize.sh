#!/usr/bin/env bash
# Runs the tests under sanitizers.
#   scripts/sanitize.sh [address] [all] [thread]   default: address and thread, what CI runs
# address  address and undefined (build-asan/) over the layers that read untrusted bytes and keep the books: core,
#          codec, formats, text, cache
# all      the same over the whole suite; the kernels take long to compile. Of the real models only SmolLM2-135M is
#          shown to the tests, since the larger ones take longer and run the same code
# thread   data races, over the tests of the thread pool (build-tsan/)
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
cd "$repo_root"

# build FOLDER SANITIZERS TARGET...
build() {
  local folder=$repo_root/$1 sanitizers=$2
  shift 2
  # -g1: line numbers in reports, without the link times of full debug information.
  configure "$folder" -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_FLAGS_SANITIZE="-O1 -g1" \
    -DCMAKE_CXX_FLAGS_SANITIZE="-O1 -g1" -DBGTQ_SANITIZE="$sanitizers"
  cmake --build "$folder" -j "$jobs" --target "$@" > "$folder.log" 2>&1 || {
    tail -n 40 "$folder.log" >&2
    die "the build in $folder failed (whole output: $folder.log)"
  }
}

# run_address BUILD_TARGETS... -- CTEST_OPTIONS...
run_address() {
  local targets=()
  while [[ $1 != -- ]]; do
    targets+=("$1")
    shift
  done
  shift
  say "address and undefined sanitizers: building build-asan/"
  build build-asan address,undefined "${targets[@]}"
  local model=SmolLM2-135M-Instruct.Q4_1.gguf
  mkdir -p build-asan/models
  if [[ -f $BGTQ_MODELS/$model ]]; then ln -sf "$BGTQ_MODELS/$model" build-asan/models/; fi
  BGTQ_MODELS=$PWD/build-asan/models ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1 \
    UBSAN_OPTIONS=print_stacktrace=1 ctest --test-dir build-asan -j "$jobs" --output-on-failure --timeout 900 "$@"
}

address() {
  run_address core_tests codec_tests formats_tests text_tests cache_tests -- -L '^(core|codec|formats|text|cache)$'
}

all() { run_address all -- -LE architecture; }

thread() {
  say "thread sanitizer: building build-tsan/"
  build build-tsan thread core_tests
  TSAN_OPTIONS=halt_on_error=1 \
    ctest --test-dir build-tsan -j "$jobs" --output-on-failure --timeout 900 -R ThreadPool
}

(($# > 0)) || set -- address thread
for kind in "$@"; do
  case $kind in
    address | all | thread) "$kind" ;;
    *) die "unknown sanitizer $kind (see --help)" ;;
  esac
done
