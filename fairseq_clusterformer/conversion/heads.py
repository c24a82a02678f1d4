"""The heads of a dense model: where their attention goes, and which kind of attention suits each.

A layer's spec divides its heads equally among its kinds, in their order. So heads are counted by
kind, a spec is written that has room for them, and each is given a place in it.

Shape letters: B batch, H heads, N tokens, D model width, E head width, W window.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.spec import Heads
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.attention import SelfAttention

from .model import Place, attentions
from .reading import Inputs, Read, read

PARTS = 4  # most groups of heads in a layer


class Mass(NamedTuple):
    """Where the attention of a layer's heads goes, as means over the queries that have keys
    beyond the window; float64 [H]."""

    far: Tensor  # share of the attention beyond the window
    # share of the window and the W heaviest keys beyond it, of a row that is not causal the 2 W
    # heaviest: no clusters whose queries see as many keys can exceed it
    best: Tensor


@torch.no_grad()
def head_mass(
    model: nn.Module,
    batches: Sequence[Inputs | Path],
    window: int,
    heaviest: int,
    sinks: int = 0,
) -> dict[Place, Mass]:
    """Where the attention of a dense model goes, layer by layer; UserError if no text is so long
    that any key is beyond the window. ``heaviest`` is W, on either side of a query that is not
    causal; the first keys of a causal row, ``sinks``, count as near.
    """

    def of_heads(causal: bool, reading: Read, seen: Tensor, beyond: Tensor, weights):
        most = min(heaviest if causal else 2 * heaviest, reading.x.size(1))
        for of_head in weights:
            far = of_head.masked_fill(~beyond, 0.0)
            mass = far.sum(-1)
            yield mass, 1 - mass + far.topk(most, dim=-1).values.sum(-1)

    means = _means(model, batches, attentions(model), window, sinks, of_heads)
    return {place: Mass(far, best.clamp(max=1.0)) for place, (far, best) in means.items()}


@torch.no_grad()
def recall(
    dense: nn.Module,
    clustered: nn.Module,
    batches: Sequence[Inputs | Path],
    place: Place,
    order: list[int],
    window: int,
    sinks: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention-mass recall: the share of a dense layer's attention that clustered heads see, of
    the queries with keys beyond the window. Float64 [H] by the dense model's heads: the recall,
    and what chance would give, where far attention is spread evenly over the keys beyond.

    Args:
        clustered: the dense model except for its heads' order and kinds, in evaluation mode; it
            is given what the dense model's layers read.
        order: which head of the dense model stands at each place of the layer.
    """
    theirs = attentions(clustered)[place]

    def of_heads(causal: bool, reading: Read, seen: Tensor, beyond: Tensor, weights):
        x = reading.x.transpose(0, 1)
        first = getattr(getattr(clustered, place[0]), "centroids", None)
        if first is not None:  # what the first layer is handed
            first = first.expand(x.size(1), -1, -1)
        found = tokens_seen(theirs, x, reading.batch, centroids=first)
        size = theirs.num_heads // len(theirs.routers)
        parts = [part.expand(-1, size, -1, -1) for part in found.values()]
        for head, of_head in enumerate(weights):
            part, within = divmod(order.index(head), size)
            visible = parts[part][:, within] & seen
            far = of_head.masked_fill(~beyond, 0.0).sum(-1)
            share = (visible & beyond).sum(-1) / beyond.sum(-1).clamp(min=1)
            near = (of_head * (visible & ~beyond)).sum(-1)
            yield (of_head * visible).sum(-1), near + far * share

    return _means(dense, batches, [place], window, sinks, of_heads)[place]


def _means(
    model: nn.Module,
    batches: Sequence[Inputs | Path],
    places: Iterable[Place],
    window: int,
    sinks: int,
    of_heads: Callable,
) -> dict[Place, tuple[Tensor, Tensor]]:
    """Means of two numbers [B, N] of each head over the queries that see beyond the window."""
    layers, totals = attentions(model), {}
    for inputs in batches:
        readings = read(model, inputs)
        for place in places:
            reading, causal = readings(place), layers[place].routers[0].rule.causal
            number, length, _ = reading.x.shape
            token = torch.arange(length, device=reading.x.device)
            distance = token.unsqueeze(-1) - token  # of a key before its query, above 0
            # which keys a query of the dense model sees, bool [B, N, N]
            seen = (distance >= 0 if causal else distance.abs() >= 0).expand(number, -1, -1)
            if (mask := reading.batch.padding_mask) is not None:
                seen = seen & ~mask[:, None, :] & ~mask[:, :, None]
            beyond = seen & (distance.abs() > window - causal)
            beyond[..., : sinks * causal] = False
            counted = beyond.any(-1)
            weights = _weights_of_heads(layers[place], reading, seen)
            shares = of_heads(causal, reading, seen, beyond, weights)
            rows = [torch.stack(pair)[:, counted] for pair in shares]
            sums = torch.stack(rows).sum(-1).double()  # [H, 2]
            number = counted.sum().double().expand(len(rows), 1)
            totals[place] = totals.get(place, 0) + torch.cat([sums, number], dim=-1)
    for (side, _), total in totals.items():
        if not total[0, -1]:
            problem = f"no text that the {side} reads goes beyond it"
            raise bad_option("--near-window", window, "fewer tokens than texts have", problem)
    return {place: tuple((t[:, :2] / t[:, 2:]).unbind(-1)) for place, t in totals.items()}


def _weights_of_heads(attention: SelfAttention, reading: Read, seen: Tensor) -> Iterator[Tensor]:
    """Yield the dense attention of each head, float32 [B, N, N]; 0 where a query sees nothing."""
    q, k = reading.attended(attention)
    for head in range(q.size(1)):
        logits = q[:, head] @ k[:, head].transpose(-1, -2) * attention.head_dim**-0.5
        yield logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)


def kinds_for(far: Tensor, window_below: float) -> list[str]:
    """Kinds of a layer's heads for a spec: window or cluster, for each of up to ``PARTS`` shares;
    a head whose share of attention beyond the window, ``far`` [H], is less becomes a window. Where
    the numbers of heads have no common divisor that leaves few shares, some windows are promoted
    to clusters, which see the window and more.
    """
    heads, windows = len(far), int((far < window_below).sum())
    parts = [parts for parts in range(1, PARTS + 1) if heads % parts == 0]
    # the fewest promotions, in the fewest shares
    _, parts, first = min((windows % (heads // n), n, windows // (heads // n)) for n in parts)
    return ["window"] * first + ["cluster"] * (parts - first)


def order_of_heads(kinds: Sequence[Heads], mass: Mass, shared: int) -> list[int]:
    """Which head comes to each place of a layer's spec: windows take the heads that look nearest,
    full kinds those that lose most by W keys, all others what is left, by their far mass. Groups
    of ``shared`` heads, which have their keys and values in common, stay together."""
    size = len(mass.far) // len(kinds)
    groups = [list(range(first, first + shared)) for first in range(0, len(mass.far), shared)]
    groups.sort(key=lambda group: float(mass.best[group].mean()), reverse=True)
    others = len(groups) - sum(size for h in kinds if h.kind == "full") // shared
    groups[:others] = sorted(groups[:others], key=lambda group: float(mass.far[group].mean()))
    heads = [head for group in groups for head in group]
    if size % shared:  # a group would be parted: it stays, and serves two kinds
        return heads

    def reach(part: int) -> tuple[int, int]:
        kind, options, _ = kinds[part]
        return {"window": 0, "full": 2}.get(kind, 1), options.window if kind == "window" else 0

    order = [0] * len(heads)
    for i, part in enumerate(sorted(range(len(kinds)), key=reach)):
        order[part * size : (part + 1) * size] = heads[i * size : (i + 1) * size]
    return order
