"""Task and criterion ``etc_keyphrases``: keyphrases among the n-grams of web pages (Ainslie et al.
2020: OpenKP), and OpenKP's scores of them."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_clusterformer.criterions.clustering_losses import SummedLogs
from fairseq_clusterformer.data.stored import shard_of
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.tasks.own_models import DataOptions, OwnModels

from .model import ETCKeyphrases
from .pages import PageData, PageDataset

logger = logging.getLogger(__name__)

DEPTHS = (1, 3, 5)
SCORES = tuple(f"{name}_at_{k}" for k in DEPTHS for name in ("precision", "recall", "f1"))


def best_keyphrases(logits: Tensor, words: Sequence[str], most: int = max(DEPTHS)) -> list[str]:
    """The most likely distinct phrases in lower case, ``most`` or fewer, of n-grams' logits
    [5, W], as a model returns them, and W words or more."""
    found: dict[str, None] = {}
    scores, order = logits.flatten().sort(descending=True, stable=True)
    for place in order[scores > -torch.inf].tolist():
        length, first = divmod(place, logits.size(1))
        found[" ".join(words[first : first + length + 1]).lower()] = None
        if len(found) == most:
            break
    return list(found)


def keyphrase_scores(found: Sequence[str], gold: Collection[str]) -> dict[str, float]:
    """The :data:`SCORES` of a page in percent, of distinct phrases in lower case, the most likely
    first; precision at K is over K phrases even where fewer are found. ``gold`` is not empty."""
    scores = []
    for depth in DEPTHS:
        hits = len(set(found[:depth]) & set(gold))
        precision, recall = 100 * hits / depth, 100 * hits / len(gold)
        scores += [precision, recall, 100 * 2 * hits / (depth + len(gold))]
    return dict(zip(SCORES, scores, strict=True))


def phrase_nll(logits: Tensor, places: Tensor, first: Tensor, right: str) -> Tensor:
    """Cross-entropy of a page's n-grams with its keyphrases, which share the probability equally,
    in nats, [B]; 0 where there is none. Of logits [B, 5, W] and `PageDataset`'s targets. By
    "first", the first place of an n-gram is right; by "max", equal n-grams have one logit."""
    width, flat = logits.size(-1), logits.flatten(1)
    if right == "max":
        row = torch.arange(logits.size(1), device=first.device).unsqueeze(-1)
        group = (row * width + first).flatten(1)  # of equal n-grams, the place of the first
        flat = torch.full_like(flat, -torch.inf).scatter_reduce(1, group, flat, "amax")
    some = places[..., 1] > 0
    at = ((places[..., 1] - 1) * width + places[..., 0]).masked_fill(~some, 0)  # in `flat`
    of_each = flat.gather(1, at).masked_fill(~some, 0.0)
    number = some.sum(1)
    loss = flat.logsumexp(1) - of_each.sum(1) / number.clamp(min=1)
    return torch.where(number > 0, loss, 0.0)


@dataclass
class ETCKeyphrasesLossConfig(FairseqDataclass):
    phrase_loss: str = option(
        "first", "the right place of a keyphrase: its first, or the best", choices=("first", "max")
    )


@register_criterion("etc_keyphrases", dataclass=ETCKeyphrasesLossConfig)
class ETCKeyphrasesLoss(SummedLogs, FairseqCriterion):
    """One softmax over all n-grams of a page; see :func:`phrase_nll`. Validation also logs the
    :data:`SCORES`, means over the pages whose keyphrases are known."""

    def __init__(self, task, phrase_loss: str):
        super().__init__(task)
        self.phrase_loss = phrase_loss

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        (logits, _), target = model(**sample["net_input"]), sample["target"]
        loss = phrase_nll(logits, target["places"], target["first"], self.phrase_loss)
        size = int((target["places"][..., 1] > 0).any(1).sum())
        log = {name: sample[name] for name in ("ntokens", "nsentences")}
        log |= {"loss": loss.detach().sum(), "sample_size": size}
        if not model.training:
            data, sums = self.task.dataset(sample["split"]).data, Counter()
            for number, of_page in zip(sample["id"].tolist(), logits.cpu(), strict=True):
                page = data.texts(number)
                best = best_keyphrases(of_page, page["text"].split(" "))
                if right := page["phrases"]:
                    sums.update({"scored": 1} | keyphrase_scores(best, right))
            log |= {name: sums[name] for name in ("scored", *SCORES)}
        return loss.sum() if reduce else loss, size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]) -> None:
        """Log ``loss`` in bits a page, and the scores' means."""
        total = SummedLogs.totals(logging_outputs)
        size = max(total["sample_size"], 1)
        metrics.log_scalar("loss", total["loss"] / size / math.log(2), size, round=3)
        if scored := total["scored"]:
            for name in SCORES:
                metrics.log_scalar(name, total[name] / scored, scored, round=2)


@dataclass
class ETCKeyphrasesTaskConfig(DataOptions):
    """Options; the defaults are the paper's."""

    max_positions: int = option(4096, "most tokens of a page, cut between nodes", at_least=1)
    max_nodes: int = option(512, "most nodes of a page", at_least=1)


@register_task("etc_keyphrases", dataclass=ETCKeyphrasesTaskConfig)
class ETCKeyphrasesTask(OwnModels):
    """Pages, and the phrases in them that say what they are about."""

    name, model, criterion = "etc_keyphrases", ETCKeyphrases, ETCKeyphrasesLoss
    made_by = "python examples/etc/openkp/prepare.py"

    def load_dataset(self, split: str, combine=False, epoch: int = 1, **kwargs) -> PageDataset:
        """Load "train", "valid" or "test", and log what is cut. Raises FileNotFoundError or
        ValueError: files that are missing or do not fit together, or no page to train on."""
        data = PageData(shard_of(self.cfg.data, epoch), split)
        data.of_symbols(len(self.dictionary))
        dataset = PageDataset(data, split, self.dictionary, self.cfg)
        options = f"--max-positions {self.cfg.max_positions}, --max-nodes {self.cfg.max_nodes}"
        logger.info(f"{split}: {dataset.cut} of {len(data)} pages are cut ({options})")
        if lost := len(data) - len(dataset):
            logger.info(f"{split}: {lost} pages are left out, which have no keyphrase (left)")
        if not len(dataset):
            problem = f"no page has a keyphrase left ({options})"
            raise ValueError(f"{split} of {self.cfg.data}: {problem}; allowed: one or more")
        self.datasets[split] = dataset
        return dataset
