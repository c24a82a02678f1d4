"""Reads files with a trained reader, and answers questions from all of them."""

import functools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from fairseq_clusterformer.answers import Answer, Answers, Document, ranked_answers
from fairseq_clusterformer.corpora.folder import RECORD
from fairseq_clusterformer.corpora.question_answering.encode import led_by_start, symbols_of
from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.inference.documents import Source
from fairseq_clusterformer.inference.load import load_reader
from fairseq_clusterformer.models.reader import Reading
from fairseq_clusterformer.models.windows import put_back

_SENTENCE_END = re.compile(r"[.!?\u2026][\"')\]\u201d\u2019]*\s+")


@dataclass(frozen=True, eq=False)
class Part:
    """What a model reads at once: paragraphs of a file.

    Args:
        source: the file.
        numbers: of the paragraphs, in the file; those of a piece of a paragraph, of the whole.
        tokens: int64 [N].
        document: what they stand for.
    """

    source: Source
    numbers: tuple[int, ...]
    tokens: Tensor
    document: Document


@dataclass(frozen=True, eq=False)
class PartRead:
    """What a model makes of a part and a question.

    Args:
        clusters: of each token, by the name of a layer (and head) that clusters, int64 [N].
    """

    part: Part
    answers: Answers
    clusters: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Found:
    """One answer among all.

    Args:
        read: where it is from.
        answer: a span, yes or no, or a paragraph as a whole.
        type: of `fairseq_clusterformer.answers.TYPES`.
    """

    read: PartRead
    answer: Answer
    type: str

    @property
    def is_meant(self) -> bool:
        """Whether the model holds an answer of this type for the likeliest."""
        return self.type == self.read.answers.type

    @property
    def probability(self) -> float:
        """In its part."""
        return math.exp(self.answer.score)

    @property
    def number(self) -> int | None:
        """Of its paragraph in the file; None of yes and no."""
        paragraph = self.answer.paragraph
        return None if paragraph is None else self.read.part.numbers[paragraph]

    def sentence(self, most: int = 160) -> tuple[str, str, str]:
        """What stands before it in its sentence, the answer, and what behind it; none of yes, no.

        Args:
            most: characters before and behind.
        """
        if self.answer.characters is None:
            return "", self.answer.text, ""
        text = self.read.part.document.texts[self.answer.paragraph]
        start, end = self.answer.characters
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        before = text[max((place for place in ends if place <= start), default=0) : start]
        behind = text[end : min((place for place in ends if place > end), default=len(text))]
        before = before if len(before) <= most else "\u2026" + before[-most:]
        behind = behind if len(behind) <= most else behind[:most] + "\u2026"
        return before, text[start:end], behind.rstrip()


def figures(probability: float) -> str:
    """A probability with three decimals; one that has none of them with two figures, 1.2e-05."""
    return f"{probability:.3f}" if probability >= 0.001 else f"{probability:.1e}"


class DocumentReader:
    """A trained reader, and the subwords and the dictionary of its data.

    Args:
        checkpoint: of the task clusterformer_qa.
        data: the folder of the training data; None: where the checkpoint was trained on.
        cpu: do not use an accelerator.

    Raises:
        UserError: files that are missing, or something else.
    """

    def __init__(self, checkpoint: str, data: str | None = None, *, cpu: bool = False):
        self.model, self.task = load_reader(checkpoint, data)
        self.device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        self.model.to(self.device)
        folder = Path(utils.split_paths(self.task.cfg.data)[0])
        try:
            pieces = subwords.load_prepared(folder)
            self._titles = bool(json.loads((folder / RECORD).read_text())["recipe"]["titles"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"--data is {folder}: {error}; allowed: a folder that scripts/prepare_qa.py has "
                "prepared"
            ) from None
        dictionary = self.task.source_dictionary
        self._to_index = np.array([dictionary.index(symbol) for symbol in pieces.symbols])
        self._encode = functools.lru_cache(1)(pieces.encode)  # of a title that comes again

    def parts(self, source: Source, most: int) -> list[Part]:
        """A file in parts of whole paragraphs; of one that is too long, in pieces.

        Args:
            most: tokens of a part.
        """
        parts: list[Part] = []
        numbers, ids, characters, length = [], [], [], 0
        for number, paragraph in self._pieces(source, most):
            if numbers and length + len(paragraph[0]) > most:
                parts.append(self._part(source, numbers, ids, characters))
                numbers, ids, characters, length = [], [], [], 0
            numbers.append(number)
            ids.append(paragraph[0])
            characters.append(paragraph[1])
            length += len(paragraph[0])
        return [*parts, self._part(source, numbers, ids, characters)]

    def question(self, text: str) -> Tensor:
        """Tokens, int64 [Q].

        Raises:
            UserError: if there is nothing to ask, or too much.
        """
        if not text.strip():
            raise UserError("--question is empty; allowed: a question")
        try:
            ids = self._encode(text.strip()).ids
        except UnicodeEncodeError:
            raise UserError("--question is not valid Unicode; allowed: a question") from None
        most = self.task.cfg.max_question_positions
        if len(ids) + 2 > most:
            raise UserError(
                f"--question has {len(ids)} subwords; allowed: {most - 2} or fewer, which the "
                "model has been trained for"
            )
        tokens = torch.from_numpy(self._to_index[ids])
        return framed(tokens, self.task.source_dictionary, most)

    @torch.no_grad()
    def read(self, question: Tensor, part: Part, top: int) -> PartRead:
        """Read a part for a question; `top` of the answers in it are told."""
        rows = (question, part.tokens, part.document.text_mask)
        logits, extra = self.model(*(row.unsqueeze(0).to(self.device) for row in rows))
        (answers,) = ranked_answers(
            logits, [part.document], top=top, max_answer_length=self.task.cfg.max_answer_length
        )
        return PartRead(part, answers, self._clusters(extra["reading"], len(part.tokens)))

    def _pieces(
        self, source: Source, most: int
    ) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
        """Paragraphs with their numbers, as `led_by_start` returns them, in pieces if need be."""
        title = self._encode(source.title) if self._titles else None
        for number, text in enumerate(source.paragraphs):
            tokens = self._encode(text)
            room = max(1, most - 1 - (len(title) if title else 0))
            for first in range(0, max(1, len(tokens)), room):
                piece = slice(first, first + room)
                tokens_of_it = subwords.Tokens(
                    tokens.ids[piece], tokens.starts[piece], tokens.ends[piece]
                )
                yield number, led_by_start(tokens_of_it, title)

    def _part(self, source: Source, numbers: list[int], ids: list, characters: list) -> Part:
        starts = np.cumsum([0, *map(len, ids[:-1])])
        tokens = symbols_of(np.concatenate(ids), self._to_index, self.task.source_dictionary)
        document = Document(
            texts=[source.paragraphs[number] for number in numbers],
            starts=torch.from_numpy(starts),
            characters=torch.from_numpy(np.concatenate(characters, axis=1)),
        )
        return Part(source, tuple(numbers), torch.from_numpy(tokens), document)

    def _clusters(self, reading: Reading, length: int) -> dict[str, Tensor]:
        encoder = self.model.encoder
        found = {}
        for number, report in zip(encoder.cluster_layers, reading.reports, strict=False):
            layer = encoder.layers[number]
            if report.clusters is None:
                continue
            _, clusters = put_back(
                report.clusters.transpose(1, 2),
                windows=reading.question.size(1),
                stride=encoder.stride,
                length=length,
            )
            for head, of_head in enumerate(clusters[0].t().cpu()):
                name = f"layer {number + 1} of {len(encoder.layers)}, {layer.kinds[0]}"
                name += f", head {head + 1}" if clusters.size(-1) > 1 else ""
                found[name] = of_head
        return found


def ranked(reads: Sequence[PartRead], top: int) -> list[Found]:
    """The `top` best answers of all parts: first those of the type that the model holds for the
    likeliest in their part, then the others, each by their probability in their part."""
    found = []
    for read in reads:
        found += [Found(read, answer, answer.type) for answer in read.answers.short]
        log_prob = np.log(max(read.answers.types["long"], 1e-30))
        found += [
            Found(read, answer, "long")
            for number, score in read.answers.long
            if (answer := _paragraph(read.part, number, score + log_prob)).text
        ]
    return sorted(found, key=lambda each: (not each.is_meant, -each.answer.score))[:top]


def _paragraph(part: Part, number: int, score: float) -> Answer:
    """A paragraph, or as much of it as the part holds, as an answer."""
    starts = [*part.document.starts.tolist(), len(part.tokens)]
    tokens = torch.arange(starts[number], starts[number + 1])
    tokens = tokens[part.document.text_mask[tokens]].tolist()
    if not tokens:  # a piece of blanks alone
        return Answer("", score)
    return part.document.answer(tokens[0], tokens[-1] + 1, score)
