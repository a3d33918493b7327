# Shared by the scripts of this folder: where things are, and how they speak. Sourced, not run.
# shellcheck shell=bash
repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export BGTQ_MODELS="${BGTQ_MODELS:-${HOME}/.cache/blockgtq/models}"
export jobs
jobs=$(nproc)

say() { printf '== %s\n' "$*" >&2; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
# Prints the comment block at the head of the calling script: its --help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }
# configure FOLDER [CMAKE OPTIONS]: configures a build folder. CMake reuses what is there; the generator can
# only be chosen for a new folder.
configure() {
  local folder=$1
  shift
  local generator=()
  if [[ ! -f $folder/CMakeCache.txt ]] && command -v ninja > /dev/null; then generator=(-G Ninja); fi
  cmake -S "$repo_root" -B "$folder" "${generator[@]}" "$@" > "$folder.configure.log" 2>&1 ||
    {
      tail -n 20 "$folder.configure.log" >&2
      die "cmake failed in $folder (whole output: $folder.configure.log)"
    }
}
