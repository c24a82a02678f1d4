"""The structure of a question's document: paragraphs, sentences, candidates and their mentions.

Shape letters: N tokens of the document, S sentences, C candidates, M mentions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor


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

    def item(self) -> np.ndarray:
        """An item of ``SPLIT.structure``, int32: the numbers S, F (-1: unknown), C, the right
        candidate (-1: unknown) and M; then sentences, supporting ones, mentions, and of each
        candidate the number of its tokens, and these."""
        supporting = nothing(0) if self.supporting is None else self.supporting
        head = [
            len(self.sentences),
            -1 if self.supporting is None else len(supporting),
            len(self.names),
            -1 if self.right is None else self.right,
            len(self.mentions),
        ]
        sizes = [len(name) for name in self.names]
        tail = (self.sentences.flatten(), supporting, self.mentions.flatten(), sizes, *self.names)
        return np.concatenate([head, *tail]).astype(np.int32)

    @classmethod
    def of(cls, item: Tensor) -> "Outline":
        """What an item says."""
        sentences, supporting, candidates, right, mentions = item[:5].tolist()
        known = [2 * sentences, max(supporting, 0), 3 * mentions]
        *parts, names = item[5:].split([*known, len(item) - 5 - sum(known)])
        return cls(
            sentences=parts[0].view(-1, 2),
            supporting=None if supporting < 0 else parts[1],
            names=names[candidates:].split(names[:candidates].tolist()) if candidates else (),
            right=None if right < 0 else right,
            mentions=parts[2].view(-1, 3),
        )

    def check(self, starts: Tensor, length: int) -> None:
        """Raise ValueError for the first sentence, candidate or mention that a document of
        ``length`` tokens and paragraphs at ``starts``, int64 [P], cannot have."""
        within = f"within one of the paragraphs that begin at {_some(starts)}"
        first, last = self.sentences.T.contiguous()
        place = torch.searchsorted(starts, first, right=True)
        ends = torch.cat([starts[1:], starts.new_tensor([length])])[(place - 1).clamp(min=0)]
        for number in ((place < 1) | (last < first) | (last > ends)).nonzero().flatten().tolist():
            given = f"sentence {number} is tokens {self.sentences[number].tolist()}"
            raise ValueError(f"{given}; allowed: {within}, of {length} tokens")
        # a token may hold the end of one and the begin of the next
        if (first[1:] < first[:-1]).any():
            raise ValueError("sentences are not in their order; allowed: as in the document")
        facts = [] if self.supporting is None else self.supporting.tolist()
        if any(not 0 <= number < len(first) for number in facts):
            raise ValueError(f"supporting sentences {_some(facts)}; allowed: of {len(first)}")
        candidates = len(self.names)
        if self.right is not None and not 0 <= self.right < candidates:
            raise ValueError(f"candidate {self.right} is right; allowed: of {candidates}")
        for mention in self.mentions.tolist():
            if not (0 <= mention[0] < candidates and 0 <= mention[1] < mention[2] <= length):
                allowed = f"one of {candidates} candidates, and one or more of {length} tokens"
                raise ValueError(f"a mention is {mention}; allowed: {allowed}")
            if ((starts >= mention[1]) & (starts < mention[2])).any():
                raise ValueError(f"a mention is {mention}; allowed: {within}, behind its <s>")

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


def _some(numbers: Sequence[int] | Tensor) -> str:
    """The first of many numbers."""
    shown = ", ".join(str(int(number)) for number in numbers[:5])
    return shown + (", ..." if len(numbers) > 5 else "")
