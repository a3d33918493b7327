#!/usr/bin/env python3
"""Checks that the code's layers only look down, and that each header compiles alone.

  check_architecture.py includes ROOT                          the include graph and cmake/Layers.cmake
  check_architecture.py headers ROOT --compiler CXX [HEADER..] headers of include/, src/ and apps/; without names,
                                                               those that no source of their name includes first
  check_architecture.py selftest ROOT --compiler CXX           that both checks fail on planted mistakes

An include may point to a file of its own layer or to a layer of lower rank. Layers of one rank do not know
each other. docs/architecture.md says what each layer is for.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

RANKS = {
    "core": 0,
    "codec": 1,
    "formats": 2,
    "text": 3,
    "cache": 3,
    "backend": 4,
    "cpu": 5,
    "cuda": 5,
    "models": 6,
    "engine": 7,
    "eval": 8,
    "serve": 8,
    "http": 9,
    "apps": 10,
}
PUBLIC = "public"  # include/blockgtq: seen by every layer, sees only itself
# Edges that go down but are not allowed: a model is described by operations, not by one backend's kernels.
FORBIDDEN = {("models", "cpu"), ("models", "cuda")}
SOURCES = (".h", ".cc", ".cu", ".cuh", ".inc")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of(path):
    """The layer of a path relative to the root, or None for a folder that has none."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[0] == "apps":
        return "apps"
    if parts[:2] == ("include", "blockgtq") or parts[0] == "blockgtq":
        return PUBLIC
    if parts[0] == "src" and len(parts) > 2 and parts[1] in RANKS:
        return parts[1]
    return None


def edge_error(source, target):
    """Why layer `source` may not include layer `target`, or None."""
    if target == source or target == PUBLIC:
        return None
    if source == PUBLIC:
        return "a public header includes the library's inside"
    if (source, target) in FORBIDDEN:
        return f"{source} may not know {target}"
    if RANKS[target] > RANKS[source]:
        return f"{source} looks up to {target}"
    if RANKS[target] == RANKS[source]:
        return f"{source} and {target} are of one rank and may not know each other"
    return None


def files_of(root, suffixes):
    for folder in ("include", "src", "apps"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root).as_posix()


def check_includes(root):
    errors, files, edges = [], 0, 0
    for name in files_of(root, SOURCES):
        files += 1
        source = layer_of(name)
        if source is None:
            errors.append(f"{name}: its folder is no layer (RANKS in check_architecture.py lists them)")
            continue
        text = (root / name).read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            bracket, target_name = match.groups()
            where = f"{name}:{text.count(chr(10), 0, match.start(1)) + 1}"
            ours = target_name.split("/")[0] in ("src", "apps", "blockgtq")
            if bracket == "<" and not ours:
                continue
            base = "include" if target_name.startswith("blockgtq/") else "."
            if not ours or not (root / base / target_name).is_file():
                if target_name.startswith("hwy/"):
                    continue
                errors.append(f"{where}: \"{target_name}\" is no file of the project, as seen from its root")
                continue
            edges += 1
            target = layer_of(target_name)
            why = edge_error(source, target) if target else "the target is in no layer"
            if why:
                errors.append(f"{where}: includes {target_name}: {why}")
    errors += check_link_graph(root)
    if files == 0:
        errors.append(f"{root}: no sources found")
    return errors, f"{files} files, {edges} includes"


def check_link_graph(root):
    """The same rule on the DEPENDS lists of cmake/Layers.cmake."""
    errors = []
    text = (root / "cmake/Layers.cmake").read_text(encoding="utf-8")
    for match in re.finditer(r"^\s*bgtq_layer\((\w+)\s+DEPENDS\s+([^)]*)\)", text, re.MULTILINE):
        source = match.group(1)
        if source not in RANKS:
            errors.append(f"cmake/Layers.cmake: {source} is no layer")
            continue
        for target in match.group(2).split():
            why = edge_error(source, target) if target in RANKS else None
            if why:
                errors.append(f"cmake/Layers.cmake: {source} links to {target}: {why}")
    return errors


def compile_alone(root, compiler, header):
    """One line of error, or None. The header is included twice, so that a missing guard shows too."""
    name = header[len("include/"):] if header.startswith("include/") else header
    program = f'#include "{name}"\n#include "{name}"\n'
    command = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", "include", "-I", ".", "-"]
    # A program on stdin looks for quoted files in the working directory first: that must be the root.
    done = subprocess.run(command, cwd=root, input=program, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    first = next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr.strip())
    return f"{header}: does not compile alone: {first}"


def shown_by_the_build(root, header):
    """Whether a source of the same name includes the header before all else: its compilation is the check."""
    source = root / (header.removesuffix(".h") + ".cc")
    if not source.is_file() or "#pragma once" not in (root / header).read_text(encoding="utf-8"):
        return False
    first = INCLUDE.search(source.read_text(encoding="utf-8"))
    return first is not None and first.group(2) == header


def check_headers(root, compiler, headers):
    # Files named -inl.h are bodies that a kernel's source includes once a SIMD target, not interfaces.
    headers = headers or [h for h in files_of(root, (".h",))
                          if not h.endswith("-inl.h") and not shown_by_the_build(root, h)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda h: compile_alone(root, compiler, h), headers)
    errors = [r for r in results if r]
    if not headers:
        errors.append(f"{root}: no headers found")
    return errors, f"{len(headers)} headers"


def selftest(root, compiler):
    """Plants one mistake at a time in a small tree; each must be found, and the tree without them must pass."""
    good = {
        "cmake/Layers.cmake": "bgtq_layer(core DEPENDS fmt::fmt)\nbgtq_layer(codec DEPENDS core)\n",
        "include/blockgtq/status.h": "#pragma once\nstruct Status {};\n",
        "src/core/rope.h": '#pragma once\n#include "blockgtq/status.h"\nstruct Rope { Status status; };\n',
        "src/codec/plan.h": '#pragma once\n#include <vector>\n#include "src/core/rope.h"\nstruct Plan { std::vector<Rope> r; };\n',
        "src/cpu/matmul.h": '#pragma once\n#include "src/codec/plan.h"\n',
        "src/models/llama.h": '#pragma once\n#include "src/codec/plan.h"\n',
        "apps/cli/main.cc": '#include "src/models/llama.h"\n',
    }
    planted = [
        ("an upward include", "src/core/rope.h", '#pragma once\n#include "src/codec/plan.h"\n', "core looks up to codec"),
        ("an upward include in angle brackets", "src/core/rope.h", "#pragma once\n#include <src/codec/plan.h>\n",
         "core looks up to codec"),
        ("an include between layers of one rank", "src/text/a.h", '#include "src/cache/b.h"\n', "one rank"),
        ("a model that knows a backend", "src/models/llama.h", '#include "src/cpu/matmul.h"\n', "may not know cpu"),
        ("a public header that looks inside", "include/blockgtq/status.h", '#include "src/core/rope.h"\n',
         "public header"),
        ("a relative include", "src/codec/plan.h", '#include "../core/rope.h"\n', "is no file of the project"),
        ("a folder without a rank", "src/misc/a.h", "#pragma once\n", "is no layer"),
        ("an upward link", "cmake/Layers.cmake", "bgtq_layer(core DEPENDS codec)\n", "core links to codec"),
    ]
    lonely = [
        ("a header that forgot an include", "src/core/rope.h", "#pragma once\nstruct Rope { std::vector<int> v; };\n"),
        ("a header without a guard", "src/core/rope.h", "struct Rope {};\n"),
    ]

    def plant(folder, extra):
        tree = dict(good)
        if "src/text/a.h" in extra:
            tree["src/cache/b.h"] = "#pragma once\n"
        tree.update(extra)
        for name, text in tree.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return pathlib.Path(folder)

    errors = []
    with tempfile.TemporaryDirectory() as folder:
        tree = plant(folder, {})
        errors += [f"false alarm: {e}" for e in check_includes(tree)[0] + check_headers(tree, compiler, [])[0]]
    for what, name, text, expected in planted:
        with tempfile.TemporaryDirectory() as folder:
            found = check_includes(plant(folder, {name: text}))[0]
        if not any(expected in e for e in found):
            errors.append(f"not found: {what} (found instead: {found})")
    for what, name, text in lonely:
        with tempfile.TemporaryDirectory() as folder:
            if not check_headers(plant(folder, {name: text}), compiler, [name])[0]:
                errors.append(f"not found: {what}")
    return errors, f"{len(planted) + len(lonely)} planted mistakes"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("includes", "headers", "selftest"))
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("header", nargs="*")
    parser.add_argument("--compiler", default="c++")
    arguments = parser.parse_args()
    if arguments.check == "includes":
        errors, summary = check_includes(arguments.root)
    elif arguments.check == "headers":
        errors, summary = check_headers(arguments.root, arguments.compiler, arguments.header)
    else:
        errors, summary = selftest(arguments.root, arguments.compiler)
    for error in errors:
        print(error)
    print(f"{arguments.check}: {summary}, {len(errors)} error(s)")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
