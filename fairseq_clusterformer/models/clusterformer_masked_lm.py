"""``--arch clusterformer_masked_lm``: masked words, by a clustered encoder.

It is trained by fairseq's own task ``masked_lm``; or, as in CF22 appendix F, on pairs of texts, by
``clusterformer_masked_lm --next-sentence``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import register_model
from fairseq.models.roberta.model import RobertaLMHead
from torch import Tensor, nn

from fairseq_clusterformer.clustering import Report

from .encoder_only import (
    TINY,
    EncoderOnlyModel,
    EncoderOnlyOptions,
    PretrainedOptions,
    segment_embeddings,
    set_epsilon,
)
from .options import register_sizes, sized
from .pretrained import set_sizes_of_folder


@dataclass
class ClusterformerMaskedLMConfig(PretrainedOptions, EncoderOnlyOptions):
    """Options of the encoder."""


@register_model("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMConfig)
class ClusterformerMaskedLM(EncoderOnlyModel):
    """A clustered encoder and RoBERTa's head, which shares the words' embeddings.

    For pairs it has embeddings of segments, and on the state of ``<s>`` a hidden layer,
    ``pooler``, and ``next_sentence``, whether the second text follows the first.
    """

    def __init__(self, args, task):
        super().__init__(args, task)
        self.lm_head = RobertaLMHead(
            embed_dim=args.encoder_embed_dim,
            output_dim=len(task.source_dictionary),
            activation_fn=args.activation_fn,
            weight=self.encoder.embed_tokens.weight,
        )
        set_epsilon(self.lm_head, args.layer_norm_eps)
        self.segments = self.pooler = self.next_sentence = None
        if getattr(task, "next_sentence", False):
            self.segments = segment_embeddings(args.encoder_embed_dim)
            self.pooler = nn.Linear(args.encoder_embed_dim, args.encoder_embed_dim)
            self.next_sentence = nn.Linear(args.encoder_embed_dim, 2)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        src_id: Tensor | None = None,
        masked_tokens: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Guess words of src_tokens, int64 [B, N]: logits [places, words], or [B, N, words] for
        all; the layers' reports; and of pairs ``next_sentence``, logits of "does not follow" and
        "follows" [B, 2].

        Args:
            masked_tokens: bool [B, N], the places to guess; None: all.
            segments: of pairs, 1 in the second text and 0 else, int64 [B, N]; None: all 0.
        """
        x, reports = self.encoded(src_tokens, segments)
        extra: dict[str, Any] = {"reports": {"encoder": reports}}
        if self.next_sentence is not None:
            extra["next_sentence"] = self.next_sentence(self.pooler(x[:, 0]).tanh())
        return self.lm_head(x, masked_tokens), extra

    def encode(
        self, tokens: Tensor, segments: Tensor | None = None, return_all_hiddens: bool = False
    ) -> dict[str, Any]:
        """What the encoder returns of tokens, int64 [B, N]; arguments as of :meth:`forward`."""
        words = None
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments
            words = self.encoder.embed_tokens(tokens) + self.segments(segments)
        return self.encoder(tokens, token_embeddings=words, return_all_hiddens=return_all_hiddens)

    def encoded(
        self, src_tokens: Tensor, segments: Tensor | None = None
    ) -> tuple[Tensor, list[Report]]:
        """States of tokens [B, N, D], and the reports of the layers."""
        out = self.encode(src_tokens, segments)
        return out["encoder_out"][0].transpose(0, 1), out["reports"]


register_sizes(
    "clusterformer_masked_lm",
    tiny=TINY,
    # CF22 appendix F: BERT-small's
    small=(sized("encoder", 4, 512, 2048, 8), {"activation_fn": "gelu"}),
    pretrained=set_sizes_of_folder,
)
