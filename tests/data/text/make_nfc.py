"""Writes nfc.json: texts and their Normalization Form C by Python's unicodedata. Standard library only."""
import json
import pathlib
import random
import sys
import unicodedata


def main():
    rng = random.Random(5)
    assigned = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    decomposable = [c for c in assigned if unicodedata.normalize("NFD", c) != c]
    marks = [c for c in assigned if unicodedata.combining(c)]
    letters = list("aeiouAEIOUsSqQ\u0391\u0399\u0915\u09a1\u1100\u1161\u11a8\u304b\u05d0")
    cases = []
    for _ in range(500):
        text = "".join(rng.choice(rng.choice([decomposable, marks, letters, letters, assigned]))
                       for _ in range(rng.randint(1, 8)))
        cases.append(text if rng.random() < 0.5 else unicodedata.normalize("NFD", text))
    cases += [unicodedata.normalize("NFD", "".join(decomposable[i:i + 60])) for i in range(0, len(decomposable), 600)]
    rows = [[text, unicodedata.normalize("NFC", text)] for text in cases]
    out = {"unicode": unicodedata.unidata_version, "cases": rows}
    pathlib.Path(__file__).with_name("nfc.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
