#!/usr/bin/env bash
# Builds (Release, build/) and runs every test that this machine can run, then says what was skipped and why.
#   scripts/test.sh [CTEST OPTIONS]   e.g. scripts/test.sh -R Tokenizer
# Tests on a real model need SmolLM2-135M (93 MB, fetched once; see scripts/fetch_models.sh). Without network
# they are skipped, and the summary says so. Tests on the Qwen2.5-Coder models run where those are fetched.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
cd "$repo_root"
scripts/install_deps.sh

say "building build/"
configure build -DCMAKE_BUILD_TYPE=Release -DBGTQ_BUILD_TESTS=ON
cmake --build build -j "$jobs" > build.log 2>&1 || {
  tail -n 40 build.log >&2
  die "the build failed (whole output: build.log)"
}
notes=()
if ! scripts/fetch_models.sh smollm2-135m > /dev/null; then
  notes+=("SmolLM2-135M could not be fetched (its message is above): tests on it are skipped")
fi
for name in qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do
  [[ -f $BGTQ_MODELS/$name.gguf ]] ||
    notes+=("$name is not in $BGTQ_MODELS: tests on it are skipped (scripts/fetch_models.sh $name)")
done

say "testing"
status=0
ctest --test-dir build -j "$jobs" --output-on-failure --timeout 900 --output-junit "$repo_root/build/tests.xml" \
  "$@" || status=$?

say "skipped"
for note in "${notes[@]}"; do printf '  %s\n' "$note"; done
python3 - build/tests.xml << 'PYTHON'
import collections, re, sys
import xml.etree.ElementTree as tree

reasons = collections.defaultdict(list)
total = 0
for case in tree.parse(sys.argv[1]).getroot().iter("testcase"):
    total += 1
    if case.find("skipped") is None:
        continue
    output = case.findtext("system-out") or ""
    said = re.search(r": Skipped\n(.*)", output)
    reasons[said.group(1).strip() if said else case.find("skipped").get("message", "no reason given")].append(
        case.get("name"))
for reason, names in sorted(reasons.items()):
    print(f"  {len(names)} test(s): {reason} ({names[0]}{', ...' if len(names) > 1 else ''})")
print(f"  in all {sum(map(len, reasons.values()))} of {total} tests")
PYTHON
exit "$status"
