#!/usr/bin/env bash
# Runs every fuzzer of fuzz/ with the address and undefined sanitizers.
#   scripts/fuzz.sh [SECONDS]   each fuzzer that long (default 60), as many at a time as there are cores
# Builds with clang into build-fuzz/. Seeds: fuzz/corpus/NAME/ where it exists; what is found grows in
# build-fuzz/corpus/NAME/. A failing input is left in build-fuzz/artifacts/ and its path printed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
esac
seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "SECONDS must be a positive whole number, not '$seconds'"
command -v clang++ > /dev/null || die "clang is missing; run scripts/install_deps.sh --dev"
cd "$repo_root"
build=$repo_root/build-fuzz
sources=(fuzz/*_fuzzer.cc)
[[ -e ${sources[0]} ]] || die "no fuzz/*_fuzzer.cc"

configure "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DBGTQ_SANITIZE=address,undefined -DBGTQ_BUILD_FUZZ=ON -DBGTQ_BUILD_TESTS=OFF
names=()
for source in "${sources[@]}"; do names+=("$(basename "$source" .cc)"); done
say "building ${names[*]}"
cmake --build "$build" -j "$jobs" --target "${names[@]}" > "$build.log" 2>&1 || {
  tail -n 40 "$build.log" >&2
  die "the build of the fuzzers failed (whole output: $build.log)"
}

# run_one NAME SECONDS BUILD: one fuzzer; its last lines, and the failing input if there is one.
run_one() {
  local name=$1 seconds=$2 build=$3 folders=("$3/corpus/$1")
  mkdir -p "${folders[0]}" "$build/artifacts"
  if [[ -d fuzz/corpus/${name%_fuzzer} ]]; then folders+=("fuzz/corpus/${name%_fuzzer}"); fi
  if "$build/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    -artifact_prefix="$build/artifacts/$name-" "${folders[@]}" > "$build/$name.log" 2>&1; then
    printf '%s: clean, %s\n' "$name" "$(grep -E '^Done [0-9]+ runs' "$build/$name.log")"
  else
    tail -n 60 "$build/$name.log"
    printf '%s: FAILED (whole output: %s)\n' "$name" "$build/$name.log"
    return 1
  fi
}
export -f run_one
say "fuzzing for $seconds s each: ${names[*]}"
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'run_one "$@"' _ {} "$seconds" "$build" ||
  die "a fuzzer failed (above)"
