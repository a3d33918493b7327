#!/usr/bin/env bash
# Formats the C++ sources with clang-format (.clang-format).
#   scripts/format.sh           rewrites files
#   scripts/format.sh --check   changes nothing; fails and names the files that would change
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  "") mode=(-i) ;;
  --check) mode=(--dry-run --Werror) ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) die "unknown option $1 (see --help)" ;;
esac
command -v clang-format > /dev/null || die "clang-format is missing; run scripts/install_deps.sh --dev"
cd "$repo_root"
folders=()
for folder in include src apps tests fuzz bench; do [[ ! -d $folder ]] || folders+=("$folder"); done
find "${folders[@]}" \( -name '*.h' -o -name '*.cc' \) -print0 | xargs -0 -P "$jobs" -n 8 clang-format "${mode[@]}"
