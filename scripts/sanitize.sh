#!/usr/bin/env bash
# Runs the tests under sanitizers.
#   scripts/sanitize.sh [address] [server] [all] [thread] [threads]   default: address and thread, what CI runs
# address  address and undefined (build-asan/) over the layers that read untrusted bytes and keep the books: core,
#          codec, formats, text, cache
# server   the same over the scheduler, the HTTP server and its faults: the kernels are compiled too, which takes minutes.
#          HttpFaults fails there in test_out_of_descriptors: the check of vptr opens a pipe, and none is left
# all      the same over the whole suite. Of the real models only SmolLM2-135M is shown to the tests, since the larger
#          ones take longer and run the same code
# thread   data races, over the tests of the thread pool (build-tsan/)
# threads  the same over the thread pool, the scheduler and the HTTP server
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
cd "$repo_root"

# The scheduler's and the server's tests; the page's are those of its browser.
server_targets=(serve_tests http_tests blockgtq)
server_tests=(-L '^(serve|http)$' -E '^HttpPage$')

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

server() { run_address "${server_targets[@]}" -- "${server_tests[@]}"; }

all() { run_address all -- -LE architecture; }

# run_thread CTEST_OPTIONS...
run_thread() {
  TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build-tsan -j "$jobs" --output-on-failure --timeout 900 "$@"
}

thread() {
  say "thread sanitizer: building build-tsan/"
  build build-tsan thread core_tests
  run_thread -R ThreadPool
}

threads() {
  thread
  build build-tsan thread "${server_targets[@]}"
  run_thread "${server_tests[@]}"
}

(($# > 0)) || set -- address thread
for kind in "$@"; do
  case $kind in
    address | server | all | thread | threads) "$kind" ;;
    *) die "unknown sanitizer $kind (see --help)" ;;
  esac
done
