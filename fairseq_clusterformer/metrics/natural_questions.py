"""Natural Questions' scores of long and short answers, over the labels of several annotators.

The numbers are those of the data set's ``nq_eval.py``: a prediction is right or wrong as a whole;
a question has an answer if two annotators or more gave one (the only one, in the training data),
and matching any of theirs is right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from .answers import overlap

MIN_ANNOTATORS = 2  # must give an answer, or the question has none; of one annotator, that one
PRECISIONS = (0.5, 0.75, 0.9)  # at which recall is reported
YES_NO = ("yes", "no", "none")


class Span(NamedTuple):
    """A span of the document, in bytes of its HTML or in tokens, or both; -1: unknown."""

    start_byte: int = -1
    end_byte: int = -1
    start_token: int = -1
    end_token: int = -1

    def __bool__(self) -> bool:
        """Whether there is an answer at all."""
        return self.end_byte >= 0 or self.end_token >= 0

    def matches(self, other: "Span") -> bool:
        """Whether both are the same in bytes, or the same in tokens."""
        pairs = (self[:2], other[:2]), (self[2:], other[2:])
        return any(own == others and own[1] >= 0 for own, others in pairs)


@dataclass(frozen=True)
class Label:
    """What an annotator or a model answers."""

    long: Span = Span()  # the paragraph, table or list
    short: tuple[Span, ...] = ()  # the spans of the short answer, none if it is yes or no
    yes_no: str = "none"  # one of YES_NO
    long_score: float = 0.0  # higher is surer (predictions only)
    short_score: float = 0.0

    @property
    def has_long(self) -> bool:
        return bool(self.long)

    @property
    def has_short(self) -> bool:
        return any(self.short) or self.yes_no != "none"

    @classmethod
    def from_json(cls, label: Mapping) -> "Label":
        """An entry of a question's ``annotations``, or of a file of ``predictions``; bytes may be
        left out, as they are in the simplified data. Raises ValueError: for something else, or a
        prediction of short spans and of yes or no."""
        try:
            yes_no = label.get("yes_no_answer", "NONE").lower()
            given = (label.get("long_answer", {}), *label.get("short_answers", []))
            spans = [Span(*(span.get(name, -1) for name in Span._fields)) for span in given]
            bounds = [bounds for span in spans for bounds in (span[:2], span[2:])]
            wrong = [(a, b) for a, b in bounds if (a < 0) != (b < 0) or a >= b >= 0]
        except (AttributeError, TypeError):
            allowed = "an object as in Natural Questions' files"
            raise ValueError(f"a label is {label!r}; allowed: {allowed}") from None
        if wrong:
            raise ValueError(f"a span is {wrong[0]}; allowed: start < end, or both -1")
        if yes_no not in YES_NO:
            raise ValueError(f"yes_no_answer is {yes_no!r}; allowed: {', '.join(YES_NO)}")
        if "short_answers_score" in label and yes_no != "none" and any(spans[1:]):
            raise ValueError(f"yes_no_answer is {yes_no} with short answers; allowed: one of both")
        scores = (label.get(f"{name}_score", 0.0) for name in ("long_answer", "short_answers"))
        return cls(spans[0], tuple(spans[1:]), yes_no, *scores)


def evaluate(
    gold: Mapping[object, Sequence[Label]], predictions: Mapping[object, Label]
) -> dict[str, float]:
    """The scores, from 0 to 1, of a label for each question, by those of its annotators (five in
    the development set, one in the training data).

    For ``long`` and ``short`` answers: ``long-answer-f1``, ``-precision``, ``-recall`` and ``-n``
    of all predictions; ``long-best-threshold-f1``, ``-precision``, ``-recall`` of those whose
    score is ``long-best-threshold`` or higher; and ``long-recall-at-precision>=0.5``,
    ``long-precision-at-precision>=0.5``, the same for 0.75 and 0.9. Raises ValueError: the
    questions of both are not the same, or there are none.
    """
    if not gold or gold.keys() != predictions.keys():
        given = f"gold has {len(gold)} questions, predictions {len(predictions)}"
        raise ValueError(f"{given}; allowed: the same in both, 1 or more")
    result = {}
    kinds = {"long": lambda label, found: label.long.matches(found.long), "short": _same_short}
    for name, same in kinds.items():
        has, score = attrgetter(f"has_{name}"), attrgetter(f"{name}_score")
        outcomes = []
        for id_, labels in gold.items():
            found, known = predictions[id_], is_answer(sum(map(has, labels)), len(labels))
            right = known and has(found) and any(same(label, found) for label in labels)
            outcomes.append((known, has(found), right, score(found)))
        result |= {f"{name}-{key}": value for key, value in _scores(outcomes)}
    return result


def is_answer(given: int, annotators: int) -> bool:
    """Whether a question has an answer that so many of its annotators gave."""
    return given >= max(1, min(MIN_ANNOTATORS, annotators))


def _same_short(label: Label, prediction: Label) -> bool:
    """Whether both say yes or both no, or each span of one is one of the other's."""
    if prediction.yes_no != "none":
        return prediction.yes_no == label.yes_no
    one, other = (list(filter(None, each.short)) for each in (label, prediction))
    return all(
        any(map(span.matches, rest)) for own, rest in ((one, other), (other, one)) for span in own
    )


def _scores(outcomes: Sequence[tuple[bool, bool, bool, float]]) -> Iterator[tuple[str, float]]:
    """Of whether there is an answer, one is predicted, and right, and its score, by question."""
    at_score = {}  # precision, recall and F1 of all predictions as sure as that or surer
    right = predicted = 0
    gold = sum(has_gold for has_gold, *_ in outcomes)
    for _, is_predicted, is_right, score in sorted(outcomes, key=lambda outcome: -outcome[3]):
        right += is_right
        predicted += is_predicted
        at_score[score] = overlap(right, predicted, gold)
    yield "answer-n", len(outcomes)
    best = max(at_score, key=lambda score: at_score[score][2])
    yield "best-threshold", best if at_score[best][2] else 0.0
    for of, found in (("answer", at_score[min(at_score)]), ("best-threshold", at_score[best])):
        yield from zip([f"{of}-{x}" for x in ("precision", "recall", "f1")], found, strict=True)
    for least in PRECISIONS:
        reached = [found for found in at_score.values() if found[0] >= least]
        precision, recall, _ = max(reached, key=lambda found: found[1], default=(0.0,) * 3)
        yield f"recall-at-precision>={least}", recall
        yield f"precision-at-precision>={least}", precision if recall else 0.0
