"""The kernels in autograd, and as one operator of torch for ``torch.compile``.

A kernel is a module with two functions. ``forward(call)`` returns the output, the log-sum-exp, and
what its backward pass would otherwise compute again, or None. ``backward(call, d_out, d_lse, out,
lse, kept, into)`` returns the gradients of q, k, v and key_bias; it computes again what is not
``kept``. It adds the first three to those that it is given.
Outputs and gradients of q's shape have the heads of a token next to each other in memory, as
projections do.
"""

from types import ModuleType

import torch
from torch import Tensor

from ..precision import at_least_float32, autocast_off
from .layout import TENSORS, Call, Layout


def attention(call: Call, impl: str) -> tuple[Tensor, Tensor]:
    """See :func:`fairseq_clusterformer.kernels.ranged_attention`; any ``impl`` but reference."""
    q, k, v, key_bias, _, layout, dropout = call
    seed = new_seed(q, dropout)
    if torch.compiler.is_compiling():
        tensors = [getattr(layout, name) for name in TENSORS]
        return ranged_attention(q, k, v, key_bias, seed, *tensors, dropout, layout.reach, impl)
    return _Attention.apply(kernel_of(impl, q), q, k, v, key_bias, seed, layout, dropout)


def new_seed(q: Tensor, dropout: float) -> Tensor | None:
    """One number names a call's dropout masks: the backward pass and activation checkpoints draw
    them again. It stays on the device, so that a CUDA graph draws anew."""
    return torch.randint(1 << 62, (), device=q.device) if dropout > 0.0 else None


def kernel_of(impl: str, q: Tensor) -> ModuleType:
    """The kernel that ``chosen`` names."""
    from . import blocks, chosen, cpu

    impl = chosen(impl, q)
    if impl == "triton":
        from . import triton

        return triton
    return {"blocks": blocks, "cpu": cpu}[impl]


class _Attention(torch.autograd.Function):
    """What eager code calls: an operator costs more for each call."""

    @staticmethod
    def forward(ctx, kernel, *inputs):
        *tensors, layout, dropout = inputs
        with autocast_off(tensors[0]):
            out, lse, kept = kernel.forward(Call(*inputs))
        # Tensors that are kept are saved, too: an activation checkpoint drops what is saved alone.
        more = kept if isinstance(kept, tuple) else ()
        ctx.save_for_backward(*tensors, out, lse, *more)
        ctx.kernel, ctx.rest = kernel, (layout, dropout, None if more else kept)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        # Read once: an activation checkpoint unpacks them a single time.
        tensors = ctx.saved_tensors
        *saved, out, lse = tensors[:7]
        layout, dropout, kept = ctx.rest
        call, kept = Call(*saved, layout, dropout), tensors[7:] or kept
        d_out = torch.zeros_like(out) if d_out is None else d_out
        with autocast_off(out):
            gradients = ctx.kernel.backward(call, d_out, d_lse, out, lse, kept)
        return None, *gradients, None, None, None


_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? key_bias, Tensor? seed, "
    "Tensor lo, Tensor hi, Tensor? query_order, Tensor? key_order, "
    "Tensor? num_queries, Tensor? num_keys, float dropout, int? reach, str impl"
)


def _call(q, k, v, key_bias, seed, *rest) -> tuple[Call, str]:
    """What the operators are given, as kernels take it; and the name of the kernel."""
    *tensors, dropout, reach, impl = rest
    return Call(q, k, v, key_bias, seed, Layout(*tensors, reach=reach), dropout), impl


@torch.library.custom_op(
    "fairseq_clusterformer::ranged_attention",
    mutates_args=(),
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def ranged_attention(*inputs):
    call, impl = _call(*inputs)
    with autocast_off(call.q):
        return kernel_of(impl, call.q).forward(call)[:2]


@ranged_attention.register_fake
def _(q, *_others):
    return _empty_like(q), at_least_float32(q.new_empty(q.shape[:3]))


@torch.library.custom_op(
    "fairseq_clusterformer::ranged_attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor d_lse, Tensor out, Tensor lse, {_INPUTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def ranged_attention_backward(d_out, d_lse, out, lse, *inputs):
    """Gradients of q, k, v and key_bias (empty without one)."""
    call, impl = _call(*inputs)
    with autocast_off(out):
        backward = kernel_of(impl, call.q).backward
        *gradients, d_bias = backward(call, d_out, d_lse, out, lse, None)
    return *gradients, out.new_empty(0) if d_bias is None else d_bias


@ranged_attention_backward.register_fake
def _(_d_out, _d_lse, _out, _lse, q, k, v, key_bias, *_others):
    d_bias = q.new_empty(0) if key_bias is None else key_bias.new_empty(key_bias.shape)
    return _empty_like(q), _empty_like(k), _empty_like(v), d_bias


def _save(ctx, inputs, output):
    ctx.save_for_backward(*output, *inputs[:11])
    ctx.options = inputs[11:]


def _backward(ctx, d_out, d_lse):
    saved = ctx.saved_tensors
    *gradients, d_bias = ranged_attention_backward(d_out, d_lse, *saved, *ctx.options)
    return *gradients, None if saved[5] is None else d_bias, *(None,) * 10


ranged_attention.register_autograd(_backward, setup_context=_save)


def _empty_like(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)
