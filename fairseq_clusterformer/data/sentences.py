"""Labelled sentences, and pairs of them, as a classifier's samples."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from .stored import BySize

PAIR_FORMS = ("joined", "siamese")


def shortened(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths that two texts keep so that both have room; the longer one loses its end."""
    first = min(first, max(room - second, room - room // 2))
    return first, min(second, room - first)


class SentenceDataset(BySize):
    """Labelled texts ``<s> a </s>``, or pairs: one sequence ``<s> a </s> b </s>`` in the form
    "joined", two in the form "siamese". Long texts lose their end; in a joined pair, the longer
    text does.

    Args:
        texts: one binarised data set, or two of equal length; with ``</s>`` at the end or without.
        labels: classes, int64 [n]; or numbers, float32 [n].
        pair_form: of :data:`PAIR_FORMS`.
        max_positions: tokens of a sequence.
        questions: the question that each pair belongs to, int64 [n]; None: no ranking.
    """

    def __init__(
        self,
        texts: list[Any],
        labels: Tensor,
        dictionary: Dictionary,
        *,
        pair_form: str,
        max_positions: int,
        questions: Tensor | None = None,
        shuffle: bool = True,
    ):
        self.texts, self.labels, self.questions = texts, labels, questions
        self.dictionary, self.max_positions, self.shuffle = dictionary, max_positions, shuffle
        self.joined = len(texts) > 1 and pair_form == "joined"
        lengths = []
        for text in texts:  # without </s>, which all lines of a file end with, or none
            ends = len(text) > 0 and dictionary.eos() in text[0][-1:].tolist()
            lengths.append(np.asarray(text.sizes) - int(ends))
        self._lengths = np.stack(lengths)
        #: tokens of each sample's longest sequence, were nothing cut
        self.full_sizes = self._lengths.sum(0) + 3 if self.joined else self._lengths.max(0) + 2
        self.sizes = np.minimum(self.full_sizes, max_positions)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        start, end = (torch.tensor([t]) for t in (self.dictionary.bos(), self.dictionary.eos()))
        lengths = self._lengths[:, index].tolist()
        if self.joined:
            lengths = shortened(*lengths, self.max_positions - 3)
        most = self.max_positions - 2
        parts = [text[index][: min(n, most)] for text, n in zip(self.texts, lengths, strict=True)]
        if self.joined:
            return {"id": index, "sequences": [torch.cat([start, parts[0], end, parts[1], end])]}
        return {"id": index, "sequences": [torch.cat([start, part, end]) for part in parts]}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """``src_tokens`` and of siamese pairs ``pair_tokens``, int64 [B, N]; ``target``,
        of the labels, [B]; and, where pairs are ranked, ``question``, int64 [B]."""
        ids, net_input = [sample["id"] for sample in samples], {}
        sides = zip(*(sample["sequences"] for sample in samples), strict=True)
        for name, rows in zip(("src", "pair"), sides, strict=False):
            net_input[f"{name}_tokens"] = collate_tokens(rows, self.dictionary.pad())
            net_input[f"{name}_lengths"] = torch.tensor([len(row) for row in rows])
        batch = {
            "net_input": net_input,
            "target": self.labels[ids],
            "ntokens": sum(len(row) for sample in samples for row in sample["sequences"]),
        }
        if self.questions is not None:
            batch["question"] = self.questions[ids]
        return batch
