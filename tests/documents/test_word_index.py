"""The words of passages, which an index keeps: scores are those of BM25, whoever made them."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from fairseq_clusterformer.documents import word_index
from fairseq_clusterformer.documents.word_index import FILE, WordIndex, stems
from tests.documents.sections import sections_of

TEXTS = ["Otto rules Ulm. Otto is old.", "All is well in Ulm.", "Ulm, Ulm, Ulm: rulers rule.", ""]
ASKED = "Who is ruling Ulm, Ulm or Bree?"


def by_hand(texts: list[str], question: str) -> list[float]:
    """Robertson and Zaragoza 2009, with the inverse document frequency that is never below 0."""
    words = [[*stems(text)] for text in texts]
    mean, found = sum(map(len, words)) / len(words), [0.0] * len(words)
    for stem in stems(question):
        holders = sum(stem in own for own in words)
        rarity = math.log(1 + (len(words) - holders + 0.5) / (holders + 0.5))
        for place, own in enumerate(words):
            count = own.count(stem)
            found[place] += rarity * count / (count + 1.2 * (0.25 + 0.75 * len(own) / mean))
    return found


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sections each index is made of that is made from now on."""
    make, made = WordIndex._make, []
    monkeypatch.setattr(
        WordIndex, "_make", lambda self, own: made.append(len(own)) or make(self, own)
    )
    return made


def test_scores_are_those_of_bm25():
    found = WordIndex(sections_of(*TEXTS)).scores(ASKED)
    assert found == pytest.approx(by_hand(TEXTS, ASKED), rel=1e-5)
    assert min(found[:3]) > found[3] == 0
    assert not WordIndex(sections_of("...", "\u4eac\u90fd")).scores(ASKED).any()
    assert len(WordIndex([]).scores(ASKED)) == 0


@pytest.mark.parametrize("texts", [TEXTS, ["...", ""], []])
def test_what_is_kept_is_what_was_made(texts, tmp_path, monkeypatch):
    made, sections = counted(monkeypatch), sections_of(*texts)
    expected = WordIndex(sections).scores(ASKED)
    for _ in range(3):
        np.testing.assert_array_equal(WordIndex(sections, tmp_path).scores(ASKED), expected)
    assert made == [len(texts)] * 2
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("change", ["a text", "order", "one more", "parts", "weighing", "format"])
def test_what_changed_is_made_anew(change, tmp_path, monkeypatch):
    WordIndex(sections_of(*TEXTS), tmp_path)
    changed = {
        "a text": ["Ada rules Ulm. Otto is old.", *TEXTS[1:]],
        "order": TEXTS[::-1],
        "one more": [*TEXTS, "Ulm"],
        "parts": ["Otto rules Ulm. Otto is old", ".All is well in Ulm.", *TEXTS[2:]],
    }.get(change, TEXTS)
    if change == "weighing":
        monkeypatch.setattr(word_index, "_WEIGHING", {"k1": 2.0, "b": 0.5})
    if change == "format":
        monkeypatch.setattr(word_index, "_FORMAT", "another")
    made, sections = counted(monkeypatch), sections_of(*changed)
    for _ in range(2):
        found = WordIndex(sections, tmp_path).scores(ASKED)
    assert made == [len(changed)]
    np.testing.assert_array_equal(found, WordIndex(sections).scores(ASKED))


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "edited", "no array", "no content"])
def test_a_damaged_file_is_made_anew(damage, tmp_path, monkeypatch, caplog):
    sections, file = sections_of(*TEXTS), tmp_path / FILE
    expected = WordIndex(sections, tmp_path).scores(ASKED)
    content = file.read_bytes()
    arrays = load(content)
    file.write_bytes(
        {
            "cut": content[:-5],
            "empty": b"",
            "other": b"{}" * 40,
            "edited": content[:-1] + bytes([content[-1] ^ 1]),
            "no array": save({"words": arrays["words"]}, {"content": "", "checksum": ""}),
            "no content": save(arrays),
        }[damage]
    )
    made = counted(monkeypatch)
    for _ in range(2):
        np.testing.assert_array_equal(WordIndex(sections, tmp_path).scores(ASKED), expected)
    assert made == [len(TEXTS)]
    assert (f"{file} is damaged" in caplog.text) == (damage != "no array")  # of other texts


def test_a_disk_that_is_full(tmp_path, monkeypatch, caplog):
    """The answer does without, and no half of a file stays."""

    def fill(arrays: dict, file: Path, about: dict) -> None:
        file.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(word_index, "save_file", fill)
    with caplog.at_level(logging.WARNING):
        found = WordIndex(sections_of(*TEXTS), tmp_path).scores(ASKED)
    np.testing.assert_array_equal(found, WordIndex(sections_of(*TEXTS)).scores(ASKED))
    assert f"{FILE} cannot be written (No space left on device)" in caplog.text
    assert not [*tmp_path.iterdir()]
