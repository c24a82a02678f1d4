"""Natural Questions' scores of long and short answers, over the labels of several annotators.

The numbers are those of the data set's ``nq_eval.py``: a prediction is right or wrong as a whole;
a question has an answer if two annotators or more gave one (the only one, in the training data),
and matching any of theirs is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .answers import require_questions, some

MIN_ANNOTATORS = 2  # must give an answer, or the question has none; of one annotator, that one
PRECISIONS = (0.5, 0.75, 0.9)  # at which recall is reported
YES_NO = ("yes", "no", "none")


@dataclass(frozen=True)
class Span:
    """A span of the document, in bytes of its HTML or in tokens, or both; -1: unknown.

    Raises:
        ValueError: if only one end is known, or the span is empty.
    """

    start_byte: int = -1
    end_byte: int = -1
    start_token: int = -1
    end_token: int = -1

    def __post_init__(self) -> None:
        for start, end in (self.bytes, self.tokens):
            if (start < 0) != (end < 0) or start >= end >= 0:
                raise ValueError(f"span is {self}; allowed: start < end, or both -1")

    @property
    def bytes(self) -> tuple[int, int]:
        return self.start_byte, self.end_byte

    @property
    def tokens(self) -> tuple[int, int]:
        return self.start_token, self.end_token

    def __bool__(self) -> bool:
        """Whether there is an answer at all."""
        return self.end_byte >= 0 or self.end_token >= 0

    def matches(self, other: "Span") -> bool:
        """Return whether both are the same in bytes, or the same in tokens."""
        return (self.end_byte >= 0 and self.bytes == other.bytes) or (
            self.end_token >= 0 and self.tokens == other.tokens
        )


@dataclass(frozen=True)
class Label:
    """What an annotator or a model answers.

    Args:
        long: the paragraph, table or list.
        short: the spans of the short answer, none if it is yes or no.
        yes_no: "yes", "no" or "none".
        long_score: higher is surer (predictions only).
        short_score: the same, of the short answer.

    Raises:
        ValueError: for another `yes_no`.
    """

    long: Span = Span()
    short: tuple[Span, ...] = ()
    yes_no: str = "none"
    long_score: float = 0.0
    short_score: float = 0.0

    def __post_init__(self) -> None:
        if self.yes_no not in YES_NO:
            raise ValueError(f"yes_no is {self.yes_no!r}; allowed: {', '.join(YES_NO)}")

    @property
    def short_spans(self) -> list[Span]:
        """The spans that are not null."""
        return [span for span in self.short if span]

    @property
    def has_short(self) -> bool:
        return bool(self.short_spans) or self.yes_no != "none"

    @classmethod
    def from_json(cls, label: Mapping) -> "Label":
        """Return an entry of a question's ``annotations``, or of a file of ``predictions``.

        Bytes may be left out, as they are in the simplified data.

        Raises:
            ValueError: for a prediction of short spans and of yes or no, or for something else.
        """
        if not isinstance(label, Mapping):
            raise ValueError(f"a label is {label!r}; allowed: an object")
        yes_no, spans = label.get("yes_no_answer", "NONE"), label.get("short_answers", [])
        if not isinstance(yes_no, str) or not isinstance(spans, Sequence):
            raise ValueError("yes_no_answer is no text, or short_answers is no list")
        yes_no, short = yes_no.lower(), tuple(map(_span, spans))
        if "short_answers_score" in label and yes_no != "none" and any(short):
            raise ValueError(f"yes_no_answer is {yes_no} with short answers; allowed: one of both")
        return cls(
            _span(label.get("long_answer", {})),
            short,
            yes_no,
            label.get("long_answer_score", 0.0),
            label.get("short_answers_score", 0.0),
        )


def _span(span: Mapping) -> Span:
    names = ("start_byte", "end_byte", "start_token", "end_token")
    places = [span.get(name, -1) for name in names] if isinstance(span, Mapping) else [None]
    if not all(isinstance(place, int) for place in places):
        raise ValueError(f"a span is {span!r}; allowed: an object of whole numbers")
    return Span(*places)


@dataclass(frozen=True)
class _Outcome:
    gold: bool
    predicted: bool
    correct: bool
    score: float


def evaluate(
    gold: Mapping[object, Sequence[Label]], predictions: Mapping[object, Label]
) -> dict[str, float]:
    """Return the scores, from 0 to 1, of long and short answers.

    Args:
        gold: each question's labels, one per annotator (five in the development set, one in the
            training data).
        predictions: one label for each question.

    Returns:
        for ``long`` and ``short``: ``long-answer-f1``, ``-precision``, ``-recall`` and ``-n`` of
        all predictions; ``long-best-threshold-f1``, ``-precision``, ``-recall`` of those whose
        score is ``long-best-threshold`` or higher; and ``long-recall-at-precision>=0.5``,
        ``long-precision-at-precision>=0.5``, the same for 0.75 and 0.9.

    Raises:
        ValueError: if the questions of both are not the same, or there are none.
    """
    require_questions(gold)
    if differ := gold.keys() ^ predictions.keys():
        raise ValueError(
            f"{some(sorted(differ, key=str))} is not in both gold and predictions; allowed: the "
            "same questions"
        )
    pairs = [(labels, predictions[id_]) for id_, labels in gold.items()]
    outcomes = {
        "long": [_long_outcome(*pair) for pair in pairs],
        "short": [_short_outcome(*pair) for pair in pairs],
    }
    result = {}
    for name, of_name in outcomes.items():
        precision, recall = _precision_recall(of_name, sum(o.gold for o in of_name))
        result |= {
            f"{name}-answer-n": len(of_name),
            f"{name}-answer-f1": _f1(precision, recall),
            f"{name}-answer-precision": precision,
            f"{name}-answer-recall": recall,
        }
        result |= {f"{name}-{key}": value for key, value in _by_threshold(of_name).items()}
    return result


def is_answer(given: int, annotators: int) -> bool:
    """Whether a question has an answer that so many of its annotators gave."""
    return given >= max(1, min(MIN_ANNOTATORS, annotators))


def _long_outcome(labels: Sequence[Label], prediction: Label) -> _Outcome:
    spans = [label.long for label in labels if label.long]
    has_gold = is_answer(len(spans), len(labels))
    correct = has_gold and any(span.matches(prediction.long) for span in spans)
    return _Outcome(has_gold, bool(prediction.long), correct, prediction.long_score)


def _short_outcome(labels: Sequence[Label], prediction: Label) -> _Outcome:
    has_gold = is_answer(sum(label.has_short for label in labels), len(labels))
    if not has_gold or not prediction.has_short:
        correct = False
    elif prediction.yes_no != "none":
        correct = any(prediction.yes_no == label.yes_no for label in labels)
    else:
        spans = prediction.short_spans
        correct = any(_same_spans(label.short_spans, spans) for label in labels)
    return _Outcome(has_gold, prediction.has_short, correct, prediction.short_score)


def _same_spans(one: Sequence[Span], other: Sequence[Span]) -> bool:
    return all(any(a.matches(b) for b in other) for a in one) and all(
        any(a.matches(b) for b in one) for a in other
    )


def _by_threshold(outcomes: Sequence[_Outcome]) -> dict[str, float]:
    """Return the scores at the best threshold, and the most recall at some precisions."""
    at_score = {}  # of all predictions as sure as that or surer
    correct = predicted = 0
    gold = sum(outcome.gold for outcome in outcomes)
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.score):
        correct += outcome.correct
        predicted += outcome.predicted
        at_score[outcome.score] = _divide(correct, predicted), _divide(correct, gold)
    names = ("f1", "precision", "recall", "")
    best = dict.fromkeys(names, 0.0)
    at_least = {least: (0.0, 0.0) for least in PRECISIONS}  # recall, precision
    for score, (precision, recall) in at_score.items():
        if (f1 := _f1(precision, recall)) > best["f1"]:
            best = dict(zip(names, (f1, precision, recall, score), strict=True))
        for least, (most_recall, _) in at_least.items():
            if precision >= least and recall > most_recall:
                at_least[least] = recall, precision
    result = {f"best-threshold-{name}".rstrip("-"): value for name, value in best.items()}
    for least, (recall, precision) in at_least.items():
        result[f"recall-at-precision>={least}"] = recall
        result[f"precision-at-precision>={least}"] = precision
    return result


def _precision_recall(outcomes: Sequence[_Outcome], gold: int) -> tuple[float, float]:
    correct = sum(outcome.correct for outcome in outcomes)
    return _divide(correct, sum(outcome.predicted for outcome in outcomes)), _divide(correct, gold)


def _f1(precision: float, recall: float) -> float:
    return _divide(2 * precision * recall, precision + recall)


def _divide(x: float, y: float) -> float:
    return x / y if y else 0.0
