"""Heads of a reader: where the short answer is, in which paragraph, and of which type."""

import torch
from torch import Tensor, nn

from fairseq_clusterformer.answers import TYPES, AnswerLogits
from fairseq_clusterformer.precision import ExactLinear

from .encoder_only import masked_mean
from .reader import Reading


class AnswerHeads(nn.Module):
    """Three linear maps (CF20 section 4.2), computed in float32 or more.

    Args:
        embed_dim: D.
    """

    def __init__(self, embed_dim: int):
        super().__init__()
        self.span = ExactLinear(embed_dim, 2)
        self.paragraph = ExactLinear(embed_dim, 1)
        self.answer_type = ExactLinear(embed_dim, len(TYPES))
        for head in (self.span, self.paragraph):
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        # all types are equally likely, and stay so if the data has no types
        nn.init.zeros_(self.answer_type.weight)
        nn.init.zeros_(self.answer_type.bias)

    def forward(self, reading: Reading, paragraph_mask: Tensor, text_mask: Tensor) -> AnswerLogits:
        """See :class:`AnswerLogits`.

        Args:
            reading: of B documents.
            paragraph_mask: bool [B, N], True for each ``<s>``.
            text_mask: bool [B, N], True where a short answer can begin and end.
        """
        real = ~reading.document_padding
        start, end = self.span(reading.document).unbind(-1)
        paragraph = self.paragraph(reading.document).squeeze(-1)
        # "the mean values of the first hidden state of all the chunked sequences"
        first = (reading.question[:, :, :1], reading.question_padding[:, :, :1])
        states, hidden = (x.flatten(1, 2) for x in first)
        return AnswerLogits(
            start=start.masked_fill(~(text_mask & real), -torch.inf),
            end=end.masked_fill(~(text_mask & real), -torch.inf),
            paragraph=paragraph.masked_fill(~(paragraph_mask & real), -torch.inf),
            type=self.answer_type(masked_mean(states, ~hidden)),
        )
