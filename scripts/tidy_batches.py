#!/usr/bin/env python3
"""clang-tidy over many sources, several in one go: most of its time goes to the headers, which a batch reads once.

  tidy_batches.py BUILD JOBS FILE...      from the repository's root; BUILD has compile_commands.json

Files of one folder with equal compiler flags are included together by a file of their own. Where they do not compile
together (two have a helper of one name), each half goes by itself. Prints the findings; status 1 where there is one.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

BATCH = 5
NOISE = re.compile(r"^(\d+ warnings?|Suppressed|Use -header-filter)")


def flags_of(entry):
    """What of a compile command decides how a source reads: language level, folders and definitions."""
    words = entry.get("arguments") or shlex.split(entry["command"])
    flags, i = [], 0
    while i < len(words):
        if words[i] in ("-isystem", "-include", "-I", "-D"):
            flags += words[i:i + 2]
            i += 1
        elif words[i].startswith(("-I", "-D", "-std=", "-f", "-W")):
            flags.append(words[i])
        i += 1
    return tuple(flags)


def tidy(command, flags):
    """The findings, as text; and whether it did not compile."""
    done = subprocess.run(["clang-tidy", "--quiet", "--warnings-as-errors=*", *command, "--", *flags],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return "", False
    text = "\n".join(line for line in done.stdout.splitlines() if not NOISE.match(line)) + "\n"
    return text, "clang-diagnostic-error" in text


def run_batch(files, flags, folder):
    if len(files) == 1:
        return tidy(files, flags)[0]
    descriptor, path = tempfile.mkstemp(suffix=".cc", dir=folder)
    with os.fdopen(descriptor, "w") as out:
        for file in files:
            out.write(f'#include "{pathlib.Path(file).resolve()}"  // NOLINT(bugprone-suspicious-include)\n')
    text, broken = tidy([f"--config-file={pathlib.Path('.clang-tidy').resolve()}", path], flags)
    if not broken:
        return text
    half = len(files) // 2
    return run_batch(files[:half], flags, folder) + run_batch(files[half:], flags, folder)


def main():
    build, jobs, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with open(os.path.join(build, "compile_commands.json")) as file:
        entries = {os.path.realpath(os.path.join(e["directory"], e["file"])): e for e in json.load(file)}
    groups = {}
    for file in files:
        entry = entries.get(os.path.realpath(file))
        flags = flags_of(entry) if entry else ("-std=c++20", "-I.", "-Iinclude")
        groups.setdefault((os.path.dirname(file), flags), []).append(file)
    batches = []
    for (_, flags), members in groups.items():
        count = -(-len(members) // BATCH)
        batches += [(members[i::count], flags) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        findings = [text for text in pool.map(lambda batch: run_batch(*batch, folder), batches) if text]
    for text in findings:
        print(text, end="")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
