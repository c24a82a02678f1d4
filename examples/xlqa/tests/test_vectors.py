"""``vectors.py``: what it learns, what it writes, and what it refuses."""

import gzip
import lzma
import random
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.language_modelling.text import TextReader
from fairseq_clusterformer.data.words import words_of
from fairseq_clusterformer.models.word_vectors import read_word_vectors
from xlqa import vectors

pytest.importorskip("gensim")
SMALL = "--width 12 --min-count 5 --epochs 12 --window 2".split()
#: words of one class stand in the same places
CLASSES = [[f"{letter}{number}" for number in range(6)] for letter in "abcd"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plain file and two packed ones, of sentences of four words."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(1)
    parts = [
        "".join(" ".join(map(draw.choice, CLASSES)) + ".\n" for _ in range(400)).encode()
        for _ in range(3)
    ]
    (folder / "0.txt").write_bytes(parts[0])
    (folder / "1.txt.xz").write_bytes(lzma.compress(parts[1]))
    (folder / "2.txt.gz").write_bytes(gzip.compress(parts[2]))
    return folder


def run(*words: object) -> int:
    return program(vectors.NAME, vectors.main, [*map(str, words)])


@pytest.mark.parametrize("more", [[], ["--cbow"], ["--method", "fasttext"]])
def test_words_of_like_places_come_close(text, tmp_path, more):
    out = tmp_path / "vectors.txt"
    assert run(text, out, *SMALL, "--epochs", 60, *more) == 0
    known = sum(CLASSES, [])
    words, found = read_word_vectors(str(out), 12, "--word-dim", known=known)
    assert sorted(words) == sorted(known)
    table = normalize(found[[words.index(word) for word in known]], dim=-1)
    likeness = (table @ table.t()).fill_diagonal_(-1)
    right = likeness.argmax(1) // 6 == torch.arange(24) // 6
    assert right.float().mean() > 0.9


def test_form_and_order(text, tmp_path, capsys):
    """Frequent words first; the point, which each sentence has, before all others."""
    assert run(text, tmp_path / "all.txt", *SMALL) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told[:3]] == [
        ["3", "documents"],
        ["6,000", "words"],
        ["25", "vectors"],
    ]
    lines = (tmp_path / "all.txt").read_text().splitlines()
    assert len(lines) == 25
    assert all(len(line.split(" ")) == 13 for line in lines)
    assert lines[0].startswith(". ")
    assert run(text, tmp_path / "few.txt", *SMALL, "--max-words", 7) == 0
    assert (tmp_path / "few.txt").read_text().splitlines() == lines[:7]  # and always the same
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".clusterformer", "all.txt", "few.txt")
    ]


def test_case_and_rare_words(tmp_path):
    (tmp_path / "text").write_text("The the THE a a b\n" * 2)
    line = ["--width", 2, "--min-count", 3]
    assert run(tmp_path / "text", tmp_path / "1", *line) == 0
    assert run(tmp_path / "text", tmp_path / "2", *line, "--lower-case") == 0
    words = [
        {line.split(" ")[0] for line in (tmp_path / name).read_text().splitlines()}
        for name in "12"
    ]
    assert words == [{"a"}, {"a", "the"}]


def test_no_line_holds_words_of_two_documents(tmp_path):
    text, out = tmp_path / "text", tmp_path / "words"
    text.write_text("one two.\n\nthree\n<|end|>\nfour's\n<|end|>\n<|end|>\n" + "w " * 2500)
    counts = vectors._write_words(TextReader("<|end|>").documents([text]), out, lower_case=False)
    assert counts == {"documents": 3, "words": 2507}
    lines = [line.split(" ") for line in out.read_text().splitlines()]
    assert lines[:2] == [["one", "two", ".", "three"], ["four", "'", "s"]]
    assert [len(line) for line in lines[2:]] == [1000, 1000, 500]


def test_words():
    assert words_of("Don't (re-)use 1950s cafe\u0301, x_y") == (
        ["Don", "'", "t", "(", "re", "-", ")", "use", "1950s", "cafe\u0301", ",", "x", "_", "y"]
    )
    assert words_of(" \u6771\u4eac a\n") == ["\u6771", "\u4eac", "a"]


def test_what_is_refused(text, tmp_path, capsys, monkeypatch):
    out = tmp_path / "vectors.txt"

    def told(*words: object) -> str:
        assert run(*words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix(f"{vectors.NAME}: error: ")

    assert told(text, out, "--min-count", 5000) == (
        "--min-count is 5000: no word is as frequent among 6,000; allowed: a smaller number"
    )
    assert told(text, out, "--document-separator", "###").startswith("--document-separator is ###")
    assert told(tmp_path / "none", out).startswith(f"SOURCE is {tmp_path}/none: does not exist")
    assert told(text, tmp_path / "no" / "folder").startswith(f"OUT is {tmp_path}/no/folder: no su")
    assert not list(tmp_path.iterdir())
    out.write_text("mine")
    assert told(text, out, *SMALL).startswith(f"OUT is {out}: it exists; allowed: a new file, or")
    assert out.read_text() == "mine"
    assert run(text, out, *SMALL, "--force") == 0
    assert out.read_text().startswith(". ")
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "gensim", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    line = told(text, out, "--force")
    assert line.startswith(f"{vectors.NAME} needs gensim (")
    assert line.endswith('allowed: pip install ".[vectors]" in the clone')
