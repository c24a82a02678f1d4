"""Question answering data on disk: what ``clusterformer prepare qa`` writes and training reads.

A folder holds the model of its subwords, ``dict.txt`` and, for each split, these files. Each has
one item per question, all in the same order:

========================  =====================================================================
``SPLIT.question``        .bin, .idx: the question's tokens
``SPLIT.document``        .bin, .idx: for each paragraph ``<s>``, its title's tokens if these
                          were asked for, and its text's tokens
``SPLIT.characters``      .bin, .idx (int32): the first characters of the document's tokens in
                          their paragraph's text, then those after the last; -1 for ``<s>`` and
                          titles
``SPLIT.jsonl``           a JSON object per line: ``id``, ``question``, ``paragraphs``,
                          ``answers`` ([paragraph, start, end]), ``texts``, the accepted answers,
                          those of ``candidates``, and ``titled``: texts begin with their titles.
                          A paragraph is [title, text], or in Natural Questions [title, text,
                          [start, end), words], of its tokens and of each word's token
``SPLIT.structure``       .bin, .idx (int32): all else that an `Example` has; see `Example.items`
========================  =====================================================================

Its .bin, .idx and ``SPLIT.lines.npy`` are as of `stored`, in symbols of ``dict.txt``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from torch import Tensor

from fairseq_clusterformer.answers import Answers, Document

from .stored import RecordData, RecordWriter

Numbered = Iterator[tuple[int, Answers]]  # by the number of the question
PARTS = ("question", "document", "characters", "structure")
YES_NO = (None, "yes", "no")
_ANSWERABLE = {True: 1, False: 0, None: -1}


def nothing(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Outline:
    """What a document is made of, in tokens of it."""

    #: [first, last) of each, rising, each in one paragraph, int64 [S, 2]; equal for a sentence
    #: without a token
    sentences: Tensor = field(default_factory=lambda: nothing(0, 2))
    #: the numbers of the sentences that support the answer, int64 [F]; None: unknown
    supporting: Tensor | None = None
    names: tuple[Tensor, ...] = ()  # the tokens of each of the C candidates, int64
    right: int | None = None  # the number of the right candidate; None: unknown
    #: candidate, first and last token of each place where one stands, int64 [M, 3]
    mentions: Tensor = field(default_factory=lambda: nothing(0, 3))

    def check(self, starts: Tensor, length: int) -> None:
        """Raise ValueError for what a document of ``length`` tokens and paragraphs at ``starts``,
        int64 [P], cannot have."""
        first, last = self.sentences.T.contiguous()
        place = self.paragraph_of(starts)
        ends = torch.cat([starts[1:], starts.new_tensor([length])])[place.clamp(min=0)]
        in_order = (first[1:] >= first[:-1]).all()  # a token may be of two sentences
        facts = nothing(0) if self.supporting is None else self.supporting
        mention, begin, end = self.mentions.T.contiguous()
        candidates, before = len(self.names), torch.searchsorted(starts, torch.stack([begin, end]))
        is_known = (mention >= 0) & (mention < candidates)
        in_one = (begin >= 0) & (begin < end) & (end <= length) & (before[0] == before[1])
        right = {
            "sentences": bool(((place >= 0) & (first <= last) & (last <= ends)).all() & in_order),
            "supporting": bool(((facts >= 0) & (facts < len(first))).all()),
            "right": self.right is None or 0 <= self.right < candidates,
            "mentions": bool((is_known & in_one).all()),
        }
        if wrong := [name for name, is_right in right.items() if not is_right]:
            allowed = f"sentences in order, each in one of {len(starts)} paragraphs of {length} "
            allowed += f"tokens, and so are mentions of {candidates} candidates"
            given = " ".join(str(getattr(self, wrong[0])).split())
            raise ValueError(f"{wrong[0]} is {given}; allowed: {allowed}")

    def within(self, length: int) -> "Outline":
        """The structure of the first tokens: sentences that begin there, and whole mentions."""
        mentions = self.mentions[self.mentions[:, 2] <= length]
        kept = self.with_sentences(int((self.sentences[:, 0] < length).sum()))
        sentences = kept.sentences.clamp(max=length)
        return replace(kept, sentences=sentences, mentions=mentions)

    def with_sentences(self, number: int) -> "Outline":
        """The first sentences alone; what supports the answer is unknown if one of it is gone."""
        supporting = self.supporting
        if supporting is not None and (supporting >= number).any():
            supporting = None
        return replace(self, sentences=self.sentences[:number], supporting=supporting)

    def paragraph_of(self, starts: Tensor) -> Tensor:
        """The number of each sentence's paragraph, int64 [S], by where these start, int64 [P]."""
        return torch.searchsorted(starts, self.sentences[:, 0].contiguous(), right=True) - 1


@dataclass(frozen=True, eq=False)
class Example:
    """A question to train on or to answer."""

    question: Tensor  # tokens, int64 [Q]
    document: Tensor  # tokens of all paragraphs, each led by ``<s>``, int64 [N]
    characters: Tensor  # of the document's tokens, [2, N]; see above
    paragraph_starts: Tensor  # the position of each ``<s>``, int64 [P]
    answers: Tensor  # tokens [first, last) of the gold answers in the document, int64 [A, 2]
    long_answers: Tensor  # the paragraphs that are long answers, int64 [L]
    answerable: bool | None  # None: unknown
    yes_no: str | None  # "yes", "no" or None
    outline: Outline = field(default_factory=Outline)

    def items(self) -> list[np.ndarray]:
        """The items of its files. That of the structure is lists of numbers: how many lists, how
        many numbers each has, and these. The first says whether it is answerable (1, 0; -1:
        unknown), yes or no (1, 2; 0: neither), whether supporting sentences are known, and the
        right candidate (-1: unknown)."""
        outline, facts = self.outline, self.outline.supporting
        right = -1 if outline.right is None else outline.right
        head = [_ANSWERABLE[self.answerable], YES_NO.index(self.yes_no), facts is not None, right]
        lists = [head, self.paragraph_starts, self.answers.flatten(), self.long_answers]
        lists += [outline.sentences.flatten(), [] if facts is None else facts]
        lists += [outline.mentions.flatten(), *outline.names]
        structure = np.concatenate([[len(lists)], [*map(len, lists)], *lists]).astype(np.int32)
        tokens = self.question, self.document, self.characters.flatten()
        return [*map(np.asarray, tokens), structure]

    @classmethod
    def of(cls, question: Tensor, document: Tensor, characters: Tensor, item: Tensor) -> "Example":
        """What the items of its files say."""
        first = 1 + int(item[0])
        lists = item[first:].split(item[1:first].tolist())
        head, starts, answers, long, sentences, facts, mentions, *names = lists
        answerable, yes_no, known, right = head.tolist()
        outline = Outline(
            sentences=sentences.view(-1, 2),
            supporting=facts if known else None,
            names=tuple(names),
            right=None if right < 0 else right,
            mentions=mentions.view(-1, 3),
        )
        known, parts = None if answerable < 0 else bool(answerable), (starts, answers.view(-1, 2))
        places = characters.view(2, -1)
        return cls(question, document, places, *parts, long, known, YES_NO[yes_no], outline)


def _older(spans: Tensor, structure: Tensor) -> Tensor:
    """An item of the structure, of the two that an older version wrote."""
    answerable, yes_no, *counts = spans[:5].tolist()
    places = spans[5:].split([counts[0], 2 * counts[1], counts[2]])
    sentences, facts, candidates, right, mentions = structure[:5].tolist()
    known = [2 * sentences, max(facts, 0), 3 * mentions, candidates]
    *outline, sizes, names = structure[5:].split([*known, len(structure) - 5 - sum(known)])
    head = spans.new_tensor([answerable, yes_no, facts >= 0, right])
    lists = [head, *places, *outline, *names.split(sizes.tolist())]
    return torch.cat([spans.new_tensor([len(lists), *map(len, lists)]), *lists])


class QAWriter(RecordWriter):
    """Writes the files of a split, in a ``with`` statement, for a ``dict.txt`` of a size."""

    def __init__(self, folder: Path, split: str, *, vocab_size: int) -> None:
        tokens = best_fitting_int_dtype(vocab_size)
        dtypes = (tokens, tokens, np.int32, np.int32)
        super().__init__(folder, split, dict(zip(PARTS, dtypes, strict=True)))

    def write(self, example: Example, texts: Mapping) -> None:
        """Add a question, and what becomes its line."""
        super().write(example.items(), texts)


class QAData(RecordData):
    """The questions of a split; see :class:`RecordData`."""

    def __init__(self, folder: Path | str, split: str) -> None:
        older = ["spans"] if Path(folder, f"{split}.spans.idx").is_file() else []
        super().__init__(folder, split, [*PARTS, *older], "clusterformer prepare qa")
        self.question_sizes = self._parts["question"].sizes  # in tokens, [len(self)]
        self.whole, self.numbers = self, np.arange(len(self))  # as of `WindowData`

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"question {index} of {len(self)}")
        with self.reading(index):
            *tokens, item = (self._parts[part][index].long() for part in PARTS)
            if "spans" in self._parts:
                item = _older(self._parts["spans"][index].long(), item)
            example = Example.of(*tokens, item)
            places = torch.cat([example.paragraph_starts, example.answers.flatten()])
            if len(places) and not 0 <= places.min() <= places.max() <= len(example.document):
                raise ValueError("a paragraph or an answer outside of its document")
            starts, ends = example.characters
            if ((starts < -1) | (ends < starts)).any():
                raise ValueError("tokens that end before they begin")
            return example

    def document(self, index: int) -> Document:
        """What the tokens of a question's document stand for."""
        texts, example = self.texts(index), self[index]
        return Document(
            texts=[paragraph[1] for paragraph in texts["paragraphs"]],
            starts=example.paragraph_starts,
            characters=example.characters,
            sentences=example.outline.sentences,
            candidates=texts.get("candidates", ()),
            titled=texts.get("titled", False),
            mentions=example.outline.mentions,
        )

    def questions(self, numbers: Sequence[int], found: Sequence[Answers]) -> Numbered:
        """The answers to some questions, each with its number."""
        return zip(numbers, found, strict=True)
