"""``similar.py``: passages that are most like a sentence, by an encoder of sentences."""

import re

import pytest

from fairseq_clusterformer.documents.sentences import SentenceEncoder
from fairseq_clusterformer.errors import UserError
from tests.models.bert import folder_of
from xlqa import similar

pytest.importorskip("transformers")


def test_similar_passages_are_found(tmp_path, capsys, monkeypatch):
    """The same text has a cosine of 1; the next run encodes nothing."""
    folder = folder_of("bert", tmp_path / "encoder")
    (tmp_path / "a.txt").write_text("the mat sat\n\n" + "a cat on a mat " * 40)
    (tmp_path / "b.txt").write_text("the cat sat")
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    line = [*texts, "the cat sat", "--encoder", folder, "--index", tmp_path / "i"]
    found = []
    for _ in range(2):
        assert similar.main([*map(str, line), "--cpu", "--top", "9"]) == 0
        found.append(capsys.readouterr().out.splitlines())
        monkeypatch.setattr(SentenceEncoder, "of_sections", None)
    assert found[1] == found[0]
    places, passages = found[0][::2], found[0][1::2]
    cosines = [float(re.match(r"\d\. (\d\.\d{3}): ", place)[1]) for place in places]
    assert cosines == sorted(cosines, reverse=True)
    (same,) = (i for i, place in enumerate(places) if place.endswith("b.txt, paragraph 1"))
    assert (cosines[same], passages[same]) == (1.0, "   the cat sat")
    assert all(len(text) < 165 for text in passages)
    for sentence, encoder, message in (
        (" ", folder, "sentence is empty"),
        ("a", tmp_path, "it has no config.json; allowed: a folder of BERT's form"),
    ):
        with pytest.raises(UserError, match=message):
            similar.main([str(texts[0]), sentence, "--encoder", str(encoder)])
