"""The structure of a question's document, and the global tokens that stand for it.

ETC (Ainslie et al. 2020, appendix B) reads the question and the document as one long input, and
next to it global tokens: one for all, those of the question, one for each paragraph and one for
each sentence (HotpotQA), or one for each candidate in place of the first (WikiHop).

Shape letters: N tokens of the document, Q of the question, S sentences, C candidates, M mentions,
G global tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

#: types of tokens, which ETC adds to their words; pre-training has the first two alone
OF_SENTENCE, OF_TEXT, OF_QUESTION, OF_PARAGRAPH, OF_ALL, OF_CANDIDATE, IN_QUESTION, IN_TITLE = (
    range(8)
)


def _no(*shape: int) -> Tensor:
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

    sentences: Tensor = field(default_factory=lambda: _no(0, 2))
    supporting: Tensor | None = None
    candidates: int = 0
    right: int | None = None
    mentions: Tensor = field(default_factory=lambda: _no(0, 3))

    def item(self) -> np.ndarray:
        """As an item of ``SPLIT.structure``, int32: the numbers S, F (-1: unknown), C, the right
        candidate (-1: unknown) and M; then sentences, supporting ones and mentions."""
        supporting = _no(0) if self.supporting is None else self.supporting
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
        """Refuse what a document cannot be made of.

        Args:
            starts: of its paragraphs, int64 [P].
            length: N.
            linked: refuse candidates without a mention too.

        Raises:
            ValueError: naming the first sentence, candidate or mention that is wrong.
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
        if linked:
            without = set(range(self.candidates)) - set(self.mentions[:, 0].tolist())
            if without:
                raise ValueError(
                    f"no mention links candidate {min(without)}; allowed: one or more for each "
                    f"of {self.candidates}"
                )

    def within(self, length: int) -> "Outline":
        """Of the first tokens of the document: sentences that begin there, and mentions that are
        whole. What supports the answer is unknown if one of these sentences is not there, and so
        is the right candidate if none of its mentions is."""
        kept = int((self.sentences[:, 0] < length).sum())
        mentions = self.mentions[self.mentions[:, 2] <= length]
        supporting, right = self.supporting, self.right
        if supporting is not None and (supporting >= kept).any():
            supporting = None
        if right in self.mentions[:, 0].tolist() and right not in mentions[:, 0].tolist():
            right = None
        return Outline(
            sentences=self.sentences[:kept].clamp(max=length),
            supporting=supporting,
            candidates=self.candidates,
            right=right,
            mentions=mentions,
        )

    def without_sentences(self) -> "Outline":
        """Paragraphs, candidates and mentions alone."""
        return replace(self, sentences=_no(0, 2), supporting=None)

    def paragraph_of(self, starts: Tensor) -> Tensor:
        """The number of each sentence's paragraph, int64 [S].

        Args:
            starts: of the paragraphs, int64 [P].
        """
        return torch.searchsorted(starts, self.sentences[:, 0].contiguous(), right=True) - 1


class GlobalTokens(NamedTuple):
    """The global tokens of a question and its document.

    Attributes:
        words: symbols, ``<s>`` except for those of the question, int64 [G].
        types: of the constants above, int64 [G].
        spans: tokens [first, last) of the long input, the question before the document, that each
            stands for, int64 [G, K, 2]: K is 1, or the most mentions of a candidate; equal where
            there are no more.
        paragraphs: that each belongs to, rising, int64 [G]: the token for all and each candidate
            are one by themselves, and so are those of the question (the authors' code).
    """

    words: Tensor
    types: Tensor
    spans: Tensor
    paragraphs: Tensor


def number_of_global_tokens(question: int, paragraphs: int, outline: Outline) -> int:
    """G, before there are any.

    Args:
        question: Q, with ``<s>`` and ``</s>``.
        paragraphs: that there are.
        outline: of the document.
    """
    return max(outline.candidates, 1) + question - 2 + paragraphs + len(outline.sentences)


def global_tokens(
    question: Tensor, starts: Tensor, length: int, outline: Outline, dictionary: Dictionary
) -> GlobalTokens:
    """The global tokens of a question and its document: one for ``<s>`` of the question, or one
    for each candidate instead, then one for each token of the question, and then for each
    paragraph one for it and one for each of its sentences.

    Args:
        question: ``<s> question </s>``, int64 [Q].
        starts: of the paragraphs in the document, int64 [P].
        length: N.
        outline: of the document.
        dictionary: of both.
    """
    asked, before = len(question) - 2, len(question)
    starts = starts[starts < length]
    ends = torch.cat([starts[1:], starts.new_tensor([length])])
    of_sentence = outline.paragraph_of(starts)
    # a paragraph stands in front of its sentences
    number = torch.arange(len(starts))
    owner = torch.cat([number, of_sentence])
    is_sentence = torch.cat([torch.zeros_like(number), torch.ones_like(of_sentence)])
    order = (2 * owner + is_sentence).argsort(stable=True)
    parts = torch.cat([torch.stack([starts, ends], 1), outline.sentences])[order] + before
    types = torch.where(is_sentence[order] > 0, OF_SENTENCE, OF_PARAGRAPH)

    place = torch.arange(1, asked + 1)
    if outline.candidates:
        first, kind = _mentions(outline, before), OF_CANDIDATE
    else:
        first, kind = torch.tensor([[[0, 1]]]), OF_ALL
    alone = torch.cat([torch.stack([place, place + 1], 1), parts]).unsqueeze(1)
    nothing = _no(len(alone), first.size(1) - 1, 2)
    words = torch.full((len(first) + asked + len(parts),), dictionary.bos())
    words[len(first) : len(first) + asked] = question[1:-1]
    return GlobalTokens(
        words=words,
        types=torch.cat(
            [torch.full((len(first),), kind), torch.full_like(place, OF_QUESTION), types]
        ),
        spans=torch.cat([first, torch.cat([alone, nothing], 1)]),
        paragraphs=torch.cat(
            [
                torch.arange(len(first)),
                torch.full_like(place, len(first)),
                owner[order] + len(first) + 1,
            ]
        ),
    )


def _mentions(outline: Outline, before: int) -> Tensor:
    """The mentions of each candidate, rising, in a long input where some tokens stand before the
    document: int64 [C, K, 2]."""
    of_each = [
        outline.mentions[outline.mentions[:, 0] == number, 1:]
        for number in range(outline.candidates)
    ]
    rising = [places[places[:, 0].argsort()] + before for places in of_each]
    return pad_sequence([*rising, _no(1, 2)], True)[:-1]


def batch_of_globals(rows: Sequence[GlobalTokens], pad: int) -> dict[str, Tensor]:
    """Global tokens of B questions, by the names of their fields, with padding behind: ``words``
    of ``pad``, and spans without a token."""
    most = max(row.spans.size(1) for row in rows)
    # pad_sequence lengthens the first dimension alone
    wide = [
        torch.nn.functional.pad(row.spans, (0, 0, 0, most - row.spans.size(1))) for row in rows
    ]
    return {
        "words": pad_sequence([row.words for row in rows], True, padding_value=pad),
        "types": pad_sequence([row.types for row in rows], True),
        "spans": pad_sequence(wide, True),
        "paragraphs": pad_sequence([row.paragraphs for row in rows], True),
    }


def _some(numbers: Sequence[int] | Tensor, most: int = 5) -> str:
    """The first of many numbers."""
    shown = ", ".join(str(int(number)) for number in numbers[:most])
    return shown + (", ..." if len(numbers) > most else "")
