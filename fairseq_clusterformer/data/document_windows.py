"""Long documents in windows: each is read, with the question, as a document of its own.

Ainslie et al. 2020 (appendix B) do so for Natural Questions, with a stride of half a window; as in
Alberti et al. 2019, one window answers the question: the one whose best answer is likeliest beside
"no answer".
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_clusterformer.answers import Answers, Document

from .qa import Example, QAData
from .questions import QuestionDataset
from .stored import BySize
from .structure import Outline


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

    Args:
        whole: the questions.
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

    def questions(
        self, windows: Sequence[int], found: Sequence[Answers]
    ) -> Iterator[tuple[int, Answers]]:
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
    """What a window holds, in tokens and paragraphs of its own: where paragraphs start, short and
    long answers; see `Example`."""
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

    def __len__(self) -> int:
        return len(self._of_each)

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        return [self.windows[window] for window in self._of_each[index]]

    def collater(self, samples: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """A batch, as of `QuestionDataset`, whose rows are windows."""
        return self.windows.collater([window for sample in samples for window in sample])
