"""The functions that attend: which kernel does, its calls under one softmax, in autograd and as an
operator for ``torch.compile``."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..precision import at_least_float32, autocast_off
from . import cpu as of_cpu
from . import kernel as common
from .blocks import Blocks, by_query
from .cpu import Cpu
from .kernel import TENSORS, Call, Carry, Kernel, Layout, Listed, Own, empty_like
from .triton import Triton

logger = logging.getLogger(__name__)
KERNELS = {"reference": common.Reference(), "blocks": Blocks(), "triton": Triton(), "cpu": Cpu()}
_warn = cache(logger.warning)  # once
_operator = partial(torch.library.custom_op, mutates_args=())
FASTEST = {"cpu": "cpu", "cuda": "triton"}  # on a device, unless there is an obstacle


def chosen(impl: str, q: Tensor) -> str:
    """The name of the implementation that attends q; of "auto" the fastest on its device, or
    blocks if that has an obstacle, logged once. Raises ValueError: no such name; an obstacle."""
    name = FASTEST.get(q.device.type, "blocks") if impl == "auto" else impl
    if name not in KERNELS:
        raise ValueError(f"impl is {impl!r}; allowed: auto, {', '.join(KERNELS)}")
    if (found := KERNELS[name].obstacle(q)) is None:
        return name
    if impl != "auto":
        raise ValueError("; ".join(found))
    _warn("%s; blocks takes its place", found[0])
    return "blocks"


def ranged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layouts: Layout | Sequence[Layout],
    own: Own | None = None,
    *,
    dropout: float = 0.0,
    impl: str = "auto",
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend each query to the keys in its ranges, with logits ``q . k / sqrt(E) + key_bias``.

    Args:
        q, k, v: in token order, floating point [B, H, N, E], alike; need not be contiguous.
        layouts: orders, ranges and perhaps biases; their G must be 1 or H. What two of them show
            counts twice. It equals joining the results of each, with less memory.
        own: each query's own key, besides them.
        dropout: probability of dropping an attention weight (the others are scaled up).
        impl: "auto" or one of ``IMPLEMENTATIONS``. Only reference attends by
            ``layout.earlier_only``, and "auto" takes it there.
        wide: compute in float32 at least, and return that; what the backward pass needs is kept
            as it was given.

    Returns the attended values [B, H, N, E] in token order and q's dtype, 0 where nothing is seen,
    and the log-sum-exp of the logits [B, H, N], at least float32, -inf there. Both are
    differentiable with respect to q, k and the biases, the first also to v. Raises ValueError: an
    unknown ``impl``, or one that cannot attend this; tensors that do not fit.
    """
    layouts = [layouts] if isinstance(layouts, Layout) else layouts
    calls, seed = [], None
    for layout in layouts:
        if dropout > 0.0:  # on the device, so that a CUDA graph draws anew
            seed = torch.randint(1 << 62, (), device=q.device)
        calls.append(Call(q, k, v, layout.key_bias, seed, layout, dropout))
        common.validate(calls[-1])
    if own is not None:
        if dropout > 0.0:
            drops = torch.empty_like(at_least_float32(q[..., 0].detach()))
            own = own._replace(drops=drops.bernoulli_(1 - dropout).div_(1 - dropout))
        calls[0] = calls[0]._replace(own=own)
    if any(layout.earlier_only for layout in layouts):
        if impl not in ("auto", "reference"):
            problem = f"the rule is leaking-chunk, and the kernel is {impl}"
            raise ValueError(f"{problem}; allowed: auto, reference")
        impl = "reference"
    # A CPU's kernels go on from an output in q's precision: of several, it would be rounded.
    computed_wide = wide or (q.is_cpu and (len(layouts) > 1 or own is not None))
    tensors, rest = _flat(calls, computed_wide)
    if torch.compiler.is_compiling() and impl != "reference":
        out, lse = operator(*tensors[:5], tensors[5:], *rest, impl)
    elif (kernel := _kernel(impl, q, computed_wide)).backward is None:
        out, lse = _run(kernel, _widened(calls, computed_wide))[:2]
    else:
        out, lse = _Attention.apply(kernel, rest, *tensors)
    return out if wide else out.to(q.dtype), lse


@torch.no_grad()
def largest(
    q: Tensor, k: Tensor, v: Tensor | None, lists: Listed, number: int, impl: str, with_rest: bool
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
    """An index: of the keys that queries see in lists, the ``number`` of largest logits. Queries
    are [B, H, N, E], of the last N of M tokens, keys and values [B, H or J, M, E]. Returns values
    and log-sum-exp, at least float32, without gradients (None: no v, or a kernel of layouts); and
    the ``least`` of :class:`Layout` that hides all other keys, -inf where there are none. What
    rounding could confuse with the last of them is seen, too. ``with_rest``: last stands the
    log-sum-exp of the others in each list, at least float32 [B, H, N, R], -inf without others."""
    q, k = at_least_float32(q), at_least_float32(k)
    number, slack = min(number, k.size(2)), torch.finfo(q.dtype).eps ** 0.75
    in_cpp = chosen(impl, q) == "cpu" and of_cpu.can_run("index", q)
    if in_cpp and not torch.compiler.is_compiling():
        return of_cpu.index(q, k, v, lists, number, slack, with_rest)
    past, k = k.size(2) - q.size(2), k.repeat_interleave(q.size(1) // k.size(1), dim=1)
    q = pad(q, (0, 0, past, 0)) if past else q
    calls = [Call(q, k, k, one.key_bias, None, one, 0.0) for one in lists.layouts]
    least, rest = _largest_logits(q, k, _flat(calls, False)[0][5:], number, slack, with_rest)
    if with_rest:
        rest = rest[:, :, past:].unflatten(-1, (-1, lists.queries.size(-1))).logsumexp(-2)
    return None, None, least[..., past:], rest if with_rest else None


def _kernel(impl: str, q: Tensor, wide: bool) -> Kernel:
    some = q[:1, :1, :1]
    return KERNELS[chosen(impl, at_least_float32(some) if wide else some)]


def _widened(calls: list[Call], wide: bool) -> list[Call]:
    if not wide:
        return calls
    q, k, v = map(at_least_float32, calls[0][:3])
    return [call._replace(q=q, k=k, v=v) for call in calls]


# q, k, v, two of the own key, and of each layout a bias, a seed, and the layout's tensors.
_OF_LAYOUT = 2 + len(TENSORS)


def _flat(calls: list[Call], wide: bool) -> tuple[list[Tensor | None], tuple]:
    """What calls that differ in their layouts alone consist of: tensors, and else the own key's
    bias, dropout, and whether they are computed wide. What a layout has not is empty: autograd
    does not look into a list with None in it."""
    own, nothing = calls[0].own, calls[0].q.new_empty(0)
    bias, *of_own = (None, None, None) if own is None else own
    tensors = [*calls[0][:3], *of_own]
    for call in calls:
        found = call.key_bias, call.seed, *(getattr(call.layout, name) for name in TENSORS)
        tensors += [nothing if x is None else x for x in found]
    return tensors, (bias, calls[0].dropout, wide)


def _calls(tensors: Sequence[Tensor | None], rest: tuple) -> list[Call]:
    """The calls of which :func:`_flat` made these, as they are computed."""
    (q, k, v, *of_own), (own_bias, dropout, wide), calls = tensors[:5], rest, []
    for i in range(5, len(tensors), _OF_LAYOUT):
        of_layout = tensors[i : i + _OF_LAYOUT]
        bias, seed, *found = (x if x.numel() else None for x in of_layout)
        calls.append(Call(q, k, v, bias, seed, Layout(*found), dropout))
    if own_bias is not None:
        calls[0] = calls[0]._replace(own=Own(own_bias, *of_own))
    return _widened(calls, wide)


def _run(kernel: Kernel, calls: list[Call]) -> Carry:
    """The carry of all calls, its output in the precision of their q."""
    carry = None
    with autocast_off(calls[0].q):
        for call in calls:
            carry = kernel.forward(call, carry)
    return carry._replace(out=carry.out.to(calls[0].q.dtype))


def _run_backward(
    kernel: Kernel,
    tensors: Sequence[Tensor | None],
    rest: tuple,
    carry: Carry,
    d_out: Tensor | None,
    d_lse: Tensor | None,
) -> list[Tensor | None]:
    """Gradients of the tensors, from those of what their calls return."""
    gradients, into = [None] * len(tensors), None
    d_out = torch.zeros_like(carry.out) if d_out is None else d_out
    with autocast_off(carry.out):
        for i, call in enumerate(_calls(tensors, rest)):
            *into, gradients[5 + i * _OF_LAYOUT] = kernel.backward(call, d_out, d_lse, carry, into)
    gradients[:3] = (d.to(x.dtype) for d, x in zip(into, tensors, strict=False))
    return gradients


class _Attention(torch.autograd.Function):
    """What eager code calls: an operator costs more for each call."""

    @staticmethod
    def forward(ctx, kernel, rest, *tensors):
        carry = _run(kernel, _calls(tensors, rest))
        ctx.given = kernel, rest
        ctx.save_for_backward(*carry, *tensors)
        ctx.set_materialize_grads(False)
        return carry[:2]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, d_lse):
        # Read once: an activation checkpoint unpacks them a single time.
        saved, (kernel, rest) = ctx.saved_tensors, ctx.given
        carry, tensors = Carry(*saved[:4]), saved[4:]
        return None, None, *_run_backward(kernel, tensors, rest, carry, d_out, d_lse)


@_operator("fairseq_clusterformer::largest_logits")
def _largest_logits(
    q: Tensor, k: Tensor, layouts: list[Tensor], number: int, slack: float, with_rest: bool
) -> tuple[Tensor, Tensor]:
    """A bound just below the ``number`` largest logits of all layouts, and for each layout the
    log-sum-exp of the logits below it."""
    with autocast_off(q):
        calls = _calls([q, k, k, None, None, *layouts], (None, 0.0, False))
        most = [by_query(call, number + 1, lambda x, n: x.topk(n).values) for call in calls]
        found = torch.cat(most, dim=-1).topk(number + 1).values
        least = found[..., -2].where(found[..., -1].isfinite(), -torch.inf)
        least = least - (1 + least.abs()) * slack
        calls = [call._replace(layout=replace(call.layout, least=least)) for call in calls]
        others = partial(by_query, number=1, find=lambda x, _: x.logsumexp(-1, True), below=True)
        rest = [others(call) for call in calls] if with_rest else [least.unsqueeze(-1)[..., :0]]
    return least, torch.cat(rest, dim=-1)


@_largest_logits.register_fake
def _(q, _k, layouts, _number, _slack, with_rest):
    least = q.new_empty(q.shape[:3])
    return least, least.new_empty(*q.shape[:3], with_rest * len(layouts) // _OF_LAYOUT)


_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? own_hidden, Tensor? own_drops, Tensor[] layouts, "
    "float? own_bias, float dropout, bool wide, str impl"
)


@_operator("fairseq_clusterformer::ranged_attention", schema=f"({_INPUTS}) -> (Tensor, Tensor)")
def operator(*inputs):
    *tensors, layouts, bias, dropout, wide, impl = inputs
    calls = _calls([*tensors, *layouts], (bias, dropout, wide))
    carry = _run(_kernel(impl, tensors[0], wide), calls)
    return carry.out, carry.lse


@operator.register_fake
def _(q, *others):
    out = empty_like(at_least_float32(q) if others[-2] else q)  # wide
    return out, at_least_float32(q.new_empty(q.shape[:3]))


@_operator(
    "fairseq_clusterformer::ranged_attention_backward",
    schema=f"(Tensor d_out, Tensor d_lse, Tensor out, Tensor lse, {_INPUTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor[])",
)
def _operator_backward(d_out, d_lse, out, lse, *inputs):
    """Gradients of q, k and v, and of each bias (empty without one)."""
    *tensors, layouts, bias, dropout, wide, impl = inputs
    rest, kernel = (bias, dropout, wide), _kernel(impl, tensors[0], wide)
    found = _run_backward(kernel, [*tensors, *layouts], rest, Carry(out, lse), d_out, d_lse)
    return *found[:3], [out.new_empty(0) if d is None else d for d in found[5::_OF_LAYOUT]]


@_operator_backward.register_fake
def _(_d_out, _d_lse, _out, _lse, q, k, v, _hidden, _drops, layouts, *_others):
    return *map(empty_like, (q, k, v)), [b.new_empty(b.shape) for b in layouts[::_OF_LAYOUT]]


def _save(ctx, inputs, output):
    ctx.rest = inputs[6:]
    ctx.save_for_backward(*output, *inputs[:5], *inputs[5])


def _backward(ctx, d_out, d_lse):
    out, lse, *tensors = ctx.saved_tensors
    layouts = tensors[5:]
    *found, biases = _operator_backward(d_out, d_lse, out, lse, *tensors[:5], layouts, *ctx.rest)
    of_layouts = [None] * len(layouts)
    of_layouts[::_OF_LAYOUT] = biases
    return *found, None, None, of_layouts, *(None,) * len(ctx.rest)


operator.register_autograd(_backward, setup_context=_save)
