"""From a reader's logits to answers: spans, their order, what is scored of them; no fairseq."""

from .documents import TYPES, Answer, AnswerLogits, Answers, Document, mean_logits, text_mask  # noqa: F401
from .ranking import best_spans, natural_question, ranked_answers, ranking_options  # noqa: F401
