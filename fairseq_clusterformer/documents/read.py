"""Reads documents with a trained reader, and answers questions from all of them."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from fairseq import utils
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.corpora.question_answering.encode import Pieces
from fairseq_clusterformer.corpora.question_answering.records import mentions_of
from fairseq_clusterformer.data import RECORD, subwords
from fairseq_clusterformer.data.qa import Outline
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.errors import UserError, bad_option, read_json
from fairseq_clusterformer.models.reader import ReaderEncoder

from ..answers import AnswerLogits, ranked_answers, ranking_options, text_mask
from ..checkpoints.bundle import CALIBRATION
from ..checkpoints.load import Loaded
from ..use.base import Pretrained
from .found import Ranking, SectionRead, Weights, ranked, ranked_candidates
from .passages import Index, Passages, SentenceEncoder, stems
from .sections import Section, Splitter, together
from .sources import Source, read_sources, state_of, text_source
from .texts import clean

logger = logging.getLogger(__name__)

Documents = str | Path | Passages | Sequence[str | Path]
Folder = str | Path | None

TASK = "clusterformer_qa"
TOKENS_AT_ONCE = 100_000  # of a document, for a model whose training had no limit
IN_A_BATCH = 4096  # tokens of sections that are read together


class Reader(Pretrained):
    """Answers questions by pieces of documents, never by a new sentence. Raises UserError: if the
    data folder is something else, or no index can be in this folder.

    A reader of structured documents also reads their sentences, which end with punctuation; others
    read windows, as long as the documents of their training, many at once.

    Args:
        loaded: a checkpoint or a bundle of the task clusterformer_qa.
        index: a folder to keep sentence vectors of documents in; None: none are kept.
        encoder: see `SentenceEncoder`; None: passages are chosen by their words alone.
        options: see `Pretrained`.
    """

    kind = "reader"
    abilities = ("answer", "encode")

    def __init__(
        self, loaded: Loaded, *, index: Path | None = None, encoder: Path | None = None, **options
    ) -> None:
        super().__init__(loaded, **options)
        self.task, folder = loaded.task, loaded.folder
        self._structure, self._dictionary = self.task.structure, self.task.source_dictionary
        calibrated = (folder / CALIBRATION).is_file()
        self.weights = Weights.from_file(folder / CALIBRATION) if calibrated else Weights()
        self.windows = self.model.windows  # passages that are read for a question, by default
        cfg, structured = self.task.cfg, self._structure is not None
        trained = cfg.max_positions_inference if structured else cfg.max_positions
        tokens = (trained or TOKENS_AT_ONCE, self.weights.passage)
        self.window = min(filter(None, tokens))  # tokens of a passage, by default
        self._keep_in(index, encoder)
        try:
            self._pieces = Pieces(subwords.load_prepared(folder), self._dictionary)
            titles = bool(read_json(folder / RECORD)["recipe"]["titles"])
        except (UserError, OSError, ValueError, LookupError, TypeError) as error:
            allowed = "a folder that clusterformer prepare qa has made"
            raise bad_option("--data", folder, allowed, str(error)) from None
        how = {"titles": titles, "overlap": not structured, "sentences": structured}
        self._splitter = Splitter(self._pieces, **how)

    def _keep_in(self, folder: Path | None, encoder: Path | None) -> None:
        index = Index(folder)  # before anything changes
        self._sentences = self._latest = None
        if encoder is not None:
            dtype = next(self.model.parameters()).dtype
            self._sentences = SentenceEncoder(encoder, index, self.device, dtype)

    def index(
        self, documents: Documents, folder: Folder = None, *, encoder: Folder = None
    ) -> Passages:
        """Read documents for the questions to come; the same ones as last time only if a file has
        changed. What is skipped in a folder is logged as a warning. `folder` and `encoder` are as
        the class has them; neither: as before. Raises UserError: see `answer` and `Index`."""
        if isinstance(documents, Passages):
            return documents
        if folder or encoder:
            self._keep_in(folder and Path(folder), encoder and Path(encoder))
        given = [documents] if isinstance(documents, str | Path) else [*documents]
        state = [each if isinstance(each, str) else state_of(each) for each in given]
        if self._latest is None or self._latest[0] != state:
            sources, paths = [], [each for each in given if isinstance(each, Path)]
            for number, text in enumerate(given):
                if isinstance(text, str):
                    if os.path.exists(text):
                        how = f"give Path({text!r}) for the file or folder of this name"
                        logger.warning("%r is read as a text: %s", text, how)
                    sources.append(text_source(text, f"text {number}"))
            sources += read_sources(paths, report=logger.warning)
            sections = [part for source in sources for part in self.sections(source)]
            self._latest = state, self.passages(sections)
        return self._latest[1]

    def answer(
        self, question: str, documents: Documents, *, top: int = 3, candidates: Sequence[str] = ()
    ) -> Ranking:
        """The `top` answers to a question, the best first; ``found`` of the list says whether
        there is one: if not, it holds a few guesses. Raises UserError: a question that cannot be
        asked, a file that cannot be read, or candidates, and a reader that does not take them.

        Of `documents`, one or several, a string is a text itself, a `Path` is a file or a folder;
        or they are what `index` returned. One of the `candidates` is the answer; where there are
        none, any piece of the documents may be."""
        return self.ask(question, self.index(documents), top, candidates=candidates)

    def ask(
        self,
        question: str,
        passages: Passages,
        top: int,
        *,
        least: float = 0.0,
        windows: int | None = None,
        candidates: Sequence[str] = (),
    ) -> Ranking:
        """As `answer`, from passages as `index` and `passages` return them; `least` is that of
        `Ranking`, `windows` how many passages are read, the most relevant ones (0: all; None: as
        the class has it)."""
        tokens, names = self.question(question), self._names(candidates)
        most = self.windows if windows is None else windows or len(passages)
        chosen = passages.likeliest(question, most)
        sections = [passages.sections[place] for place, *_ in chosen]
        if names:
            return ranked_candidates([self._weigh(tokens, x, names) for x in sections], top)
        reads = self.read(tokens, sections, top)
        asked = {stem for stem in stems(question) if len(stem) > 3}
        for read, (_, words, likeness) in zip(reads, chosen, strict=True):
            read.words, read.likeness, read.asked = words, likeness, asked
        ranking = ranked(reads, top, least, self.weights)
        matters = len(chosen) < len(passages) or not ranking.found
        if matters and not any(words for _, words, _ in chosen):
            ranking.note = "No word of the question is in the documents."
        return ranking

    def passages(self, sections: Sequence[Section]) -> Passages:
        """Sections to ask, those of one document together and in their order."""
        return Passages(sections, self._sentences)

    def sections(self, source: Source, most: int | None = None) -> list[Section]:
        """A document in sections of up to `most` tokens (None: `window`); see `Splitter`."""
        return self._splitter.sections(source, most or self.window)

    def question(self, text: str) -> Tensor:
        """Tokens, int64 [Q]. Raises UserError: if there is nothing to ask, or too much."""
        text = clean(text)
        shown = text if len(text) <= 60 else f"{text[:60]}..."
        if not text:
            raise bad_option("--question", "empty", "a question")
        try:
            tokens = self._pieces.symbols(text)
        except UnicodeEncodeError:
            raise bad_option("--question", ascii(shown), "a question", "no Unicode") from None
        most = self.task.cfg.max_question_positions - 2
        if len(tokens) > most:
            allowed = f"{most} subwords or fewer, as the model was trained"
            raise bad_option("--question", shown, allowed, f"has {len(tokens)} subwords")
        return framed(tokens, self._dictionary, most + 2)

    def _names(self, candidates: Sequence[str]) -> dict[str, Tensor]:
        """Candidates and their tokens. Raises UserError: this reader takes none, or not these."""
        if not candidates:
            return {}
        shown = ascii(list(candidates))
        if self._structure is None:
            allowed = "a reader of the architecture etc_reader, trained on questions with them"
            problem = f"the model is a {self.loaded.cfg.model._name}"
            raise bad_option("--candidates", shown, allowed, problem)
        try:
            names = {text.strip(): self._pieces.symbols(text.strip()) for text in candidates}
        except UnicodeEncodeError:
            names = {}
        if len(names) < 2 or not all(map(len, names.values())):
            raise bad_option("--candidates", shown, "two different texts or more")
        return names

    def _weigh(self, question: Tensor, section: Section, names: dict[str, Tensor]) -> SectionRead:
        document, mentions = section.document, []
        begins, ends = document.characters
        for number, place, start, end in mentions_of("", [*names], document.texts):
            tokens = document.tokens_of(place, start, end)
            if tokens and begins[tokens[0]] <= start and ends[tokens[-1]] >= end:
                mentions.append((number, tokens[0], tokens[-1] + 1))
        mentions = torch.tensor(mentions, dtype=torch.int64).view(-1, 3)
        document = replace(document, candidates=[*names], mentions=mentions)
        asked = Outline(document.sentences, names=(*names.values(),), mentions=mentions)
        try:
            logits, _ = self._together(question, [section], asked)
        except ValueError as error:  # no room for so many
            raise UserError(f"{len(names)} --candidates: {error}") from None
        (answers,) = ranked_answers(logits, [document], top=len(names))
        return SectionRead(section, answers)

    @torch.no_grad()
    def _together(
        self, question: Tensor, sections: Sequence[Section], outline: Outline | None = None
    ) -> tuple[AnswerLogits, dict]:
        """What the model returns for a question and some sections; of a structured model, one
        section and its outline, or that of its sentences."""
        more, words = [], self._dictionary
        if self._structure is not None:
            document, length = sections[0].document, len(sections[0])
            outline = outline or Outline(document.sentences)
            outline, *_ = self._structure.read(outline, document.starts, length, len(question))
            given = (question, document.starts, length, outline, words)
            question, row = self._structure.rows(*given)
            more = [self._structure.batch([row], words.pad())]
        masks = [text_mask(section.document.characters) for section in sections]
        tokens = pad_sequence([section.tokens for section in sections], True, words.pad())
        given = [question.expand(len(sections), -1), tokens, pad_sequence(masks, True), *more]
        return self.model(*utils.apply_to_sample(lambda x: x.to(self.device), given))

    def _clusters(self, question: Tensor, section: Section) -> dict[tuple[int, str], Tensor]:
        encoder = self.model.encoder
        if not isinstance(encoder, ReaderEncoder):
            return {}
        return encoder.clusters(self._together(question, [section])[1]["reading"])

    @torch.no_grad()
    def read(self, question: Tensor, sections: Sequence[Section], top: int) -> list[SectionRead]:
        """Read sections for a question, and keep the `top` best answers in each."""
        options = ranking_options(self.task.cfg) | {"top": top}

        def read(chosen: list[Section]) -> Iterator[SectionRead]:
            logits, _ = self._together(question, chosen)
            answers = ranked_answers(logits, [each.document for each in chosen], **options)
            for section, answer in zip(chosen, answers, strict=True):
                clusters = cache(partial(self._clusters, question, section))
                yield SectionRead(section, answer, clusters)

        return together(sections, 1 if self._structure else IN_A_BATCH, read)

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        # as the reader sees a document without a question
        question = framed(torch.empty(0).long(), self._dictionary, 2)[None].to(self.device)
        documents = [part.tokens[None] for part in self.sections(text_source(text, "text"))]
        read = [self.model.encoder(question, tokens.to(self.device)) for tokens in documents]
        return torch.cat([reading.document[0] for reading in read])
