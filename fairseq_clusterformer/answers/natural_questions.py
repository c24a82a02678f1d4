"""Answers in the form that Natural Questions' script scores."""

import math
import re
from collections.abc import Sequence
from typing import Any

from .ranking import Answers

_LEAST = -1e9  # JSON has no infinity


def natural_question(id_: str, answers: Answers, paragraphs: Sequence[Sequence]) -> dict[str, Any]:
    """An entry of ``predictions``, in tokens of the whole document.

    Both answers are given, whether or not the most likely type has them. Their scores, which are
    logarithms of probabilities, say how sure they are, and a threshold decides. Where yes or no
    is more likely than a span, it stands in the span's place.

    Args:
        paragraphs: [title, text, [start, end), words] of each; see ``data/qa.py``.
    """
    long, long_score = (-1, -1), _LEAST
    if answers.long:
        number, log_prob = answers.long[0]
        long = paragraphs[number][2]
        long_score = log_prob + math.log1p(-min(answers.types["none"], 1 - 1e-12))
    best = answers.short[0]
    spans = [] if best.tokens is None else [_words(paragraphs[best.paragraph], *best.characters)]
    return {
        "example_id": int(id_) if re.fullmatch(r"-?\d+", id_) else id_,
        "long_answer": _span(*long),
        "long_answer_score": long_score,
        "short_answers": [_span(*span) for span in spans],
        "short_answers_score": max(best.score, _LEAST),
        "yes_no_answer": "NONE" if spans else best.text.upper(),
    }


def _words(paragraph: Sequence, start: int, end: int) -> tuple[int, int]:
    """The document's tokens of a paragraph's characters [start, end); blanks part its words."""
    _, text, _, tokens = paragraph
    return tokens[text.count(" ", 0, start)], tokens[text.count(" ", 0, end)] + 1


def _span(start: int, end: int) -> dict[str, int]:
    return {"start_byte": -1, "end_byte": -1, "start_token": start, "end_token": end}
