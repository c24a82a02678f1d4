"""What a reader answers: short answers in their order, paragraphs in theirs, and of which type.

Shape letters: B batch, N tokens of the longest document, P paragraphs of a document.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .spans import best_spans

#: Types of answers. If several are equally likely, the first counts. All are equally likely to a
#: reader whose data never named a type; so such a reader gives short answers.
TYPES = ("short", "yes", "no", "long", "none")

_CANDIDATES = 20  # spans for each that is wanted: most overlap a better one


class AnswerLogits(NamedTuple):
    """What a reader says of questions and their documents, in float32.

    Attributes:
        start: of each token being a short answer's first, [B, N]; -inf for padding, ``<s>`` and
            what else is no text.
        end: of each being its last, [B, N]; -inf likewise.
        paragraph: at each ``<s>``, of its paragraph being the long answer, [B, N]; -inf elsewhere.
        type: of each of :data:`TYPES`, [B, 5].
    """

    start: Tensor
    end: Tensor
    paragraph: Tensor
    type: Tensor


class WordLogits(NamedTuple):
    """What a reader of words says; the first four as in :class:`AnswerLogits`.

    Attributes:
        start: finite at the first token of a word of the text, -inf elsewhere.
        end: finite at its last token, -inf elsewhere.
        paragraph: as there.
        type: the logits in sum of the best span of any length, and those of each slot, [B, 5].
        slots: of places in front of the document, one for each of :data:`TYPES` but the first,
            which share the softmaxes of starts and ends with the tokens, [B, 2, 4].
        bounds: the first and the last token of each token's word, int64 [B, N, 2].
    """

    start: Tensor
    end: Tensor
    paragraph: Tensor
    type: Tensor
    slots: Tensor
    bounds: Tensor


class StructureLogits(NamedTuple):
    """What a reader of structured documents says; the first four as in :class:`AnswerLogits`.

    Attributes:
        start, end, paragraph, type: as there.
        sentences: of each supporting the answer, each on its own, [B, S]; -inf where there are no
            more; None: it does not say.
        candidates: of each being the answer, [B, C]; -inf where there are no more; None: no
            question of the batch has candidates.
    """

    start: Tensor
    end: Tensor
    paragraph: Tensor
    type: Tensor
    sentences: Tensor | None = None
    candidates: Tensor | None = None


Logits = AnswerLogits | WordLogits | StructureLogits


def text_mask(characters: Tensor) -> Tensor:
    """The tokens that an answer can begin or end with, those of some character, bool [N].

    Args:
        characters: of the tokens, [2, N]; see :class:`Document`.
    """
    first, last = characters
    return (first >= 0) & (last > first)


@dataclass(frozen=True, eq=False)
class Document:
    """What the tokens of a document stand for.

    Args:
        texts: of its paragraphs.
        starts: the position of each paragraph's ``<s>``, int64 [P].
        characters: each token's first character in its paragraph's text, and the one after its
            last, int32 or int64 [2, N]; -1 for ``<s>`` and titles.
        sentences: tokens [first, last) of each, int64 [S, 2]; None: unknown.
        candidates: of answers; none: it may be any text.
        mentions: candidate, first and last token of its places, int64 [M, 3]; None: unknown.
    """

    texts: Sequence[str]
    starts: Tensor
    characters: Tensor
    sentences: Tensor | None = None
    candidates: Sequence[str] = ()
    mentions: Tensor | None = None

    def sentence_of(self, length: int) -> Tensor:
        """The number of the sentence of each of the first tokens, -1 of none, int64 [length]."""
        found = torch.full((length,), -1)
        for number, (first, last) in enumerate(self.sentences.tolist()):
            found[first:last] = number
        return found

    def sentence(self, number: int) -> tuple[int, int]:
        """The paragraph of a sentence, and its number among those of that paragraph."""
        own = torch.searchsorted(self.starts, self.sentences[:, 0].contiguous(), right=True) - 1
        return int(own[number]), int((own[:number] == own[number]).sum())

    def sentence_text(self, number: int) -> str:
        """The text of a sentence; "" of one without a token."""
        first, last = self.sentences[number].tolist()
        return self.answer(first, last).text if first < last else ""

    def paragraph_of(self, length: int) -> Tensor:
        """The number of the paragraph of each of the first tokens, int64 [length]."""
        return torch.searchsorted(self.starts, torch.arange(length), right=True) - 1

    def place(self, first: int, last: int) -> tuple[int, int, int]:
        """The paragraph and its characters [start, end), of tokens [first, last).

        Raises:
            ValueError: if they are not tokens of the text of one paragraph.
        """
        starts, ends = self.characters
        if not 0 <= first < last <= len(starts):
            raise ValueError(f"tokens [{first}, {last}) of {len(starts)}; allowed: 1 or more")
        if (starts[first:last] < 0).any():
            raise ValueError(
                f"tokens [{first}, {last}) hold <s> or a title; allowed: tokens of one text"
            )
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
    """A short answer.

    Args:
        text: the words of the document, unchanged; or "yes", "no".
        score: the logarithm of its probability, in nats.
        paragraph: the number of its paragraph; None of yes and no.
        characters: [start, end) of the paragraph's text; None of yes and no.
        tokens: [first, last) of the document; None of yes and no.
        candidate: its number, where it is one.
    """

    text: str
    score: float
    paragraph: int | None = None
    characters: tuple[int, int] | None = None
    tokens: tuple[int, int] | None = None
    candidate: int | None = None

    @property
    def type(self) -> str:
        """Of :data:`TYPES`."""
        return "short" if self.tokens or self.candidate is not None else self.text


@dataclass(frozen=True)
class Answers:
    """The answers to a question.

    Args:
        types: the probability of each of :data:`TYPES`.
        short: best first: those of the likelier type (spans, yes, no), and of these the likelier.
        long: paragraphs with the logarithm of their probability, in nats, best first.
        evidence: the logarithm of exp(start logit + end logit), summed over all pairs of tokens:
            unlike the probabilities, it can be compared with that of another document.
        none: the score of "no answer" among the spans, in nats, where it has a place in their
            softmaxes; else None.
        supporting: the numbers of the sentences that support the answer, and the probability of
            each; None: unknown.
    """

    types: dict[str, float]
    short: list[Answer]
    long: list[tuple[int, float]]
    evidence: float = 0.0
    none: float | None = None
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
        """By how much an answer of a type is likelier than "no answer", in nats.

        A span and "no answer" that share their softmaxes differ by their logits alone. So does
        the margin, whatever else the document holds: it can be compared with one of another
        document.
        """
        shared = type_ == "short" and self.none is not None
        return score - (self.none if shared else _log(self.types["none"]))

    @property
    def no_short(self) -> float:
        """The probability that there is no short answer."""
        return self.types["long"] + self.types["none"]


@torch.no_grad()
def ranked_answers(
    logits: Logits,
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
    has these as short answers. A reader of words says "no answer" if this has more logits than the
    best span that may be an answer.

    Args:
        documents: B; a model may have read the beginning of one alone.
        top: of short answers and of paragraphs, at most.
        max_answer_length: tokens of a short answer.
        within_long: spans of the best paragraph alone, as Natural Questions has them.
        no_answer_bias: added to the logit of "no answer".
        supporting_threshold: sentences from this probability on support the answer.
    """
    evidence = logits.start.logsumexp(-1) + logits.end.logsumexp(-1)
    of_types = logits.type + logits.type.new_tensor([0.0, 0.0, 0.0, 0.0, no_answer_bias])
    evidence, of_types = evidence.cpu(), of_types.cpu()
    # of a batch on another device, one transfer
    start, end, paragraph = (x.log_softmax(-1).cpu() for x in logits[:3])
    numbers = torch.stack([document.paragraph_of(start.size(1)) for document in documents])
    if within_long:
        elsewhere = numbers != numbers.gather(1, paragraph.argmax(-1, keepdim=True))
        start, end = (x.masked_fill(elsewhere, -torch.inf) for x in (start, end))
    within, supporting, of_candidates = numbers, [None] * len(documents), None
    if isinstance(logits, StructureLogits):
        if logits.sentences is not None:
            rows = zip(logits.sentences.sigmoid().cpu(), documents, strict=True)
            supporting = [_supporting(*row, supporting_threshold) for row in rows]
            rows = zip(supporting, documents, numbers, start, strict=True)
            within, hidden = map(torch.stack, zip(*(_in_facts(*row) for row in rows), strict=True))
            start, end = (x.masked_fill(hidden, -torch.inf) for x in (start, end))
        if logits.candidates is not None:
            of_candidates = logits.candidates.log_softmax(-1).cpu()
    spans = best_spans(start, end, within, max_length=max_answer_length, top=_CANDIDATES * top)
    nones = [None] * len(documents)
    if isinstance(logits, WordLogits):
        # the model's own best span may be too long to be an answer
        nothing = torch.full_like(evidence, -torch.inf).unsqueeze(-1)
        best = torch.cat([spans[0], nothing], dim=-1).amax(-1) + evidence
        of_types[:, 0] = best.masked_fill(best.isnan(), -torch.inf)
        nones = (of_types[:, -1] + of_types.log_softmax(-1)[:, 0] - evidence).tolist()
    types, evidence = of_types.log_softmax(-1).tolist(), evidence.tolist()
    paragraphs = paragraph.topk(min(top, paragraph.size(1)))
    found = []
    for row, document in enumerate(documents):
        log_probs = dict(zip(TYPES, types[row], strict=True))
        candidates = zip(*(x[row].tolist() for x in spans), strict=True)
        of_type = {
            "short": _apart(document, candidates, log_probs["short"], top),
            "yes": [Answer("yes", log_probs["yes"])],
            "no": [Answer("no", log_probs["no"])],
        }
        if document.candidates and of_candidates is not None:
            of_type = {"short": _candidates(document, of_candidates[row], top)}
            log_probs = {name: 0.0 if name == "short" else -math.inf for name in TYPES}
        in_order = sorted(of_type, key=log_probs.get, reverse=True)
        short = sum((of_type[name] for name in in_order), [])
        long = [
            (int(numbers[row, place]), score)
            for score, place in zip(*(x[row].tolist() for x in paragraphs), strict=True)
            if score > -torch.inf
        ]
        probabilities = {name: math.exp(value) for name, value in log_probs.items()}
        found.append(
            Answers(probabilities, short[:top], long, evidence[row], nones[row], supporting[row])
        )
    return found


def _supporting(likely: Tensor, document: Document, threshold: float) -> list[tuple[int, float]]:
    """The sentences of a document that are likely [S] to support the answer."""
    number = 0 if document.sentences is None else len(document.sentences)
    return [(i, p) for i, p in enumerate(likely[:number].tolist()) if p >= threshold]


def _in_facts(
    supporting: list[tuple[int, float]], document: Document, paragraphs: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """What parts a document's spans, int64 [N], and the tokens that no span may have, bool [N]:
    supporting sentences, if one has text; else the paragraphs."""
    if supporting:
        own = document.sentence_of(len(start))
        hidden = ~torch.isin(own, torch.tensor([number for number, _ in supporting]))
        if (start.masked_fill(hidden, -torch.inf) > -torch.inf).any():
            return own.clamp(min=0), hidden
    return paragraphs, torch.zeros_like(start, dtype=torch.bool)


def _candidates(document: Document, log_probs: Tensor, top: int) -> list[Answer]:
    """The best candidates, at their first mention."""
    found = []
    best = log_probs.topk(min(top, len(log_probs)))
    for score, number in zip(*(x.tolist() for x in best), strict=True):
        if number >= len(document.candidates):
            continue
        place = {}
        mentions = document.mentions[document.mentions[:, 0] == number]
        if len(mentions):
            _, first, last = mentions[0].tolist()
            mention = document.answer(first, last)
            place = {"paragraph": mention.paragraph, "characters": mention.characters}
            place["tokens"] = mention.tokens
        found.append(Answer(document.candidates[number], score, **place, candidate=number))
    return found


def _log(probability: float) -> float:
    return math.log(max(probability, 1e-300))


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
