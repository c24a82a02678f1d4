"""Ranged attention: softmax attention of each query slot over its range of key slots.

One contract, several implementations; the caller chooses, or leaves the choice to the device
("auto": triton on CUDA, cpu on a CPU, blocks where these cannot attend). :func:`obstacle` knows
what each one can. One that cannot do what it is asked raises and names one that can: none falls
back to another.

==============  ===========================================================================
``reference``   a dense mask; any dtype, float64 for gradcheck; the specification
``blocks``      PyTorch, tiles of slots; CPU and CUDA; memory O(N) per head
``triton``      fused kernels; CUDA, and the CPU under Triton's interpreter
``cpu``         a fused kernel in C++, built on first use
``flex``        PyTorch's flex_attention: compiled on CUDA, dense elsewhere; no dropout
==============  ===========================================================================
"""

import logging
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from .blocks import blocks_attention
from .cpu import cpu_attention
from .cpu import obstacle as obstacle_of_cpu
from .flex import flex_attention
from .join import join
from .layout import Layout
from .op import TRACED, traced_attention
from .reference import reference_attention
from .validation import validate

__all__ = [
    "IMPLEMENTATIONS",
    "WIDEST",
    "Layout",
    "chosen",
    "join",
    "obstacle",
    "ranged_attention",
    "triton_kernels",
]

logger = logging.getLogger(__name__)
WIDEST = 256
"""Of the heads that the kernels in Triton are made for."""
FASTEST = {"cpu": "cpu", "cuda": "triton"}
"""What "auto" is on a device, unless something stands against it."""


def triton_kernels(q: Tensor) -> ModuleType:
    """The kernels in Triton for q, imported where they are asked for: not every machine has it.

    Raises:
        ValueError: Triton is not installed, q is not where its kernels run, or too wide.
    """
    chosen("triton", q)
    from . import triton as kernels

    return kernels


def triton_attention(q: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
    return triton_kernels(q).triton_attention(q, *args, **kwargs)


IMPLEMENTATIONS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "reference": reference_attention,
    "blocks": blocks_attention,
    "triton": triton_attention,
    "cpu": cpu_attention,
    "flex": flex_attention,
}


def obstacle(impl: str, q: Tensor, dropout: float = 0.0) -> tuple[str, str] | None:
    """What stands against an implementation, and what is allowed instead; None: nothing.

    Args:
        impl: a name in ``IMPLEMENTATIONS``.
        q: queries [B, H, N, E]; their device, dtype and width are looked at.
        dropout: of the weights.
    """
    if impl == "cpu":
        return obstacle_of_cpu(q)
    if impl == "flex" and dropout > 0.0:
        allowed = "allowed for the kernel flex: 0; the kernels blocks and triton drop weights"
        return f"dropout is {dropout}", allowed
    if impl == "triton":
        try:
            import triton
        except ImportError:
            problem = "the kernel is triton, which is not installed"
            return problem, "allowed: blocks, or install triton"
        if q.device.type != "cuda" and not triton.knobs.runtime.interpret:
            problem = f"the kernel is triton, and q is on {q.device}"
            return problem, "allowed: tensors on cuda; the kernel blocks takes any device"
        if q.size(-1) > WIDEST:
            allowed = f"allowed for the kernel triton: up to {WIDEST}"
            problem = f"a head is {q.size(-1)} wide"
            return problem, f"{allowed}; the kernel blocks takes any width"
    return None


def chosen(impl: str, q: Tensor, dropout: float = 0.0) -> str:
    """The name of an implementation that attends q; "auto" is the fastest on q's device, or blocks
    where something stands against it, which the log says once.

    Raises:
        ValueError: an unknown name, or :func:`obstacle`.
    """
    if impl == "auto":
        impl = FASTEST.get(q.device.type, "blocks")
        if (found := obstacle(impl, q)) is None:
            return impl
        _warn(found[0])
        return "blocks"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is {impl!r}; allowed: auto, {', '.join(IMPLEMENTATIONS)}")
    if (found := obstacle(impl, q, dropout)) is not None:
        raise ValueError("; ".join(found))
    return impl


@cache
def _warn(problem: str) -> None:
    logger.warning("%s; blocks takes its place", problem)


def ranged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Attend each query to the keys in its range, with logits ``q . k / sqrt(E) + key_bias``.

    Args:
        q: queries in token order, floating point [B, H, N, E]; need not be contiguous.
        k: keys, the same shape, dtype and device.
        v: values, the same.
        layout: orders and ranges; its G must be 1 or H.
        key_bias: added to the logits of each key, [B, 1 or H, N] in token order; None: the
            layout's own, if it has one.
        dropout: probability of dropping an attention weight (the others are scaled up).
        impl: "reference", "blocks", "triton", "cpu", "flex", or "auto".

    Returns:
        Two tensors. The first has the attended values [B, H, N, E] in token order, in q's dtype.
        They are 0 where nothing is seen. The second is the log-sum-exp of the logits [B, H, N], at
        least float32. It is -inf where nothing is seen. Both are differentiable with respect to
        q, k and key_bias, and the first also to v.

    Raises:
        ValueError: an unknown ``impl``, or one that cannot attend this; tensors that do not fit
            each other or the layout.
    """
    if layout.key_bias is not None:
        if key_bias is not None:
            raise ValueError("key_bias and layout.key_bias are both given; allowed: one of them")
        key_bias = layout.key_bias
    validate(q, k, v, layout, key_bias=key_bias, dropout=dropout)
    traced = impl in TRACED and torch.compiler.is_compiling()
    if traced:
        return traced_attention(q, k, v, layout, key_bias=key_bias, dropout=dropout, impl=impl)
    attend = IMPLEMENTATIONS[chosen(impl, q, dropout)]
    return attend(q, k, v, layout, key_bias=key_bias, dropout=dropout)
