#!/usr/bin/env bash
# Compiles the CPU kernels for 64-bit ARM (NEON) with a cross compiler, to see that they compile; nothing is run.
#   scripts/compile_neon.sh     needs g++-aarch64-linux-gnu (scripts/install_deps.sh --dev)
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
cd "$repo_root"
compiler=aarch64-linux-gnu-g++
command -v "$compiler" > /dev/null || die "$compiler is missing; run scripts/install_deps.sh --dev"
# The header-only parts of host libraries: their own folders, not the host's C library headers.
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
ln -s /usr/include/hwy /usr/include/fmt "$headers/"

compile() {
  "$1" -std=c++20 -O1 -fsyntax-only -DFMT_HEADER_ONLY -Iinclude -I. -isystem "$2" "$3" && printf 'NEON: %s\n' "$3"
}
export -f compile
printf '%s\n' src/cpu/*.cc | xargs -P "$jobs" -I{} bash -c 'compile "$@"' _ "$compiler" "$headers" {}
