"""``--criterion clusterformer_label_smoothed_cross_entropy``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)

from .clustering_losses import ClusteringLossConfig, ClusteringLosses, weight


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

    @classmethod
    def build_criterion(cls, cfg: ClusterformerLabelSmoothedCrossEntropyConfig, task):
        criterion = super().build_criterion(cfg, task)
        criterion.set_weights(cfg)
        return criterion
