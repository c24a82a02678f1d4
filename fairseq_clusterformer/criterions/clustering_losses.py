"""The total loss of CF22 eq. 17, on top of any fairseq criterion."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairseq.logging import metrics
from torch import Tensor

from fairseq_clusterformer.clustering import LOSSES
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.metrics.clusters import summary
from fairseq_clusterformer.models.options import option

STATISTICS = (*LOSSES, "cluster_entropy", "cluster_effective", "cluster_largest", "cluster_empty")


class SummedLogs:
    """Mixin before a fairseq criterion: all that it logs are sums."""

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True

    @staticmethod
    def totals(logging_outputs: list[dict]) -> Counter:
        """The sum of what is logged, by name; 0 of what nothing logs."""
        found: Counter = Counter()
        for log in logging_outputs:
            for name, value in log.items():
                found[name] = found[name] + value  # a new tensor, of the wider type
        return found


weight = partial(option, at_least=0)  # a field of a dataclass, for a loss's weight


@dataclass
class ClusteringLossConfig:
    """Options that a criterion inherits in addition to its own."""

    clustering_loss_weight: float = weight(0.1, "mu: weight of the clustering loss (eq. 6)")
    centroid_sorting_loss_weight: float = weight(0.1, "nu: weight of centroid sorting (eq. 11)")
    routing_loss_weight: float = weight(1.0, "weight of the routing loss of taught heads")
    task_loss_weight: float = weight(1.0, "lambda: weight of the task's loss")


def weighted(losses: dict[str, Tensor], weights: Any) -> Tensor:
    """mu L1 + nu L2, and the routing loss, with the weights of `ClusteringLossConfig`."""
    return (
        weights.clustering_loss_weight * losses["clustering_loss"]
        + weights.centroid_sorting_loss_weight * losses["sorting_loss"]
        + weights.routing_loss_weight * losses["routing_loss"]
    )


class ClusteringLosses:
    """Mixin before a fairseq criterion: ``mu L1 + nu L2 + lambda L_task`` (CF22 eq. 17).

    fairseq's trainer divides all gradients by the sample size. The auxiliary terms are multiplied
    by it, so that the weights mean the same at any batch size, number of workers and update
    frequency. ``loss`` in the log is the task's alone, in training and in validation.
    """

    #: a model with an encoder also logs the clusters of each side
    side_statistics: tuple[str, ...] = ()

    @classmethod
    def build_criterion(cls, cfg: ClusteringLossConfig, task):
        """The criterion, whose own arguments fairseq takes from the options by their names."""
        criterion = super().build_criterion(cfg, task)
        criterion.weights = cfg
        return criterion

    def forward(self, model, sample, reduce=True):
        listener = _Listener(model)
        loss, sample_size, logging_output = super().forward(listener, sample, reduce=reduce)
        if "reports" not in listener.net_output[1]:
            allowed = f"fairseq's own, for a {type(model).__name__} has no clusters"
            raise refused("--criterion", type(self).__name__, allowed)
        clustering = summary(listener.net_output[1]["reports"])
        # Every batch logs every name: workers add up what they logged name by name. A batch may
        # have nothing to say, where LayerDrop leaves out all layers that cluster.
        logging_output["clustered_size"] = 0 if clustering is None else sample_size
        # Validation computes no clustering losses.
        names = STATISTICS if model.training else STATISTICS[len(LOSSES) :]
        for name in names + self.side_statistics:
            mean = (clustering or {}).get(name, loss.new_zeros(()))
            logging_output[name] = mean.detach() * sample_size
        if model.training and reduce:
            loss = self.weights.task_loss_weight * loss
            if clustering is not None:
                loss = loss + sample_size * weighted(clustering, self.weights)
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        super().reduce_metrics(logging_outputs)
        size = sum(log.get("clustered_size", 0) for log in logging_outputs)
        for name in STATISTICS + cls.side_statistics if size else ():
            said = [log[name] for log in logging_outputs if name in log]
            # a kind without such a loss, or a side without clusters, has nothing to say
            if said and (name not in (*LOSSES, *cls.side_statistics) or sum(said) != 0):
                metrics.log_scalar(name, sum(said) / size, size, round=3)


class _Listener:
    """Stands for a model, and keeps what it returned."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *args, **kwargs):
        self.net_output = self.model(*args, **kwargs)
        return self.net_output

    def __getattr__(self, name):
        return getattr(self.model, name)
