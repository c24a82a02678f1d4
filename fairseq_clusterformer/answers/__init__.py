"""From a reader's logits to answers: spans, their order, the files that are scored; no fairseq."""

from .ranking import TYPES, Answer, AnswerLogits, Answers, Document, ranked_answers, text_mask
from .spans import best_spans

__all__ = [
    "TYPES",
    "Answer",
    "AnswerLogits",
    "Answers",
    "Document",
    "best_spans",
    "ranked_answers",
    "text_mask",
]
