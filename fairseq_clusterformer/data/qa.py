"""Question answering data on disk: what ``clusterformer prepare qa`` writes and training reads.

A folder holds the model of its subwords, ``dict.txt`` and, for each split, these files. Each has
one item per question, all in the same order:

========================  =====================================================================
``SPLIT.question``        .bin, .idx: the question's tokens
``SPLIT.document``        .bin, .idx: for each paragraph ``<s>``, its title's tokens if these
                          were asked for, and its text's tokens
``SPLIT.spans``           .bin, .idx (int32): answerable or not (1, 0; -1 unknown), yes or no (1,
                          2; 0 neither), the numbers P, A and L, P positions of ``<s>`` in the
                          document, A pairs [first, last) of its tokens, which are the gold
                          answers, and L indices of paragraphs, which are the long answers
``SPLIT.characters``      .bin, .idx (int32): the first characters of the document's tokens in
                          their paragraph's text, then those after the last; -1 for ``<s>`` and
                          titles
``SPLIT.jsonl``           a JSON object per line: ``id``, ``question``, ``paragraphs``,
                          ``answers`` ([paragraph, start, end]), ``texts``, the accepted answers,
                          those of ``candidates``, and ``titled``: texts begin with their titles.
                          A paragraph is [title, text], or in Natural Questions [title, text,
                          [start, end), words], of its tokens and of each word's token
``SPLIT.lines.npy``       where each of these lines begins, and the file's length, int64
``SPLIT.structure``       .bin, .idx (int32): sentences, supporting sentences, candidates and their
                          mentions; see `Outline.item`
========================  =====================================================================

.bin and .idx are fairseq's (``mmap``), in symbols of ``dict.txt``, without ``</s>``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from torch import Tensor

from fairseq_clusterformer.answers import Answers, Document

from .stored import RecordData, RecordWriter
from .structure import Outline

PARTS = ("question", "document", "spans", "characters", "structure")
YES_NO = (None, "yes", "no")
_ANSWERABLE = {True: 1, False: 0, None: -1}


@dataclass(frozen=True, eq=False)
class Example:
    """A question to train on or to answer."""

    question: Tensor  # tokens, int64 [Q]
    document: Tensor  # tokens of all paragraphs, each led by ``<s>``, int64 [N]
    paragraph_starts: Tensor  # the position of each ``<s>``, int64 [P]
    answers: Tensor  # tokens [first, last) of the gold answers in the document, int64 [A, 2]
    long_answers: Tensor  # the paragraphs that are long answers, int64 [L]
    answerable: bool | None  # None: unknown
    yes_no: str | None  # "yes", "no" or None

    def spans(self) -> np.ndarray:
        """All but the tokens as an item of ``SPLIT.spans``."""
        tail = (self.paragraph_starts, self.answers, self.long_answers)
        head = [_ANSWERABLE[self.answerable], YES_NO.index(self.yes_no), *map(len, tail)]
        return np.concatenate([head, *(part.flatten() for part in tail)]).astype(np.int32)

    @classmethod
    def of(cls, question: Tensor, document: Tensor, spans: Tensor) -> "Example":
        """What the items of the three files say."""
        answerable, yes_no, *counts = spans[:5].tolist()
        starts, answers, long = spans[5:].split([counts[0], 2 * counts[1], counts[2]])
        known = None if answerable < 0 else bool(answerable)
        parts = (starts, answers.view(-1, 2), long)
        return cls(question, document, *parts, known, YES_NO[yes_no])


class QAWriter(RecordWriter):
    """Writes the files of a split, in a ``with`` statement, for a ``dict.txt`` of a size."""

    def __init__(self, folder: Path, split: str, *, vocab_size: int) -> None:
        tokens = best_fitting_int_dtype(vocab_size)
        dtypes = (tokens, tokens, np.int32, np.int32, np.int32)
        super().__init__(folder, split, dict(zip(PARTS, dtypes, strict=True)))

    @staticmethod
    def items(
        example: Example, characters: np.ndarray, outline: Outline | None = None
    ) -> list[np.ndarray]:
        """A question as the items of its files; `characters` of the document's tokens, [2, N]."""
        tokens, outline = (example.question, example.document), outline or Outline()
        return [*map(np.asarray, tokens), example.spans(), characters.ravel(), outline.item()]


class QAData(RecordData):
    """The questions of a split; see :class:`RecordData`."""

    def __init__(self, folder: Path | str, split: str) -> None:
        super().__init__(folder, split, PARTS, "clusterformer prepare qa")
        self.question_sizes = self._parts["question"].sizes  # in tokens, [len(self)]
        self.whole, self.numbers = self, np.arange(len(self))  # as of `WindowData`

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"question {index} of {len(self)}")
        with self.reading(index):
            example = Example.of(*(self._parts[part][index].long() for part in PARTS[:3]))
            places = torch.cat([example.paragraph_starts, example.answers.flatten()])
            if len(places) and not 0 <= places.min() <= places.max() <= len(example.document):
                raise ValueError("a paragraph or an answer outside of its document")
            return example

    def questions(
        self, numbers: Sequence[int], found: Sequence[Answers]
    ) -> Iterator[tuple[int, Answers]]:
        """The answers to some questions, each with its number."""
        return zip(numbers, found, strict=True)

    def outline(self, index: int) -> Outline:
        """The structure of a question's document."""
        with self.reading(index):
            return Outline.of(self._parts["structure"][index].long())

    def document(self, index: int) -> Document:
        """What the tokens of a question's document stand for."""
        texts, outline = self.texts(index), self.outline(index)
        return Document(
            texts=[paragraph[1] for paragraph in texts["paragraphs"]],
            starts=self[index].paragraph_starts,
            characters=self.characters(index),
            sentences=outline.sentences,
            candidates=texts.get("candidates", ()),
            titled=texts.get("titled", False),
            mentions=outline.mentions,
        )

    def characters(self, index: int) -> Tensor:
        """The characters of a document's tokens, int32 [2, N]; see above."""
        with self.reading(index):
            starts, ends = found = torch.as_tensor(self._parts["characters"][index]).view(2, -1)
            if ((starts < -1) | (ends < starts)).any():
                raise ValueError("tokens that end before they begin")
            return found
