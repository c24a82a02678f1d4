"""Scouts: queries that see every key in training, and teach where attention would go.

A scout attends as in dense attention, with weights a over the keys that it would see if all were
in its cluster. With p(c) the share of cluster c in a query or a key, s_ij = sum_c p_i(c) p_j(c) is
the probability that key j lies in the cluster of query i. The loss is what chance would give less
what attention finds there, in nats:

    L = - mean over scouts i of log( sum_j a_ij s_ij / mean_j s_ij )

All tokens in one cluster earn nothing, and neither does attention to everything alike: no loss of
balance is needed. It teaches the shares alone: queries and keys learn from the task. Where the
task has a gradient, it weighs the mean (:class:`Weighed`). S: scouts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....clustering.shares import Scores
from ....kernels import Layout, join, ranged_attention, sort_by_cluster
from ....kernels.cpu.library import can_run
from ....precision import at_least_float32, full_float32
from ...layout import recent_layouts
from ...tokens import Batch, for_each, gather_tokens

TINY = 1e-6  # a share of attention below it is none


class Scouts(NamedTuple):
    """Who teaches, and what is taught."""

    queries: Tensor  # those that see every key, bool [B, H, N]
    places: Tensor  # which those are, int64 [B, H, S]; in a row of fewer, some others too
    query_shares: Tensor  # p(c) of each [B, H, S, K], at least float32, differentiable
    keys: Scores  # what p(c) of each key is made of, likewise


class Gain(NamedTuple):
    """What attention finds in the clusters of scouts beyond chance."""

    nats: Tensor  # of each scout [B, H, S], differentiable in the shares
    of: Tensor  # scouts that see a key, bool [B, H, S]; the others' nats have no meaning
    places: Tensor  # of the scouts, int64 [B, H, S]


class Looking(NamedTuple):
    """Scouts, and the keys that they see, for ``scouts.cpp``: float32 or float64 alike, and the
    last dimension of q, shares and k has stride 1."""

    q: Tensor  # of scouts [B, H, S, E]
    shares: Tensor  # of scouts [B, H, S, K]
    k: Tensor  # [B, H, N, E]
    log_held: Tensor | None  # of how surely each key is held [B, J, N]; None: all are
    key_order: Tensor  # token at each key slot, int64 [B, 1, N]
    lo: Tensor  # key slots that scouts see, int64 [ranges, B, H, S], contiguous
    hi: Tensor
    scores: Scores  # of what routes keys; offsets are the logs of the clusters' masses

    def run(self, function: str, **values: Tensor | None) -> None:
        _, heads, number, width = self.q.shape
        values |= {"query_heads": heads, "scouts": number, "width": width, "ranges": len(self.lo)}
        values |= self._asdict()
        values.pop("scores").run("scouts", function, **values)


def draw_scouts(
    number: int, heads: int, x: Tensor, padding_mask: Tensor | None, share: float = 1.0
) -> tuple[Tensor, Tensor]:
    """That many real tokens of each row and head, or as many as there are or `share` allows,
    drawn by torch's generator of the device: an activation checkpoint draws the same. x is [B, N,
    ...]; `share`, of a row's real tokens, allows one at least. Returns queries and places."""
    batch, length = x.shape[:2]
    number = min(number, max(1, int(share * length)))
    if padding_mask is None and number == length:
        everyone = torch.ones(batch, heads, length, dtype=torch.bool, device=x.device)
        return everyone, torch.arange(length, device=x.device).expand(batch, heads, -1)
    order = torch.rand(batch, heads, length, device=x.device)
    if padding_mask is not None:
        order = order.masked_fill(padding_mask.unsqueeze(1), 2.0)
    chosen = order.topk(number, largest=False).indices
    scouts = torch.zeros(batch, heads, length, dtype=torch.bool, device=x.device)
    real = x.new_full((batch,), length) if padding_mask is None else (~padding_mask).sum(-1)
    most = (share * real.double()).long().clamp(min=1).minimum(real)
    within = torch.arange(chosen.size(-1), device=x.device) < most[:, None, None]
    scouts.scatter_(-1, chosen, within.expand_as(chosen))  # what is real was drawn first
    return scouts, chosen.sort(-1).values  # in the text's order: neighbours see about as much


def scout_layouts(
    scouts: Tensor, *, causal: bool, gap: int, batch: Batch, hidden: Tensor | None = None
) -> list[Layout]:
    """What scouts see: all keys of their documents that are ``gap`` tokens back or more, and, not
    causal, those that follow likewise; but none that are hidden, bool [B, 1 or H, N]."""

    def everything() -> tuple[Layout, ...]:
        given = hidden is not None
        alike = torch.zeros_like(hidden if given else scouts[:, :1], dtype=torch.long)
        keys, how = hidden.long() if given else None, {"causal": causal, "gap": gap}
        return recent_layouts(alike, 1 + given, None, key_clusters=keys, batch=batch, **how)

    def of_scouts(layout: Layout) -> Layout:
        order = layout.query_order.expand_as(scouts)
        others = ~scouts.gather(-1, order)
        slots, _ = sort_by_cluster(others.long(), 2)
        bounds = (bound.expand_as(scouts) for bound in (layout.lo, layout.hi))
        lo, hi = (bound.masked_fill(others, 0).gather(-1, slots) for bound in bounds)
        order, number = order.gather(-1, slots), scouts.sum(-1)
        return replace(layout, lo=lo, hi=hi, query_order=order, num_queries=number)

    key = "everything", causal, gap
    return [*map(of_scouts, batch.cached(key, everything) if hidden is None else everything())]


@full_float32()
def routing_gain(
    q: Tensor, k: Tensor, layouts: Sequence[Layout], scouts: Scouts, *, impl: str
) -> Gain:
    """The logarithm above, of each scout; q and k [B, H, N, E] as they are attended, which get no
    gradient, and layouts of the scouts."""
    q, k = (at_least_float32(t.detach()) for t in (q, k))
    (queries, places, shares, keys), order = scouts, layouts[0].query_order
    slot = torch.arange(order.size(-1), device=places.device).expand_as(order)
    slots = torch.empty_like(order).scatter_(-1, order, slot).gather(-1, places)
    lo, hi = (
        torch.stack([bound.gather(-1, slots) for bound in bounds])
        for bounds in zip(*((one.lo, one.hi) for one in layouts), strict=True)
    )
    hi, shares = torch.maximum(lo, hi), shares.to(q.dtype)
    scores = keys.shares_for_cpp(impl) if keys.x.dtype == q.dtype else None
    if scores is not None and can_run("scouts", scores.x):
        k = k if k.stride(-1) == 1 else k.contiguous()
        held = None if keys.log_held is None else keys.log_held.detach().to(q.dtype)
        given = gather_tokens(q, places), shares.detach().contiguous(), k, held
        given = Looking(*given, layouts[0].key_order, lo, hi, scores)
        lands, in_sight = _InCpp.apply(given, shares, keys.x, keys.vectors, keys.log_held)
    else:
        values = for_each(q, keys.shares().to(q.dtype))
        width, clusters = q.size(-1), values.size(-1)
        found = [  # of as many clusters at a time as heads are wide
            join([ranged_attention(q, k, part.contiguous(), one, impl=impl) for one in layouts])[0]
            for part in pad(values, (0, -clusters % width)).split(width, dim=-1)
        ]
        attended = gather_tokens(torch.cat(found, dim=-1)[..., :clusters], places)
        in_order = gather_tokens(values, layouts[0].key_order.expand(values.shape[:3]))
        below = pad(in_order.cumsum(2), (0, 0, 1, 0))  # sums before each slot
        pairs = zip(hi, lo, strict=True)
        total = sum(
            gather_tokens(below, end) - gather_tokens(below, begin) for end, begin in pairs
        )
        lands, in_sight = ((found * shares).sum(-1) for found in (attended, total))
    seen = (hi - lo).sum(0)
    chance = in_sight / seen.clamp(min=1)
    gain = lands.clamp(min=TINY).log() - chance.clamp(min=TINY).log()
    return Gain(gain, queries.gather(-1, places) & (seen > 0), places)


class _InCpp(torch.autograd.Function):
    """What the attention of scouts finds, and what all that they see has, [B, H, S], in C++."""

    @staticmethod
    def forward(ctx, given, shares, x, vectors, log_held):
        lands, in_sight, peak, total = (given.q.new_empty(given.lo[0].shape) for _ in range(4))
        given.run("scouts", lands=lands, in_sight=in_sight, peak=peak, total=total)
        ctx.save_for_backward(peak, total, *given[:7], *given.scores[:4])
        ctx.similarity = given.scores.similarity
        return lands, in_sight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_lands, d_in_sight):
        peak, total, *saved = ctx.saved_tensors
        given = Looking(*saved[:7], Scores(*saved[7:], ctx.similarity))
        d_shares, d_vectors = map(torch.empty_like, (given.shares, given.scores.vectors))
        d_x = torch.zeros_like(given.scores.x)
        d_held = None if given.log_held is None else torch.zeros_like(given.log_held)
        tensors = {"peak": peak, "total": total, "d_lands": d_lands, "d_in_sight": d_in_sight}
        tensors |= {"d_shares": d_shares, "d_x": d_x, "d_vectors": d_vectors}
        given.run("scouts_backward", **tensors, d_log_held=d_held)
        return None, d_shares, d_x, d_vectors, d_held


def routing_loss(gain: Gain) -> Tensor:
    """L above, over scouts that see a key; 0 where there are none."""
    return -gain.nats.masked_fill(~gain.of, 0.0).sum() / gain.of.sum().clamp(min=1)


class Weighed(torch.autograd.Function):
    """The same values and nats of a :class:`Gain`, but backward a scout's gain counts by how much
    the task's loss depends on what it attends to: by the norm of the gradient there, over the mean
    of the batch's scouts of its head. Attention to noise by noise then teaches nothing. Where a
    head gets no gradient, or not in the same backward pass, all its scouts count alike."""

    @staticmethod
    def forward(ctx, attended, nats, of, places):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(of, places)
        return attended.view_as(attended), nats.view_as(nats)

    @staticmethod
    def backward(ctx, of_attended, of_nats):
        if of_attended is None or of_nats is None:
            return of_attended, of_nats, None, None
        of, places = ctx.saved_tensors
        need = gather_tokens(of_attended.detach(), places).to(of_nats.dtype).norm(dim=-1)
        need = need.masked_fill(~of, 0.0)
        mean = need.sum((0, 2), keepdim=True) / of.sum((0, 2), keepdim=True).clamp(min=1)
        weight = torch.where(mean > 0, need / mean.clamp(min=1e-30), torch.ones_like(need))
        return of_attended, of_nats * weight, None, None
