"""Calls of a kernel under one softmax: in autograd, and as one operator for ``torch.compile``."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..precision import at_least_float32, autocast_off
from .choose import KERNELS, chosen
from .kernel import Carry, Kernel, Wanted, empty_like
from .layout import TENSORS, Call, Layout, Own, validate


def attend(calls: Sequence[Call], impl: str, wide: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of calls that differ in their layouts alone; see
    :func:`.attend.joint_attention`."""
    for call in calls:
        validate(call)
    if any(call.layout.earlier_only for call in calls):
        if impl not in ("auto", "reference"):
            raise ValueError(
                f"the rule is leaking-chunk, and the kernel is {impl}; allowed: auto, reference"
            )
        impl = "reference"
    q, dtype = calls[0].q, calls[0].q.dtype
    # A CPU's kernels go on from an output in q's precision: of several, it would be rounded.
    several = len(calls) > 1 or calls[-1].own is not None
    computed_wide = wide or (several and q.is_cpu)
    if torch.compiler.is_compiling() and impl != "reference":
        tensors, rest = _flat(_widened(calls, computed_wide))
        # autograd does not look into a list with None in it: what is absent is empty
        layouts = [q.new_empty(0) if tensor is None else tensor for tensor in tensors[5:]]
        out, lse = ranged_attention(*tensors[:5], layouts, *rest, impl)
    else:
        some = q[:1, :1, :1]  # of which a kernel is asked for
        kernel = KERNELS[chosen(impl, at_least_float32(some) if computed_wide else some)]
        if kernel.backward is None:
            out, lse = _run(kernel, _widened(calls, computed_wide))[:2]
        else:
            tensors, rest = _flat(calls)
            out, lse = _Attention.apply(kernel, computed_wide, rest, *tensors)
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
    wanted = Wanted(torch.zeros_like(carry.out) if d_out is None else d_out, d_lse)
    for call in calls:
        *into, d_bias = kernel.backward(call, wanted, carry, into)
        biases.append(d_bias)
    return into, biases


# q, k, v, two of the own key, and of each layout, one after the other: a bias, a seed, and the
# layout's tensors.
_OF_LAYOUT = 2 + len(TENSORS)


def _flat(calls: Sequence[Call]) -> tuple[list[Tensor | None], tuple]:
    """What calls consist of: tensors, and else the own key's bias, dropout and the layouts'
    reach (-1: none is known)."""
    own = calls[-1].own
    bias, *of_own = (None, None, None) if own is None else own
    tensors = [*calls[0][:3], *of_own]
    for call in calls:
        tensors += [call.key_bias, call.seed, *(getattr(call.layout, name) for name in TENSORS)]
    reach = [-1 if call.layout.reach is None else call.layout.reach for call in calls]
    return tensors, (bias, calls[0].dropout, reach)


def _calls(tensors: Sequence[Tensor | None], rest: tuple) -> list[Call]:
    """The calls of which :func:`_flat` made these."""
    (q, k, v, *of_own), (own_bias, dropout, reaches), calls = tensors[:5], rest, []
    for i, reach in enumerate(reaches):
        of_layout = tensors[5 + i * _OF_LAYOUT : 5 + (i + 1) * _OF_LAYOUT]
        bias, seed, *found = (None if x is None or not x.numel() else x for x in of_layout)
        layout = Layout(*found, reach=None if reach < 0 else reach)
        calls.append(Call(q, k, v, bias, seed, layout, dropout))
    if own_bias is not None:
        calls[-1] = calls[-1]._replace(own=Own(own_bias, *of_own))
    return calls


class _Attention(torch.autograd.Function):
    """What eager code calls: an operator costs more for each call."""

    @staticmethod
    def forward(ctx, kernel, wide, rest, *tensors):
        with autocast_off(tensors[0]):
            carry = _run(kernel, _widened(_calls(tensors, rest), wide))
        ctx.given = kernel, wide, rest
        ctx.save_for_backward(*carry, *tensors)
        ctx.set_materialize_grads(False)
        return carry[:2]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        # Read once: an activation checkpoint unpacks them a single time.
        saved, (kernel, wide, rest) = ctx.saved_tensors, ctx.given
        carry, tensors = Carry(*saved[:4]), saved[4:]
        with autocast_off(tensors[0]):
            calls = _widened(_calls(tensors, rest), wide)
            found, biases = _run_backward(kernel, calls, d_out, d_lse, carry)
        gradients = [None] * len(tensors)
        gradients[:3] = (d.to(x.dtype) for d, x in zip(found, tensors, strict=False))
        gradients[5::_OF_LAYOUT] = biases
        return None, None, None, *gradients


_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? own_hidden, Tensor? own_drops, Tensor[] layouts, "
    "float? own_bias, float dropout, int[] reach, str impl"
)


@torch.library.custom_op(
    "fairseq_clusterformer::ranged_attention",
    mutates_args=(),
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def ranged_attention(*inputs):
    *tensors, layouts, bias, dropout, reach, impl = inputs
    with autocast_off(tensors[0]):
        calls = _calls([*tensors, *layouts], (bias, dropout, reach))
        carry = _run(KERNELS[chosen(impl, tensors[0])], calls)
    return carry.out, carry.lse


@ranged_attention.register_fake
def _(q, *_others):
    return empty_like(q), at_least_float32(q.new_empty(q.shape[:3]))


@torch.library.custom_op(
    "fairseq_clusterformer::ranged_attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor d_lse, Tensor out, Tensor lse, {_INPUTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor[])",
)
def ranged_attention_backward(d_out, d_lse, out, lse, *inputs):
    """Gradients of q, k and v, and of each bias (empty without one)."""
    *tensors, layouts, bias, dropout, reach, impl = inputs
    with autocast_off(out):
        calls = _calls([*tensors, *layouts], (bias, dropout, reach))
        kernel = KERNELS[chosen(impl, out)]
        gradients, biases = _run_backward(kernel, calls, d_out, d_lse, Carry(out, lse))
    return *gradients, [out.new_empty(0) if bias is None else bias for bias in biases]


@ranged_attention_backward.register_fake
def _(_d_out, _d_lse, _out, _lse, q, k, v, _hidden, _drops, layouts, *_others):
    d_biases = [bias.new_empty(bias.shape) for bias in layouts[::_OF_LAYOUT]]
    return empty_like(q), empty_like(k), empty_like(v), d_biases


def _save(ctx, inputs, output):
    *tensors, layouts, bias, dropout, reach, impl = inputs
    ctx.rest = bias, dropout, reach, impl
    ctx.save_for_backward(*output, *tensors, *layouts)


def _backward(ctx, d_out, d_lse):
    out, lse, *tensors = ctx.saved_tensors
    inputs = (*tensors[:5], tensors[5:], *ctx.rest)
    *gradients, biases = ranged_attention_backward(d_out, d_lse, out, lse, *inputs)
    of_layouts = [None] * len(tensors[5:])
    of_layouts[::_OF_LAYOUT] = biases
    return *gradients, None, None, of_layouts, *(None,) * len(ctx.rest)


ranged_attention.register_autograd(_backward, setup_context=_save)
