"""Ranged attention as an operator of torch: what ``torch.compile`` sees in place of kernels.

``torch.ops.fairseq_clusterformer.ranged_attention`` takes a layout as flat tensors and stands in
the graph as one node; its gradient is another. Eager code calls the implementations themselves,
which keep what their backward pass needs: here ``blocks`` and ``cpu`` compute it again.
"""

import torch
from torch import Tensor

from ..precision import at_least_float32
from .layout import TENSORS, Layout

TRACED = ("auto", "blocks", "cpu", "triton")
"""What a graph holds as the operator; torch traces into the other implementations."""


def traced_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    key_bias: Tensor | None,
    dropout: float,
    impl: str,
) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`."""
    seed = torch.randint(1 << 62, (), device=q.device) if dropout > 0.0 else None
    tensors = [getattr(layout, name) for name in TENSORS]
    return ranged_attention(
        q, k, v, *tensors, key_bias, seed, dropout, layout.earlier_only, layout.reach, impl
    )


@torch.library.custom_op("fairseq_clusterformer::ranged_attention", mutates_args=())
def ranged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    query_order: Tensor | None,
    key_order: Tensor | None,
    num_queries: Tensor | None,
    num_keys: Tensor | None,
    key_bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    earlier_only: bool,
    reach: int | None,
    impl: str,
) -> tuple[Tensor, Tensor]:
    tensors = (lo, hi, query_order, key_order, num_queries, num_keys)
    layout = Layout(*tensors, earlier_only=earlier_only, reach=reach)
    if _chosen(impl, q) == "triton":
        from .triton.forward import forward

        return forward(q, k, v, key_bias, seed, layout, dropout)
    out, lse, _ = _run(impl, q, k, v, key_bias, seed, layout, dropout, learns=False)
    return _token_by_token(out, q), lse.contiguous()


@ranged_attention.register_fake
def _(q, *_others):
    return _empty_like(q), at_least_float32(q.new_empty(q.shape[:3]))


@torch.library.custom_op("fairseq_clusterformer::ranged_attention_backward", mutates_args=())
def ranged_attention_backward(
    d_out: Tensor,
    d_lse: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lo: Tensor,
    hi: Tensor,
    query_order: Tensor | None,
    key_order: Tensor | None,
    num_queries: Tensor | None,
    num_keys: Tensor | None,
    key_bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    earlier_only: bool,
    reach: int | None,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and key_bias (empty without one)."""
    tensors = (lo, hi, query_order, key_order, num_queries, num_keys)
    layout = Layout(*tensors, earlier_only=earlier_only, reach=reach)
    if _chosen(impl, q) == "triton":
        from .triton.backward import backward

        gradients = backward(d_out, d_lse, q, k, v, key_bias, out, lse, seed, layout, dropout)
    else:
        *_, learn = _run(impl, q, k, v, key_bias, seed, layout, dropout, learns=True)
        gradients = learn(d_out, d_lse)
    d_bias = q.new_empty(0) if key_bias is None else gradients[3].contiguous()
    return *(_token_by_token(x, q) for x in gradients[:3]), d_bias


@ranged_attention_backward.register_fake
def _(_d_out, _d_lse, _out, _lse, q, k, v, *others):
    key_bias = others[6]
    d_bias = q.new_empty(0) if key_bias is None else key_bias.new_empty(key_bias.shape)
    return _empty_like(q), _empty_like(k), _empty_like(v), d_bias


def _save(ctx, inputs, output):
    ctx.save_for_backward(*output, *inputs[:11])
    ctx.options = inputs[11:]


def _backward(ctx, d_out, d_lse):
    *gradients, d_bias = ranged_attention_backward(d_out, d_lse, *ctx.saved_tensors, *ctx.options)
    key_bias = ctx.saved_tensors[11]
    return *gradients, *(None,) * 6, None if key_bias is None else d_bias, *(None,) * 5


ranged_attention.register_autograd(_backward, setup_context=_save)


class _Context:
    """In the place of autograd's, which does not look inside an operator."""

    def __init__(self, learns: bool):
        self.needs_input_grad = (learns,)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


def _chosen(impl: str, q: Tensor) -> str:
    from . import chosen

    return chosen(impl, q)


def _run(impl, q, k, v, key_bias, seed, layout, dropout, *, learns):
    """Results of blocks or cpu, and a function from their gradients to those of the inputs."""
    if _chosen(impl, q) == "blocks":
        from .blocks import _BlocksAttention as function
    else:
        from .cpu import _CPUAttention as function

        if q.dtype == torch.float16:  # which not every compiler knows
            q, k, v = q.float(), k.float(), v.float()
    context = _Context(learns)
    seed = 0 if seed is None else int(seed)
    with torch.autocast(q.device.type, enabled=False):
        out, lse = function.forward(context, q, k, v, key_bias, layout, dropout, seed)
    return out, lse, lambda d_out, d_lse: function.backward(context, d_out.to(out.dtype), d_lse)


def _empty_like(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def _token_by_token(x: Tensor, like: Tensor) -> Tensor:
    """A token's heads side by side in memory, as projections have them."""
    return x.to(like.dtype).transpose(1, 2).contiguous().transpose(1, 2)
