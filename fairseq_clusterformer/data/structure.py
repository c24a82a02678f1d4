"""The structure of a question's document: paragraphs, sentences, candidates and their mentions.

Shape letters: N tokens of the document, S sentences, C candidates, M mentions.
"""

from dataclasses import dataclass, field, replace

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

    def check(self, starts: Tensor, length: int) -> None:
        """Raise ValueError for what a document of ``length`` tokens and paragraphs at ``starts``,
        int64 [P], cannot have."""
        first, last = self.sentences.T.contiguous()
        place = self.paragraph_of(starts)
        ends = torch.cat([starts[1:], starts.new_tensor([length])])[place.clamp(min=0)]
        in_order = (first[1:] >= first[:-1]).all()  # a token may be of two sentences
        facts = nothing(0) if self.supporting is None else self.supporting
        mention, begin, end = self.mentions.T.contiguous()
        candidates, before = len(self.names), torch.searchsorted(starts, torch.stack([begin, end]))
        is_known = (mention >= 0) & (mention < candidates)
        in_one = (begin >= 0) & (begin < end) & (end <= length) & (before[0] == before[1])
        right = {
            "sentences": bool(((place >= 0) & (first <= last) & (last <= ends)).all() & in_order),
            "supporting": bool(((facts >= 0) & (facts < len(first))).all()),
            "right": self.right is None or 0 <= self.right < candidates,
            "mentions": bool((is_known & in_one).all()),
        }
        if wrong := [name for name, is_right in right.items() if not is_right]:
            allowed = f"sentences in order, each in one of {len(starts)} paragraphs of {length} "
            allowed += f"tokens, and so are mentions of {candidates} candidates"
            given = " ".join(str(getattr(self, wrong[0])).split())
            raise ValueError(f"{wrong[0]} is {given}; allowed: {allowed}")

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
