"""fairseq's criterions plus the clustering losses, by the names ``clusterformer_*``."""

import math
from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics
from torch.nn.functional import cross_entropy

from fairseq_clusterformer.precision import at_least_float32

from .clustering_losses import ClusteringLossConfig, ClusteringLosses, SummedLogs, weight
from .in_chunks import OutputInChunks


@dataclass
class ClusterformerCrossEntropyConfig(ClusteringLossConfig, CrossEntropyCriterionConfig):
    """Options of fairseq's ``cross_entropy``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_cross_entropy", dataclass=ClusterformerCrossEntropyConfig)
class ClusterformerCrossEntropy(ClusteringLosses, OutputInChunks, CrossEntropyCriterion):
    """Cross-entropy plus the clustering losses."""


@dataclass
class ClusterformerAdaptiveLossConfig(ClusteringLossConfig, AdaptiveLossConfig):
    """Options of fairseq's ``adaptive_loss``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_adaptive_loss", dataclass=ClusterformerAdaptiveLossConfig)
class ClusterformerAdaptiveLoss(ClusteringLosses, AdaptiveLoss):
    """The loss of the adaptive softmax plus the clustering losses."""


@dataclass
class ClusterformerMaskedLMLossConfig(ClusteringLossConfig, MaskedLmConfig):
    """Options of fairseq's ``masked_lm``, and the weights of CF22 eq. 17."""


class _NextSentenceLoss(MaskedLmLoss):
    """Cross-entropy of masked words and, of pairs, of whether the second text follows: the sum of
    both means (Devlin et al. 2019). ``loss`` in the log is that of the words."""

    def forward(self, model, sample, reduce=True):
        loss, sample_size, log = super().forward(model, sample, reduce=reduce)
        if "follows" in sample:
            # `model` is the stand-in of ClusteringLosses, which keeps what it returned
            logits = at_least_float32(model.net_output[1]["next_sentence"])
            follows = sample["follows"]
            ours = cross_entropy(logits, follows, reduction="sum")
            loss = loss + sample_size * ours / len(follows)
            log |= {
                "pairs": len(follows),
                "next_sentence_loss": ours.detach(),
                "next_sentence_right": (logits.argmax(-1) == follows).sum(),
            }
        return loss, sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        MaskedLmLoss.reduce_metrics(logging_outputs)
        total = SummedLogs.totals(logging_outputs)
        if pairs := total["pairs"]:
            loss, right = total["next_sentence_loss"] / math.log(2), total["next_sentence_right"]
            metrics.log_scalar("next_sentence_loss", loss / pairs, pairs, round=3)
            metrics.log_scalar("next_sentence_accuracy", right / pairs, pairs, round=3)


@register_criterion("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMLossConfig)
class ClusterformerMaskedLMLoss(ClusteringLosses, _NextSentenceLoss):
    """Cross-entropy of masked words, and of pairs that of the next sentence, plus the clustering
    losses."""


@dataclass
class ClusterformerLabelSmoothedCrossEntropyConfig(
    ClusteringLossConfig, LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of fairseq's ``label_smoothed_cross_entropy``, and the weights of CF22 eq. 17.

    mu and nu are smaller than elsewhere: they also pull the tokens of a sentence together, which
    at 0.1 costs 2 to 3 BLEU on Multi30k (examples/translation).
    """

    clustering_loss_weight: float = weight(0.01, "mu: weight of the clustering loss (eq. 6)")
    centroid_sorting_loss_weight: float = weight(0.01, "nu: weight of centroid sorting (eq. 11)")


@register_criterion(
    "clusterformer_label_smoothed_cross_entropy",
    dataclass=ClusterformerLabelSmoothedCrossEntropyConfig,
)
class ClusterformerLabelSmoothedCrossEntropy(
    ClusteringLosses, OutputInChunks, LabelSmoothedCrossEntropyCriterion
):
    """Label smoothing plus the clustering losses of encoder and decoder."""

    side_statistics = ("encoder_cluster_effective", "decoder_cluster_effective")
