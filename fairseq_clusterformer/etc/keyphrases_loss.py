"""``--criterion etc_keyphrases``: keyphrases among a page's n-grams (Ainslie et al. 2020)."""

import math
from dataclasses import dataclass, field

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_clusterformer.etc.keyphrases import DEPTHS, best_keyphrases, keyphrase_scores

PLACES = ("first", "max")
SCORES = tuple(f"{name}_at_{k}" for k in DEPTHS for name in ("precision", "recall", "f1"))


@dataclass
class ETCKeyphrasesLossConfig(FairseqDataclass):
    """Options of the loss."""

    phrase_loss: ChoiceEnum(PLACES) = field(
        default="first",
        metadata={
            "help": "what is right of a keyphrase that stands several times: its first place, or "
            'the place with the largest logit (the paper\'s "max loss")'
        },
    )


def phrase_nll(logits: Tensor, phrases: Tensor, first: Tensor, place: str) -> Tensor:
    """Cross-entropy of a page's n-grams with its keyphrases, which share the probability equally,
    in nats, [B]; 0 where there is no keyphrase.

    Args:
        logits: [B, 5, W]; -inf where there is no n-gram.
        phrases: first word and number of words where each first stands, int64 [B, P, 2]; of no
            words: no more.
        first: the first place of the same words, int64 [B, 5, W].
        place: "first": each n-gram has a logit at each of its places, and the first is right;
            "max": n-grams of the same words have one logit, their largest.
    """
    width = logits.size(-1)
    flat = logits.flatten(1)
    if place == "max":
        row = torch.arange(logits.size(1), device=first.device).unsqueeze(-1)
        group = (row * width + first).flatten(1)
        flat = torch.full_like(flat, -torch.inf).scatter_reduce(1, group, flat, "amax")
    some = phrases[..., 1] > 0
    right = (phrases[..., 1] - 1) * width + phrases[..., 0]
    of_each = flat.gather(1, right.masked_fill(~some, 0)).masked_fill(~some, 0.0)
    number = some.sum(1)
    loss = flat.logsumexp(1) - of_each.sum(1) / number.clamp(min=1)
    return torch.where(number > 0, loss, 0.0)


@register_criterion("etc_keyphrases", dataclass=ETCKeyphrasesLossConfig)
class ETCKeyphrasesLoss(FairseqCriterion):
    """One softmax over all n-grams of a page; see :func:`phrase_nll`.

    Validation also logs precision, recall and F1 of the best 1, 3 and 5 phrases in percent, means
    over the pages whose keyphrases are known, as OpenKP's script counts them.

    Args:
        task: ``etc_keyphrases``.
        phrase_loss: of :data:`PLACES`.

    Raises:
        ValueError: another task.
    """

    def __init__(self, task, phrase_loss: str):
        super().__init__(task)
        if not hasattr(task.cfg, "max_nodes"):
            raise ValueError(
                f"--criterion is etc_keyphrases, and --task {task.cfg._name}; allowed: "
                "etc_keyphrases"
            )
        self.phrase_loss = str(phrase_loss)

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """As fairseq's: (loss, pages with a keyphrase, what to log)."""
        logits, _ = model(**sample["net_input"])
        target = sample["target"]
        loss = phrase_nll(logits, target["phrases"], target["first"], self.phrase_loss)
        size = int((target["phrases"][..., 1] > 0).any(1).sum())
        logging_output = {
            "loss": loss.detach().sum(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": size,
        }
        if not model.training:
            logging_output |= self._scores(logits, sample)
        return loss.sum() if reduce else loss, size, logging_output

    def _scores(self, logits: Tensor, sample: dict) -> dict[str, float]:
        """Sums over the pages of a batch whose keyphrases are known."""
        data = self.task.dataset(sample["split"]).data
        sums = dict.fromkeys(("scored", *SCORES), 0.0)
        for number, of_page in zip(sample["id"].tolist(), logits.cpu(), strict=True):
            texts = data.texts(number)
            if not texts["phrases"]:
                continue
            found = best_keyphrases(of_page, texts["text"].split(" "), max(DEPTHS))
            scores = keyphrase_scores([phrase for phrase, _ in found], texts["phrases"])
            sums["scored"] += 1
            for name, value in scores.items():
                sums[name] += 100 * value
        return sums

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]) -> None:
        """Log ``loss`` in bits a page, and the scores' means."""

        def total(name: str) -> float:
            return sum(log.get(name, 0) for log in logging_outputs)

        size = max(total("sample_size"), 1)
        metrics.log_scalar("loss", total("loss") / size / math.log(2), size, round=3)
        if scored := total("scored"):
            for name in SCORES:
                metrics.log_scalar(name, total(name) / scored, scored, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """All of them are sums."""
        return True
