#!/usr/bin/env python3
"""Writes src/text/nfc_data.cc, the tables of Unicode's canonical composition, from Python's unicodedata.

  python3 scripts/make_nfc_data.py && clang-format -i src/text/nfc_data.cc
"""
import pathlib
import sys
import unicodedata


def main():
    hangul = range(0xAC00, 0xD7A4)
    decompositions, compositions, classes = [], [], []
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        combining = unicodedata.combining(char)
        if combining:
            if classes and classes[-1][1] == code - 1 and classes[-1][2] == combining:
                classes[-1][1] = code
            else:
                classes.append([code, code, combining])
        mapping = unicodedata.decomposition(char)
        if not mapping or mapping.startswith("<") or code in hangul:
            continue
        parts = [int(p, 16) for p in mapping.split()] + [0]
        decompositions.append((code, parts[0], parts[1]))
        if parts[1] and unicodedata.normalize("NFC", char) == char:  # not a composition exclusion
            compositions.append((parts[0], parts[1], code))
    compositions.sort()

    def table(kind, name, rows):
        body = ", ".join("{" + ", ".join(f"0x{v:X}" if v > 9 else str(v) for v in row) + "}" for row in rows)
        return f"const {kind} {name}[] = {{{body}}};\nconst size_t {name}Count = {len(rows)};\n\n"

    text = f"// Canonical decompositions, compositions and combining classes of Unicode {unicodedata.unidata_version}.\n"
    text += "// Written by scripts/make_nfc_data.py.\n#include \"src/text/nfc_data.h\"\n\nnamespace blockgtq {\n\n"
    text += table("NfcDecomposition", "kNfcDecompositions", decompositions)
    text += table("NfcComposition", "kNfcCompositions", compositions)
    text += table("NfcClassRange", "kNfcClasses", classes)
    text += "}  // namespace blockgtq\n"
    path = pathlib.Path(__file__).resolve().parent.parent / "src/text/nfc_data.cc"
    path.write_text(text)
    print(f"{path}: {len(decompositions)} decompositions, {len(compositions)} compositions, {len(classes)} ranges")


if __name__ == "__main__":
    main()
