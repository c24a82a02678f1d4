"""Subwords learned from text."""

import tracemalloc
from collections import Counter

import pytest
import sentencepiece
from fairseq.data import Dictionary

from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.corpora.binarize import train_sentencepiece
from fairseq_clusterformer.data import coding


def test_a_line_of_any_length_is_learned_from(tmp_path):
    """A whole document on one line, of more bytes than sentencepiece takes."""
    text, model = tmp_path / "text", tmp_path / "model"
    text.write_text("\n" + "clusters attend 東京 " * 5000 + "\n", encoding="utf-8")
    train_sentencepiece([text], 300, model, at_most=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    learned = "".join(pieces.id_to_piece(i) for i in range(len(pieces)))
    assert {*"clusters東京"} <= {*learned}


def test_sentencepiece_learns_from_a_bounded_sample(tmp_path, monkeypatch):
    """Memory does not grow with the corpus; a small one is learned from whole."""
    given = []

    def train(sentence_iterator, **_):
        given.append(list(sentence_iterator))

    monkeypatch.setattr(binarize.sentencepiece.SentencePieceTrainer, "train", train)
    monkeypatch.setattr(binarize, "MB", 55_000)
    lines = [f"line {i:05}" for i in range(20_000)]
    texts = [tmp_path / "a", tmp_path / "b"]
    for text, part in zip(texts, (lines[:5000], lines[5000:]), strict=True):
        text.write_text("\n".join(part) + "\n")
    for sample in (5, 1, 1):
        binarize.train_sentencepiece(texts, 300, tmp_path / "model", sample=sample)
    assert given[0] == lines
    assert given[1] == given[2]
    assert 45_000 < sum(len(line) + 1 for line in given[2]) < 65_000
    assert min(given[2]) < lines[1000]
    assert max(given[2]) > lines[-1000]


@pytest.mark.parametrize(("size", "min_count", "multiple"), [(-1, -1, 8), (9, -1, 1), (-1, 3, 8)])
def test_the_dictionary_of_words_is_what_fairseq_makes(size, min_count, multiple):
    counts = Counter("b b b a a a c c c d d d d e f f </s> </s> <unk>".split())
    theirs = Dictionary()
    for word, count in counts.items():
        theirs.add_symbol(word, count)
    theirs.finalize(min_count, size, multiple)
    how = {"size": size, "min_count": min_count, "multiple": multiple}
    ours = binarize.word_dictionary(counts, **how)
    for name in ("symbols", "count", "indices"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_an_item_takes_few_bytes_of_memory(tmp_path, monkeypatch):
    """Of all, their lengths and places are held; fairseq's builder takes 50 bytes for each."""
    monkeypatch.setattr(coding, "_BLOCK", 1000)
    monkeypatch.setattr(binarize, "_PIECE_OF_WORK", 1000)
    items = coding.TextCoding(binarize.symbol_dictionary(["a", "b"])).items

    def peak(lines: int) -> int:
        (tmp_path / "text").write_text("a b\n" * lines)
        tracemalloc.start()
        dictionary = binarize.symbol_dictionary(["a", "b"])
        counts = binarize.write_dataset({"x": tmp_path / "text"}, tmp_path, dictionary, items)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert counts == {"x": {"tokens": 3 * lines, "items": lines}}
        return found

    peak(1)  # what is imported once
    few, many = peak(1000), peak(11_000)
    assert many - few < 10_000 * 24
