"""``--arch clusterformer_masked_lm``: masked words, by a clustered encoder.

It is trained by fairseq's own task ``masked_lm``. CF22 appendix F also trains on next-sentence
prediction, which is left out: RoBERTa (Liu et al., 2019) found that it does not help.
"""

from dataclasses import dataclass

from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta.model import RobertaLMHead
from torch import Tensor

from fairseq_clusterformer.clustering import Report

from .encoder_only import (
    EncoderOnlyModel,
    EncoderOnlyOptions,
    PretrainedOptions,
    set_epsilon,
    tiny_encoder,
)
from .options import set_sizes
from .pretrained import load_pretrained, set_sizes_of_folder


@dataclass
class ClusterformerMaskedLMConfig(PretrainedOptions, EncoderOnlyOptions):
    """Options of the encoder."""


@register_model("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMConfig)
class ClusterformerMaskedLM(EncoderOnlyModel):
    """A clustered encoder and RoBERTa's head, which shares the words' embeddings."""

    def __init__(self, args, task):
        super().__init__(args, task)
        self.lm_head = RobertaLMHead(
            embed_dim=args.encoder_embed_dim,
            output_dim=len(task.source_dictionary),
            activation_fn=args.activation_fn,
            weight=self.encoder.embed_tokens.weight,
        )
        set_epsilon(self.lm_head, args.layer_norm_eps)

    def load_initial_weights(self) -> None:
        """Start from what ``--pretrained`` names; raises CheckpointError for files that cannot be
        read or do not fit."""
        if self.args.pretrained:
            load_pretrained(self, self.args.pretrained)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        src_id: Tensor | None = None,
        masked_tokens: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, dict[str, list[Report]]]]:
        """Guess words.

        Args:
            src_tokens: int64 [B, N].
            src_lengths, src_id: of fairseq's task, ignored.
            masked_tokens: bool [B, N], the places to guess; None: all.

        Returns:
            Logits [places, words], or [B, N, words] for all; and the reports of the layers.
        """
        x, reports = self.encoded(src_tokens)
        return self.lm_head(x, masked_tokens), {"reports": {"encoder": reports}}

    def encoded(self, src_tokens: Tensor) -> tuple[Tensor, list[Report]]:
        """States of tokens [B, N, D], and the reports of the layers."""
        out = self.encoder(src_tokens)
        return out["encoder_out"][0].transpose(0, 1), out["reports"]


@register_model_architecture("clusterformer_masked_lm", "clusterformer_masked_lm_small")
def clusterformer_masked_lm_small(args):
    """CF22 appendix F: BERT-small's 4 layers of 512, 8 heads."""
    sizes = {"layers": 4, "width": 512, "inner": 2048, "heads": 8}
    set_sizes(args, "encoder", **sizes, activation_fn="gelu")


register_model_architecture("clusterformer_masked_lm", "clusterformer_masked_lm_tiny")(
    tiny_encoder
)
register_model_architecture("clusterformer_masked_lm", "clusterformer_masked_lm_pretrained")(
    set_sizes_of_folder
)
