"""``--criterion clusterformer_label_smoothed_cross_entropy``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)

from .clustering_losses import ClusteringLossConfig, ClusteringLosses


@dataclass
class ClusterformerLabelSmoothedCrossEntropyConfig(
    ClusteringLossConfig, LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of fairseq's ``label_smoothed_cross_entropy``, and the weights of CF22 eq. 17."""


@register_criterion(
    "clusterformer_label_smoothed_cross_entropy",
    dataclass=ClusterformerLabelSmoothedCrossEntropyConfig,
)
class ClusterformerLabelSmoothedCrossEntropy(ClusteringLosses, LabelSmoothedCrossEntropyCriterion):
    """Label smoothing plus the clustering losses of encoder and decoder."""

    @classmethod
    def build_criterion(cls, cfg: ClusterformerLabelSmoothedCrossEntropyConfig, task):
        criterion = super().build_criterion(cfg, task)
        criterion.set_weights(cfg)
        return criterion
