"""Ranged attention: softmax attention of each query slot over its range of key slots.

One contract, several implementations; the caller chooses, or leaves the choice to the device
("auto": triton on CUDA, cpu on a CPU where it can be built, blocks elsewhere). An implementation
that cannot do what it is asked raises and names one that can: none falls back to another.

==============  ===========================================================================
``reference``   a dense mask; any dtype, float64 for gradcheck; the specification
``blocks``      PyTorch, tiles of slots; CPU and CUDA; memory O(N) per head
``triton``      fused kernels; CUDA, and the CPU under Triton's interpreter
``cpu``         a fused kernel in C++, built on first use
``flex``        PyTorch's flex_attention: compiled on CUDA, dense elsewhere; no dropout
==============  ===========================================================================
"""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from .blocks import blocks_attention
from .cpu import can_attend, cpu_attention
from .flex import flex_attention
from .join import join
from .layout import Layout
from .op import TRACED, traced_attention
from .reference import reference_attention
from .validation import validate

__all__ = ["IMPLEMENTATIONS", "Layout", "chosen", "join", "ranged_attention", "triton_kernels"]


def triton_kernels(q: Tensor) -> ModuleType:
    """The kernels in Triton for q, imported where they are asked for: not every machine has it.

    Raises:
        ValueError: Triton is not installed, or q is not where its kernels run.
    """
    try:
        import triton
    except ImportError as error:
        raise ValueError(
            "the kernel is triton, which is not installed; allowed: blocks, or install triton"
        ) from error
    if q.device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(
            f"the kernel is triton, and q is on {q.device}; allowed: tensors on cuda; the kernel "
            "blocks takes any device"
        )
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


def chosen(impl: str, q: Tensor) -> str:
    """The name of an implementation; "auto" is resolved by q's device.

    Raises:
        ValueError: an unknown name.
    """
    if impl == "auto":
        if can_attend(q):
            return "cpu"
        return "triton" if q.is_cuda else "blocks"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is {impl!r}; allowed: auto, {', '.join(IMPLEMENTATIONS)}")
    return impl


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
        ValueError: an unknown ``impl``, or tensors that do not fit each other or the layout.
    """
    if layout.key_bias is not None:
        if key_bias is not None:
            raise ValueError("key_bias and layout.key_bias are both given; allowed: one of them")
        key_bias = layout.key_bias
    validate(q, k, v, layout, key_bias=key_bias, dropout=dropout)
    traced = impl in TRACED and torch.compiler.is_compiling()
    if traced:
        return traced_attention(q, k, v, layout, key_bias=key_bias, dropout=dropout, impl=impl)
    return IMPLEMENTATIONS[chosen(impl, q)](q, k, v, layout, key_bias=key_bias, dropout=dropout)
