"""fairseq's criterions plus the clustering losses, by the names ``clusterformer_*``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss

from .clustering_losses import ClusteringLossConfig, ClusteringLosses, weight


@dataclass
class ClusterformerCrossEntropyConfig(ClusteringLossConfig, CrossEntropyCriterionConfig):
    """Options of fairseq's ``cross_entropy``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_cross_entropy", dataclass=ClusterformerCrossEntropyConfig)
class ClusterformerCrossEntropy(ClusteringLosses, CrossEntropyCriterion):
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


@register_criterion("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMLossConfig)
class ClusterformerMaskedLMLoss(ClusteringLosses, MaskedLmLoss):
    """Cross-entropy of masked words plus the clustering losses."""


@dataclass
class ClusterformerLabelSmoothedCrossEntropyConfig(
    ClusteringLossConfig, LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of fairseq's ``label_smoothed_cross_entropy``, and the weights of CF22 eq. 17.

    mu and nu are smaller than elsewhere: they also pull the tokens of a sentence together, which
    at 0.1 costs 2 to 3 BLEU on Multi30k (examples/translation).
    """

    clustering_loss_weight: float = weight(0.01, "mu: weight of the clustering loss (eq. 6)")
    centroid_sorting_loss_weight: float = weight(
        0.01, "nu: weight of the centroid sorting loss (eq. 11)"
    )


@register_criterion(
    "clusterformer_label_smoothed_cross_entropy",
    dataclass=ClusterformerLabelSmoothedCrossEntropyConfig,
)
class ClusterformerLabelSmoothedCrossEntropy(ClusteringLosses, LabelSmoothedCrossEntropyCriterion):
    """Label smoothing plus the clustering losses of encoder and decoder."""

    side_statistics = ("encoder_cluster_effective", "decoder_cluster_effective")
