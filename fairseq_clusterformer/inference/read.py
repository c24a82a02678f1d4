"""Reads documents with a trained reader, and answers questions from all of them.

The reader is extractive: an answer is a piece of a document, never a new sentence.
"""

import functools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.corpora.question_answering.encode import (
    led_by_start,
    symbols_of,
    token_span,
)
from fairseq_clusterformer.corpora.question_answering.records import Paragraph, sentences_of
from fairseq_clusterformer.data import RECORD, subwords
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.data.structure import Outline
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.stack import ClusteredStack

from ..answers import (
    Answers,
    Document,
    Logits,
    ranked_answers,
    text_mask,
)
from .documents import Source, read_sources, text_source
from .found import FoundAnswer, Ranking, Section, SectionRead, ranked
from .index import Encodings
from .load import Loaded
from .pretrained import Pretrained
from .retrieval import WordCounts

logger = logging.getLogger(__name__)

TASK = "clusterformer_qa"
TOKENS_AT_ONCE = 100_000  # of a document; a longer one is read in sections
IN_A_BATCH = 8192  # tokens of sections that are read together


class Reader(Pretrained):
    """Answers questions by pieces of documents.

    A reader of structured documents reads their sentences, which are found by their
    punctuation.

    A reader that encodes documents apart reads windows, which are as long as the documents of its
    training, many at once. What it makes of a document before it sees a question is kept for as
    long as the document's sections are, and beyond that in an index.

    Args:
        loaded: a checkpoint or a bundle of the task clusterformer_qa.
        index: a folder to keep encodings of documents in; None: none are kept.
        options: see `Pretrained`.

    Attributes:
        window: tokens that are read at once unless another number is asked for.

    Raises:
        UserError: if the data folder is something else, or there is no index for this model or in
            this folder.
    """

    kind = "reader"
    abilities = ("answer", "encode")

    def __init__(self, loaded: Loaded, *, index: Path | None = None, **options) -> None:
        super().__init__(loaded, **options)
        self.task, folder = loaded.task, loaded.folder
        self.window, self._encodings, self._counts = TOKENS_AT_ONCE, None, WordCounts()
        self._structure = self.model.structure
        if self.model.encodes_apart:
            self.window = self.task.cfg.max_positions or TOKENS_AT_ONCE
            self._encodings = Encodings(self.model.encoder, self._encode_sections, index)
        if self._structure is not None:
            self.window = self.task.cfg.max_positions_inference or TOKENS_AT_ONCE
        if index is not None and self._encodings is None:
            problem = f"a {loaded.cfg.model._name} reads each document with its question"
            allowed = "no index, or a model of words: bidaf_reader, qanet_reader"
            raise bad_option("--index", index, allowed, problem)
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

    def ask(
        self,
        question: str,
        sections: Sequence[Section],
        top: int,
        *,
        least: float = 0.0,
        windows: int | None = None,
    ) -> Ranking:
        """Answer a question from sections.

        Args:
            sections: those of one document together and in their order.
            top: answers to return.
            least: the margin over "no answer" that an answer must have; see `Ranking`.
            windows: sections to read at most, those that share most words with the question; see
                `WordCounts`. None: all.

        Raises:
            UserError: for a question that cannot be asked, or an index that cannot be written.
        """
        tokens = self.question(question)
        if self._encodings is not None and self._encodings.folder is not None:
            self._encodings.of(sections)
        if windows is not None:
            chosen = self._counts.likeliest(question, sections, windows)
            sections = [sections[place] for place in chosen]
        if self._encodings is None:
            reads = [self.read(tokens, section, top) for section in sections]
            return ranked(reads, top, least)
        ranking = ranked(self._read_words(tokens, sections, top), top, least)
        if isinstance(self.model.encoder, ClusteredStack):
            for read in {answer.read for answer in ranking.answers}:
                read.clusters.update(self.read(tokens, read.section, 1).clusters)
        return ranking

    def encode_sections(self, sections: Sequence[Section]) -> None:
        """Encode sections before a question is asked, if the model can; see `Encodings`."""
        if self._encodings is not None:
            self._encodings.of(sections)

    def sections(self, source: Source, most: int | None = None) -> list[Section]:
        """A document in sections of whole paragraphs; a paragraph that is too long, in pieces.

        Args:
            most: tokens of a section; None: `window`.
        """
        groups: list[list[tuple]] = [[]]
        length = 0
        most = most or self.window
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
        more = [] if self._structure is None else [self._globals(question, section)]
        logits, extra = self.model(*(row.unsqueeze(0).to(self.device) for row in rows), *more)
        (answers,) = self._answers(logits, [section.document], top)
        return SectionRead(section, answers, self.model.encoder.clusters(extra["reading"]))

    def _globals(self, question: Tensor, section: Section) -> dict[str, Tensor]:
        """The global tokens of a section, as a batch of one."""
        document, dictionary = section.document, self.task.source_dictionary
        length, outline = len(section.tokens), Outline(sentences=document.sentences)
        outline = self._structure.read(outline, length)
        row = self._structure.rows(question, document.starts, length, outline, dictionary)
        batch = self._structure.batch([row], dictionary.pad())
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    @torch.no_grad()
    def _read_words(
        self, question: Tensor, sections: Sequence[Section], top: int
    ) -> list[SectionRead]:
        """As :meth:`read`, many sections at once, without their clusters."""
        states = self._encodings.of(sections)
        found: dict[int, SectionRead] = {}
        for places in _batches(sections):
            chosen = [sections[place] for place in places]
            of_words = pad_sequence([states[place] for place in places], batch_first=True)
            logits, _ = self.model(
                question.expand(len(chosen), -1).to(self.device),
                *self._padded(chosen),
                of_words.to(self.device, next(self.model.parameters()).dtype),
            )
            documents = [section.document for section in chosen]
            answers = self._answers(logits, documents, top)
            found |= {
                place: SectionRead(section, answer, {})
                for place, section, answer in zip(places, chosen, answers, strict=True)
            }
        return [found[place] for place in range(len(sections))]

    def _answers(self, logits: Logits, documents: Sequence[Document], top: int) -> list[Answers]:
        cfg = self.task.cfg
        return ranked_answers(
            logits,
            documents,
            top=top,
            max_answer_length=cfg.max_answer_length,
            no_answer_bias=cfg.no_answer_bias,
            supporting_threshold=cfg.supporting_threshold,
        )

    @torch.no_grad()
    def _encode_sections(self, sections: Sequence[Section]) -> list[Tensor]:
        """States [W, D] of the words of each section."""
        found: dict[int, Tensor] = {}
        for places in _batches(sections):
            states = self.model.encode(*self._padded([sections[place] for place in places]))
            found |= dict(zip(places, states, strict=True))
        return [found[place] for place in range(len(sections))]

    def _padded(self, sections: Sequence[Section]) -> tuple[Tensor, Tensor]:
        """Tokens int64 [B, N], and where an answer can begin and end, bool [B, N]."""
        padding = self.task.source_dictionary.pad()
        tokens = [section.tokens for section in sections]
        masks = [text_mask(section.document.characters) for section in sections]
        return (
            pad_sequence(tokens, batch_first=True, padding_value=padding).to(self.device),
            pad_sequence(masks, batch_first=True).to(self.device),
        )

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
            # pieces for a reader of words overlap, so that an answer lies whole in one of them
            step = room if self._encodings is None else room - room // 4
            last = max(1, len(tokens) - (room - step))
            for first in range(0, last, step):
                parts = (tokens.ids, tokens.starts, tokens.ends)
                piece = subwords.Tokens(*(part[first : first + room] for part in parts))
                yield number, led_by_start(piece, title)

    def _section(self, source: Source, numbers: tuple, ids: tuple, characters: tuple) -> Section:
        starts = np.cumsum([0, *map(len, ids[:-1])])
        tokens = symbols_of(np.concatenate(ids), self._to_index, self.task.source_dictionary)
        texts = [source.paragraphs[number] for number in numbers]
        document = Document(
            texts=texts,
            starts=torch.from_numpy(starts),
            characters=torch.from_numpy(np.concatenate(characters, axis=1)),
            sentences=None if self._structure is None else _sentences(texts, starts, characters),
        )
        return Section(source, numbers, torch.from_numpy(tokens), document)


def _sentences(texts: Sequence[str], starts: np.ndarray, characters: Sequence) -> Tensor:
    """Tokens [first, last) of the sentences of paragraphs or pieces of them, int64 [S, 2].

    Args:
        texts: of the paragraphs.
        starts: the first token of each.
        characters: of the tokens of each, [2, n]; -1 for ``<s>`` and titles.
    """
    found = []
    for text, offset, (begin, end) in zip(texts, starts, characters, strict=True):
        head = int((begin < 0).sum())
        tokens = subwords.Tokens(begin[head:], begin[head:], end[head:])
        for _, first, last in sentences_of([Paragraph("", text)]):
            if len(tokens) and first < end[-1] and last > begin[head]:
                found.append(token_span(int(offset) + head, tokens, first, last))
    return torch.tensor(found, dtype=torch.int64).view(-1, 2)


def _batches(sections: Sequence[Section]) -> Iterator[list[int]]:
    """Places of sections that are read together: of like length, and not too many."""
    places = sorted(range(len(sections)), key=lambda place: len(sections[place].tokens))
    batch: list[int] = []
    for place in places:
        if batch and len(sections[place].tokens) * (len(batch) + 1) > IN_A_BATCH:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
