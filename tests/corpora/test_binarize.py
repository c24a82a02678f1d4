"""Subwords learned from text."""

from pathlib import Path

import sentencepiece

from fairseq_clusterformer.corpora.binarize import train_sentencepiece


def test_a_line_of_any_length_is_learned_from(tmp_path: Path) -> None:
    """A whole document on one line, of more bytes than sentencepiece takes."""
    text, model = tmp_path / "text", tmp_path / "model"
    text.write_text("\n" + "clusters attend 東京 " * 5000 + "\n", encoding="utf-8")
    train_sentencepiece([text], 300, model, at_most=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    learned = "".join(pieces.id_to_piece(i) for i in range(len(pieces)))
    assert {*"clusters東京"} <= {*learned}
