"""Task and criterion ``etc_keyphrases``: keyphrases among the n-grams of web pages (Ainslie et al.
2020: OpenKP), OpenKP's scores of them, and what a trained model can do."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.utils import apply_to_sample
from torch import Tensor

from fairseq_clusterformer.corpora.question_answering.records import Unusable
from fairseq_clusterformer.criterions.clustering_losses import SummedLogs
from fairseq_clusterformer.data.stored import shard_of
from fairseq_clusterformer.data.subwords import load_prepared
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.options import option
from fairseq_clusterformer.tasks.own_models import DataOptions, OwnModels
from fairseq_clusterformer.use.base import Pretrained

from .model import ETCKeyphrases
from .pages import Page, PageData, PageDataset, batch_of_pages, encode, page_of

logger = logging.getLogger(__name__)

DEPTHS = (1, 3, 5)
SCORES = tuple(f"{name}_at_{k}" for k in DEPTHS for name in ("precision", "recall", "f1"))


def best_keyphrases(
    logits: Tensor, words: Sequence[str], most: int = max(DEPTHS)
) -> list[tuple[str, float]]:
    """The best distinct phrases in lower case, ``most`` or fewer, each with the largest of its
    logits; of n-grams' logits [5, W], as a model returns them, and W words or more."""
    found: dict[str, float] = {}
    scores, order = logits.flatten().sort(descending=True, stable=True)
    for score, place in zip(scores.tolist(), order.tolist(), strict=True):
        if len(found) == most or score == -torch.inf:
            break
        length, first = divmod(place, logits.size(1))
        found.setdefault(" ".join(words[first : first + length + 1]).lower(), score)
    return list(found.items())


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
        "first",
        "what is right of a keyphrase that stands several times: its first place (first), or the "
        'place with the largest logit (max, the paper\'s "max loss")',
        choices=("first", "max"),
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
                    sums.update({"scored": 1} | keyphrase_scores([p for p, _ in best], right))
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

    max_positions: int = option(
        4096, "most tokens of a page, which is cut between nodes", at_least=1
    )
    max_nodes: int = option(512, "most nodes of a page, which is cut behind them", at_least=1)


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
        if dataset.cut:
            lost = f"and lose {dataset.nodes_left_out} nodes ({options})"
            logger.info(f"{split}: {dataset.cut} of {len(data)} pages are cut, {lost}")
        if lost := len(data) - len(dataset):
            logger.info(f"{split}: {lost} pages are left out, which have no keyphrase (left)")
        if not len(dataset):
            problem = f"no page has a keyphrase left ({options})"
            raise ValueError(f"{split} of {self.cfg.data}: {problem}; allowed: one or more")
        self.datasets[split] = dataset
        return dataset


class KeyphraseModel(Pretrained):
    """Finds the phrases that say what a page is about; of the task ``etc_keyphrases``."""

    kind = "model of keyphrases"
    abilities = ("keyphrases", "encode")

    @torch.no_grad()
    def keyphrases(self, page: Mapping, most: int = 5) -> list[tuple[str, float]]:
        """The best phrases of a page in lower case, ``most`` or fewer, each with its logit. A page
        has "text" and "VDOM", as in OpenKP's files; what is longer than one of the training is
        cut. Raises UserError: a page that is none."""
        words, batch = self._read(page)
        return best_keyphrases(self.model(**batch)[0][0].cpu(), words, most)

    @torch.no_grad()
    def _states(self, page: Mapping) -> Tensor:
        return self.model.encoded(**self._read(page)[1])[0]

    @cached_property
    def _subwords(self) -> dict[str, Any]:
        model, index = load_prepared(self.loaded.folder), self.loaded.task.dictionary.index
        return {"model": model, "to_index": [index(symbol) for symbol in model.symbols]}

    def _read(self, given: Mapping) -> tuple[list[str], dict[str, Any]]:
        """The words of a page, and what the model reads of it."""
        task = self.loaded.task
        try:
            page = page_of({"url": "", **given})
        except Unusable as error:
            shown, problem = repr(str(given.get("text")))[:60], f"{error.reason}: {error.detail}"
            raise bad_option("page", shown, "a page as in OpenKP's files", problem) from None
        whole = Page.of(*encode(page, **self._subwords))
        part = whole.within(task.cfg.max_positions, task.cfg.max_nodes)
        batch = batch_of_pages([part], task.source_dictionary.pad())
        return page["text"].split(" "), apply_to_sample(lambda x: x.to(self.device), batch)
