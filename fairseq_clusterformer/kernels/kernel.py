"""What a kernel is: the layouts and calls that it is given, the softmax that its calls add to, and
the reference that all are held to.

Several layouts, and each query's own key, share one softmax: a call goes on from the
:class:`Carry` that the call before it returned. The backward pass of each call takes the carry of
all: a weight is exp(logit - log-sum-exp), and the gradient of its logit is
weight * (d_out . v - d_out . out), of the whole softmax.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout, pad

from ..precision import at_least_float32

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Layout:
    """Orders and ranges of one attention. B and G may be 1 where all rows or heads agree."""

    #: first key slot that a query slot sees, and one past the last, int64 [B, G, N]; ``hi <= lo``
    #: sees nothing. Any with 0 <= lo and hi <= M are correct; what is fast are runs of query slots
    #: in which both do not decrease, for neighbours share keys then
    lo: Tensor
    hi: Tensor
    #: token at each query slot, int64 [B, G, N], a permutation; None: identity
    query_order: Tensor | None = None
    #: token at each key slot, int64 [B, G, M]; None: identity (then M = N). With M = N it is a
    #: permutation; with any other M a token may stand in several slots, or in none
    key_order: Tensor | None = None
    #: slots that hold a real token, the first ones of each row, int64 [B, G]; None: all of them
    num_queries: Tensor | None = None
    num_keys: Tensor | None = None
    #: of each query, in token order: keys with a logit below it are hidden, floating point
    #: [B, G, N]; no gradient passes through it
    least: Tensor | None = None
    key_bias: Tensor | None = None  # added to the logits of a key, floating point [B, G, N]
    #: besides the ranges, hide keys whose token stands after the query's (CF22 eq. 13). Only for
    #: comparison: the ranges themselves may depend on later tokens
    earlier_only: bool = False

    @property
    def slots(self) -> int:
        """M, key slots."""
        return (self.lo if self.key_order is None else self.key_order).size(-1)

    def check(self) -> None:
        """Check what attention trusts, which waits for the device. Raises ValueError: the first
        number that is wrong, and what is allowed."""
        length, slots, seen = self.lo.size(-1), self.slots, self.hi > self.lo
        checks = [
            ("lo", self.lo, seen & (self.lo < 0), "0 or more"),
            ("hi", self.hi, seen & (self.hi > slots), f"up to {slots}, the key slots"),
        ]
        for name, most in (("num_queries", length), ("num_keys", slots)):
            if (count := getattr(self, name)) is not None:
                checks.append((name, count, (count < 0) | (count > most), f"0 to {most}"))
        for name in ("query_order", "key_order"):
            if (order := getattr(self, name)) is None:
                continue
            wrong, allowed = (order < 0) | (order >= length), f"tokens, 0 to {length - 1}"
            if order.size(-1) == length:
                order, allowed = order.sort(-1).values, f"a permutation of 0 to {length - 1}"
                wrong = order != torch.arange(length, device=order.device)
            checks.append((name, order, wrong, allowed))
        for name, numbers, wrong, allowed in checks:
            if wrong.any():
                number = numbers.expand_as(wrong)[wrong][0]
                raise ValueError(f"layout.{name} has {number}; allowed: {allowed}")


class Listed(NamedTuple):
    """Keys in K lists, and which lists queries look into."""

    queries: Tensor  # of the last N of M tokens, int64 [B, 1 or H, N, R]; K or more: into none
    keys: Tensor  # of all, int64 [B, G, M], of heads that share lists; K or more: in none
    number: int  # K
    #: the first key that a query may see, and one past the last: before it, or on both sides
    places: Tensor  # int64 [1 or B, 2 or 4, N]; none falls from token to token
    as_layouts: Callable[[Tensor], Sequence[Layout]]  # of M tokens, for such queries
    key_bias: Tensor | None = None  # [B, 1 or H, M]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """What a query sees of each of its R lists before it; then the same of what follows."""
        return tuple(replace(x, key_bias=self.key_bias) for x in self.as_layouts(self.queries))


class Own(NamedTuple):
    """Each query's own key, seen besides the layouts."""

    bias: float = 0.0  # added to its logit
    #: of queries that do not see it so, bool [B, 1 or H, N]; None: no query
    hidden: Tensor | None = None
    #: what dropout multiplies its weight by, [B, H, N]; None: there is none
    drops: Tensor | None = None


class Call(NamedTuple):
    """What a kernel is given."""

    q: Tensor  # like k and v, [B, H, N, E]
    k: Tensor
    v: Tensor
    key_bias: Tensor | None  # [B, 1 or H, N]
    #: names the masks of dropout, which the backward pass draws again; None: there are none
    seed: Tensor | None
    layout: Layout
    dropout: float
    own: Own | None = None  # each query's own key, besides the layout


#: Layout's first fields: orders and ranges, without a bias
TENSORS = ("lo", "hi", "query_order", "key_order", "num_queries", "num_keys", "least")


def sort_by_cluster(clusters: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, int64 [..., N] in [0, K), then by position: exact and stable. Returns the
    token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N]. On a CPU it is
    numpy's radix sort of up to 32,768 clusters, else torch's sort, which torch.compile traces."""
    length, traced = clusters.size(-1), torch.compiler.is_compiling()
    if clusters.is_cpu and num_clusters <= 1 << 15 and not traced:  # of 16 bits: radix, stable
        numbers = clusters.to(torch.int16).numpy()
        order = torch.from_numpy(np.argsort(numbers, axis=-1, kind="stable"))
        return order, clusters.gather(-1, order).mul_(length).add_(order)
    codes = clusters * length + torch.arange(length, device=clusters.device)
    codes, order = codes.sort(dim=-1)
    return order, codes


def validate(call: Call) -> None:
    """Check shapes, dtypes and devices that every kernel relies on; what the layout holds, only
    if the environment has ``CLUSTERFORMER_CHECK_LAYOUTS=1``. Raises ValueError."""
    q, k, v, key_bias, _, layout, dropout, _ = call
    if q.dim() != 4 or not q.is_floating_point() or q.numel() == 0:
        allowed = "floating point [batch, heads, tokens, head width], each 1 or more"
        raise ValueError(f"q is {_describe(q)}; allowed: {allowed}")
    for name, x in (("k", k), ("v", v)):
        if (x.shape, x.dtype, x.device) != (q.shape, q.dtype, q.device):
            raise ValueError(f"{name} is {_describe(x)}; allowed: like q, {_describe(q)}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; allowed: 0 <= dropout < 1")
    batch, heads, length, _ = q.shape
    given = [(f"layout.{name}", getattr(layout, name)) for name in TENSORS]
    sizes = [(length,), (length,), (length,), (layout.slots,), (), (), (length,), (length,)]
    for (name, x), size in zip([*given, ("key_bias", key_bias)], sizes, strict=True):
        if x is None:
            continue
        of_numbers = name in ("key_bias", "layout.least")
        kind = "floating point" if of_numbers else "int64"
        fits = x.is_floating_point() if of_numbers else x.dtype == torch.long
        fits &= x.device == q.device and x.dim() == 2 + len(size) and x.shape[2:] == size
        if not fits or x.size(0) not in (1, batch) or x.size(1) not in (1, heads):
            shape = ", ".join([f"1 or {batch}", f"1 or {heads}", *map(str, size)])
            allowed = f"{kind} [{shape}] on {q.device}"
            raise ValueError(f"{name} is {_describe(x)}; allowed: {allowed}")
    if os.environ.get("CLUSTERFORMER_CHECK_LAYOUTS") == "1" and not torch.compiler.is_compiling():
        layout.check()


def _describe(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device}"


class Carry(NamedTuple):
    """A softmax over what queries have seen so far; the precision is float32 or more."""

    out: Tensor  # values that they attend to [B, H, N, E], 0 where nothing was seen
    lse: Tensor  # log-sum-exp of the logits [B, H, N], -inf where nothing was seen
    #: the largest logit in units of log 2, and the sum of 2^(logit - peak), both [B, H, N]. They
    #: are rounded less than the log-sum-exp, which stands for them where they are None.
    peak: Tensor | None = None
    total: Tensor | None = None

    def add(self, out: Tensor, lse: Tensor) -> "Carry":
        """The softmax over these keys too; it may overwrite this one's output."""
        whole = torch.logaddexp(self.lse, lse)
        some = whole.masked_fill(torch.isinf(whole), 0.0)
        before, more = ((one - some).exp_().unsqueeze(-1) for one in (self.lse, lse))
        return Carry(at_least_float32(self.out).mul_(before).addcmul_(out, more), whole)


class Gradients(NamedTuple):
    """Of a call's inputs; of q, k and v perhaps in float32, where these are in half precision."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_bias: Tensor | None


class Kernel(Protocol):
    """How ranges are attended. Outputs and gradients of q's shape have the heads of a token next
    to each other in memory, as projections do."""

    def obstacle(self, q: Tensor) -> tuple[str, str] | None:
        """Why it cannot attend q [B, H, N, E], and what is allowed; None: it can."""
        return None

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        """Attend, and add to what calls before it have seen; their carry may be overwritten."""

    #: returns the gradients of a call, from those of the output and of the log-sum-exp (None: it
    #: has none) of the carry of all calls, and from that; those of q, k and v that are given last
    #: are added, and may be overwritten. None: autograd follows ``forward``.
    backward: Callable[[Call, Tensor, Tensor | None, Carry, Sequence | None], Gradients] | None


class OneByOne(Kernel):
    """A kernel that attends one layout at a time; PyTorch adds its results up, and the own key."""

    #: the output and the log-sum-exp of a call, and its gradients, without its own key
    attend: Callable[[Call], tuple[Tensor, Tensor]]
    gradients: Callable[[Call, Tensor, Tensor | None, Carry], Gradients]

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        found = self.attend(call)
        carry = Carry(*found) if carry is None else carry.add(*found)
        return carry if call.own is None else carry.add(*attend_own(*call[:3], call.own))

    def backward(self, call, d_out, d_lse, carry, into=None) -> Gradients:
        found = self.gradients(call, d_out, d_lse, carry)
        more = [] if call.own is None else [_of_own(call, d_out, d_lse, carry)]
        for others in more if into is None else [*more, into]:
            for gradient, other in zip(found, others, strict=False):
                gradient.add_(other)
        return found


class Reference(Kernel):
    """By a dense mask, in plain PyTorch, which autograd and ``torch.compile`` follow: what other
    kernels are held to. Memory O(N * M)."""

    backward = None

    def forward(self, call: Call, carry: Carry | None = None) -> Carry:
        parts = [_attend_densely(call)] if carry is None else [carry[:2], _attend_densely(call)]
        if call.own is not None:
            parts.append(attend_own(*call[:3], call.own))
        return Carry(*join(parts))


def empty_like(x: Tensor) -> Tensor:
    """New memory of x's shape [B, H, N, E], with the heads of a token next to each other."""
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def join(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Join several attentions of the same queries, results [..., E] and their log-sum-exp [...] as
    ``ranged_attention`` returns them, into one softmax over all that they saw. The same of all is
    computed in at least float32, the result in the dtype of the first; 0 and about -inf (the least
    finite number) where none saw anything."""
    if len(parts) == 1:
        return parts[0]
    outs, lses = zip(*parts, strict=True)
    lse = torch.stack(lses)
    lse = lse.clamp(min=torch.finfo(lse.dtype).min)  # a softmax of -inf alone would be NaN
    # Each part's share of the sum of exponentials, [parts, ..., 1].
    shares = torch.softmax(lse, dim=0).unsqueeze(-1)
    out = outs[0] * shares[0]
    for other, share in zip(outs[1:], shares[1:], strict=True):
        out = torch.addcmul(out, other, share)
    return out.to(outs[0].dtype), torch.logsumexp(lse, dim=0)


def attend_own(q: Tensor, k: Tensor, v: Tensor, own: Own) -> tuple[Tensor, Tensor]:
    """As ``ranged_attention`` where each query sees its own key alone: its value, its logit."""
    lse = _dot(q, k) * q.size(-1) ** -0.5 + own.bias
    if own.hidden is not None:
        lse = lse.masked_fill(own.hidden, -torch.inf)
        v = v.masked_fill(own.hidden.unsqueeze(-1), 0.0)
    return v if own.drops is None else v * own.drops.unsqueeze(-1).to(v.dtype), lse


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner products [B, H, N] in at least float32; products of one head exist at a time."""
    heads = (map(at_least_float32, pair) for pair in zip(x.unbind(1), y.unbind(1), strict=True))
    return torch.stack([(a * b).sum(-1) for a, b in heads], dim=1)


def _of_own(call: Call, d_out: Tensor, d_lse: Tensor | None, carry: Carry) -> tuple[Tensor, ...]:
    """Gradients of q, k and v."""
    own, tensors = call.own, (*call[:3], d_out, carry.out)
    if own.hidden is not None:  # what is not seen may be NaN
        tensors = [x.masked_fill(own.hidden.unsqueeze(-1), 0.0) for x in tensors]
    q, k, v, d_out, out = map(at_least_float32, tensors)
    delta = _dot(d_out, out) if d_lse is None else _dot(d_out, out) - d_lse
    lse = carry.lse.clamp(min=torch.finfo(carry.lse.dtype).min)
    values, logit = attend_own(q, k, v, own)  # values with what dropout multiplies them by
    weight = (logit - lse).exp_()
    dropped = weight if own.drops is None else weight * own.drops
    d_logit = _dot(d_out, values).sub_(delta).mul_(weight).mul_(q.size(-1) ** -0.5)
    if own.hidden is not None:  # d_lse may be NaN there
        d_logit = d_logit.masked_fill_(own.hidden, 0.0)
    d_logit = d_logit.unsqueeze(-1)
    return k * d_logit, q * d_logit, d_out * dropped.unsqueeze(-1)


def times_seen(layout: Layout) -> Tensor:
    """How often each query of a layout sees each key (the last dimension), and behind these slots
    without a token, by token, float32 [B, G, N, N + 1]; B and G are 1 where all agree."""
    length, device = layout.lo.size(-1), layout.lo.device
    identity = torch.arange(length, device=device).view(1, 1, -1)
    key_order = identity if layout.key_order is None else layout.key_order
    query_order = identity if layout.query_order is None else layout.query_order
    bounds = torch.broadcast_tensors(layout.lo, layout.hi, query_order.argsort(-1))
    lo, hi = (bound.gather(-1, bounds[2]).unsqueeze(-1) for bound in bounds[:2])  # by token
    slot = torch.arange(key_order.size(-1), device=device)
    if layout.num_keys is not None:
        key_order = torch.where(slot < layout.num_keys.unsqueeze(-1), key_order, length)
    in_range, key = torch.broadcast_tensors((slot >= lo) & (slot < hi), key_order.unsqueeze(-2))
    times = torch.zeros(*in_range.shape[:-1], length + 1, device=device)
    times = times.scatter_add_(-1, key, in_range.float())
    return times.tril() if layout.earlier_only else times


def _attend_densely(call: Call) -> tuple[Tensor, Tensor]:
    times, (q, k, v) = times_seen(call.layout), map(at_least_float32, call[:3])
    seen, layout = times > 0, call.layout
    asks = seen.any(-1)  # what sees nothing, or is not seen, may be anything
    if layout.num_queries is not None:
        slot = torch.arange(q.size(2), device=q.device)
        slot = slot if layout.query_order is None else layout.query_order.argsort(-1)
        asks = asks & (slot < layout.num_queries.unsqueeze(-1))
    q = q.masked_fill(~asks.unsqueeze(-1), 0.0)
    k, v = (pad(x, (0, 0, 0, 1)) for x in (k, v))  # a slot without a token has zeros
    k, v = (x.masked_fill(~seen.any(-2).unsqueeze(-1), 0.0) for x in (k, v))
    logits = q @ k.mT / math.sqrt(q.size(-1))  # [B, H, N, N + 1]
    if call.key_bias is not None:
        bias = pad(call.key_bias.to(q.dtype), (0, 1)).unsqueeze(-2)
        # Kernels have logits in units of log 2, where the least finite number is -inf.
        logits = logits + bias.masked_fill(torch.isneginf(bias * LOG2_E), -math.inf)
    if layout.least is not None:
        seen = seen & (logits >= layout.least.to(q.dtype).unsqueeze(-1))
    logits = (logits + times.to(q.dtype).log()).masked_fill(~seen, -math.inf)

    # Where no key has a weight, the result is 0, and no gradient passes.
    none_seen = torch.isneginf(logits).all(-1, keepdim=True)
    logits = logits.masked_fill(none_seen, 0.0)
    lse = torch.logsumexp(logits, dim=-1).masked_fill(none_seen.squeeze(-1), -math.inf)
    weights = torch.softmax(logits, dim=-1).masked_fill(none_seen, 0.0)
    return (dropout(weights, call.dropout) @ v).to(call.q.dtype), lse
