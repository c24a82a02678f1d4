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
    """What a document is made of, in tokens of it.

    Args:
        sentences: [first, last) of each, rising, each in one paragraph, int64 [S, 2]; equal for a
            sentence without a token.
        supporting: the numbers of the sentences that support the answer, int64 [F]; None: unknown.
        candidates: C, of answers; 0: the question has none.
        right: the number of the right candidate; None: unknown.
        mentions: candidate, first and last token of each place where one stands, int64 [M, 3].
    """

    sentences: Tensor = field(default_factory=lambda: nothing(0, 2))
    supporting: Tensor | None = None
    candidates: int = 0
    right: int | None = None
    mentions: Tensor = field(default_factory=lambda: nothing(0, 3))

    def item(self) -> np.ndarray:
        """An item of ``SPLIT.structure``, int32: the numbers S, F (-1: unknown), C, the right
        candidate (-1: unknown) and M; then sentences, supporting ones and mentions."""
        supporting = nothing(0) if self.supporting is None else self.supporting
        head = [
            len(self.sentences),
            -1 if self.supporting is None else len(supporting),
            self.candidates,
            -1 if self.right is None else self.right,
            len(self.mentions),
        ]
        tail = (self.sentences.flatten(), supporting, self.mentions.flatten())
        return np.concatenate([head, *tail]).astype(np.int32)

    @classmethod
    def of(cls, item: Tensor) -> "Outline":
        """What an item says."""
        sentences, supporting, candidates, right, mentions = item[:5].tolist()
        parts = item[5:].split([2 * sentences, max(supporting, 0), 3 * mentions])
        return cls(
            sentences=parts[0].view(-1, 2),
            supporting=None if supporting < 0 else parts[1],
            candidates=candidates,
            right=None if right < 0 else right,
            mentions=parts[2].view(-1, 3),
        )

    def check(self, starts: Tensor, length: int, *, linked: bool) -> None:
        """Raise ValueError for the first sentence, candidate or mention that a document of
        ``length`` tokens and paragraphs at ``starts``, int64 [P], cannot have.

        Args:
            linked: refuse candidates without a mention too.
        """
        first, last = self.sentences.T.contiguous()
        place = torch.searchsorted(starts, first, right=True)
        ends = torch.cat([starts[1:], starts.new_tensor([length])])[(place - 1).clamp(min=0)]
        for number in ((place < 1) | (last < first) | (last > ends)).nonzero().flatten().tolist():
            tokens = self.sentences[number].tolist()
            raise ValueError(
                f"sentence {number} is tokens {tokens}; allowed: within one of the paragraphs "
                f"that begin at {_some(starts)}, of {length} tokens"
            )
        # a token may hold the end of one and the begin of the next
        if (first[1:] < first[:-1]).any():
            raise ValueError("sentences are not in their order; allowed: as in the document")
        facts = [] if self.supporting is None else self.supporting.tolist()
        if any(not 0 <= number < len(first) for number in facts):
            raise ValueError(f"supporting sentences {_some(facts)}; allowed: of {len(first)}")
        if self.right is not None and not 0 <= self.right < self.candidates:
            raise ValueError(f"candidate {self.right} is right; allowed: of {self.candidates}")
        for mention in self.mentions.tolist():
            if not (0 <= mention[0] < self.candidates and 0 <= mention[1] < mention[2] <= length):
                raise ValueError(
                    f"a mention is {mention}; allowed: one of {self.candidates} candidates, and "
                    f"one or more of {length} tokens"
                )
            if ((starts >= mention[1]) & (starts < mention[2])).any():
                raise ValueError(
                    f"a mention is {mention}; allowed: within one of the paragraphs that begin "
                    f"at {_some(starts)}, behind its <s>"
                )
        without = set(range(self.candidates)) - set(self.mentions[:, 0].tolist())
        if linked and without:
            raise ValueError(
                f"no mention links candidate {min(without)}; allowed: one or more for each of "
                f"{self.candidates}"
            )

    def within(self, length: int) -> "Outline":
        """The structure of the first tokens: sentences that begin there, and whole mentions. The
        right candidate is unknown if all its mentions are gone."""
        mentions = self.mentions[self.mentions[:, 2] <= length]
        right = self.right
        if right in self.mentions[:, 0].tolist() and right not in mentions[:, 0].tolist():
            right = None
        kept = self.with_sentences(int((self.sentences[:, 0] < length).sum()))
        sentences = kept.sentences.clamp(max=length)
        return replace(kept, sentences=sentences, right=right, mentions=mentions)

    def with_sentences(self, number: int) -> "Outline":
        """The first sentences alone; what supports the answer is unknown if one of it is gone."""
        supporting = self.supporting
        if supporting is not None and (supporting >= number).any():
            supporting = None
        return replace(self, sentences=self.sentences[:number], supporting=supporting)

    def paragraph_of(self, starts: Tensor) -> Tensor:
        """The number of each sentence's paragraph, int64 [S], by where these start, int64 [P]."""
        return torch.searchsorted(starts, self.sentences[:, 0].contiguous(), right=True) - 1


def _some(numbers: Sequence[int] | Tensor, most: int = 5) -> str:
    """The first of many numbers."""
    shown = ", ".join(str(int(number)) for number in numbers[:most])
    return shown + (", ..." if len(numbers) > most else "")
