"""What every implementation of ranged attention may rely on, checked in one place."""

import os

import torch
from torch import Tensor

from .layout import Layout


def validate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None,
    dropout: float,
) -> None:
    """Check shapes, dtypes and devices; values inside the layout are the router's promise, which
    is checked too where the environment has ``CLUSTERFORMER_CHECK_LAYOUTS=1``.

    Raises:
        ValueError: with what was given and what is allowed.
    """
    if q.dim() != 4 or not q.is_floating_point():
        raise ValueError(
            f"q has shape {tuple(q.shape)} and dtype {q.dtype}; "
            "allowed: floating point [batch, heads, tokens, head width]"
        )
    if q.numel() == 0:
        raise ValueError(f"q has shape {tuple(q.shape)}; allowed: every dimension 1 or more")
    for name, tensor in (("k", k), ("v", v)):
        if (tensor.shape, tensor.dtype, tensor.device) != (q.shape, q.dtype, q.device):
            raise ValueError(
                f"{name} is {_describe(tensor)}; it must be like q, which is {_describe(q)}"
            )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; allowed: 0 <= dropout < 1")

    batch, heads, length, _ = q.shape
    slots = layout.lo.size(-1) if layout.key_order is None else layout.key_order.size(-1)
    for name, tensor, size in (
        ("lo", layout.lo, (length,)),
        ("hi", layout.hi, (length,)),
        ("query_order", layout.query_order, (length,)),
        ("key_order", layout.key_order, (slots,)),
        ("num_queries", layout.num_queries, ()),
        ("num_keys", layout.num_keys, ()),
    ):
        if tensor is None:
            continue
        if tensor.dtype != torch.long or tensor.device != q.device:
            raise ValueError(f"layout.{name} is {_describe(tensor)}; allowed: int64 on {q.device}")
        _check_shape(f"layout.{name}", tensor, batch, heads, size)
    if key_bias is not None:
        if not key_bias.is_floating_point() or key_bias.device != q.device:
            raise ValueError(
                f"key_bias is {_describe(key_bias)}; allowed: floating point on {q.device}"
            )
        _check_shape("key_bias", key_bias, batch, heads, (length,))
    if os.environ.get("CLUSTERFORMER_CHECK_LAYOUTS") == "1" and not torch.compiler.is_compiling():
        layout.check()


def _check_shape(name: str, tensor: Tensor, batch: int, heads: int, size: tuple[int, ...]) -> None:
    good = (
        tensor.dim() == 2 + len(size)
        and tensor.size(0) in (1, batch)
        and tensor.size(1) in (1, heads)
        and tuple(tensor.shape[2:]) == size
    )
    if not good:
        wanted = [f"1 or {batch}", f"1 or {heads}", *map(str, size)]
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: [{', '.join(wanted)}]")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
