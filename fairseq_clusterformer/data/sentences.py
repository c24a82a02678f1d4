"""Sentences and pairs of them as samples: labelled ones, and what BERT is pre-trained on."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from .stored import BySize, padded

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


class NextSentences(BySize):
    """Pairs ``<s> a </s> b </s>`` from documents of lines, of which the second text follows the
    first or not, with masked words: what BERT (Devlin et al. 2019, section 3.1) and CF22 (appendix
    F) are pre-trained on. Raises ValueError: of fewer documents than two.

    A document is read in portions of whole lines, each long enough for a pair. A portion is
    divided behind one of its lines. Where both halves are too long for a pair, the longer one
    loses words: `a` at its begin, `b` at its end. Half of the time `b` is as many words of another
    document, from the begin of a line; always, where a portion is one line. Where it is divided,
    what follows and what is masked differ between epochs.

    Args:
        lines: binarised, each with ``</s>`` at its end; an empty one ends a document.
        dictionary: of the lines, with ``<mask>``.
        max_positions: tokens of a pair, with its three symbols.
        guessed: share of the words to guess; special symbols are never among them.
        kept, replaced: shares of the guessed words that stay, and that become another.
    """

    shuffle = True

    def __init__(
        self,
        lines: FairseqDataset,
        dictionary: Dictionary,
        *,
        max_positions: int,
        guessed: float = 0.15,
        kept: float = 0.1,
        replaced: float = 0.1,
        seed: int = 1,
    ):
        self.lines, self.dictionary, self.mask = lines, dictionary, dictionary.index("<mask>")
        self.room = max_positions - 3
        self.guessed, self.kept, self.replaced = guessed, kept, replaced
        self.seed = seed

        sizes = np.asarray(lines.sizes) - 1
        self._line = np.flatnonzero(sizes)  # the number of each line that has words
        document = (sizes == 0).cumsum()[self._line]
        begins = np.flatnonzero(np.diff(document, prepend=-1))
        if len(begins) < 2:
            allowed = "two or more, with an empty line between"
            raise ValueError(f"{len(begins)} documents; allowed: {allowed}")
        #: tokens before each line, and of all
        self._before = np.concatenate([[0], sizes[self._line].cumsum()])
        portions = []
        for begin, end in zip(begins, [*begins[1:], len(self._line)], strict=True):
            first = begin
            while first < end:
                wanted = self._before[first] + self.room
                last = min(end, int(np.searchsorted(self._before, wanted)))
                portions.append((first, last, begin, end))
                first = last
        #: lines [first, last) of each portion, and those of its document
        self._portions = np.array(portions)
        first, last = self._portions[:, 0], self._portions[:, 1]
        words = self._before[last] - self._before[first]
        words += (last == first + 1) * (self.room // 2)  # for the second text
        self.sizes = np.minimum(words, self.room) + 3  # or less: another document may be shorter

    def __getitem__(self, index: int) -> dict[str, Any]:
        """``tokens`` with their masks, ``target`` with padding where nothing is guessed, and
        ``segments``, 1 behind the first ``</s>``, int64 [n]; ``follows``, 1 or 0."""
        draw = np.random.default_rng((self.seed, self.epoch, index))
        a, b, follows = self._pair(index, draw)
        (start, end) = (np.array([i]) for i in (self.dictionary.bos(), self.dictionary.eos()))
        tokens = np.concatenate([start, a, end, b, end])
        special = self.dictionary.nspecial
        places = np.flatnonzero(tokens >= special)
        places = draw.permutation(places)[: max(1, round(self.guessed * len(places)))]
        target = np.full_like(tokens, self.dictionary.pad())
        target[places] = tokens[places]
        fate = draw.random(len(places))
        tokens[places[fate >= self.kept + self.replaced]] = self.mask
        others = places[(fate >= self.kept) & (fate < self.kept + self.replaced)]
        drawn = draw.integers(special, len(self.dictionary) - 1, len(others))
        tokens[others] = drawn + (drawn >= self.mask)
        segments = np.arange(len(tokens)) >= len(a) + 2
        parts = {"tokens": tokens, "target": target, "segments": segments}
        tensors = {name: torch.from_numpy(part).long() for name, part in parts.items()}
        return {"id": index, "follows": int(follows), **tensors}

    def _pair(self, index: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, bool]:
        """Two texts, and whether the second one follows the first."""
        first, last, begin, end = self._portions[index].tolist()
        middle = int(draw.integers(first + 1, last)) if last > first + 1 else last
        a, b = self._words(first, middle), self._words(middle, last)
        # of a line alone there is no second half, but room
        size, second = shortened(len(a), len(b) or self.room // 2, self.room)
        a = a[len(a) - size :]
        if len(b) and draw.random() < 0.5:
            return a, b[:second], True
        # of the lines outside of this document, one with so many words behind it, if there is one
        ends = self._portions[:, 3]
        for _ in range(10):
            other = int(draw.integers(len(self._line) - (end - begin)))
            other += (end - begin) * (other >= begin)
            stop = int(ends[np.searchsorted(ends, other, side="right")])
            if self._before[stop] - self._before[other] >= second:
                break
        stop = min(stop, int(np.searchsorted(self._before, self._before[other] + second)))
        return a, self._words(other, stop)[:second], False

    def _words(self, first: int, last: int) -> np.ndarray:
        """The tokens of lines [first, last) that follow each other in a document."""
        if first == last:
            return np.empty(0, np.int64)
        return np.concatenate([self.lines[i][:-1].numpy() for i in self._line[first:last]])

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """``src_tokens``, ``segments`` and ``target``, int64 [B, N]; ``follows``, int64 [B]."""
        pad = self.dictionary.pad()
        lengths = torch.tensor([len(sample["tokens"]) for sample in samples])
        return {
            "net_input": {
                "src_tokens": padded(samples, "tokens", pad),
                "src_lengths": lengths,
                "segments": padded(samples, "segments", 0),
            },
            "target": padded(samples, "target", pad),
            "follows": torch.tensor([sample["follows"] for sample in samples]),
            "ntokens": int(lengths.sum()),
        }
