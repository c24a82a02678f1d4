"""The global tokens that stand for the parts of a question's document.

ETC (Ainslie et al. 2020, appendix B) reads the question and the document as one long input, and
next to it global tokens: one for all, those of the question, one for each paragraph and one for
each sentence (HotpotQA), or one for each candidate in place of the first (WikiHop), whose words
stand behind the question.

Shape letters: N tokens of the document, Q of the question, C candidates, G global tokens, K
mentions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.qa import Outline

#: types of tokens, which ETC adds to their words; pre-training has the first two alone
OF_SENTENCE, OF_TEXT, OF_QUESTION, OF_PARAGRAPH, OF_ALL, OF_CANDIDATE = range(6)
IN_QUESTION, IN_TITLE, IN_CANDIDATE = range(6, 9)


class GlobalTokens(NamedTuple):
    """The global tokens of a question and its document."""

    words: Tensor  # symbols, <s> except for those of the question, int64 [G]
    types: Tensor  # of the constants above, int64 [G]
    # tokens [first, last) of the long input, the question before the document, that each stands
    # for, int64 [G, 2]
    spans: Tensor
    # the mentions of candidates: the global token, and tokens [first, last), int64 [K, 3]
    links: Tensor
    # that each belongs to, rising, int64 [G]: the token for all and each candidate are one by
    # themselves, and so are those of the question (the authors' code)
    paragraphs: Tensor


@dataclass(frozen=True)
class DocumentStructure:
    """What a reader of structured documents is given of them; the trunk's data set asks it."""

    sentences: bool = True  # they have global tokens
    supporting: bool = False  # it says which sentences support an answer
    by_parts: bool = True  # global tokens stand for parts of the document
    most: int = 0  # global tokens of a question and its document, if by parts; 0: any number

    def read(
        self, outline: Outline, starts: Tensor, length: int, question: int
    ) -> tuple[Outline, int, int]:
        """What is read of an outline, of documents' paragraphs at ``starts``, int64 [P], and of
        so many of its tokens and of the question's: its sentences that have a global token.
        Paragraphs and sentences have one each, in their order, as long as there is room. Returns
        the outline, how many paragraphs have a global token, and how many paragraphs and sentences
        have none. Raises ValueError: no room for the question and its candidates."""
        outline = outline.within(length)
        if not self.sentences:
            outline = outline.with_sentences(0)
        starts = starts[starts < length]
        if not (self.by_parts and self.most):
            return outline, len(starts), 0
        first = max(len(outline.names), 1) + question - 2
        if first >= self.most:
            given = f"{first} global tokens of the question and of its candidates"
            allowed = f"{self.most - 1} or fewer (--max-global-positions)"
            raise ValueError(f"{given}; allowed: {allowed}")
        number = torch.arange(len(starts))
        place = number + torch.searchsorted(outline.paragraph_of(starts), number)
        paragraphs = int((place < self.most - first).sum())
        kept = outline.with_sentences(self.most - first - paragraphs)
        left_out = len(starts) + len(outline.sentences) - paragraphs - len(kept.sentences)
        return kept, paragraphs, left_out

    def rows(
        self,
        question: Tensor,
        starts: Tensor,
        length: int,
        outline: Outline,
        dictionary: Dictionary,
    ) -> tuple[Tensor, GlobalTokens]:
        """What is read of a question, ``<s> question </s>``: it and then ``<s>`` and the words of
        each candidate, int64 [Q]. And its global tokens and those of its document: one for
        ``<s>``, or one for each candidate instead; one for each token of the question; and for
        each paragraph, whose starts are int64 [P], one for it and one for each sentence."""
        asked, bos = len(question) - 2, dictionary.bos()
        names = [torch.cat([question.new_tensor([bos]), name]) for name in outline.names]
        question = torch.cat([question, *names])
        before = len(question)
        # of each its symbol, type, first token and the one past the last
        ends = accumulate(map(len, names), initial=asked + 2)
        found = [(bos, OF_CANDIDATE, *span) for span in pairwise(ends)] or [(bos, OF_ALL, 0, 1)]
        own = len(found)
        paragraphs = [*range(own), *[own] * asked]
        words = enumerate(question[1 : asked + 1].tolist(), 1)
        found += [(word, OF_QUESTION, place, place + 1) for place, word in words]
        starts = starts[starts < length]
        spans = pairwise([*starts.tolist(), length])
        parts = [(number, OF_PARAGRAPH, *span) for number, span in enumerate(spans)]
        of_sentences = zip(outline.paragraph_of(starts).tolist(), outline.sentences, strict=True)
        parts += [(number, OF_SENTENCE, *span.tolist()) for number, span in of_sentences]
        parts.sort(key=itemgetter(0))  # a paragraph stands in front of its sentences
        if self.by_parts and self.most:
            parts = parts[: self.most - len(found)]
        paragraphs += [own + 1 + number for number, *_ in parts]
        found += [(bos, kind, before + first, before + last) for _, kind, first, last in parts]
        words, types, *ends = torch.tensor(found).unbind(1)
        links = outline.mentions + torch.tensor([0, before, before])
        spans = torch.stack(ends, 1)
        return question, GlobalTokens(words, types, spans, links, torch.tensor(paragraphs))

    def batch(self, rows: Sequence[GlobalTokens], pad: int) -> dict[str, Tensor]:
        """Global tokens of B questions by their fields; padding is ``pad``, or an empty span."""
        columns = zip(GlobalTokens._fields, zip(*rows, strict=True), strict=True)
        return {name: pad_sequence(x, True, pad if name == "words" else 0) for name, x in columns}
