"""``--criterion clusterformer_sentence_prediction``."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.metrics import ranking_scores
from fairseq_clusterformer.models.options import option

from .clustering_losses import ClusteringLossConfig, ClusteringLosses, SummedLogs

#: of each kind of rows the scores that are logged; those of GLUE in percent
_SCORES = {
    "candidates": ("map", "mrr"),
    "classified": ("f1", "mcc"),
    "regressed": ("pearson", "spearman"),
}


@dataclass
class ClusterformerSentencePredictionConfig(ClusteringLossConfig, FairseqDataclass):
    """Options of the ranking, and the weights of CF22 eq. 17."""

    relevant_label: str = option("1", "label of a right answer, if pairs are ranked")


class _Rows:
    """What a score over all of a split needs, among what is logged; progress bars print it."""

    def __init__(self, *columns: Tensor):
        #: of ranked pairs question, score, whether it is right, and line; else prediction and
        #: label, float64 [n, 4] or [n, 2]
        self.rows = torch.stack([column.double().cpu() for column in columns], 1)

    def __repr__(self) -> str:
        return str(len(self.rows))


class SentencePredictionCriterion(FairseqCriterion):
    """Cross-entropy of the classes, or the squared error of numbers. It logs accuracy; of two
    classes also F1 of the second one and Matthews' correlation, of numbers the correlations of
    Pearson and Spearman, as GLUE (Wang et al., 2018) has them; and where pairs are ranked, MAP and
    MRR by question. Raises ValueError: no such label as ``relevant_label`` to rank pairs by."""

    def __init__(self, task, relevant_label: str):
        super().__init__(task)
        self.is_ranking = task.is_ranking
        self.classes = len(task.classes)  # 0: numbers
        if self.is_ranking and relevant_label not in task.classes:
            raise refused("--relevant-label", relevant_label, ", ".join(task.classes))
        self.relevant = task.classes.index(relevant_label) if self.is_ranking else None

    def forward(self, model, sample, reduce=True):
        net_output = model(**sample["net_input"])
        target = model.get_targets(sample, net_output)
        reduction, log = "sum" if reduce else "none", {}
        if self.classes:
            log_probs = model.get_normalized_probs(net_output, log_probs=True)
            loss = F.nll_loss(log_probs, target, reduction=reduction)
            found = log_probs.argmax(1)
            log["ncorrect"] = (found == target).sum()
        else:
            found = net_output[0].detach().squeeze(1).float()
            loss = F.mse_loss(net_output[0].squeeze(1).float(), target, reduction=reduction)
        if self.classes in (0, 2) and not model.training:
            log["classified" if self.classes else "regressed"] = _Rows(found, target)
        if self.is_ranking and not model.training:
            # The odds, for a probability near 1 is 1 in float32, and candidates would tie.
            logits = net_output[0].detach().float()
            others = torch.cat([logits[:, : self.relevant], logits[:, self.relevant + 1 :]], 1)
            score = logits[:, self.relevant] - others.logsumexp(1)
            right = target == self.relevant
            log["candidates"] = _Rows(sample["question"], score, right, sample["id"])
        size = len(target)
        sizes = {"ntokens": sample["ntokens"], "nsentences": size, "sample_size": size}
        return loss, size, {"loss": loss.detach(), **sizes, **log}

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        counts = ({k: v for k, v in log.items() if k not in _SCORES} for log in logging_outputs)
        total = SummedLogs.totals([*counts])
        size, loss = total["sample_size"], total["loss"] / total["sample_size"]
        unit = math.log(2) if "ncorrect" in total else 1
        metrics.log_scalar("loss", loss / unit, size, round=3)
        if "ncorrect" in total:
            metrics.log_scalar("accuracy", 100.0 * total["ncorrect"] / size, size, round=2)
        # A question's candidates may lie in several batches and on several workers, and a mean
        # over batches is no F1, correlation or mean over questions: all rows are kept.
        for kind, names in _SCORES.items():
            if rows := [log[kind].rows for log in logging_outputs if kind in log]:
                metrics.log_concat_tensor(f"_{kind}", torch.cat(rows))
                for name in names:
                    metrics.log_derived(name, partial(_score, kind=kind, name=name))

    def logging_outputs_can_be_summed(self) -> bool:
        """Not those with rows: workers send them one by one."""
        return self.training or not (self.is_ranking or self.classes in (0, 2))


def _score(meters, *, kind: str, name: str) -> float:
    """A score of all rows. Libraries are imported here, for they take long."""
    columns = meters[f"_{kind}"].tensor.numpy().T
    if np.isnan(columns).any():  # of a model that diverged: logged, as its loss is
        return math.nan
    if kind == "candidates":
        return round(ranking_scores(*columns)[name], 4)
    found, right = columns
    if kind == "classified":
        from sklearn.metrics import f1_score, matthews_corrcoef

        if name == "mcc":
            return round(100 * float(matthews_corrcoef(right, found)), 2)
        return round(100 * float(f1_score(right, found, zero_division=0)), 2)
    from scipy.stats import pearsonr, spearmanr

    if not (np.ptp(found) and np.ptp(right)):
        return 0.0  # one side is constant
    correlation = pearsonr if name == "pearson" else spearmanr
    return round(100 * float(correlation(found, right).statistic), 4)


@register_criterion(
    "clusterformer_sentence_prediction", dataclass=ClusterformerSentencePredictionConfig
)
class ClusterformerSentencePrediction(ClusteringLosses, SentencePredictionCriterion):
    """Cross-entropy of the classes plus the clustering losses."""
