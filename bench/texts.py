"""Texts of several kinds for studies of calibration: what plans are made from, and what they are scored on. No text of
one list is in the other.

Calibration: prose (WikiText-2 train), code (blockgtq's server, command line, page and scripts), mixed (the two in turn).
Scoring: novel (Northanger Abbey), wikipedia (WikiText-2 test), code (blockgtq's lower layers). German prose is Debian's
FAQ (package debian-faq-de), which is downloaded, not bundled.
"""
import html.parser
import pathlib
import re
import subprocess
import tempfile

import results

ROOT = results.ROOT
CODE_FOLDERS = (("src/http", "*.cc"), ("src/serve", "*.cc"), ("apps/cli", "*.cc"), ("src/http/page", "*.js"),
                ("bench", "run_*.py"), ("scripts", "*.sh"))
PIECE = 500  # bytes of one kind in a mixed text, about: a probe's window of 256 tokens then sees both
PROSE_BYTES = 80_000


def calibration_prose():
    return (ROOT / "data/wikitext2_train.txt").read_text()


def calibration_code():
    """Files of each folder in turn, so that the beginning of the text has all of them."""
    lists = [sorted((ROOT / folder).glob(pattern)) for folder, pattern in CODE_FOLDERS]
    files = [files[i] for i in range(max(map(len, lists))) for files in lists if i < len(files)]
    return "\n".join(file.read_text() for file in files)


def pieces(text, size):
    """Whole lines, `size` bytes or a little more each."""
    piece = ""
    for line in text.splitlines(keepends=True):
        piece += line
        if len(piece) >= size:
            yield piece
            piece = ""
    if piece:
        yield piece


def calibration_mixed(prose, code):
    """Pieces of the two in turn, as long as both last. Prose comes in long lines, which are cut at sentences."""
    sentences = re.sub(r"(?<= \. )(?=[A-Z])", "\n", prose)
    joined = (piece.replace(" . \n", " . ") for piece in pieces(sentences, PIECE))
    return "".join(p.rstrip("\n") + "\n" + c.rstrip("\n") + "\n" for p, c in zip(joined, pieces(code, PIECE)))


def scoring_code():
    """As in bench/run_studies.py: blockgtq's own sources, in the order of their names."""
    files = sorted(f for folder in ("src/core", "src/codec", "src/formats", "src/text", "src/cache")
                   for f in (ROOT / folder).glob("*.cc"))
    return "\n".join(f.read_text() for f in files)


class Paragraphs(html.parser.HTMLParser):
    """The text of <p> elements, a line each."""

    def __init__(self):
        super().__init__()
        self.inside, self.words, self.lines = False, [], []

    def handle_starttag(self, tag, attrs):
        if tag == "p":
            self.inside, self.words = True, []

    def handle_endtag(self, tag):
        if tag == "p" and self.inside:
            self.inside = False
            line = " ".join("".join(self.words).split())
            if len(line) > 80:
                self.lines.append(line)

    def handle_data(self, data):
        if self.inside:
            self.words.append(data)


def german():
    """Paragraphs of Debian's FAQ in German."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-q", "debian-faq-de"], cwd=folder, check=True, capture_output=True)
        package = next(pathlib.Path(folder).glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
        parser = Paragraphs()
        for page in sorted(pathlib.Path(folder).glob("usr/share/doc/debian/FAQ/de/*.html")):
            parser.feed(page.read_text())
    return "\n".join(parser.lines) + "\n"
