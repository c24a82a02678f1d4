"""``--criterion clusterformer_cross_entropy``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig

from .clustering_losses import ClusteringLossConfig, ClusteringLosses


@dataclass
class ClusterformerCrossEntropyConfig(ClusteringLossConfig, CrossEntropyCriterionConfig):
    """Options of fairseq's ``cross_entropy``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_cross_entropy", dataclass=ClusterformerCrossEntropyConfig)
class ClusterformerCrossEntropy(ClusteringLosses, CrossEntropyCriterion):
    """Cross-entropy plus the clustering losses."""

    @classmethod
    def build_criterion(cls, cfg: ClusterformerCrossEntropyConfig, task):
        criterion = cls(task, cfg.sentence_avg)
        criterion.set_weights(cfg)
        return criterion
