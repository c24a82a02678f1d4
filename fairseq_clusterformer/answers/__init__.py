"""From a reader's logits to answers: spans, their order, what is scored of them; no fairseq."""

from .documents import (
    TYPES,
    Answer,
    AnswerLogits,
    Answers,
    Document,
    Logits,
    SharedLogits,
    StructureLogits,
    text_mask,
)
from .ensemble import mean_logits
from .ranking import best_spans, natural_question, ranked_answers

__all__ = [
    "TYPES",
    "Answer",
    "AnswerLogits",
    "Answers",
    "Document",
    "Logits",
    "StructureLogits",
    "SharedLogits",
    "best_spans",
    "mean_logits",
    "natural_question",
    "ranked_answers",
    "text_mask",
]
