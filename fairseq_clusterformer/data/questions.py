"""Questions and their documents as a reader's samples, long ones in windows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.answers import TYPES, Answers, Document, text_mask

from .qa import Example, Numbered, Outline, QAData
from .stored import BySize, padded


def framed(question: Tensor, dictionary: Dictionary, max_positions: int) -> Tensor:
    """``<s> question </s>``, int64 [Q]; of more than ``max_positions`` tokens it loses its end."""
    first, last = (torch.tensor([token]) for token in (dictionary.bos(), dictionary.eos()))
    return torch.cat([first, question[: max_positions - 2], last])


class QuestionDataset(BySize):
    """Samples of a question, its document and the right answers; long documents lose their end.
    ``cuts`` is what is not read, in numbers of documents and questions by what it is.

    Args:
        data, split: questions of a split, and its name, which is in each batch.
        max_positions: tokens of a document, whose number is the sample's size.
        max_question_positions: tokens of a question, with ``<s>`` and ``</s>``.
        structure: what batches have of a document's, see etc/reader.py; None: nothing.
    """

    def __init__(
        self,
        data: QAData,
        dictionary: Dictionary,
        *,
        split: str,
        max_positions: int,
        max_question_positions: int,
        shuffle: bool = True,
        structure: Any = None,
    ):
        self.data, self.split, self.structure = data, split, structure
        self.dictionary, self.shuffle = dictionary, shuffle
        self.max_question_positions = max_question_positions
        self.sizes = np.minimum(data.sizes, max_positions)
        self.cuts: dict[str, int] = {}

    def __getitem__(self, index: int) -> dict[str, Any]:
        example, length = self.data[index], int(self.sizes[index])
        question = framed(example.question, self.dictionary, self.max_question_positions)
        sample, paragraphs = {}, len(example.paragraph_starts)
        if self.structure is not None:
            starts = example.paragraph_starts
            given = (example.outline, starts, length, len(question))
            outline, paragraphs, _ = self.structure.read(*given)
            given = (question, starts, length, outline, self.dictionary)
            question, sample["globals"] = self.structure.rows(*given)
            sample["outline"] = outline
        answers, long, is_lost = _left(example, length, paragraphs)
        return {
            **sample,
            "id": index,
            "question": question,
            "document": example.document[:length],
            "text_mask": text_mask(example.characters[:, :length]),
            "spans": answers.unique(dim=0) - torch.tensor([0, 1]),
            "last_span": answers[-1:] - torch.tensor([0, 1]),
            "paragraphs": torch.zeros(length, dtype=torch.bool).index_fill(0, long, True),
            "types": self._types(index, example) | is_lost,
        }

    def cut(self) -> tuple[int, int, int]:
        """How many documents are cut, how many lose their answers by it, and questions cut; a
        document that is read in windows is one."""
        (cut,) = np.nonzero(self.data.sizes > self.sizes)
        lost = 0
        for index in cut:
            example, length = self.data[index], int(self.sizes[index])
            lost += _left(example, length, len(example.paragraph_starts))[2]
        questions = self.data.question_sizes + 2 > self.max_question_positions
        numbers = self.data.numbers
        return len({*numbers[cut]}), lost, len({*numbers[questions]})

    def check_structure(self) -> tuple[int, int, int]:
        """Refuse documents whose structure is not one, or cannot be read. Returns how many
        questions' supporting sentences are known, of how many documents not all parts have a
        global token, and of how many a long answer's paragraph has none. Raises ValueError: naming
        the file and the question."""
        known, short, lost = 0, set(), set()
        for index, number in enumerate(self.data.numbers):
            example, length = self.data[index], int(self.sizes[index])
            starts = example.paragraph_starts
            asked = min(int(self.data.question_sizes[index]) + 2, self.max_question_positions)
            try:
                outline, of_windows = example.outline, self.data is not self.data.whole
                if of_windows and (names := outline.names):
                    raise ValueError(f"{len(names)} candidates; allowed: no --document-stride")
                outline.check(starts, int(self.data.sizes[index]))
                outline, some, left_out = self.structure.read(outline, starts, length, asked)
            except ValueError as error:
                where = f"question {index} (id {self.data.texts(index)['id']})"
                raise ValueError(f"{self.data.prefix}.structure.idx: {where}: {error}") from None
            known += outline.supporting is not None
            short |= {number} if left_out else set()
            long = example.long_answers[example.long_answers >= some]
            lost |= {number} if (starts[long] < length).any() else set()
        return known, len(short), len(lost)

    def _types(self, index: int, example: Example) -> Tensor:
        """The types that an answer to the question may have, bool [5]; all, if that is unknown."""
        types = {"none"} if example.answerable is False else set()
        if example.answerable:
            types |= {example.yes_no} - {None}
            # an answer that was not found in the document has a text but no span
            if len(example.answers) or {*self.data.texts(index)["texts"]} - {example.yes_no}:
                types.add("short")
            if not types and len(example.long_answers):
                types.add("long")
        return torch.tensor([name in types or not types for name in TYPES])

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """The ``split`` that it counts in, and

        - ``net_input``: what the model reads;
        - ``target``: ``spans``, first and last tokens of short answers, int64 [B, A, 2], -1: no
          more; ``last_span``, the one listed last, [B, 1, 2], or [B, 0, 2] where no question has
          one; ``paragraphs``, the ``<s>`` of long answers, bool [B, N]; possible ``types``, bool
          [B, 5]; of structured documents also ``supporting`` sentences, 1, 0 or -1 (unknown, or
          no more), int64 [B, S], and the right ``candidate``, int64 [B], -1: none.
        """
        batch = {
            "split": self.split,
            "net_input": {
                "question_tokens": padded(samples, "question", self.dictionary.pad()),
                "document_tokens": padded(samples, "document", self.dictionary.pad()),
                "text_mask": padded(samples, "text_mask", False),
            },
            "target": {
                "spans": pad_sequence([sample["spans"] for sample in samples], True, -1),
                "last_span": pad_sequence([sample["last_span"] for sample in samples], True, -1),
                "paragraphs": padded(samples, "paragraphs", False),
                "types": torch.stack([sample["types"] for sample in samples]),
            },
            "ntokens": sum(len(sample["document"]) for sample in samples),
        }
        if self.structure is not None:
            globals_ = [sample["globals"] for sample in samples]
            batch["net_input"]["structure"] = self.structure.batch(globals_, self.dictionary.pad())
            supporting, right = [], []
            for outline in (sample["outline"] for sample in samples):
                known = outline.supporting is not None
                supporting.append(torch.full((len(outline.sentences),), 0 if known else -1))
                if known:
                    supporting[-1][outline.supporting] = 1
                right.append(-1 if outline.right is None else outline.right)
            batch["target"]["supporting"] = pad_sequence(supporting, True, -1)
            batch["target"]["candidate"] = torch.tensor(right)
        return batch


def _left(example: Example, length: int, paragraphs: int) -> tuple[Tensor, Tensor, bool]:
    """Answers [A, 2] among the first tokens, and ``<s>`` of long ones [L], also by paragraphs;
    and whether it had short answers or long answers, and none of these is left."""
    long = example.paragraph_starts[example.long_answers[example.long_answers < paragraphs]]
    found = example.answers[example.answers[:, 1] <= length], long[long < length]
    pairs = zip(found, (example.answers, example.long_answers), strict=True)
    return *found, any(len(before) and not len(left) for left, before in pairs)


class _Window(NamedTuple):
    question: int  # its number in the split
    first: int  # tokens [first, last) of the document
    last: int
    led: int  # 1: it begins within a paragraph, and <s> stands in front; else 0
    shift: int  # from tokens of the window to those of the document
    before: int  # the number of the paragraph that it begins in


class WindowData:
    """The windows of a split, in the order of its questions: as `QAData`, a question for each. A
    window that holds no answer of a question that has some has the answer "none".

    Ainslie et al. 2020 (appendix B) read Natural Questions so, with a stride of half a window; as
    in Alberti et al. 2019, the window whose best answer is likeliest beside "no answer" answers.

    Args:
        size: tokens of a window, with an ``<s>`` in front of one that begins within a paragraph.
        stride: between the first tokens of two windows, below ``size``.
        share: of the windows without an answer that are kept, drawn at random.

    Attributes:
        numbers: of each window's question, int64.
        dropped, lost: windows without an answer that are not kept, and questions whose answers are
            whole in no window.
    """

    def __init__(self, whole: QAData, size: int, stride: int, *, share: float = 1.0) -> None:
        self.whole, self.prefix, self.dropped, self.lost = whole, whole.prefix, 0, 0
        self._windows, draw = [], np.random.default_rng(1)
        for number in range(len(whole)):
            example, held = whole[number], False
            for window in _windows(number, example, size, stride):
                _, short, long = _answers(example, window)
                holds = bool(len(short) or len(long))
                held |= holds
                if holds or share >= 1 or draw.random() < share:
                    self._windows.append(window)
                else:
                    self.dropped += 1
            self.lost += not held and bool(len(example.answers) or len(example.long_answers))
        self.sizes = np.array([w.last - w.shift for w in self._windows], np.int64)
        self.numbers = np.array([w.question for w in self._windows], np.int64)
        self.question_sizes = whole.question_sizes[self.numbers]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Example:
        window = self._windows[index]
        example = self.whole[window.question]
        starts, short, long = _answers(example, window)
        own = slice(window.first, window.last)
        document, places = example.document[own], example.characters[:, own]
        if window.led:
            document = torch.cat([example.document[:1], document])
            places = torch.cat([places.new_full((2, 1), -1), places], dim=1)
        sentences, names = example.outline.sentences, example.outline.names
        first, last = sentences.T
        inside = sentences[(first < window.last) & (last > window.first)]
        outline = Outline(inside.clamp(window.first, window.last) - window.shift, names=names)
        fields = {"document": document, "characters": places, "paragraph_starts": starts}
        fields |= {"answers": short, "long_answers": long, "outline": outline}
        known = len(example.answers) or len(example.long_answers)
        if known and not len(short) and not len(long):
            fields |= {"answerable": False, "yes_no": None}
        return replace(example, **fields)

    def texts(self, index: int) -> dict:
        """The question's line; no accepted ``texts`` where these stand in other windows alone."""
        number = self._windows[index].question
        line = self.whole.texts(number)
        elsewhere = len(self.whole[number].answers) and not len(self[index].answers)
        return line | {"texts": []} if elsewhere else line

    def document(self, index: int) -> Document:
        """As `QAData.document`."""
        window, example = self._windows[index], self[index]
        starts, places = example.paragraph_starts, example.characters
        texts = self.whole.document(window.question).texts[window.before :][: len(starts)]
        return Document(texts=texts, starts=starts, characters=places)

    def questions(self, windows: Sequence[int], found: Sequence[Answers]) -> Numbered:
        """As `QAData.questions`: of each question the answers in the window whose best answer is
        likeliest beside "no answer"; all windows of a question follow each other."""
        best: dict[int, tuple[float, int, Answers]] = {}
        for index, answers in zip(windows, found, strict=True):
            number, margin = self._windows[index].question, answers.best_margin
            if number not in best or margin > best[number][0]:
                best[number] = (margin, index, answers)
        for number, (_, index, answers) in best.items():
            yield number, answers.moved(self._windows[index].shift, self._windows[index].before)


def _answers(example: Example, window: _Window) -> tuple[Tensor, Tensor, Tensor]:
    """Where a window's paragraphs start, and short and long answers, as `Example` has them."""
    starts = example.paragraph_starts
    own = (starts >= window.first) & (starts < window.last)
    begins = starts[own]
    begin, end = example.answers.T
    inside = (begin >= window.first) & (end <= window.last)
    # of a paragraph that is cut, the part with the answer, if this is known
    ends = torch.cat([starts[1:], starts.new_tensor([len(example.document)])])
    if len(example.answers) and not inside.any():
        own = own & (ends <= window.last)
    long = example.long_answers[own[example.long_answers]] - window.before
    starts = torch.cat([starts.new_zeros(window.led), begins - window.shift])
    return starts, example.answers[inside] - window.shift, long


def _windows(question: int, example: Example, size: int, stride: int) -> Iterator[_Window]:
    length, starts = len(example.document), example.paragraph_starts
    for first in range(0, length, stride):
        led = int(first not in starts)
        last = min(first - led + size, length)
        before = int(torch.searchsorted(starts, first, right=True)) - 1
        yield _Window(question, first, last, led, first - led, before)
        if last == length:
            return


class WindowedQuestions(BySize):
    """Samples of all windows of a question together, whose answers are one's; each window is a
    sample of `windows`, whose data are `WindowData`."""

    def __init__(self, windows: QuestionDataset):
        self.windows, self.data, self.split = windows, windows.data, windows.split
        self.shuffle, self.cuts = windows.shuffle, windows.cuts
        first = np.unique(windows.data.numbers, return_index=True)[1]  # they rise
        self._of_each = np.split(np.arange(len(windows)), first)[1:]
        self.sizes = np.array([windows.sizes[of].sum() for of in self._of_each])

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        return [self.windows[window] for window in self._of_each[index]]

    def collater(self, samples: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """A batch, as of `QuestionDataset`, whose rows are windows."""
        return self.windows.collater([window for sample in samples for window in sample])
