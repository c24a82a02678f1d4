"""Subwords learned from text."""

import sentencepiece

from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.corpora.binarize import train_sentencepiece


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
    lines = [f"line {i:05}" for i in range(20_000)]
    texts = [tmp_path / "a", tmp_path / "b"]
    for text, part in zip(texts, (lines[:5000], lines[5000:]), strict=True):
        text.write_text("\n".join(part) + "\n")
    for sample in (1 << 20, 55_000, 55_000):
        monkeypatch.setattr(binarize, "SAMPLE", sample)
        train_sentencepiece(texts, 300, tmp_path / "model")
    assert given[0] == lines
    assert given[1] == given[2]
    assert 45_000 < sum(len(line) + 1 for line in given[2]) < 65_000
    assert min(given[2]) < lines[1000]
    assert max(given[2]) > lines[-1000]
