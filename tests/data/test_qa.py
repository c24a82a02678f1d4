"""Question answering data on disk: what is written is read, and a span of tokens is a text."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_clusterformer.data.qa import PARTS, YES_NO, QAData, QAWriter
from fairseq_clusterformer.data.stored import RecordWriter
from fairseq_clusterformer.errors import UserError
from tests.data.questions import NOTHING, OUTLINE, TEXTS, example

EXAMPLES = [
    example(),
    example(**NOTHING, answerable=False),
    example(**NOTHING, answerable=None),
    example(**NOTHING, yes_no="yes"),
    example(yes_no="no", outline=OUTLINE),
    example(outline=replace(OUTLINE, supporting=OUTLINE.mentions[:0, 0], names=(), right=None)),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with QAWriter(tmp_path, "valid", vocab_size=100_000) as writer:
        for i, item in enumerate(EXAMPLES):
            writer.write(item, TEXTS | {"id": f"q{i}"})
    return tmp_path


def test_what_is_written_is_read(folder):
    data = QAData(folder, "valid")
    assert len(data) == len(list(data)) == len(EXAMPLES)
    assert data.sizes.tolist() == [10] * len(EXAMPLES)
    for i, (found, written) in enumerate(zip(data, EXAMPLES, strict=True)):
        assert repr(found) == repr(written)  # also the types and shapes of tensors
        assert data.texts(i) == TEXTS | {"id": f"q{i}"}
    with pytest.raises(IndexError, match="question 6 of 6"):
        data[6]


def test_what_an_older_version_wrote_is_read(tmp_path):
    def joined(*lists) -> torch.Tensor:
        return torch.cat([torch.as_tensor(numbers).flatten() for numbers in lists])

    dtypes = dict.fromkeys((*PARTS, "spans"), np.int32)
    with RecordWriter(tmp_path, "valid", dtypes) as writer:
        for one in EXAMPLES:
            outline, facts, names = one.outline, one.outline.supporting, one.outline.names
            numbers = len(outline.sentences), -1 if facts is None else len(facts), len(names)
            head = [
                *numbers,
                -1 if outline.right is None else outline.right,
                len(outline.mentions),
            ]
            known = [outline.sentences, [] if facts is None else facts, outline.mentions]
            structure = joined(head, *known, [len(name) for name in names], *names)
            answerable = -1 if one.answerable is None else one.answerable
            parts = one.paragraph_starts, one.answers, one.long_answers
            spans = joined([answerable, YES_NO.index(one.yes_no), *map(len, parts)], *parts)
            writer.write([*one.items()[:3], structure, spans], TEXTS)
    assert [*map(repr, QAData(tmp_path, "valid"))] == [*map(repr, EXAMPLES)]


def test_tokens_are_text(folder):
    data = QAData(folder, "valid")
    document = data.document(3)
    for first, last, place, text in (
        (1, 2, (0, 0, 7), "Röntgen"),
        (3, 4, (0, 8, 9), "🍰"),
        (7, 10, (1, 0, 12), "in\r\nBerlin."),
    ):
        assert (document.place(first, last), document.answer(first, last).text) == (place, text)
    for first, last, problem in (
        (4, 8, "hold <s> or a title"),
        (3, 3, "1 or more"),
        (9, 11, "of 10"),
    ):
        with pytest.raises(ValueError, match=problem):
            document.answer(first, last)


def test_refuses_other_folders(folder):
    with pytest.raises(FileNotFoundError, match="test.question.bin: no such file; allowed"):
        QAData(folder, "test")
    with open(folder / "valid.jsonl", "ab") as file:
        file.write(json.dumps(TEXTS).encode())
    with pytest.raises(ValueError, match="its files are of different data"):
        QAData(folder, "valid")
    (folder / "valid.lines.npy").write_bytes(b"\x80\x04K\x01.")  # a pickle
    with pytest.raises(UserError, match=r"valid.lines.npy: cannot be read \(.*; allowed: a file"):
        QAData(folder, "valid")


def test_nothing_is_finished_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), QAWriter(tmp_path, "train", vocab_size=9) as writer:  # noqa: PT012
        writer.write(EXAMPLES[0], TEXTS)
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError):
        QAData(tmp_path, "train")


@pytest.mark.parametrize("part", ["question", "document", "characters", "structure"])
def test_garbage_of_the_right_size_is_one_line(part, folder):
    """Its index fits: what it holds is seen when the dictionary is known, or a record is read."""
    file = folder / f"valid.{part}.bin"
    file.write_bytes(b"\xfe" * file.stat().st_size)
    data = QAData(folder, "valid")
    with pytest.raises(UserError, match="(?s)valid.*damaged .*; allowed: ") as caught:
        data.of_symbols(1000), data[0]
    assert "\n" not in str(caught.value)
    file = folder / "valid.jsonl"
    file.write_bytes(b"{" * file.stat().st_size)
    with pytest.raises(UserError, match="record 1 is damaged .*; allowed: "):
        data.texts(1)
