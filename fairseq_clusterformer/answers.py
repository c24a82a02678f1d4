"""What a reader says, what its tokens stand for, and the answers that follow; no fairseq.

Shape letters: B batch, N tokens of the longest document, P paragraphs of a document.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

#: Types of answers. If several are equally likely, the first counts. All are equally likely to a
#: reader whose data never named a type; so such a reader gives short answers.
TYPES = ("short", "yes", "no", "long", "none")
_BLANKS = np.array([code for code in range(0x3001) if chr(code).isspace()], np.uint32)
_EAST_ASIAN = 0x2E80  # the first of their letters
_SPANS = 20  # for each that is wanted: most overlap a better one
_TOKENS = 4  # of a word, at most: of text without blanks, a span has so many times the limit


class AnswerLogits(NamedTuple):
    """What a reader says of questions and their documents, in float32; -inf for what is not there.
    In BERT's form for SQuAD 2.0, spans, yes, no, "long" and "none" share the softmaxes of starts
    and ends: the last four have ``slots`` there, and ``type`` sums the best span of any length, or
    those of a slot."""

    #: of each token of text being a short answer's first, [B, N]; of a reader of words, finite at
    #: the first token of a word
    start: Tensor
    end: Tensor  # of each being its last, [B, N]
    paragraph: Tensor  # at each ``<s>``, of its paragraph being the long answer, [B, N]
    type: Tensor  # of each of :data:`TYPES`, [B, 5]
    #: of each sentence supporting the answer, each on its own, [B, S]; None: it does not say
    sentences: Tensor | None = None
    #: of each candidate being the answer, [B, C]; None: no question of the batch has candidates
    candidates: Tensor | None = None
    #: in front of the document, of each of :data:`TYPES` but the first, [B, 2, 4]; None: apart
    slots: Tensor | None = None
    #: of a reader of words, the first and last token of each token's word, int64 [B, N, 2]
    bounds: Tensor | None = None

    @staticmethod
    def shared(
        start: Tensor, end: Tensor, paragraph: Tensor, slots: Tensor, bounds: Tensor | None = None
    ) -> "AnswerLogits":
        """With ``slots``, and the logits of the types."""
        best = slots.new_full((len(slots),), -torch.inf)  # of the spans whose end is not first
        if start.size(1):
            best = (end + start.cummax(1).values).amax(1)  # the best start up to each end
        types = torch.cat([best.unsqueeze(-1), slots.sum(1)], dim=-1)
        return AnswerLogits(start, end, paragraph, types, slots=slots, bounds=bounds)


def text_mask(characters: Tensor) -> Tensor:
    """The tokens that an answer can begin or end with, bool [N]; see :class:`Document`."""
    first, last = characters
    return (first >= 0) & (last > first)


@dataclass(frozen=True, eq=False)
class Document:
    """What the tokens of a document stand for."""

    texts: Sequence[str]  # of its paragraphs
    starts: Tensor  # the position of each paragraph's ``<s>``, int64 [P]
    #: each token's first character in its paragraph's text, and the one after its last, int32 or
    #: int64 [2, N]; -1 for ``<s>`` and titles
    characters: Tensor
    sentences: Tensor | None = None  # tokens [first, last) of each, int64 [S, 2]; None: unknown
    candidates: Sequence[str] = ()  # of answers; none: it may be any text
    #: candidate, first and last token of its places, int64 [M, 3]; None: unknown
    mentions: Tensor | None = None
    titled: bool = False  # the first sentence of each paragraph is its title

    @property
    def paragraphs_of_sentences(self) -> list[int]:
        """The paragraph of each sentence."""
        firsts = self.sentences[:, 0].contiguous()
        return (torch.searchsorted(self.starts, firsts, right=True) - 1).tolist()

    @property
    def titles(self) -> dict[int, int]:
        """Of a titled document, the sentence of each paragraph that is its title."""
        numbered = [*enumerate(self.paragraphs_of_sentences if self.titled else ())]
        return {paragraph: number for number, paragraph in reversed(numbered)}

    def sentence_of(self, length: int) -> Tensor:
        """The number of the sentence of each of the first tokens, -1 of none, int64 [length]."""
        found = torch.full((length,), -1)
        for number, (first, last) in enumerate(self.sentences.tolist()):
            found[first:last] = number
        return found

    def sentence_text(self, number: int) -> str:
        """The text of a sentence; "" of one without a token."""
        first, last = self.sentences[number].tolist()
        return self.answer(first, last).text if first < last else ""

    def paragraph_of(self, length: int) -> Tensor:
        """The number of the paragraph of each of the first tokens, int64 [length]."""
        return torch.searchsorted(self.starts, torch.arange(length), right=True) - 1

    def tokens_of(self, paragraph: int, start: int, end: int) -> list[int]:
        """The tokens that show a character of [start, end) of a paragraph's text."""
        begins, ends = self.characters
        inside = text_mask(self.characters) & (begins < end) & (ends > start)
        return (inside & (self.paragraph_of(len(inside)) == paragraph)).nonzero()[:, 0].tolist()

    def word_of(self, length: int) -> Tensor:
        """The number of the word that each of the first tokens ends in, int64 [length]. Blanks
        part words; of East Asian scripts, each letter is a word."""
        bounds = [*self.starts.tolist(), self.characters.size(1)]
        found, before = [torch.zeros(bounds[0], dtype=torch.int64)], 0
        for text, (first, last) in zip(self.texts, pairwise(bounds), strict=True):
            starts, ends = self.characters[:, first:last].long()
            begin = int(starts[starts >= 0].min()) if (starts >= 0).any() else 0
            end = max(begin, int(ends.max())) if last > first else begin
            text = text[begin:end]  # a window is a small part of a long paragraph
            codes = np.frombuffer(f" {text}".encode("utf-32-le", "surrogatepass"), np.uint32)
            blank = np.isin(codes, _BLANKS)
            begins = ~blank[1:] & (blank[:-1] | (codes[1:] >= _EAST_ASIAN))
            number = torch.from_numpy(np.cumsum([before, *begins]))
            found.append(number[(ends - begin).clamp(0, len(text))])
            before = int(number[-1])
        return torch.cat([*found, torch.full((length,), before)])[:length]

    def place(self, first: int, last: int) -> tuple[int, int, int]:
        """The paragraph and its characters [start, end), of tokens [first, last). Raises
        ValueError: if they are not tokens of the text of one paragraph."""
        starts, ends = self.characters
        if not 0 <= first < last <= len(starts):
            raise ValueError(f"tokens [{first}, {last}) of {len(starts)}; allowed: 1 or more")
        if (starts[first:last] < 0).any():
            problem = f"tokens [{first}, {last}) hold <s> or a title"
            raise ValueError(f"{problem}; allowed: tokens of one text")
        paragraph = int(torch.searchsorted(self.starts, first, right=True)) - 1
        return paragraph, int(starts[first]), int(ends[last - 1])

    def answer(self, first: int, last: int, score: float = 0.0) -> "Answer":
        """Tokens [first, last) as an answer, without blanks around it; raises as ``place``."""
        paragraph, start, end = self.place(first, last)
        text = self.texts[paragraph][start:end]
        start += len(text) - len(text.lstrip())
        text = text.strip()
        return Answer(text, score, paragraph, (start, start + len(text)), (first, last))


@dataclass(frozen=True)
class Answer:
    """A short answer: a span, a candidate, yes or no. The last two have no place."""

    text: str  # the words of the document, unchanged; or "yes", "no"
    score: float  # the logarithm of its probability, in nats
    paragraph: int | None = None  # the number of its paragraph
    characters: tuple[int, int] | None = None  # [start, end) of the paragraph's text
    tokens: tuple[int, int] | None = None  # [first, last) of the document
    candidate: int | None = None  # its number, where it is one

    @property
    def type(self) -> str:
        """Of :data:`TYPES`."""
        return "short" if self.tokens or self.candidate is not None else self.text


@dataclass(frozen=True)
class Answers:
    """The answers to a question."""

    types: dict[str, float]  # the probability of each of :data:`TYPES`
    #: best first: those of the likelier type (spans, yes, no), and of these the likelier
    short: list[Answer]
    long: list[tuple[int, float]]  # paragraphs, log of their probability in nats; best first
    #: the logarithm of exp(start logit + end logit), summed over all pairs of tokens: unlike the
    #: probabilities, it can be compared with that of another document
    evidence: float = 0.0
    #: the score of "no answer" among the spans, in nats, where it has a place in their softmaxes
    none: float | None = None
    #: the sentences that support the answer, and the probability of each; None: unknown
    supporting: list[tuple[int, float]] | None = None

    @property
    def type(self) -> str:
        """The most likely type."""
        return max(self.types, key=self.types.get)

    @property
    def text(self) -> str:
        """The best of the most likely type; "" if that has no short answer."""
        return next((answer.text for answer in self.short if answer.type == self.type), "")

    def margin(self, type_: str, score: float) -> float:
        """By how much an answer of a type is likelier than "no answer", in nats. Where spans and
        "no answer" share their softmaxes, it is of the two's logits alone, and can be compared
        with that of another document."""
        shared = type_ == "short" and self.none is not None
        return score - (self.none if shared else math.log(max(self.types["none"], 1e-300)))

    @property
    def best_margin(self) -> float:
        """By how much the best short or long answer is likelier than "no answer", in nats."""
        none = max(self.types["none"], 1e-300)
        some = math.log1p(-min(none, 1 - 1e-12))
        scores = [answer.score for answer in self.short[:1]]
        scores += [some + score for _, score in self.long[:1]]
        return max(scores, default=-math.inf) - math.log(none)

    def moved(self, tokens: int, paragraphs: int) -> "Answers":
        """The same of a document that has so many tokens and paragraphs more in front."""
        short = []
        for each in self.short:
            if each.tokens is not None:
                places = tuple(token + tokens for token in each.tokens)
                each = replace(each, tokens=places, paragraph=each.paragraph + paragraphs)
            short.append(each)
        long = [(number + paragraphs, score) for number, score in self.long]
        return replace(self, short=short, long=long)


@torch.no_grad()
def ranked_answers(
    logits: AnswerLogits,
    documents: Sequence[Document],
    *,
    top: int = 1,
    max_answer_length: int = 30,
    within_long: bool = False,
    no_answer_bias: float = 0.0,
    supporting_threshold: float = 0.4,
) -> list[Answers]:
    """The answers to each question of a batch.

    A short answer's probability is its type's, times that of its first token among the document's,
    times that of its last. Of spans that overlap, the best is kept; those of blanks alone are
    left out. Where the model says which sentences support the answer, a span lies in one of them
    (Ainslie et al. 2020, appendix B), unless none is likely enough. A question with candidates
    has these as short answers. Where "no answer" shares the spans' softmaxes, it is said if it has
    more logits than the best span that may be an answer.

    Args:
        documents: B; a model may have read the beginning of one alone.
        top: of short answers and of paragraphs, at most.
        max_answer_length: words of a short answer.
        within_long: spans of the best paragraph alone, as Natural Questions has them.
        no_answer_bias: added to the logit of "no answer".
        supporting_threshold: sentences from this probability on support the answer.
    """
    found = []
    for row, document in enumerate(documents):
        own = AnswerLogits(*(None if x is None else x[row].cpu() for x in logits))
        evidence = own.start.logsumexp(-1) + own.end.logsumexp(-1)
        of_types = own.type + torch.tensor([0.0, 0.0, 0.0, 0.0, no_answer_bias])
        start, end, paragraph = (x.log_softmax(-1) for x in own[:3])
        numbers = within = document.paragraph_of(len(start))
        hidden = torch.zeros_like(start, dtype=torch.bool)  # what no span may have
        if within_long:
            hidden = numbers != numbers[paragraph.argmax()]
        supporting = none = None
        if own.sentences is not None:
            supporting, facts = _facts(own.sentences.sigmoid(), document, supporting_threshold)
            sentences = document.sentence_of(len(start)) if facts else numbers
            elsewhere = hidden | ~torch.isin(sentences, torch.tensor(facts))
            if facts and (start[~elsewhere] > -torch.inf).any():
                within, hidden = sentences.clamp(min=0), elsewhere
        start, end = (x.masked_fill(hidden, -torch.inf) for x in (start, end))
        limits = {"max_length": max_answer_length, "words": document.word_of(len(start))}
        spans = best_spans(start, end, within, top=_SPANS * top, **limits)
        if own.slots is not None:  # the model's own best span may be too long to be an answer
            best = spans[0].amax() + evidence if len(spans[0]) else evidence.new_tensor(torch.nan)
            of_types[0] = best.masked_fill(best.isnan(), -torch.inf)
            none = float(of_types[-1] + of_types.log_softmax(-1)[0] - evidence)
        log_probs = dict(zip(TYPES, of_types.log_softmax(-1).tolist(), strict=True))
        if document.candidates and own.candidates is not None:
            of_type = {"short": _candidates(document, own.candidates.log_softmax(-1), top)}
            log_probs = dict.fromkeys(TYPES, -math.inf) | {"short": 0.0}
        else:
            places = zip(*(x.tolist() for x in spans), strict=True)
            of_type = {"short": _apart(document, places, log_probs["short"], top)}
            of_type |= {name: [Answer(name, log_probs[name])] for name in ("yes", "no")}
        in_order = sorted(of_type, key=log_probs.get, reverse=True)
        short = sum((of_type[name] for name in in_order), [])[:top]
        best = zip(*(x.tolist() for x in paragraph.topk(min(top, len(paragraph)))), strict=True)
        long = [(int(numbers[n]), score) for score, n in best if score > -torch.inf]
        types = {name: math.exp(value) for name, value in log_probs.items()}
        found.append(Answers(types, short, long, float(evidence), none, supporting))
    return found


def ranking_options(cfg: Any) -> dict[str, Any]:
    """What options of a task say of :func:`ranked_answers`."""
    names = ("max_answer_length", "no_answer_bias", "supporting_threshold")
    return {name: getattr(cfg, name) for name in names}


def _facts(
    likely: Tensor, document: Document, threshold: float
) -> tuple[list[tuple[int, float]], list[int]]:
    """The sentences of a document that are likely to support the answer, but titles; and these
    with the titles above them."""
    titles = document.titles
    number = 0 if document.sentences is None else len(document.sentences)
    sentences = [*enumerate(likely.tolist()[:number])]
    found = [(i, p) for i, p in sentences if p >= threshold and i not in titles.values()]
    facts = [i for i, _ in found]
    return found, facts + [titles[document.paragraphs_of_sentences[i]] for i in facts if titles]


def _candidates(document: Document, log_probs: Tensor, top: int) -> list[Answer]:
    """The best candidates, at their first mention."""
    found, log_probs = [], log_probs[: len(document.candidates)]
    best = log_probs.topk(min(top, len(log_probs)))
    for score, number in zip(*(x.tolist() for x in best), strict=True):
        mention, own = Answer("", score), document.mentions[:, 0] == number
        if own.any():
            mention = document.answer(*document.mentions[own][0, 1:].tolist(), score)
        found.append(replace(mention, text=document.candidates[number], candidate=number))
    return found


def _apart(document: Document, candidates: Iterable, log_prob: float, top: int) -> list[Answer]:
    """The first candidates (score, first, last) that overlap none before."""
    kept: list[Answer] = []
    for score, first, last in candidates:
        if len(kept) == top or not score > -torch.inf:
            break
        if all(last <= answer.tokens[0] or answer.tokens[1] <= first for answer in kept):
            answer = document.answer(first, last, score + log_prob)
            if answer.text:
                kept.append(answer)
    return kept


def best_spans(
    start: Tensor,
    end: Tensor,
    paragraph: Tensor,
    *,
    max_length: int,
    words: Tensor | None = None,
    top: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """The spans [first, last) whose first token's start and last token's end are most in sum, best
    first. Returns their scores [..., n], -inf where there are no more; first and last, int64
    [..., n]. They lie in one paragraph; a token with a logit of -inf (or nan) begins or ends none.

    Args:
        start, end: of each token being an answer's first and its last, [..., N].
        paragraph: the number of each token's paragraph, 0 or more, int64 [..., N].
        max_length: words of a span, 1 or more.
        words: the number of each token's word, never decreasing, int64 [..., N]; None: each token
            is one.
        top: n, 1 or more; fewer where there are fewer pairs of tokens.
    """
    length = start.size(-1)
    words = torch.zeros_like(paragraph) + torch.arange(length) if words is None else words
    width = 1
    if length:  # the most tokens that max_length words have
        behind = torch.searchsorted(words, words + max_length) - torch.arange(length)
        width = max(1, min(int(behind.max()), _TOKENS * max_length, length))

    def following(x: Tensor, fill: float) -> Tensor:
        """Each token and those behind it, [..., N, width]."""
        return pad(x, (0, width), value=fill).unfold(-1, width, 1)[..., :length, :]

    score = start.unsqueeze(-1) + following(end, -torch.inf)
    together = following(paragraph, -1) == paragraph.unsqueeze(-1)
    together &= following(words, -1) < words.unsqueeze(-1) + max_length
    score = score.masked_fill(~(together & (score > -torch.inf)), -torch.inf).flatten(-2)
    best, places = score.topk(min(top, score.size(-1)))
    first = places // width
    return best, first, first + places % width + 1
