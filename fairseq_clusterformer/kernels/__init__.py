"""Ranged attention: softmax attention of each query slot over its range of key slots.

=============  ===============================================================
``reference``  a dense mask; any dtype, float64 for gradcheck; the specification
``blocks``     PyTorch, tiles of slots; CPU and CUDA; memory O(N) per head
``triton``     fused kernels; CUDA, and the CPU under Triton's interpreter
``cpu``        a fused kernel in C++, built on first use
=============  ===============================================================

The caller chooses one, or "auto". :func:`obstacle` knows what each can; a kernel that cannot do
what it is asked raises and names one that can. None falls back to another.
"""

import logging
from functools import cache

from torch import Tensor

from . import cpu
from .joint import attend_own, join, joint_attention
from .layout import Call, Layout, Own, validate
from .op import attention
from .reference import reference_attention

__all__ = [
    "IMPLEMENTATIONS",
    "WIDEST",
    "Layout",
    "Own",
    "attend_own",
    "chosen",
    "join",
    "joint_attention",
    "obstacle",
    "ranged_attention",
]

logger = logging.getLogger(__name__)
IMPLEMENTATIONS = ("reference", "blocks", "triton", "cpu")
WIDEST = 256
"""Width of the widest head that the Triton kernels are made for."""
FASTEST = {"cpu": "cpu", "cuda": "triton"}
"""What "auto" takes on a device, unless there is an obstacle."""


def obstacle(impl: str, q: Tensor) -> tuple[str, str] | None:
    """Why an implementation cannot attend q [B, H, N, E], and what is allowed; None: it can."""
    if impl == "cpu":
        return cpu.obstacle(q)
    if impl != "triton":
        return None
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
        return f"a head is {q.size(-1)} wide", f"{allowed}; the kernel blocks takes any width"
    return None


def chosen(impl: str, q: Tensor) -> str:
    """The name of the implementation that attends q.

    "auto" takes the fastest one on q's device, or blocks if that one has an obstacle, which is
    logged once. Raises ValueError: an unknown name, or :func:`obstacle`.
    """
    if impl == "auto":
        impl = FASTEST.get(q.device.type, "blocks")
        if (found := obstacle(impl, q)) is None:
            return impl
        _warn(found[0])
        return "blocks"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is {impl!r}; allowed: auto, {', '.join(IMPLEMENTATIONS)}")
    if (found := obstacle(impl, q)) is not None:
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
        impl: "auto" or one of ``IMPLEMENTATIONS``. Only reference attends by
            ``layout.earlier_only``, and "auto" takes it there.

    Returns:
        The attended values [B, H, N, E] in token order and q's dtype, 0 where nothing is seen; and
        the log-sum-exp of the logits [B, H, N], at least float32, -inf where nothing is seen. Both
        are differentiable with respect to q, k and key_bias, and the first also to v.

    Raises:
        ValueError: an unknown ``impl``, or one that cannot attend this; tensors that do not fit
            each other or the layout.
    """
    if layout.key_bias is not None:
        if key_bias is not None:
            raise ValueError("key_bias and layout.key_bias are both given; allowed: one of them")
        key_bias = layout.key_bias
    call = Call(q, k, v, key_bias, None, layout, dropout)
    validate(call)
    if layout.earlier_only and impl not in ("auto", "reference"):
        raise ValueError(
            f"the rule is leaking-chunk, and the kernel is {impl}; allowed: auto, reference"
        )
    if layout.earlier_only or impl == "reference":
        return reference_attention(call)
    return attention(call, impl)
