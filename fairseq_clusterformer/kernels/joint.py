"""Several layouts, and each query's own key, under one softmax.

The backward pass of each layout takes the output and the log-sum-exp of all: a weight is
exp(logit - log-sum-exp), and the gradient of its logit is weight * (d_out . v - d_out . out), of
the whole softmax. So the output of one layout alone is needed no longer than it takes to add it.

Shape letters: B batch, H heads, G groups of them, N tokens, E head width.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..precision import at_least_float32, autocast_off
from . import cpu
from .layout import Call, Layout, Own, validate
from .op import kernel_of, new_seed

LOG2_E = 1.4426950408889634


def join(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Join several attentions of the same queries into one softmax over all that they saw.

    Args:
        parts: results [..., E] and their log-sum-exp [...], as ``ranged_attention`` returns them;
            -inf where nothing was seen.

    Returns:
        The same of all parts together, computed in at least float32, the result in the dtype of
        the first; 0 and about -inf (the least finite number) where none saw anything.
    """
    if len(parts) == 1:
        return parts[0]
    outs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses)
    lse = lse.clamp(min=torch.finfo(lse.dtype).min)  # a softmax of -inf alone would be NaN
    # Each part's share of the sum of exponentials, [parts, ..., 1].
    shares = torch.softmax(lse, dim=0).unsqueeze(-1)
    out = sum(o * share for o, share in zip(outs, shares, strict=True)).to(outs[0].dtype)
    return out, torch.logsumexp(lse, dim=0)


def attend_own(
    q: Tensor, k: Tensor, v: Tensor, own: Own, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What ``ranged_attention`` would return where each query sees its own key alone: its value,
    and its logit [B, H, N]. Of ``own.drops`` and ``dropout``, the first counts if it is there."""
    lse = _own_logits(q, k, own)
    if own.hidden is not None:
        v = v.masked_fill(own.hidden.unsqueeze(-1), 0.0)
    drops = _drops(lse, dropout) if own.drops is None else own.drops
    return v if drops is None else v * drops.unsqueeze(-1).to(v.dtype), lse


def _own_logits(q: Tensor, k: Tensor, own: Own) -> Tensor:
    logits = _dot(q, k) * q.size(-1) ** -0.5 + own.bias
    return logits if own.hidden is None else logits.masked_fill(own.hidden, -torch.inf)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner products [B, H, N] in at least float32; products of one head exist at a time."""
    pairs = zip(x.unbind(1), y.unbind(1), strict=True)
    return torch.stack(
        [(at_least_float32(a) * at_least_float32(b)).sum(-1) for a, b in pairs], dim=1
    )


def _drops(like: Tensor, dropout: float) -> Tensor | None:
    """What dropout multiplies weights by; None: there is none."""
    if dropout == 0.0:
        return None
    return torch.empty_like(like).bernoulli_(1 - dropout).div_(1 - dropout)


def joint_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layouts: Sequence[Layout],
    own: Own | None = None,
    *,
    dropout: float = 0.0,
    impl: str = "auto",
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend each query to the keys in its ranges of some layouts, and to its own key. What two
    of them show it counts twice. It equals joining the results of each, with less memory.

    Args:
        q, k, v, dropout, impl: see :func:`fairseq_clusterformer.kernels.ranged_attention`; any
            ``impl`` but reference.
        layouts: with their biases of keys; none is ``earlier_only``.
        wide: compute in float32 at least, and return that. What the backward pass needs is kept
            as it was given.

    Returns:
        See :func:`join`; the log-sum-exp is -inf where nothing was seen. Both have gradients.
    """
    on_cpu = q.device.type == "cpu"
    some = q[:1, :1, :1]  # of which a kernel is asked for
    kernel = kernel_of(impl, at_least_float32(some) if wide or on_cpu else some)
    qkv = _as_computed((q, k, v), wide or kernel is cpu)
    calls = [Call(*qkv, one.key_bias, new_seed(q, dropout), one, dropout) for one in layouts]
    for call in calls:
        validate(call)
    if own is not None:
        own = own._replace(drops=_drops(at_least_float32(qkv[0][..., 0]), dropout))
    biases = [call.key_bias for call in calls]
    return _Joint.apply(kernel, calls, own, wide, q, k, v, *biases)


def _as_computed(qkv: Sequence[Tensor], wide: bool) -> list[Tensor]:
    return [at_least_float32(x) if wide else x for x in qkv]


def _forward(
    kernel: ModuleType, calls: Sequence[Call], own: Own | None
) -> tuple["_Softmax", list[Any]]:
    """The softmax over all calls and the own key, and what the kernel keeps of each call."""
    if kernel is cpu:  # goes on from what there is, and knows the own key
        found = None
        for i, call in enumerate(calls):
            found = cpu.forward(call, found, own if i == len(calls) - 1 else None)
        out, _, kept = found
        return _Softmax(out, *kept), [None] * len(calls)
    softmax, kept = None, []
    for call in calls:
        out, lse, more = kernel.forward(call)
        stated = isinstance(more, tuple)  # the largest logit, and the sum
        kept.append(None if stated else more)
        new = (out, *(more if stated else _in_log2(lse)))
        softmax = _Softmax(*new) if softmax is None else softmax.add(*new)
        del out, new
    if own is not None:
        value, logit = attend_own(*calls[0][:3], own)
        softmax.add(value, *_in_log2(logit))
    return softmax, kept


class _Softmax:
    """A running softmax: the largest logit so far in units of log 2 and the sum of
    2^(logit - largest), [B, H, N], and the output [B, H, N, E]."""

    def __init__(self, out: Tensor, peak: Tensor, total: Tensor):
        self.out, self.peak, self.total = at_least_float32(out), peak, total

    def share(self, peak: Tensor, total: Tensor) -> Tensor:
        """The weight of keys with such logits, [B, H, N]."""
        some = self.total.clamp(min=torch.finfo(total.dtype).tiny)
        return (peak - self.peak).exp2_().mul_(total).div_(some)

    def add(self, out: Tensor, peak: Tensor, total: Tensor) -> "_Softmax":
        before, self.peak = (self.peak, self.total), torch.maximum(self.peak, peak)
        self.total = sum((x - self.peak).exp2_().mul_(of) for x, of in (before, (peak, total)))
        self.out.mul_(self.share(*before).unsqueeze(-1))
        self.out.addcmul_(out, self.share(peak, total).unsqueeze(-1))
        return self


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, calls, own, wide, *given):
        (q, _, _), dtype = calls[0][:3], given[0].dtype
        with autocast_off(q):
            softmax, kept = _forward(kernel, calls, own)
        out = softmax.out.to(q.dtype if wide else dtype)
        peak, total = softmax.peak, softmax.total
        lse = (peak + total.log2()) / LOG2_E
        seeds = [call.seed for call in calls]
        of_own = (None, None) if own is None else own[1:]
        ctx.save_for_backward(out, lse, peak, total, *of_own, *given, *seeds)
        ctx.kernel, ctx.calls, ctx.kept = kernel, [call[5:] for call in calls], kept
        ctx.bias, ctx.wide = None if own is None else own.bias, q.dtype != dtype
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        out, lse, peak, total, hidden, drops, *given = ctx.saved_tensors
        (q, k, v), more = _as_computed(given[:3], ctx.wide), given[3:]
        d_out = torch.zeros_like(out) if d_out is None else d_out
        out, d_out = (x.to(q.dtype) for x in (out, d_out))
        own = None if ctx.bias is None else Own(ctx.bias, hidden, drops)
        number, gradients, d_biases = len(ctx.calls), None, []
        with autocast_off(q):
            for i, (layout, dropout) in enumerate(ctx.calls):
                call = Call(q, k, v, more[i], more[number + i], layout, dropout)
                kept = ctx.kept[i] or (peak, total)
                how = {"own": own} if ctx.kernel is cpu and i == number - 1 else {}
                *gradients, d_bias = ctx.kernel.backward(
                    call, d_out, d_lse, out, lse, kept, into=gradients, **how
                )
                d_biases.append(d_bias)
            if own is not None and ctx.kernel is not cpu:
                softmax = _Softmax(out, peak, total)
                _add_own(gradients, (q, k, v), own, d_out, d_lse, softmax)
        gradients = [d.to(x.dtype) for d, x in zip(gradients, given[:3], strict=True)]
        return None, None, None, None, *gradients, *d_biases


def _in_log2(lse: Tensor) -> tuple[Tensor, Tensor]:
    """A softmax's largest logit and its sum: as if it had one key of all that weight."""
    some = lse > -torch.inf
    return torch.where(some, lse * LOG2_E, torch.finfo(lse.dtype).min), some.to(lse.dtype)


def _add_own(
    gradients: Sequence[Tensor],
    qkv: Sequence[Tensor],
    own: Own,
    d_out: Tensor,
    d_lse: Tensor | None,
    softmax: _Softmax,
) -> None:
    """Add the gradients of q, k and v by way of the own key."""
    out = softmax.out
    if own.hidden is not None:  # what is not seen may be NaN
        hidden = own.hidden.unsqueeze(-1)
        *qkv, d_out, out = (x.masked_fill(hidden, 0.0) for x in (*qkv, d_out, out))
        d_lse = None if d_lse is None else d_lse.masked_fill(own.hidden, 0.0)
    q, k, v, d_out, out = map(at_least_float32, (*qkv, d_out, out))
    weight = softmax.share(*_in_log2(_own_logits(q, k, own)))
    d_weight, dropped = _dot(d_out, v), weight
    if own.drops is not None:
        d_weight, dropped = d_weight * own.drops, weight * own.drops
    d_logit = d_weight - _dot(d_out, out)
    d_logit = d_logit if d_lse is None else d_logit + d_lse
    d_logit = (d_logit * weight * q.size(-1) ** -0.5).unsqueeze(-1)
    d_q, d_k, d_v = gradients
    d_q.addcmul_(k.to(d_q.dtype), d_logit.to(d_q.dtype))
    d_k.addcmul_(q.to(d_k.dtype), d_logit.to(d_k.dtype))
    d_v.addcmul_(d_out.to(d_v.dtype), dropped.unsqueeze(-1).to(d_v.dtype))
