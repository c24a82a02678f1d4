"""Several attentions of the same queries, joined into one softmax over all that they saw."""

import torch
from torch import Tensor


def join(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Weigh each result by its share of the sum of exponentials.

    Args:
        parts: results [..., E] and their log-sum-exp [...], floating point, as
            :func:`~fairseq_clusterformer.kernels.ranged_attention` returns them; -inf where
            nothing was seen.

    Returns:
        The same of all parts together, weighed in at least float32 and in the dtype of the first
        result; 0 and about -inf (the least finite number) where none saw
        anything.
    """
    if len(parts) == 1:
        return parts[0]
    outs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses)
    lse = lse.clamp(min=torch.finfo(lse.dtype).min)  # the softmax of -inf alone would be NaN
    shares = torch.softmax(lse, dim=0).unsqueeze(-1)
    out = sum(o * share for o, share in zip(outs, shares, strict=True)).to(outs[0].dtype)
    return out, torch.logsumexp(lse, dim=0)
