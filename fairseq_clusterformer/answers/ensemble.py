"""Several readers as one: the mean of their probabilities."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .documents import AnswerLogits


def mean_logits(found: Sequence[AnswerLogits]) -> AnswerLogits:
    """Logits of the mean of several readers' probabilities of the same questions and documents: of
    starts, of ends, of paragraphs and of types, and of what else they say. Of one reader, its own
    logits."""
    first = found[0]
    if len(found) == 1:
        return first
    said = [name for name, value in first._asdict().items() if value is not None]
    fields = {name: [getattr(logits, name) for logits in found] for name in said}
    if first.slots is not None:
        sides = []
        for i, name in enumerate(("start", "end")):
            tokens = zip(fields["slots"], fields[name], strict=True)
            sides.append(_mean([torch.cat([slots[:, i], x], dim=1) for slots, x in tokens]))
        number = first.slots.size(-1)
        slots = torch.stack([side[:, :number] for side in sides], dim=1)
        start, end = (side[:, number:] for side in sides)
        return AnswerLogits.shared(start, end, _mean(fields["paragraph"]), slots, first.bounds)
    means = {name: _mean(each) for name, each in fields.items()}
    if first.sentences is not None:
        means["sentences"] = torch.stack(fields["sentences"]).sigmoid().mean(0).logit()
    return AnswerLogits(**means)


def _mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of softmaxes [B, N]; -inf where all are."""
    logs = torch.stack([x.log_softmax(-1) for x in logits])
    return logs.logsumexp(0).sub(math.log(len(logs))).nan_to_num(-torch.inf, neginf=-torch.inf)
