"""Questions and their documents as a reader's samples."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.answers import TYPES, text_mask

from .qa import Example, QAData
from .stored import BySize, padded
from .structure import Outline


def framed(question: Tensor, dictionary: Dictionary, max_positions: int) -> Tensor:
    """``<s> question </s>``, int64 [Q]; of more than ``max_positions`` tokens it loses its end."""
    first, last = (torch.tensor([token]) for token in (dictionary.bos(), dictionary.eos()))
    return torch.cat([first, question[: max_positions - 2], last])


class QuestionDataset(BySize):
    """Samples of a question, its document and the right answers; long documents lose their end.

    Args:
        data, split: questions of a split, and its name, which is in each batch.
        max_positions: tokens of a document, whose number is the sample's size.
        max_question_positions: tokens of a question, with ``<s>`` and ``</s>``.
        structure: what batches have of the documents' structure, see etc/global_tokens.py; None:
            nothing.

    Attributes:
        cuts: what is not read, in numbers of documents and questions by what it is.
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

    def __len__(self) -> int:
        return len(self.data)

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
            "paragraphs": long,
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
        types = set()
        if example.answerable is False:
            types.add("none")
        elif example.answerable:
            if example.yes_no:
                types.add(example.yes_no)
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
        tokens = padded(samples, "document", self.dictionary.pad())
        paragraphs = torch.zeros_like(tokens, dtype=torch.bool)
        for row, sample in zip(paragraphs, samples, strict=True):
            row[sample["paragraphs"]] = True
        spans, last = (
            pad_sequence([sample[name] for sample in samples], True, padding_value=-1)
            for name in ("spans", "last_span")
        )
        batch = {
            "split": self.split,
            "net_input": {
                "question_tokens": padded(samples, "question", self.dictionary.pad()),
                "document_tokens": tokens,
                "text_mask": padded(samples, "text_mask", False),
            },
            "target": {
                "spans": spans,
                "last_span": last,
                "paragraphs": paragraphs,
                "types": torch.stack([sample["types"] for sample in samples]),
            },
            "ntokens": sum(len(sample["document"]) for sample in samples),
        }
        if self.structure is not None:
            globals_ = [sample["globals"] for sample in samples]
            batch["net_input"]["structure"] = self.structure.batch(globals_, self.dictionary.pad())
            outlines = [sample["outline"] for sample in samples]
            right = [-1 if outline.right is None else outline.right for outline in outlines]
            batch["target"] |= {
                "supporting": pad_sequence(list(map(_supporting, outlines)), True, -1),
                "candidate": torch.tensor(right),
            }
        return batch


def _supporting(outline: Outline) -> Tensor:
    """For each sentence, whether it supports the answer: 1, 0, or -1 for unknown, int64 [S]."""
    known = outline.supporting is not None
    told = torch.full((len(outline.sentences),), 0 if known else -1)
    if known:
        told[outline.supporting] = 1
    return told


def _left(example: Example, length: int, paragraphs: int) -> tuple[Tensor, Tensor, bool]:
    """Answers [A, 2] among the first tokens, and ``<s>`` of long ones [L], also by paragraphs;
    and whether it had short answers or long answers, and none of these is left."""
    long = example.paragraph_starts[example.long_answers[example.long_answers < paragraphs]]
    found = example.answers[example.answers[:, 1] <= length], long[long < length]
    pairs = zip(found, (example.answers, example.long_answers), strict=True)
    return *found, any(len(before) and not len(left) for left, before in pairs)
