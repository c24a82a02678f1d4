"""The functions that attend.

Shape letters: B batch, H heads, G groups of them, N tokens, E head width.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..precision import at_least_float32
from .autograd import attend
from .kernel import drawn
from .layout import Call, Layout, Own, new_seed


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
    if key_bias is not None:
        if layout.key_bias is not None:
            raise ValueError("key_bias and layout.key_bias are both given; allowed: one of them")
        layout = replace(layout, key_bias=key_bias)
    return joint_attention(q, k, v, [layout], dropout=dropout, impl=impl)


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
        q, k, v, dropout, impl: see :func:`ranged_attention`.
        layouts: one or more, with their biases of keys.
        wide: compute in float32 at least, and return that. What the backward pass needs is kept
            as it was given.

    Returns:
        See :func:`.kernel.join`; the log-sum-exp is -inf where nothing was seen. Both have
        gradients.
    """
    calls = [Call(q, k, v, one.key_bias, new_seed(q, dropout), one, dropout) for one in layouts]
    if own is not None:
        own = own._replace(drops=drawn(at_least_float32(q[..., 0].detach()), dropout))
        calls[-1] = calls[-1]._replace(own=own)
    return attend(calls, impl, wide)
