"""Measures a dense model: what its layers read, where the attention of its heads goes, and which
kind suits each. What layers read is kept in half precision, for they are looked at many times;
queries and keys are computed from it again.

Shape letters: B batch, H heads, N tokens, D model width, E head width, W window.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_clusterformer.attention import Batch, Kind, Tokens
from fairseq_clusterformer.attention.heads import Convolved
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.options import Heads
from fairseq_clusterformer.attention.projections import QKV, rotated
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.stack import SelfAttention
from fairseq_clusterformer.outputs import replaced, working
from fairseq_clusterformer.precision import full_float32

from .model import Place, attentions

PARTS = 4  # most groups of heads in a layer
#: what a model is given
Inputs = dict[str, Tensor]


class Read(NamedTuple):
    """What a layer's attention read in a batch."""

    x: Tensor  # its input [B, N, D]
    batch: Batch  # which tokens are real
    q: Tensor  # queries and keys of all heads, float32 [B, H, N, E], without positions
    k: Tensor

    def attended(self, attention: SelfAttention) -> tuple[Tensor, Tensor]:
        """Queries and keys as they meet, with their positions if these are rotary."""
        if (rotary := attention.rotary) is None:
            return self.q, self.k
        positions = self.batch.positions(self.x)
        return tuple(rotated(t, positions, rotary) for t in (rotary.sharpened(self.q), self.k))


def read(model: nn.Module, inputs: Inputs | Path) -> Callable[[Place], Read]:
    """What each layer of a clustered model (its layers may be of the kind full) reads of a batch,
    computed when it is asked for: of one that the model is run on, or of :func:`store`'s file."""
    layers = attentions(model)
    found = None if isinstance(inputs, Path) else _run(model, inputs)

    @torch.no_grad()
    @full_float32()
    def of_layer(place: Place) -> Read:
        x, batch = _stored(inputs, place) if found is None else found[place]
        x, around = x.float().contiguous(), Convolved(batch)
        q, k = (layers[place].heads_of(name, x, around) for name in "qk")
        return Read(x, batch, *QKV(q, k, k).repeated()[:2])

    return of_layer


class _AllRead(Exception):
    """Ends a run of a model."""


@torch.no_grad()
def _run(model: nn.Module, inputs: Inputs) -> dict[Place, tuple[Tensor, Batch]]:
    layers, found = attentions(model), {}

    def hook(attention: SelfAttention, args: tuple) -> None:
        x, batch, *_ = args
        found[attention] = x.transpose(0, 1), batch if isinstance(batch, Batch) else Batch(batch)
        if len(found) == len(layers):  # what comes behind them is not asked for
            raise _AllRead

    with ExitStack() as hooks:
        hooks.enter_context(suppress(_AllRead))
        for attention in layers.values():
            hooks.enter_context(attention.register_forward_pre_hook(hook))
        model(**inputs)
    return {place: found[attention] for place, attention in layers.items()}


def _stored(file: Path, place: Place) -> tuple[Tensor, Batch]:
    side, number = place
    with safe_open(file, "pt") as tensors:
        padding = f"{side}.padding"
        mask = tensors.get_tensor(padding) if padding in tensors.keys() else None  # noqa: SIM118
        return tensors.get_tensor(f"{side}.{number}"), Batch(mask)


def store(model: nn.Module, batches: Sequence[Inputs], folder: Path) -> list[Path]:
    """Run a model over batches whose files are not there yet; return a file for each batch. Raises
    UserError: the disk has no room for them."""
    files = [folder / f"{number}.safetensors" for number in range(len(batches))]
    missing = [(i, f) for i, f in zip(batches, files, strict=True) if not f.is_file()]
    tokens = sum(next(iter(inputs.values())).numel() for inputs, _ in missing)
    needed = 2 * tokens * sum(a.embed_dim for a in attentions(model).values())
    if needed > (free := shutil.disk_usage(folder).free):
        problem = f"{tokens:,} tokens take {needed / 1e9:.1f} GB there"
        allowed = f"a disk with as much room (there are {free / 1e9:.1f} GB), or fewer --tokens"
        raise bad_option("OUT", folder.parents[1], allowed, problem)
    with progress(len(missing), "read") as bar:
        for inputs, file in missing:
            tensors = {}
            for (side, number), (x, batch) in _run(model, inputs).items():
                tensors[f"{side}.{number}"] = x.half().contiguous()
                if batch.padding_mask is not None:
                    tensors[f"{side}.padding"] = batch.padding_mask
            with replaced(file) as new:
                save_file(tensors, new)
            bar.update()
    return files


def progress(steps: int, name: str) -> tqdm:
    """A bar on a terminal, else a line every half minute."""
    how = {} if sys.stderr.isatty() else {"mininterval": 30.0, "delay": 30.0}
    return tqdm(total=steps, desc=name, unit="step", **how)


@contextmanager
def kept_beside(
    out: Path, model: nn.Module, batches: Sequence[Inputs], plan: object
) -> Iterator[Path]:
    """A folder ``OUT.partial/parts/KEY`` that a run which was stopped leaves to the next one with
    the same model, batches and plan. It goes when the work is done, as do those of others."""
    key = hashlib.sha256(repr(plan).encode())
    for tensors in (model.state_dict(), *batches):
        for name, tensor in tensors.items():
            key.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            key.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    parts = out.absolute().with_name(f"{out.name}.partial") / "parts"
    with working(parts.parent, "OUT"):
        folder = parts / key.hexdigest()[:16]
        for other in {*parts.glob("*")} - {folder}:
            shutil.rmtree(other)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            yield folder
        except UserError:
            shutil.rmtree(parts)
            raise
        shutil.rmtree(parts)


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
    causal; the first keys of a causal row, ``sinks``, count as near."""

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
    """Attention-mass recall: the share of a dense layer's attention that clustered heads see of
    what the dense layer reads, in queries with keys beyond the window. Float64 [H] by the dense
    heads, of which ``order`` says which stands at each place: the recall, and what chance would
    give, where far attention is spread evenly over the keys beyond."""
    theirs = attentions(clustered)[place]

    def of_heads(causal: bool, reading: Read, seen: Tensor, beyond: Tensor, weights):
        x = reading.x.transpose(0, 1)
        first = getattr(getattr(clustered, place[0]), "centroids", None)
        if first is not None:  # what the first layer is handed
            first = first.expand(x.size(1), -1, -1)
        size, indexes = theirs.num_heads // len(theirs.routers), {}
        for part, router in enumerate(theirs.routers):
            if router.rule.index:
                indexes[part] = _looked_into(router, reading)
        parts = []
        if len(indexes) < len(theirs.routers):
            found = tokens_seen(theirs, x, reading.batch, centroids=first)
            parts = [part.expand(-1, size, -1, -1) for part in found.values()]
        for head, of_head in enumerate(weights):
            part, within = divmod(order.index(head), size)
            if part in indexes:  # of what lies there, the best keys are seen
                looked, keys = (t[:, within] for t in indexes[part])
                far = looked.gather(-1, keys.unsqueeze(1).expand_as(of_head)) & beyond
                far = of_head.masked_fill(~far, 0.0)
                most = min(theirs.routers[part].rule.index, far.size(-1))
                best = torch.zeros_like(seen).scatter(-1, far.topk(most, -1).indices, True)
                visible = (best & (far > 0)) | (seen & ~beyond)
            else:
                visible = parts[part][:, within] & seen
            far = of_head.masked_fill(~beyond, 0.0).sum(-1)
            share = (visible & beyond).sum(-1) / beyond.sum(-1).clamp(min=1)
            near = (of_head * (visible & ~beyond)).sum(-1)
            yield (of_head * visible).sum(-1), near + far * share

    return _means(dense, batches, [place], window, sinks, of_heads)[place]


def _looked_into(router: Kind, reading: Read) -> tuple[Tensor, Tensor]:
    """Which clusters each query looks into, bool [B, H, N, K], and that of each key [B, H, N]."""
    tokens = Tokens(reading.x, (reading.q, reading.k), reading.batch)
    (found,) = router(tokens).assignment.rounds
    queries = torch.stack(found.queries, dim=-1)
    into = torch.zeros(*queries.shape[:-1], router.rule.clusters + 1, dtype=torch.bool)
    into = into.to(queries.device).scatter_(-1, queries, True)
    return into, found.for_each_head().keys


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
            reading, attention = readings(place), layers[place]
            causal = attention.routers[0].rule.causal
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
            heads = zip(*(t.unbind(1) for t in reading.attended(attention)), strict=True)
            logits = (q @ k.transpose(-1, -2) * attention.head_dim**-0.5 for q, k in heads)
            # the dense attention of each head, float32 [B, N, N]; 0 where a query sees nothing
            logits = (of_head.masked_fill(~seen, -torch.inf) for of_head in logits)
            weights = (of_head.softmax(-1).nan_to_num(0.0) for of_head in logits)
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


def kinds_for(far: Tensor, window_below: float) -> list[str]:
    """Kinds of a layer's heads for a spec: window or cluster, for each of up to ``PARTS`` shares;
    a head whose share of attention beyond the window, ``far`` [H], is less becomes a window. Where
    the numbers of heads have no common divisor that leaves few shares, some windows are promoted
    to clusters, which see the window and more."""
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
