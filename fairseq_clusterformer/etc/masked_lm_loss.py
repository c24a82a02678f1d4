"""``--criterion etc_masked_lm``: ETC's pre-training (Ainslie et al. 2020)."""

import math
from dataclasses import dataclass

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor
from torch.nn.functional import cross_entropy

from fairseq_clusterformer.criterions.clustering_losses import weight
from fairseq_clusterformer.precision import at_least_float32


@dataclass
class ETCMaskedLMLossConfig(FairseqDataclass):
    """The paper's weights (section 4.1)."""

    words_weight: float = weight(0.8, "weight of the words' loss")
    parts_weight: float = weight(0.2, "weight of the hidden parts' loss")


@register_criterion("etc_masked_lm", dataclass=ETCMaskedLMLossConfig)
class ETCMaskedLMLoss(FairseqCriterion):
    """Cross-entropy of guessed words, and InfoNCE (van den Oord et al. 2018) of hidden parts.

    Each hidden part is to be recognised among the hidden parts of the batch, by the dot product of
    what its context expects and what it is, over sqrt(D). Both losses are means, of words and of
    parts, so that the weights mean the same in any batch.
    """

    def __init__(self, task, words_weight: float, parts_weight: float):
        super().__init__(task)
        self.words_weight, self.parts_weight = words_weight, parts_weight
        self.pad = task.target_dictionary.pad()

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """The loss to differentiate, the guessed words, and what to log."""
        masked = sample["target"].ne(self.pad)
        logits, extra = model(**sample["net_input"], masked_tokens=masked)
        target, size = sample["target"][masked], max(int(masked.sum()), 1)
        words = cross_entropy(at_least_float32(logits), target, reduction="sum")
        log = {
            "loss": words.detach(),
            "sample_size": size,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
        }
        total = self.words_weight * words
        if "contrast" in extra:
            expected, actual = map(at_least_float32, extra["contrast"])
            alike = expected @ actual.T * expected.size(-1) ** -0.5
            own = torch.arange(len(alike), device=alike.device)
            parts = cross_entropy(alike, own, reduction="sum")
            total = total + self.parts_weight * size * parts / max(len(own), 1)
            log |= {
                "parts_loss": parts.detach(),
                # a tensor in each worker, also of no part: fairseq adds up numbers apart
                "parts_right": (alike.argmax(-1) == own).sum() if len(own) else own.sum(),
                "parts": len(own),
            }
        return total, size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]) -> None:
        """Log ``loss`` in bits a guessed word, ``ppl``, and of hidden parts ``parts_loss`` in bits
        and the share that are recognised, ``parts_accuracy``."""

        def total(name: str) -> float:
            return sum(log.get(name, 0) for log in logging_outputs)

        size, parts = total("sample_size"), total("parts")
        metrics.log_scalar("loss", total("loss") / size / math.log(2), size, round=3)
        metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].avg)
        if parts:
            metrics.log_scalar(
                "parts_loss", total("parts_loss") / parts / math.log(2), parts, round=3
            )
            metrics.log_scalar("parts_accuracy", total("parts_right") / parts, parts, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """They can."""
        return True
