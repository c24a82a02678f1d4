"""The heads of a dense model: where their attention goes, and which kind of attention suits each.

A layer's spec divides its heads equally among its kinds, in their order. So heads are counted by
kind, a spec is written that has room for them, and each is given a place in it.

Shape letters: B batch, H heads, N tokens, D model width, E head width, W window.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.projections import rotated
from fairseq_clusterformer.attention.spec import Heads
from fairseq_clusterformer.conversion.model import attentions
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.attention import SelfAttention
from fairseq_clusterformer.precision import full_float32

#: side and number of a layer
Place = tuple[str, int]


class Read(NamedTuple):
    """What a layer's attention read in a batch.

    Attributes:
        x: its input [B, N, D].
        batch: which tokens are real.
        q, k: queries and keys of all heads, float32 [B, H, N, E], without positions.
    """

    x: Tensor
    batch: Batch
    q: Tensor
    k: Tensor

    def attended(self, attention: SelfAttention) -> tuple[Tensor, Tensor]:
        """Queries and keys as they meet, with their positions if these are rotary."""
        if not attention.rotary:
            return self.q, self.k
        positions = self.batch.positions(self.x)
        return rotated(self.q, positions), rotated(self.k, positions)


@torch.no_grad()
def read(model: nn.Module, inputs: dict[str, Tensor]) -> dict[Place, Read]:
    """Run a clustered model (its layers may be of the kind full); what each layer read."""
    found: dict[Place, Read] = {}
    with _listening(model, found):
        model(**inputs)
    return found


@contextmanager
def _listening(model: nn.Module, found: dict[Place, Read]) -> Iterator[None]:
    def keep(place: Place) -> Callable:
        def hook(attention: SelfAttention, args: tuple) -> None:
            x, batch, *_ = args
            found[place] = _read(attention, x.transpose(0, 1), Batch.of(batch))

        return hook

    hooks = [
        attention.register_forward_pre_hook(keep((side, number)))
        for side, number, attention in attentions(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@full_float32()
def _read(attention: SelfAttention, x: Tensor, batch: Batch) -> Read:
    x = x.float().contiguous()
    heads = []
    for name in ("q", "k"):
        y = getattr(attention, f"{name}_proj")(x)
        if name in attention.convolutions:
            y = attention.convolutions[name](y, batch)
        y = y.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        heads.append(y.repeat_interleave(attention.num_heads // y.size(1), dim=1))
    return Read(x, batch, *heads)


def in_sight(read: Read, causal: bool) -> tuple[Tensor, Tensor]:
    """Which keys a query of the dense model sees, bool [B, 1, N, N], and how many tokens lie
    between them, int64 [N, N]."""
    batch, length, _ = read.x.shape
    place = torch.arange(length, device=read.x.device)
    distance = place.unsqueeze(-1) - place
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    seen = seen.expand(batch, 1, -1, -1)
    if read.batch.padding_mask is not None:
        real = ~read.batch.padding_mask
        seen = seen & real[:, None, None, :] & real[:, None, :, None]
    return seen, distance.abs()


class Mass(NamedTuple):
    """Where the attention of a layer's heads goes, as means over the queries that have keys
    beyond the window; float64 [H].

    Attributes:
        far: share of the attention beyond the window.
        best: share that the window and the W heaviest keys beyond it have, of a row that is not
            causal the 2 W heaviest; no clusters whose queries see as many keys can exceed it.
    """

    far: Tensor
    best: Tensor


@torch.no_grad()
def head_mass(
    model: nn.Module, batches: Sequence[dict[str, Tensor]], window: int, heaviest: int
) -> dict[Place, Mass]:
    """Where the attention of a dense model goes, layer by layer.

    Args:
        window: keys within it are near.
        heaviest: W, on either side of a query that is not causal.

    Raises:
        UserError: no text is so long that any key is beyond the window.
    """

    def sums(place: Place, attention: SelfAttention, read: Read) -> Tensor:
        causal = attention.routers[0].causal
        seen, distance = in_sight(read, causal)
        beyond = seen & (distance >= window if causal else distance > window)
        counted = beyond.any(-1)
        most = heaviest if causal else 2 * heaviest
        rows = []
        for weights in weights_of_heads(attention, read, seen):
            far = weights.masked_fill(~beyond[:, 0], 0.0)
            best = far.topk(min(most, far.size(-1)), dim=-1).values.sum(-1)
            mass = far.sum(-1)
            rows.append(torch.stack([mass, 1 - mass + best])[:, counted[:, 0]].sum(-1))
        number = counted.sum().double()
        return torch.cat([torch.stack(rows).double(), number.expand(len(rows), 1)], dim=-1)

    totals = _totals(model, batches, sums)
    for (side, _), total in totals.items():
        if not total[0, -1]:
            problem = f"no text that the {side} reads goes beyond it"
            raise bad_option("--near-window", window, "fewer tokens than texts have", problem)
    return {
        place: Mass(far / number, (best / number).clamp(max=1.0))
        for place, (far, best, number) in ((p, t.unbind(-1)) for p, t in totals.items())
    }


def weights_of_heads(attention: SelfAttention, read: Read, seen: Tensor) -> Iterator[Tensor]:
    """Yield the dense attention of each head, float32 [B, N, N]; 0 where a query sees nothing."""
    q, k = read.attended(attention)
    for of_head in range(q.size(1)):
        logits = q[:, of_head] @ k[:, of_head].transpose(-1, -2) * attention.head_dim**-0.5
        weights = logits.masked_fill(~seen[:, 0], -torch.inf).softmax(-1)
        yield weights.nan_to_num(0.0)


@torch.no_grad()
def recall(
    dense: nn.Module,
    clustered: nn.Module,
    batches: Sequence[dict[str, Tensor]],
    orders: dict[Place, list[int]],
    window: int,
) -> dict[Place, tuple[Tensor, Tensor]]:
    """Attention-mass recall: the share of the dense model's attention that clustered heads see.

    Args:
        clustered: the dense model except for its heads' order and kinds; in evaluation mode. It
            is given what the dense model's layers read.
        orders: which head of the dense model stands at each place.
        window: queries with keys beyond it are counted.

    Returns:
        For each layer the recall of each head, and what chance would give: the share seen of the
        keys beyond the window takes the place of the share of their attention; float64 [H], heads
        counted as in the dense model.
    """
    layers = {(side, number): attention for side, number, attention in attentions(clustered)}

    def sums(place: Place, attention: SelfAttention, read: Read) -> Tensor:
        theirs = layers[place]
        causal = attention.routers[0].causal
        may, distance = in_sight(read, causal)
        beyond = (may & (distance >= window if causal else distance > window))[:, 0]
        counted = beyond.any(-1)
        x = read.x.transpose(0, 1)
        first = getattr(getattr(clustered, place[0]), "centroids", None)
        if first is not None:  # what the first layer is handed
            first = first.expand(x.size(1), -1, -1)
        found = tokens_seen(theirs, x, read.batch, centroids=first).values()
        size = theirs.num_heads // len(theirs.routers)
        seen = [part.expand(-1, size, -1, -1) for part in found]
        place_of = {head: at for at, head in enumerate(orders[place])}
        rows = []
        for head, weights in enumerate(weights_of_heads(attention, read, may)):
            part, within = divmod(place_of[head], size)
            visible = seen[part][:, within] & may[:, 0]
            far = weights.masked_fill(~beyond, 0.0).sum(-1)
            share = (visible & beyond).sum(-1) / beyond.sum(-1).clamp(min=1)
            near = (weights * (visible & ~beyond)).sum(-1)
            both = torch.stack([(weights * visible).sum(-1), near + far * share])
            rows.append(both[:, counted].sum(-1))
        number = counted.sum().double()
        return torch.cat([torch.stack(rows).double(), number.expand(len(rows), 1)], dim=-1)

    totals = _totals(dense, batches, sums)
    return {
        place: (seen / number, chance / number)
        for place, (seen, chance, number) in ((p, t.unbind(-1)) for p, t in totals.items())
    }


def _totals(
    model: nn.Module,
    batches: Sequence[dict[str, Tensor]],
    sums: Callable[[Place, SelfAttention, Read], Tensor],
) -> dict[Place, Tensor]:
    """For each layer, the total of what ``sums`` returns over the batches."""
    layers = {(side, number): attention for side, number, attention in attentions(model)}
    totals: dict[Place, Tensor] = {}
    for inputs in batches:
        for place, found in read(model, inputs).items():
            totals[place] = totals.get(place, 0) + sums(place, layers[place], found)
    return totals


class Wanted(NamedTuple):
    """What makes a head a window, or keeps it full.

    Attributes:
        window_below: far mass below which a head becomes a window.
        full_below: a head stays full if even its W heaviest far keys leave it less of the
            attention than this.
        parts: into how many groups a layer's heads may be divided.
    """

    window_below: float = 0.05
    full_below: float = 0.0
    parts: int = 4


def kinds_for(mass: Mass, wanted: Wanted) -> list[str]:
    """Kinds of a layer's heads for a spec: window, cluster or full, for each equal share.

    Where the numbers of heads have no common divisor that leaves few groups, some are promoted:
    a window to clusters, which see the window and more, or clusters to full.
    """
    heads = len(mass.far)
    full = (mass.best < wanted.full_below) & (mass.far >= wanted.window_below)
    windows = int((mass.far < wanted.window_below).sum())
    unclustered = heads - int(full.sum())
    choices = []
    for parts in (p for p in range(1, min(wanted.parts, heads) + 1) if heads % p == 0):
        size = heads // parts
        first, last = windows // size, unclustered // size  # parts that end before a promotion
        promoted = (windows - first * size) + (unclustered - last * size)
        choices.append((promoted, parts, first, last))
    _, parts, first, last = min(choices)
    return ["window"] * first + ["cluster"] * (last - first) + ["full"] * (parts - last)


def order_of_heads(kinds: Sequence[Heads], mass: Mass, shared: int) -> list[int]:
    """Which head comes to each place of a layer's spec: windows take the heads that look nearest,
    full kinds those that lose most by W keys, all others what is left, by their far mass.

    Args:
        kinds: of the layer.
        shared: heads that have their keys and values in common, and stay together.
    """
    heads = len(mass.far)
    size = heads // len(kinds)
    reach = [
        (0, h.options.window) if h.kind == "window" else (2 if h.kind == "full" else 1, 0)
        for h in kinds
    ]
    places = [
        place
        for part in sorted(range(len(kinds)), key=lambda part: reach[part])
        for place in range(part * size, (part + 1) * size)
    ]
    number_full = sum(size for h in kinds if h.kind == "full") // shared
    groups = [list(range(first, first + shared)) for first in range(0, heads, shared)]
    groups.sort(key=lambda group: float(mass.best[group].mean()), reverse=True)
    others, full = groups[: len(groups) - number_full], groups[len(groups) - number_full :]
    others.sort(key=lambda group: float(mass.far[group].mean()))
    sorted_heads = [head for group in (*others, *full) for head in group]
    if size % shared:  # a group would be parted: it stays, and serves two kinds
        return sorted_heads
    order = [0] * heads
    for place, head in zip(places, sorted_heads, strict=True):
        order[place] = head
    return order
