"""``--criterion clusterformer_adaptive_loss``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig

from .clustering_losses import ClusteringLossConfig, ClusteringLosses


@dataclass
class ClusterformerAdaptiveLossConfig(ClusteringLossConfig, AdaptiveLossConfig):
    """Options of fairseq's ``adaptive_loss``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_adaptive_loss", dataclass=ClusterformerAdaptiveLossConfig)
class ClusterformerAdaptiveLoss(ClusteringLosses, AdaptiveLoss):
    """The loss of the adaptive softmax plus the clustering losses."""

    @classmethod
    def build_criterion(cls, cfg: ClusterformerAdaptiveLossConfig, task):
        criterion = super().build_criterion(cfg, task)
        criterion.set_weights(cfg)
        return criterion
