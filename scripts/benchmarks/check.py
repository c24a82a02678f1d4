"""Checks that an attention computes what it should, before it is timed.

Shape letters as in :mod:`scripts.benchmarks.contestants`.
"""

import math

import torch
from torch import Tensor

from scripts.benchmarks.common import CheckFailed, Unavailable, one_line
from scripts.benchmarks.contestants import Attention, Clustered, Setting

# As a share of the largest value: the rounding of long sums in each precision.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def check(
    attention: Attention, x: Tensor, q: Tensor, k: Tensor, v: Tensor, num_queries: int = 24
) -> None:
    """Compare some queries' outputs and their gradients with what they must be.

    A contestant that reports which keys are visible is compared with softmax attention over those
    keys in float64. The weights of the others are read off the gradient of v; they must be a
    distribution over the allowed keys. Raises CheckFailed: the results are wrong; the message
    gives the difference; Unavailable: a foreign contestant does not run here. Errors of this
    project's own code are raised as they are.
    """
    queries = torch.randint(q.size(2), (num_queries,), device=q.device).unique()
    try:
        out, losses = attention(x, q, k, v)
        if not all(torch.isfinite(loss) for loss in losses):
            raise CheckFailed(f"its losses are {[loss.item() for loss in losses]}")
        visible = attention.visible(x, q, k, queries)
        if visible is None:
            _check_weights(attention.setting, out, v, queries[:4])
        else:
            _check_exact(attention.setting, out, (q, k, v), queries, visible)
    except torch.OutOfMemoryError:
        raise Unavailable("out of memory") from None
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if isinstance(attention, Clustered):
            raise
        raise Unavailable(one_line(error)) from None


def _check_exact(
    setting: Setting, out: Tensor, qkv: tuple[Tensor, ...], queries: Tensor, visible: Tensor
) -> None:
    copies = [t.detach().double().requires_grad_() for t in qkv]
    q, k, v = copies
    logits = q[:, :, queries] @ k.transpose(2, 3) / math.sqrt(setting.width)
    expected = logits.masked_fill(~visible, -math.inf).softmax(-1) @ v
    found = out[:, :, queries]
    weight = torch.randn(found.shape, device=found.device, dtype=found.dtype)
    gradients = torch.autograd.grad(found, qkv, weight)
    expected_gradients = torch.autograd.grad(expected, copies, weight.double())
    names = ("output", "gradient of q", "gradient of k", "gradient of v")
    pairs = zip(names, (found, *gradients), (expected, *expected_gradients), strict=True)
    for name, one, other in pairs:
        error = ((one.double() - other).abs().max() / other.abs().max()).item()
        if not error <= TOLERANCE[setting.dtype]:
            raise CheckFailed(f"its {name} differs from softmax attention by {error:.2g}")


def _check_weights(setting: Setting, out: Tensor, v: Tensor, queries: Tensor) -> None:
    tolerance = 10 * TOLERANCE[setting.dtype]
    token = torch.arange(setting.length, device=v.device)
    for query in queries:
        (gradient,) = torch.autograd.grad(out[:, :, query, 0].sum(), v, retain_graph=True)
        weights = gradient[..., 0].double()  # [B, H, N]
        if setting.causal and (weights[..., token > query] != 0).any():
            raise CheckFailed("it sees a later token")
        # The sum may be below 1: a query may see nothing, or a key that stands for nothing.
        if not (weights.min() >= -tolerance and weights.sum(-1).max() <= 1 + tolerance):
            raise CheckFailed("its weights are not a distribution")
