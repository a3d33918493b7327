#!/usr/bin/env bash
# Installs the Debian packages that a build needs, those that are missing only.
#   scripts/install_deps.sh         compiler, CMake, the libraries, Python (for downloads and two tests)
#   scripts/install_deps.sh --dev   also clang (fuzzers), clang-format, clang-tidy, shellcheck, the ARM cross compiler
# docs/dependencies.md says what each is for.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates
  libhwy-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libxxhash-dev libcli11-dev
  libgtest-dev libgmock-dev libbenchmark-dev python3 python3-pip)
case "${1:-}" in
  "") ;;
  --dev) packages+=(clang clang-format clang-tidy libclang-rt-14-dev shellcheck g++-aarch64-linux-gnu) ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) die "unknown option $1 (see --help)" ;;
esac

command -v dpkg-query > /dev/null || die "this is not a Debian system; install by hand: ${packages[*]}"
missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${Status}' "$package" 2> /dev/null || true)
  [[ $state == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "packages: all ${#packages[@]} there"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo > /dev/null || die "not root and no sudo; as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
say "packages: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  tail -n 20 "$log" >&2
  die "apt-get failed (above); wanted: ${missing[*]}"
fi
