"""Reads documents with a trained reader, and answers questions from all of them.

The reader is extractive: an answer is a piece of a document, never a new sentence.
"""

import functools
import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex
import torch
from torch import Tensor

from fairseq_clusterformer.corpora.folder import RECORD
from fairseq_clusterformer.corpora.question_answering.encode import led_by_start, symbols_of
from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.errors import bad_option

from ..answers import TYPES, Answer, Answers, Document, ranked_answers, text_mask
from .documents import SENTENCE_END, Source, read_sources, text_source
from .load import Loaded
from .pretrained import Pretrained

logger = logging.getLogger(__name__)

TASK = "clusterformer_qa"
TOKENS_AT_ONCE = 100_000  # of a document; a longer one is read in sections

# Numbers with their points, and words with apostrophes except for an 's. In scripts that put no
# blanks between words, no words can be found.
WORD = regex.compile(
    r"(?V1)\d+(?:[.,]\d+)+"
    r"|[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]+"
    r"(?:['\u2019](?!s\b)\p{L}+)*"
)


@dataclass(frozen=True, eq=False)
class Section:
    """What a model reads at once: paragraphs of a document.

    Attributes:
        source: the document.
        numbers: of the paragraphs in the document, from 0. A piece of a paragraph that is too
            long has the number of the whole.
        tokens: int64 [N].
        document: what they stand for.
    """

    source: Source
    numbers: tuple[int, ...]
    tokens: Tensor
    document: Document

    def paragraphs(self) -> Iterator[tuple[int, str, range]]:
        """Yield the number, the text and the tokens of each paragraph."""
        starts = [*self.document.starts.tolist(), len(self.tokens)]
        yield from zip(
            self.numbers, self.document.texts, map(range, starts, starts[1:]), strict=True
        )

    def shown(self) -> list[str]:
        """What each token shows: joined, it is the text of the paragraphs.

        The first of several tokens that are bytes of one character shows it. ``<s>`` and titles
        show nothing.
        """
        shown = [""] * len(self.tokens)
        starts, ends = self.document.characters.tolist()
        for _, text, tokens in self.paragraphs():
            place = next((starts[token] for token in tokens if starts[token] >= 0), 0)
            for token in tokens:
                if ends[token] > place:
                    shown[token] = text[place : ends[token]]
                    place = ends[token]
        return shown


@dataclass(frozen=True, eq=False)
class SectionRead:
    """What a model makes of a section and a question.

    Attributes:
        clusters: the cluster of each token, int64 [N], for each layer (and head) that clusters:
            its number from 0, and its label.
    """

    section: Section
    answers: Answers
    clusters: dict[tuple[int, str], Tensor]


@dataclass(frozen=True, eq=False)
class FoundAnswer:
    """One answer among all that were found.

    Attributes:
        text: whole words of the document, unchanged; or "yes", "no".
        type: "short" for a span, "long" for a paragraph as a whole, "yes" or "no".
        score: the logarithm of its probability.
        file: the name of the document.
        paragraph: its number in the document, from 0; None of yes and no.
        characters: [start, end) of the paragraph; None of yes and no.
        read: the section that it is from.
    """

    text: str
    type: str
    score: float
    file: str
    paragraph: int | None
    characters: tuple[int, int] | None
    read: SectionRead = field(repr=False)

    @property
    def probability(self) -> float:
        """Among all answers in all documents, and "no answer"; see :func:`ranked`."""
        return math.exp(self.score)

    @property
    def context(self) -> str:
        """The sentence around the answer."""
        return "".join(self.around())

    def around(self, most: int = 160) -> tuple[str, str, str]:
        """What stands before the answer in its sentence, the answer, and what stands behind it.

        Args:
            most: characters before and behind.
        """
        if self.characters is None:
            return "", self.text, ""
        text = self.read.section.source.paragraphs[self.paragraph]
        start, end = self.characters
        ends = [match.end() for match in SENTENCE_END.finditer(text)]
        before = text[max((place for place in ends if place <= start), default=0) : start]
        behind = text[end : min((place for place in ends if place > end), default=len(text))]
        before = before if len(before) <= most else "\u2026" + before[-most:]
        behind = behind if len(behind) <= most else behind[:most] + "\u2026"
        return before, text[start:end], behind.rstrip()

    def overlaps(self, other: "FoundAnswer") -> bool:
        """Whether both are spans that share a character."""
        return (
            self.type == other.type == "short"
            and self.read.section.source is other.read.section.source
            and self.paragraph == other.paragraph
            and self.characters[0] < other.characters[1]
            and other.characters[0] < self.characters[1]
        )


class Ranking(NamedTuple):
    """Attributes: ``answers``, best first, and ``no_answer``, the probability that there is none
    in any of the documents."""

    answers: list[FoundAnswer]
    no_answer: float

    @property
    def is_answered(self) -> bool:
        """Whether some answer is more likely than none."""
        return self.no_answer < 0.5 and bool(self.answers)


def confidence(probability: float) -> str:
    """A probability in figures, and in words what they are worth."""
    figures = "below 0.001" if probability < 0.001 else f"{probability:.3f}"
    words = ", very low confidence" if probability < 0.1 else ", low confidence"
    return f"probability {figures}{words if probability < 0.5 else ''}"


class Reader(Pretrained):
    """Answers questions by pieces of documents.

    Args:
        loaded: a checkpoint or a bundle of the task clusterformer_qa.
        options: see `Pretrained`.

    Raises:
        UserError: if the data folder is something else.
    """

    kind = "reader"
    abilities = ("answer", "encode")

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        self.task, folder = loaded.task, loaded.folder
        try:
            pieces = subwords.load_prepared(folder)
            self._titles = bool(json.loads((folder / RECORD).read_text())["recipe"]["titles"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            allowed = "a folder that clusterformer prepare qa has made"
            raise bad_option("--data", folder, allowed, str(error)) from None
        dictionary = self.task.source_dictionary
        self._to_index = np.array([dictionary.index(symbol) for symbol in pieces.symbols])
        self._encode = functools.lru_cache(1)(pieces.encode)  # of a title that comes again

    def answer(
        self, question: str, documents: str | Path | Sequence[str | Path], *, top: int = 3
    ) -> list[FoundAnswer]:
        """Answer a question from documents; what is skipped in a folder is logged as a warning.

        Args:
            documents: one or several; a string is a text itself, a `Path` is a file or a folder.
            top: answers to return.

        Returns:
            The best answers first. Their probabilities may all be small: then most likely there
            is no answer.

        Raises:
            UserError: for a question that cannot be asked, or a file that cannot be read.
        """
        sources: list[Source] = []
        for document in [documents] if isinstance(documents, str | Path) else documents:
            if isinstance(document, Path):
                sources += read_sources([document], report=logger.warning)
            else:
                sources.append(text_source(document, f"text {len(sources)}"))
        sections = [part for source in sources for part in self.sections(source)]
        return self.ask(question, sections, top).answers

    def ask(self, question: str, sections: Sequence[Section], top: int) -> Ranking:
        """Answer a question from sections, which are read one after another.

        Raises:
            UserError: for a question that cannot be asked.
        """
        tokens = self.question(question)
        return ranked([self.read(tokens, section, top) for section in sections], top)

    def sections(self, source: Source, most: int = TOKENS_AT_ONCE) -> list[Section]:
        """A document in sections of whole paragraphs; a paragraph that is too long, in pieces.

        Args:
            most: tokens of a section.
        """
        groups: list[list[tuple]] = [[]]
        length = 0
        for number, (ids, characters) in self._pieces(source, most):
            length += len(ids)
            if groups[-1] and length > most:
                groups.append([])
                length = len(ids)
            groups[-1].append((number, ids, characters))
        return [self._section(source, *zip(*group, strict=True)) for group in groups]

    def question(self, text: str) -> Tensor:
        """Tokens, int64 [Q].

        Raises:
            UserError: if there is nothing to ask, or too much.
        """
        text = text.strip()
        shown = text if len(text) <= 60 else f"{text[:60]}..."
        if not text:
            raise bad_option("--question", "empty", "a question")
        try:
            ids = self._encode(text).ids
        except UnicodeEncodeError:
            raise bad_option("--question", ascii(shown), "a question", "no Unicode") from None
        most = self.task.cfg.max_question_positions - 2
        if len(ids) > most:
            allowed = f"{most} subwords or fewer, as the model was trained"
            raise bad_option("--question", shown, allowed, f"has {len(ids)} subwords")
        tokens = torch.from_numpy(self._to_index[ids])
        return framed(tokens, self.task.source_dictionary, most + 2)

    @torch.no_grad()
    def read(self, question: Tensor, section: Section, top: int) -> SectionRead:
        """Read a section for a question, and keep the `top` best answers in it."""
        rows = (question, section.tokens, text_mask(section.document.characters))
        logits, extra = self.model(*(row.unsqueeze(0).to(self.device) for row in rows))
        longest = self.task.cfg.max_answer_length
        (answers,) = ranked_answers(logits, [section.document], top=top, max_answer_length=longest)
        return SectionRead(section, answers, self.model.encoder.clusters(extra["reading"]))

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        """As the reader sees a document without a question."""
        nothing = torch.empty(0, dtype=torch.int64)
        question = framed(nothing, self.task.source_dictionary, 2)[None].to(self.device)
        documents = [part.tokens[None] for part in self.sections(text_source(text, "text"))]
        read = [self.model.encoder(question, tokens.to(self.device)) for tokens in documents]
        return torch.cat([reading.document[0] for reading in read])

    def _pieces(
        self, source: Source, most: int
    ) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
        """Paragraphs with their numbers, as `led_by_start` returns them, in pieces if need be."""
        title = self._encode(source.title) if self._titles else None
        for number, text in enumerate(source.paragraphs):
            tokens = self._encode(text)
            room = max(1, most - 1 - (len(title) if title else 0))
            for first in range(0, max(1, len(tokens)), room):
                parts = (tokens.ids, tokens.starts, tokens.ends)
                piece = subwords.Tokens(*(part[first : first + room] for part in parts))
                yield number, led_by_start(piece, title)

    def _section(self, source: Source, numbers: tuple, ids: tuple, characters: tuple) -> Section:
        starts = np.cumsum([0, *map(len, ids[:-1])])
        tokens = symbols_of(np.concatenate(ids), self._to_index, self.task.source_dictionary)
        document = Document(
            texts=[source.paragraphs[number] for number in numbers],
            starts=torch.from_numpy(starts),
            characters=torch.from_numpy(np.concatenate(characters, axis=1)),
        )
        return Section(source, numbers, torch.from_numpy(tokens), document)


def ranked(reads: Sequence[SectionRead], top: int) -> Ranking:
    """The `top` best answers of all sections.

    A reader's probabilities are softmaxes over one section each. They cannot be compared: in a
    short file that has nothing to do with the question, some span always has a high probability.
    Here each section first gets a share of the evidence in all sections: the softmax of
    `Answers.evidence`, which the logits themselves make up. An answer's probability is its
    section's share times its probability in the section. For spans this is one softmax over the
    spans of all sections (shared normalisation, Clark and Gardner 2018), times the probability
    that its own section has an answer. All answers and "no answer" sum to 1, and a single section
    keeps the reader's probabilities.

    The odds against "no answer" of the own section, which systems for SQuAD 2.0 compare, ranked
    worse. A small reader was asked 100 questions on synthetic text, each with the right file and
    six short files without an answer. The right file came first in 99 of them by shares, in 96 by
    odds, and in 80 by the probabilities within each file.

    Answers of the most likely type come first, as where a reader is scored.
    """
    shares = torch.tensor([read.answers.evidence for read in reads], dtype=torch.float64)
    shares = shares.clamp(min=-1e30).log_softmax(0).tolist()  # no text: no evidence
    types = dict.fromkeys(TYPES, 0.0)
    found: list[FoundAnswer] = []
    for read, share in zip(reads, shares, strict=True):
        for name, probability in read.answers.types.items():
            types[name] += math.exp(share) * probability
        found += [_found(share, answer, answer.type, read) for answer in read.answers.short]
        log_long = math.log(max(read.answers.types["long"], 1e-300))
        for number, score in read.answers.long:
            if paragraph := _paragraph(read.section, number, score + log_long):
                found.append(_found(share, paragraph, "long", read))
    likeliest = max(TYPES[:-1], key=types.get)
    kept: list[FoundAnswer] = []
    for answer in sorted(found, key=lambda each: (each.type != likeliest, -each.score)):
        if len(kept) < top and not any(map(answer.overlaps, kept)):
            kept.append(answer)
    return Ranking(kept, types["none"])


def _found(share: float, answer: Answer, type_: str, read: SectionRead) -> FoundAnswer:
    """An answer among all, in whole words; `share` is the logarithm of its section's."""
    score, file = share + answer.score, read.section.source.name
    if answer.paragraph is None:
        return FoundAnswer(answer.text, type_, score, file, None, None, read)
    text = read.section.document.texts[answer.paragraph]
    place = whole_words(text, *answer.characters) if type_ == "short" else answer.characters
    number = read.section.numbers[answer.paragraph]
    return FoundAnswer(text[slice(*place)], type_, score, file, number, place, read)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Characters [start, end) and the rest of the words that they begin or end within.

    This is for people: a corpus is scored by the tokens that the model chose.
    """
    for match in WORD.finditer(text, max(0, start - 100), end + 100):
        if match.start() < start < match.end():
            start = match.start()
        if match.start() < end < match.end():
            end = match.end()
    return start, end


def _paragraph(section: Section, number: int, score: float) -> Answer | None:
    """As much of a paragraph as the section holds, as an answer; None of blanks alone."""
    document = section.document
    own = document.paragraph_of(len(section.tokens)) == number
    tokens = (own & text_mask(document.characters)).nonzero()[:, 0].tolist()
    return document.answer(tokens[0], tokens[-1] + 1, score) if tokens else None
