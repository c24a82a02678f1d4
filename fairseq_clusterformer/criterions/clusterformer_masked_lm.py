"""``--criterion clusterformer_masked_lm``."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss

from .clustering_losses import ClusteringLossConfig, ClusteringLosses


@dataclass
class ClusterformerMaskedLMLossConfig(ClusteringLossConfig, MaskedLmConfig):
    """Options of fairseq's ``masked_lm``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMLossConfig)
class ClusterformerMaskedLMLoss(ClusteringLosses, MaskedLmLoss):
    """Cross-entropy of masked words plus the clustering losses."""

    @classmethod
    def build_criterion(cls, cfg: ClusterformerMaskedLMLossConfig, task):
        criterion = cls(cfg, task)
        criterion.set_weights(cfg)
        return criterion
