"""``--arch clusterformer_masked_lm``: masked words, by a clustered encoder; of fairseq's own task
``masked_lm`` or, as in CF22 appendix F, of pairs: ``clusterformer_masked_lm --next-sentence``."""

from dataclasses import dataclass
from typing import Any

from fairseq.models import register_model
from fairseq.models.roberta.model import RobertaLMHead
from torch import Tensor, nn

from fairseq_clusterformer.clustering import Report

from .encoder import TINY, EncoderOnlyModel, EncoderOnlyOptions, PretrainedOptions, set_epsilon
from .options import register_sizes, sized
from .pretrained import set_sizes_of_folder


@dataclass
class ClusterformerMaskedLMConfig(PretrainedOptions, EncoderOnlyOptions):
    """Options of the encoder."""


@register_model("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMConfig)
class ClusterformerMaskedLM(EncoderOnlyModel):
    """A clustered encoder and RoBERTa's head, which shares the words' embeddings. For pairs it has
    embeddings of segments, and on the state of ``<s>`` a hidden layer, ``pooler``, and
    ``next_sentence``, whether the second text follows the first."""

    def __init__(self, args, task):
        super().__init__(args, task)
        self.lm_head = RobertaLMHead(
            embed_dim=args.encoder_embed_dim,
            output_dim=len(task.source_dictionary),
            activation_fn=args.activation_fn,
            weight=self.encoder.embed_tokens.weight,
        )
        set_epsilon(self.lm_head, args.layer_norm_eps)
        self.pooler = self.next_sentence = None
        if getattr(task, "next_sentence", False):
            self.add_segments()
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
        """Guess words of src_tokens, int64 [B, N], at the places of ``masked_tokens``, bool [B, N]
        (None: all): logits [places, words], or [B, N, words]; the layers' reports; and of pairs
        ``next_sentence``, logits of "does not follow" and "follows" [B, 2]. ``segments`` as of
        :meth:`encode`."""
        x, reports = self.encoded(src_tokens, segments)
        extra: dict[str, Any] = {"reports": {"encoder": reports}}
        if self.next_sentence is not None:
            extra["next_sentence"] = self.next_sentence(self.pooler(x[:, 0]).tanh())
        return self.lm_head(x, masked_tokens), extra

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
