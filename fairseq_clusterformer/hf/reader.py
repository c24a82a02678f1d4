"""``AutoModelForQuestionAnswering``: the reader, which answers by a piece of a document."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import QuestionAnsweringModelOutput
from transformers.utils import can_return_tuple

from fairseq_clusterformer.answers import TYPES, best_spans

from .base import ClusterformerPreTrainedModel


@dataclass
class ReaderOutput(QuestionAnsweringModelOutput):
    """As of transformers, and logits of each of `fairseq_clusterformer.answers.TYPES`, [B, 5];
    the last type is that there is no answer."""

    type_logits: Tensor | None = None


class ClusterformerForQuestionAnswering(ClusterformerPreTrainedModel):
    """The reader over windows and clusters (CF20).

    A row is ``<s> question </s>`` and behind it a document, each paragraph led by ``<s>``; the
    tokenizer makes it of a question and a document, with ``token_type_ids`` 0 and 1.
    """

    families = ("clusterformer_reader",)
    auto, form, hub_task = "AutoModelForQuestionAnswering", "reader", "question-answering"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> ReaderOutput | tuple:
        """Logits [B, N] of where the answer starts and ends: the lowest number there is outside of
        the document.

        Args:
            token_type_ids: 0 at the question, 1 at the document, [B, N]; needed.
            start_positions: the answer's first token, int64 [B]; 0: there is none.
            end_positions: its last token, int64 [B].
            output_hidden_states: refused.
        """
        self._begin(position_ids=position_ids, **kwargs)
        if self._wants_states(output_hidden_states):
            problem = "the layers read windows of a document, not rows"
            raise ValueError(f"output_hidden_states is True: {problem}; allowed: False")
        if token_type_ids is None:
            raise ValueError("token_type_ids is None; allowed: 0 at the question, 1 behind it")
        tokens = self._one_text_a_row(input_ids, attention_mask, position_ids)
        real = tokens.ne(self.config.pad_token_id)
        in_question, in_document = (real & token_type_ids.eq(part) for part in (0, 1))
        question, document = self._picked(tokens, in_question), self._picked(tokens, in_document)
        found, extra = self.model(question, document)
        # back from places in the document to places in the row
        places = (in_document.long().cumsum(1) - 1).clamp(min=0)
        start, end = (
            logits.gather(1, places)
            .masked_fill(~in_document, -torch.inf)
            .clamp(min=torch.finfo(logits.dtype).min)
            for logits in (found.start, found.end)
        )
        loss = None
        if start_positions is not None and end_positions is not None:
            none = start_positions.eq(0)
            loss = cross_entropy(found.type, none.long() * TYPES.index("none"))
            for logits, right in ((start, start_positions), (end, end_positions)):
                if not bool(none.all()):
                    loss = loss + cross_entropy(logits[~none], right[~none]) / 2
            loss = self._with_clustering(loss, extra["reports"])
        return ReaderOutput(loss=loss, start_logits=start, end_logits=end, type_logits=found.type)

    def _picked(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """Some tokens of each row, moved to its beginning."""
        rows = [row[own] for row, own in zip(tokens, wanted, strict=True)]
        return pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)

    @torch.no_grad()
    def spans(self, max_length: int = 30, **inputs: Tensor) -> Tensor:
        """The best answer of each row: its first token and the one behind its last, int64 [B, 2];
        `max_length` in tokens, `inputs` of the tokenizer."""
        out = self(**inputs)
        lowest = torch.finfo(out.start_logits.dtype).min
        found = (out.start_logits, out.end_logits)
        start, end = (each.masked_fill(each == lowest, -torch.inf) for each in found)
        paragraph = inputs["input_ids"].eq(self.config.bos_token_id).cumsum(1)
        _, first, last = best_spans(start, end, paragraph, max_length=max_length)
        return torch.cat([first, last], dim=1)
