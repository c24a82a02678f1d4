"""``--criterion clusterformer_sentence_prediction``."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_clusterformer.metrics import RankingScores, ranking_scores
from fairseq_clusterformer.models.options import option

from .clustering_losses import ClusteringLossConfig, ClusteringLosses


@dataclass
class ClusterformerSentencePredictionConfig(ClusteringLossConfig, FairseqDataclass):
    """Options of the ranking, and the weights of CF22 eq. 17."""

    relevant_label: str = option("1", "label of a right answer, if pairs are ranked")


@dataclass(repr=False)
class _Candidates:
    """Ranked pairs among what is logged; progress bars print what they are given."""

    rows: Tensor  # question, line, score and whether it is right, float64 [n, 4]

    def __repr__(self) -> str:
        return str(len(self.rows))


class SentencePredictionCriterion(FairseqCriterion):
    """Cross-entropy of the classes; accuracy, and where pairs are ranked MAP and MRR by question.
    Raises ValueError: pairs to rank, and no such label as ``relevant_label``."""

    def __init__(self, task, relevant_label: str):
        super().__init__(task)
        self.is_ranking = task.is_ranking
        if self.is_ranking and relevant_label not in task.classes:
            raise ValueError(
                f"--relevant-label is {relevant_label}; allowed: {', '.join(task.classes)}"
            )
        self.relevant = task.classes.index(relevant_label) if self.is_ranking else None

    def forward(self, model, sample, reduce=True):
        """As fairseq's: (loss, sample size, what to log)."""
        net_output = model(**sample["net_input"])
        log_probs = model.get_normalized_probs(net_output, log_probs=True)
        target = model.get_targets(sample, net_output)
        loss = F.nll_loss(log_probs, target, reduction="sum" if reduce else "none")
        size = len(target)
        logging_output = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": size,
            "sample_size": size,
            "ncorrect": (log_probs.argmax(1) == target).sum(),
        }
        if self.is_ranking and not model.training:
            # The odds, for a probability near 1 is 1 in float32, and candidates would tie.
            logits = net_output[0].detach().float()
            others = torch.cat([logits[:, : self.relevant], logits[:, self.relevant + 1 :]], 1)
            score = logits[:, self.relevant] - others.logsumexp(1)
            columns = (sample["question"], sample["id"], score, target == self.relevant)
            rows = torch.stack([column.double().cpu() for column in columns], 1)
            logging_output["candidates"] = _Candidates(rows)
        return loss, size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Aggregate logging outputs from data parallel training."""
        size = sum(log.get("sample_size", 0) for log in logging_outputs)
        loss = sum(log.get("loss", 0) for log in logging_outputs)
        correct = sum(log.get("ncorrect", 0) for log in logging_outputs)
        metrics.log_scalar("loss", loss / size / math.log(2), size, round=3)
        metrics.log_scalar("accuracy", 100.0 * correct / size, size, round=2)
        rows = [log["candidates"].rows for log in logging_outputs if "candidates" in log]
        if rows:
            # A question's candidates may lie in several batches and on several workers, and a
            # mean over batches is no mean over questions: all are kept, and ranked at the end.
            metrics.log_concat_tensor("_candidates", torch.cat(rows))
            metrics.log_derived("map", lambda meters: round(_ranking(meters)[0], 4))
            metrics.log_derived("mrr", lambda meters: round(_ranking(meters)[1], 4))

    def logging_outputs_can_be_summed(self) -> bool:
        """Not those with candidates: workers send them one by one."""
        return self.training or not self.is_ranking


def _ranking(meters) -> RankingScores:
    question, line, score, relevant = meters["_candidates"].tensor.numpy().T
    if np.isnan(score).any():  # of a model that diverged: logged, as its loss is
        return RankingScores(math.nan, math.nan, 0)
    return ranking_scores(question, score, relevant, line.astype(int))


@register_criterion(
    "clusterformer_sentence_prediction", dataclass=ClusterformerSentencePredictionConfig
)
class ClusterformerSentencePrediction(ClusteringLosses, SentencePredictionCriterion):
    """Cross-entropy of the classes plus the clustering losses."""
