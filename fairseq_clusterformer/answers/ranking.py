"""From a reader's logits to answers in their order, and to Natural Questions' form of them."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .documents import TYPES, Answer, AnswerLogits, Answers, Document

_SPANS = 20  # for each that is wanted: most overlap a better one
_LEAST = -1e9  # JSON has no infinity
_TOKENS = 4  # of a word, at most: of text without blanks, a span has so many times the limit


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


def natural_question(id_: str, answers: Answers, paragraphs: Sequence[Sequence]) -> dict[str, Any]:
    """An entry of ``predictions``, in tokens of the whole document; of each paragraph [title,
    text, [start, end), words] is given, see ``data/qa.py``. Both answers have the logarithms of
    their probabilities, by which a threshold decides. Yes or no, if more likely than a span,
    stands in its place."""

    def span(start: int, end: int) -> dict[str, int]:
        return {"start_byte": -1, "end_byte": -1, "start_token": start, "end_token": end}

    long, long_score, spans = (-1, -1), _LEAST, []
    if answers.long:
        number, log_prob = answers.long[0]
        long = paragraphs[number][2]
        long_score = log_prob + math.log1p(-min(answers.types["none"], 1 - 1e-12))
    best = answers.short[0]
    if best.tokens is not None:
        _, text, _, tokens = paragraphs[best.paragraph]  # blanks part its words
        first, last = (tokens[text.count(" ", 0, place)] for place in best.characters)
        spans = [span(first, last + 1)]
    return {
        "example_id": int(id_) if re.fullmatch(r"-?\d+", id_) else id_,
        "long_answer": span(*long),
        "long_answer_score": long_score,
        "short_answers": spans,
        "short_answers_score": max(best.score, _LEAST),
        "yes_no_answer": "NONE" if spans else best.text.upper(),
    }
