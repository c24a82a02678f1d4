"""``--arch clusterformer_classifier``: classes of texts and of pairs, or a number for each (a
regression), by a clustered encoder."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_clusterformer.errors import refused

from .encoder import TINY, EncoderOnlyModel, EncoderOnlyOptions, PretrainedOptions, masked_mean
from .options import flag, option, register_sizes, sized
from .pretrained import load_pretrained, read_word_vectors, set_sizes_of_folder

logger = logging.getLogger(__name__)


@dataclass
class ClusterformerClassifierConfig(PretrainedOptions, EncoderOnlyOptions):
    """Options of the encoder, and those of the classifier on it."""

    pooling: str = option(
        "mean",
        "output that represents a text: the mean over its tokens, or the first",
        choices=("mean", "first"),
    )
    classifier_hidden_dim: int = option(
        0, "width of the classifier's hidden layer; 0: the encoder's", at_least=0
    )
    classifier_dropout: float = option(0.1, "dropout probability before the classifier's layers")
    word_vectors: str = option("", "text file of vectors, such as GloVe, to start embeddings from")
    freeze_word_vectors: bool = option(False, "do not train the words' embeddings")
    pretrained_checkpoint: str = option("", "checkpoint of clusterformer_masked_lm to start from")


@register_model("clusterformer_classifier", dataclass=ClusterformerClassifierConfig)
class ClusterformerClassifier(EncoderOnlyModel):
    r"""A clustered encoder, a pooling and a classifier with one hidden layer, which sees a pair as
    one sequence with segment embeddings, or of two sequences u, v [u; v; \|u - v\|; u * v]."""

    def __init__(self, args, task):
        super().__init__(args, task)
        width = args.encoder_embed_dim
        if task.is_pair and not task.is_siamese:
            self.add_segments()
        inputs = 4 * width if task.is_siamese else width
        hidden = args.classifier_hidden_dim or width
        self.classifier = nn.Sequential(
            nn.Dropout(args.classifier_dropout),
            nn.Linear(inputs, hidden),
            nn.Tanh(),
            nn.Dropout(args.classifier_dropout),
            nn.Linear(hidden, len(task.classes) or 1),
        )
        if args.freeze_word_vectors:
            self.encoder.embed_tokens.weight.requires_grad = False

    @classmethod
    def check(cls, args, task) -> None:
        starts = ("word_vectors", "pretrained_checkpoint", "pretrained")
        (first, value), *others = [(n, v) for n in starts if (v := getattr(args, n))] or [("", "")]
        for name, other in others:
            raise refused(flag(first), f"{value}, and {flag(name)} {other}", "one of them")

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        pair_tokens: Tensor | None = None,
        pair_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Classify texts or joined pairs, int64 [B, N], or siamese pairs, whose second texts are
        ``pair_tokens``, int64 [B, N']; padding is where the dictionary says so, whatever the
        lengths. Returns logits [B, classes], or of a regression numbers [B, 1]; the reports of the
        encoder's layers and its ``encoder_states`` of ``src_tokens``, [N, B, D] each."""
        features, out = self._encode(src_tokens, return_all_hiddens)
        reports = out["reports"]
        if pair_tokens is not None:
            u, (v, second) = features, self._encode(pair_tokens)
            features = torch.cat([u, v, (u - v).abs(), u * v], dim=-1)
            reports = reports + second["reports"]
        extra = {"reports": {"encoder": reports}, "encoder_states": out["encoder_states"]}
        return self.classifier(features), extra

    def second(self, tokens: Tensor) -> Tensor:
        """1 behind the end of a joined pair's first text, 0 elsewhere, int64 [B, N]."""
        ends = tokens.eq(self.encoder.dictionary.eos())
        return (ends.cumsum(1) - ends.long()).clamp(max=1)

    def _encode(
        self, tokens: Tensor, return_all_hiddens: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        """Pooled outputs [B, D], and what the encoder returned."""
        out = self.encode(tokens, self.second(tokens), return_all_hiddens)
        x = out["encoder_out"][0].transpose(0, 1)
        real = ~out["encoder_padding_mask"][0]
        if self.args.pooling == "first":
            return x[torch.arange(len(x), device=x.device), real.int().argmax(1)], out
        return masked_mean(x, real), out

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Probabilities of the classes or their logarithms, float32 [B, classes]."""
        logits = net_output[0].float()
        return logits.log_softmax(-1) if log_probs else logits.softmax(-1)

    def load_initial_weights(self) -> None:
        """Start from what ``--word-vectors``, ``--pretrained-checkpoint`` or ``--pretrained``
        names; raises ValueError for files that cannot be read or do not fit."""
        if path := self.args.word_vectors:
            weight, dictionary = self.encoder.embed_tokens.weight, self.encoder.dictionary
            known = {k: v for k, v in dictionary.indices.items() if v != dictionary.pad()}
            width, words = weight.size(1), len(dictionary) - dictionary.nspecial
            found, vectors = read_word_vectors(path, width, "--encoder-embed-dim", known=known)
            # one factor for all: the spread of new embeddings, so that positions and words without
            # a vector keep their weight
            weight.data[[known[w] for w in found]] = vectors * (width**-0.5 / vectors.std())
            share = 100 * len(found) / words
            logger.info(f"{path}: vectors of {len(found)} of {words} words ({share:.1f} %)")
        if self.args.pretrained_checkpoint:
            load_pretrained(self, self.args.pretrained_checkpoint, "--pretrained-checkpoint")
        super().load_initial_weights()

    def pretrained_parts(self) -> dict[str, str]:
        """The segments of pairs, and BERT's hidden layer on the first token."""
        parts = {"segments.weight": "segments.weight"} if self.segments is not None else {}
        hidden: nn.Linear = self.classifier[1]
        width = self.args.encoder_embed_dim
        if self.args.pooling == "first" and hidden.weight.shape == (width, width):
            parts |= {f"pooler.{name}": f"classifier.1.{name}" for name in ("weight", "bias")}
        return parts


register_sizes(
    "clusterformer_classifier",
    tiny=TINY,
    # CF22 section 4.2: all layers cluster
    base=(sized("encoder", 2, 300, 1200, 4), {"encoder_attention": "neural"}),
    pretrained=set_sizes_of_folder,
)
