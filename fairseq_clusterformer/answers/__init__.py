"""From a reader's logits to answers: spans, their order, what is scored of them; no fairseq."""

from .documents import (  # noqa: F401
    TYPES,
    Answer,
    AnswerLogits,
    Answers,
    Document,
    mean_logits,
    text_mask,
)
from .ranking import best_spans, natural_question, ranked_answers, ranking_options  # noqa: F401
