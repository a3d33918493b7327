#!/usr/bin/env python3
"""Reference values of LongBench's metrics on made-up samples: writes scores.json beside itself.

  pip install rouge==1.0.1 fuzzywuzzy==0.18.0 python-Levenshtein numpy, then run once

ROUGE-L and the edit ratio are those packages'. Answer F1, classification and retrieval are defined by Python's own
str, re and list methods, which this script uses.
"""
import collections
import json
import pathlib
import random
import re
import string

import numpy as np
from fuzzywuzzy import fuzz
from rouge import Rouge


def qa_f1(prediction, truth):
    def bag(text):
        text = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    predicted, wanted = bag(prediction), bag(truth)
    same = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction, truth):
    try:
        return Rouge().get_scores([prediction], [truth], avg=True)["rouge-l"]["f"]
    except ValueError:  # an empty text
        return 0.0


def classification(prediction, truth, classes):
    named = [c for c in classes if c in prediction]
    for name in named:  # the list shrinks under the loop, which then passes over the next name
        if name in truth and name != truth:
            named.remove(name)
    return 1 / len(named) if truth in named else 0.0


def code(prediction, truth):
    lines = prediction.lstrip("\n").split("\n")
    first = next((line for line in lines if not any(sign in line for sign in ("`", "#", "//"))), "")
    return fuzz.ratio(first, truth) / 100


def retrieval(prediction, truth):
    wanted = re.search(r"Paragraph (\d+)", truth).group(1)
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


QA = [
    ("The answer is Paris.", "Paris"), ("Paris", "Paris"), ("", "Paris"), ("Paris", ""), ("a", "an"),
    ("the the the cat", "a cat cat"), ("It's O'Neill's U.S. team", "us team of ONeills"),
    ("  New\tYork\n City ", "new york"), ("ÉCOLE Normale", "école normale supérieure"),
    ("ΑΒΓ Жук STRASSE", "αβγ жук strasse"), ("theory anthem", "the ory"), ("the—theory an_an", "theory"),
    ("no\u00a0break\u3000space a\u00a0b", "no break space b"), ("yes yes yes no", "yes no no"),
    ("unanswerable", "Unanswerable."), ("thé the", "thé"), ("1,000.5 (km)", "10005 km"), ("İstanbul", "istanbul"),
]
ROUGE = [
    ("the cat sat on the mat", "the cat sat on the mat"), ("the cat sat on the mat", "a cat lay on a mat"),
    ("", "a b"), ("a b", ""), (".", "a"), (" .", "a ."), ("a. .b", " . a"),
    ("Police killed the gunman. The gunman was known.", "The gunman was killed by police. He was known."),
    ("a b c d e. f g h.", "c d. a b. h g f."), ("x y x y x", "y x y x y"), ("one two three", "four five six"),
    ("Growth was 3.5 percent. It fell.", "It fell to 3.5 percent growth"), ("b a c d", "a b d c"),
    ("word", "word word word. word"), ("p q r s. p q", "s r q p. q p"), ("a  b\n\nc", "a b\tc"),
]
CLASSES = ["Number", "some", "Number of something", "Date", "Date range", "Location", "City", "Other location",
           "Individual", "Person"]
CLASSIFICATION = [
    ("Type: Location", "Location"), ("Other location", "Other location"), ("Location or City", "City"),
    ("Number of something", "Number of something"), ("nothing", "City"), ("", "City"), ("Number", "Number of something"),
    ("Date range", "Date"), ("Date range, Number of something", "Date range"), ("Number, Date, City", "Date"),
    ("Number of something Date some", "Number of something"), ("location", "Location"),
]
CODE = [
    ("return a + b", "return a+b"), ("\n\n  x = 1\n", "  x = 1"), ("# comment\nreturn x", "return x"),
    ("```python\nfoo()\n```", "foo()"), ("// no\nint a;\n", "int b;"), ("", "x"), ("#\n#", "x"), ("\n", "y"),
    ("self.name = name", "self.names = names"), ("completely different", "x"), ("größe = länge", "groesse = laenge"),
    ("if (a == b) {", "if (a != b) {"), ("abcdefgh", "hgfedcba"), ("aab", "aba"), ("x" * 40 + "y", "x" * 39 + "z"),
    ("return foo(bar)  // done\nnext", "next"),
]
RETRIEVAL = [
    ("Paragraph 12", "Paragraph 12"), ("12", "Paragraph 12"), ("Paragraph 1", "Paragraph 12"), ("", "Paragraph 3"),
    ("Paragraphs 3, 4 and 3", "Paragraph 3"), ("012", "Paragraph 12"), ("none", "Paragraph 1"),
    ("Paragraph 7 of 30 (7)", "Paragraph 7"),
]


def made_up_sentences(seed, count):
    """Pairs of word salads that share a small vocabulary, so that common subsequences tie often."""
    rng = random.Random(seed)
    words = "alpha beta gamma delta epsilon zeta".split()

    def text():
        return ". ".join(" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 4)))

    return [(text(), text()) for _ in range(count)]


def made_up_lines(seed, count):
    rng = random.Random(seed)
    return [("".join(rng.choices("ab(c)_ =é", k=rng.randint(1, 40))), "".join(rng.choices("ab(c)_ =é", k=rng.randint(1, 40))))
            for _ in range(count)]


def rows(pairs, metric):
    return [{"prediction": p, "truth": t, "score": metric(p, t)} for p, t in pairs]


def bootstrap(seed):
    rng = np.random.default_rng(seed)
    values = [0, 1, 1, 0.25, 0.5, 1, 0, 0.75, 1, 1, 0.5, 0.1]
    means = rng.choice(values, size=(400_000, len(values))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"values": values, "mean": float(np.mean(values)), "low": float(low), "high": float(high)}


def main():
    result = {
        "qa_f1": rows(QA, qa_f1),
        "rouge_l": rows(ROUGE + made_up_sentences(1, 40), rouge_l),
        "classes": CLASSES,
        "classification": rows(CLASSIFICATION, lambda p, t: classification(p, t, CLASSES)),
        "code": rows(CODE + made_up_lines(2, 40), code),
        "retrieval": rows(RETRIEVAL, retrieval),
        "bootstrap": bootstrap(3),
    }
    path = pathlib.Path(__file__).with_name("scores.json")
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
