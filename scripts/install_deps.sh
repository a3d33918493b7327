#!/usr/bin/env bash
# Installs the Debian packages that a build needs, those that are missing only.
#   scripts/install_deps.sh         compiler, CMake, the libraries, Python (for downloads and two tests)
#   scripts/install_deps.sh --dev   also clang (fuzzers), clang-format, clang-tidy, shellcheck, the ARM cross compiler,
#                                   Chromium and, from PyPI into ~/.cache/blockgtq/test-env, what the server's tests use
# Where there is a CUDA compiler, also the headers of cudnn-frontend (from PyPI, into ~/.cache/blockgtq/cudnn-frontend,
# where CMake looks). docs/dependencies.md says what each is for.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates
  libhwy-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libxxhash-dev libcli11-dev
  libboost-dev libgtest-dev libgmock-dev libbenchmark-dev python3 python3-pip)
dev=no
case "${1:-}" in
  "") ;;
  --dev)
    dev=yes
    packages+=(clang clang-format clang-tidy libclang-rt-14-dev shellcheck g++-aarch64-linux-gnu
      chromium chromium-driver python3-venv)
    ;;
  -h | --help)
    usage
    exit 0
    ;;
  *) die "unknown option $1 (see --help)" ;;
esac

# The wheel's headers alone: nothing of it is imported or run, and its Python dependencies are not needed.
cudnn_frontend_version=1.32.0
install_cudnn_frontend() {
  local target=$HOME/.cache/blockgtq/cudnn-frontend work
  if ! command -v nvcc > /dev/null || [[ $(cat "$target/version" 2> /dev/null) == "$cudnn_frontend_version" ]]; then
    return
  fi
  say "cudnn-frontend $cudnn_frontend_version: headers into $target"
  mkdir -p "$(dirname "$target")"
  work=$(mktemp -d "$target.XXXXXX")
  python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    -d "$work" "nvidia-cudnn-frontend==$cudnn_frontend_version" >&2 || {
    rm -r "$work"
    say "pip could not download nvidia-cudnn-frontend==$cudnn_frontend_version (its message is above): builds leave" \
      "the GPU kernels out"
    return
  }
  python3 - "$work" << 'PYTHON'
import glob, sys, zipfile

(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(sys.argv[1], [m for m in archive.namelist() if m.startswith("include/")])
PYTHON
  rm -- "$work"/*.whl
  echo "$cudnn_frontend_version" > "$work/version"
  rm -rf -- "$target"
  mv "$work" "$target"
}

# OpenAI's client and selenium, for tests/http; a build folder takes them when it is configured.
test_packages=(openai==3.57.0 selenium==4.51.0)
install_test_env() {
  local target=$HOME/.cache/blockgtq/test-env log
  if [[ $dev == no || $(cat "$target/packages" 2> /dev/null) == "${test_packages[*]}" ]]; then return; fi
  say "test environment: ${test_packages[*]} into $target"
  rm -rf -- "$target"
  log=$(mktemp)
  if python3 -m venv "$target" > "$log" 2>&1 && "$target/bin/pip" install --quiet --disable-pip-version-check \
    --only-binary=:all: "${test_packages[@]}" >> "$log" 2>&1; then
    echo "${test_packages[*]}" > "$target/packages"
  else
    tail -n 5 "$log" >&2
    rm -rf -- "$target"
    say "pip could not install ${test_packages[*]} (its message is above): the tests that use them are skipped"
  fi
  rm -f -- "$log"
}

command -v dpkg-query > /dev/null || die "this is not a Debian system; install by hand: ${packages[*]}"
missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${Status}' "$package" 2> /dev/null || true)
  [[ $state == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  say "packages: all ${#packages[@]} there"
  install_cudnn_frontend
  install_test_env
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
install_cudnn_frontend
install_test_env
