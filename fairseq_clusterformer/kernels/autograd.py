"""Calls of a kernel under one softmax: in autograd, and as one operator for ``torch.compile``."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..precision import at_least_float32, autocast_off
from .choose import kernel_of
from .kernel import Carry, Kernel
from .layout import TENSORS, Call, Layout, Own


def attend(calls: Sequence[Call], impl: str, wide: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of calls that differ in their layouts alone; see
    :func:`.attend.joint_attention`."""
    q, k, v, dtype = *calls[0][:3], calls[0].q.dtype
    # A CPU's kernels go on from an output in q's precision: of several, it would be rounded.
    several = len(calls) > 1 or calls[-1].own is not None
    computed_wide = wide or (several and q.is_cpu)
    if torch.compiler.is_compiling() and impl != "reference":
        out, lse = ranged_attention(*_flat(_widened(calls, computed_wide)), impl)
    else:
        some = q[:1, :1, :1]  # of which a kernel is asked for
        kernel = kernel_of(impl, at_least_float32(some) if computed_wide else some)
        if kernel.backward is None:
            out, lse = _run(kernel, _widened(calls, computed_wide))[:2]
        else:
            biases = [call.key_bias for call in calls]
            out, lse = _Attention.apply(kernel, calls, computed_wide, q, k, v, *biases)
    return out if wide else out.to(dtype), lse


def _widened(calls: Sequence[Call], wide: bool) -> Sequence[Call]:
    """The calls, of q, k and v in float32 or more if they are wide."""
    if not wide:
        return calls
    q, k, v = map(at_least_float32, calls[0][:3])
    return [call._replace(q=q, k=k, v=v) for call in calls]


def _run(kernel: Kernel, calls: Sequence[Call]) -> Carry:
    """The carry of all calls, its output in the precision of their q."""
    carry = None
    for call in calls:
        carry = kernel.forward(call, carry)
    return carry._replace(out=carry.out.to(calls[0].q.dtype))


def _run_backward(
    kernel: Kernel, calls: Sequence[Call], d_out: Tensor | None, d_lse: Tensor | None, carry: Carry
) -> tuple[Sequence[Tensor], list[Tensor | None]]:
    """Gradients of q, k and v, and of each call's bias."""
    into, biases = None, []
    d_out = torch.zeros_like(carry.out) if d_out is None else d_out
    for call in calls:
        *into, d_bias = kernel.backward(call, d_out, d_lse, carry, into)
        biases.append(d_bias)
    return into, biases


class _Attention(torch.autograd.Function):
    """What eager code calls: an operator costs more for each call."""

    @staticmethod
    def forward(ctx, kernel, calls, wide, *given):
        with autocast_off(given[0]):
            carry = _run(kernel, _widened(calls, wide))
        ctx.kernel, ctx.wide = kernel, wide
        ctx.rest = [(call.layout, call.dropout) for call in calls]
        own = calls[-1].own
        ctx.bias, of_own = (None, (None, None)) if own is None else (own.bias, own[1:])
        seeds = [call.seed for call in calls]
        ctx.save_for_backward(*carry, *of_own, *given, *seeds)
        ctx.set_materialize_grads(False)
        return carry[:2]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        # Read once: an activation checkpoint unpacks them a single time.
        saved = ctx.saved_tensors
        carry, (hidden, drops), given = Carry(*saved[:4]), saved[4:6], saved[6:]
        number, more = len(ctx.rest), given[3:]
        own = None if ctx.bias is None else Own(ctx.bias, hidden, drops)
        calls = [
            Call(*given[:3], more[i], more[number + i], *rest, own if i == number - 1 else None)
            for i, rest in enumerate(ctx.rest)
        ]
        with autocast_off(given[0]):
            calls = _widened(calls, ctx.wide)
            found, biases = _run_backward(ctx.kernel, calls, d_out, d_lse, carry)
        gradients = [d.to(x.dtype) for d, x in zip(found, given[:3], strict=True)]
        return None, None, None, *gradients, *biases


# Of each layout, one after the other: a bias, a seed, and the layout's tensors. What is absent is
# an empty tensor: autograd does not look into a list with None in it.
_OF_LAYOUT = 2 + len(TENSORS)
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor[] layouts, Tensor? own_hidden, Tensor? own_drops, "
    "float? own_bias, float dropout, int[] reach, str impl"
)


def _flat(calls: Sequence[Call]) -> tuple:
    """The operator's inputs, except for the kernel's name."""
    q, k, v = calls[0][:3]
    of_layouts = [
        tensor
        for call in calls
        for tensor in (call.key_bias, call.seed, *(getattr(call.layout, n) for n in TENSORS))
    ]
    absent, own = q.new_empty(0), calls[-1].own
    layouts = [absent if tensor is None else tensor for tensor in of_layouts]
    hidden, drops, bias = (None, None, None) if own is None else (*own[1:], own.bias)
    reach = [-1 if call.layout.reach is None else call.layout.reach for call in calls]
    return q, k, v, layouts, hidden, drops, bias, calls[0].dropout, reach


def _calls(q, k, v, layouts, hidden, drops, own_bias, dropout, reaches) -> list[Call]:
    """The calls of which :func:`_flat` made these."""
    calls = []
    for i, reach in enumerate(reaches):
        of_layout = layouts[i * _OF_LAYOUT : (i + 1) * _OF_LAYOUT]
        bias, seed, *tensors = (x if x.numel() else None for x in of_layout)
        layout = Layout(*tensors, reach=None if reach < 0 else reach)
        calls.append(Call(q, k, v, bias, seed, layout, dropout))
    if own_bias is not None:
        calls[-1] = calls[-1]._replace(own=Own(own_bias, hidden, drops))
    return calls


@torch.library.custom_op(
    "fairseq_clusterformer::ranged_attention",
    mutates_args=(),
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def ranged_attention(*inputs):
    *flat, impl = inputs
    with autocast_off(flat[0]):
        carry = _run(kernel_of(impl, flat[0]), _calls(*flat))
    return carry.out, carry.lse


@ranged_attention.register_fake
def _(q, *_others):
    return _empty_like(q), at_least_float32(q.new_empty(q.shape[:3]))


@torch.library.custom_op(
    "fairseq_clusterformer::ranged_attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor d_lse, Tensor out, Tensor lse, {_INPUTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor[])",
)
def ranged_attention_backward(d_out, d_lse, out, lse, *inputs):
    """Gradients of q, k and v, and of each bias (empty without one)."""
    *flat, impl = inputs
    with autocast_off(out):
        kernel, calls = kernel_of(impl, out), _calls(*flat)
        gradients, biases = _run_backward(kernel, calls, d_out, d_lse, Carry(out, lse))
    return *gradients, [out.new_empty(0) if bias is None else bias for bias in biases]


@ranged_attention_backward.register_fake
def _(_d_out, _d_lse, _out, _lse, q, k, v, layouts, *_others):
    d_biases = [bias.new_empty(bias.shape) for bias in layouts[::_OF_LAYOUT]]
    return _empty_like(q), _empty_like(k), _empty_like(v), d_biases


def _save(ctx, inputs, output):
    q, k, v, layouts, hidden, drops, *ctx.options = inputs
    ctx.number = len(layouts)
    ctx.save_for_backward(*output, q, k, v, hidden, drops, *layouts)


def _backward(ctx, d_out, d_lse):
    out, lse, q, k, v, hidden, drops, *layouts = ctx.saved_tensors
    inputs = (q, k, v, layouts, hidden, drops, *ctx.options)
    *gradients, biases = ranged_attention_backward(d_out, d_lse, out, lse, *inputs)
    of_layouts = [None] * len(layouts)
    of_layouts[::_OF_LAYOUT] = biases
    return *gradients, of_layouts, *(None,) * (2 + len(ctx.options))


ranged_attention.register_autograd(_backward, setup_context=_save)


def _empty_like(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)
