"""From a reader's logits to answers: spans, their order, what is scored of them; no fairseq."""

from .natural_questions import natural_question
from .ranking import (
    TYPES,
    Answer,
    AnswerLogits,
    Answers,
    Document,
    Logits,
    StructureLogits,
    WordLogits,
    ranked_answers,
    text_mask,
)
from .spans import best_spans

__all__ = [
    "TYPES",
    "Answer",
    "AnswerLogits",
    "Answers",
    "Document",
    "Logits",
    "StructureLogits",
    "WordLogits",
    "best_spans",
    "natural_question",
    "ranked_answers",
    "text_mask",
]
