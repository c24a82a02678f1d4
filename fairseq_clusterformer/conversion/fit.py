"""Fits routers of the kind taught to the attention of a dense model, which stays as it is.

Routing begins with the directions of queries and keys that decide about far keys, and with
centroids by K-Means. Then the routing loss teaches it, with many queries as scouts; an index keeps
its lists, and its queries learn. Each layer is fitted alone, to what the dense model's reads.

Shape letters: B batch, H heads, N tokens, n of all batches, D width, E head width, R width of
what routes, K clusters.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot
from tqdm import tqdm

from fairseq_clusterformer.attention import Tokens
from fairseq_clusterformer.attention.kinds.taught.kind import Taught
from fairseq_clusterformer.attention.kinds.taught.scouts import (
    Scouts,
    draw_scouts,
    routing_gain,
    routing_loss,
    scout_layouts,
)
from fairseq_clusterformer.attention.projections import rotated
from fairseq_clusterformer.attention.tokens import gather_tokens
from fairseq_clusterformer.clustering.kmeans import kmeans
from fairseq_clusterformer.models.stack import SelfAttention
from fairseq_clusterformer.outputs import replaced
from fairseq_clusterformer.precision import full_float32

from .measure import Inputs, Read, progress, read, recall
from .model import Place, Plan, attentions

RIDGE = 1e-4  # of the mean square of what routing projections are found from
TEACHERS = 2048  # queries of each text and head
OF_INDEX = 192  # the same of an index: other texts teach more than other queries
EVENLY = 0.75  # a power; at 0 its queries find most, but among more keys, and at 1 least
SPREAD = 0.5  # of the weights of a routing convolution
DISTANCES = 256  # over which rotary positions are averaged
TINY = 1e-30  # of a head that was pruned, all is 0


class Pupil(NamedTuple):
    """A router of the clustered model to fit."""

    place: Place
    router: Taught
    heads: list[int]  # of the dense model, which it routes
    attention: SelfAttention  # of the dense model

    def routed(self, reading: Read) -> Tensor:
        """What the routing projections read, [B, N, D]."""
        convolution = self.router.convolution
        return reading.x if convolution is None else convolution(reading.x, reading.batch)

    def tokens(self, reading: Read) -> Tokens:
        q, k = (t[:, self.heads] for t in (reading.q, reading.k))
        return Tokens(reading.x, (q, k), reading.batch, impl=self.attention.impl)


def pupils(dense: nn.Module, clustered: nn.Module, orders: dict[Place, list[int]]) -> list[Pupil]:
    """The routers of a clustered model that can be fitted."""
    layers, found = attentions(dense), []
    for place, attention in attentions(clustered).items():
        size = attention.num_heads // len(attention.routers)
        for i, router in enumerate(attention.routers):
            if isinstance(router, Taught):
                heads = orders[place][i * size : (i + 1) * size]
                found.append(Pupil(place, router, heads, layers[place]))
    return found


@torch.no_grad()
@full_float32()
def begin(
    dense: nn.Module, routers: Sequence[Pupil], batches: Sequence[Inputs | Path], seed: int
) -> None:
    """Where the routing loss starts from: projections and centroids."""
    of_batches = [read(dense, inputs) for inputs in batches]
    for pupil in routers:
        router, width = pupil.router, pupil.router.options.routing_width
        readings = [of_batch(pupil.place) for of_batch in of_batches]
        generator = torch.Generator().manual_seed(seed)
        if router.convolution is not None:
            # Channels that look back by different weights: what regression finds in them may be of
            # one token for queries, and of another for keys.
            router.convolution.identity_()
            taps = router.convolution.weight
            taps += SPREAD * torch.randn(taps.shape, generator=generator)
        x = _real(readings, [pupil.routed(r) for r in readings])
        turn = _far_rotation(pupil, max(r.x.size(1) for r in readings))
        projections: list[Tensor] = []
        for at in range(len(router.centroids)):
            heads = pupil.heads[at * router.sharing : (at + 1) * router.sharing]
            q = torch.stack([_real(readings, [r.q[:, head] for r in readings]) for head in heads])
            k = _real(readings, [r.k[:, heads[0]] for r in readings])
            if not router.rule.index:  # whose lists also hold what all queries attend to
                q -= q.mean(1, keepdim=True)
            found = _regressed(x, _directions(q, k @ turn.to(k), width))
            noise = torch.randn(found.shape, generator=generator, dtype=found.dtype)
            projections.append(found + 1e-3 * x.size(1) ** -0.5 * noise)
            keys = normalize(x @ projections[-1][-1].t(), dim=-1).float()
            if len(keys) >= router.rule.clusters:
                router.centroids[at] = kmeans(keys, router.rule.clusters, seed=seed)
        both = torch.stack(projections)  # [J, h + 1, R, D]
        router.query_proj.weight.copy_(both[:, :-1].flatten(0, 2))
        router.key_proj.weight.copy_(both[:, -1].flatten(0, 1))


def _real(readings: Sequence[Read], of_each: Sequence[Tensor]) -> Tensor:
    """Vectors [B, N, ...] of the real tokens of all readings, float64 [n, ...]."""
    found = []
    for reading, t in zip(readings, of_each, strict=True):
        mask = reading.batch.padding_mask
        found.append(t.flatten(0, 1) if mask is None else t[~mask])
    return torch.cat(found).double()


def _regressed(x: Tensor, vectors: Tensor) -> Tensor:
    """Weights [..., R, D] by which x [n, D] gives vectors [..., n, R]; scaled as new ones are."""
    square = x.t() @ x
    ridge = RIDGE * square.diagonal().mean().clamp(min=TINY)
    factor = torch.linalg.cholesky(square + ridge * torch.eye(len(square), dtype=x.dtype))
    weight = torch.cholesky_solve(x.t() @ vectors, factor).mT
    return weight * x.size(1) ** -0.5 / weight.std((-2, -1), keepdim=True).clamp(min=TINY)


def _far_rotation(pupil: Pupil, length: int) -> Tensor:
    """What rotary positions do to far keys, a mean over distances [E, E]; or the identity."""
    width, rotary = pupil.attention.head_dim, pupil.attention.rotary
    identity = torch.eye(width)
    if rotary is None:
        return identity
    first = min(pupil.router.rule.gap, length - 1)
    distances = torch.linspace(first, length - 1, DISTANCES).round().long()
    if not pupil.router.rule.causal:
        distances = torch.cat([distances, -distances])
    positions = -distances.unsqueeze(-1).expand(-1, width)
    turned = rotated(identity.expand(len(distances), 1, -1, -1), positions, rotary)
    return turned[:, 0].mean(0)


def _directions(q: Tensor, k: Tensor, width: int) -> Tensor:
    """Vectors [h + 1, n, R] of queries of h heads [h, n, E] and then of their keys [n, E], whose
    products are nearest to theirs, less the keys' mean, which changes no softmax. 0 beyond E."""

    def roots(x: Tensor) -> tuple[Tensor, ...]:
        """The root of a covariance, and its pseudo-inverse."""
        values, vectors = torch.linalg.eigh(x.t() @ x / len(x))
        values = values.clamp(min=values.max() * 1e-8 + TINY)
        return tuple(vectors * root @ vectors.t() for root in (values.sqrt(), values.rsqrt()))

    k = k - k.mean(0)
    (root_q, inverse_q), (root_k, inverse_k) = roots(q.flatten(0, 1)), roots(k)
    left, size, right = torch.linalg.svd(root_q @ root_k)
    number = min(width, len(size))
    scale = size[:number].sqrt()
    of_q = q @ inverse_q @ (left[:, :number] * scale)
    of_k = k @ inverse_k @ (right.t()[:, :number] * scale)
    return nn.functional.pad(torch.cat([of_q, of_k.unsqueeze(0)]), (0, width - number))


@torch.no_grad()
def calibrate(
    dense: nn.Module, routers: Sequence[Pupil], batches: Sequence[Inputs | Path]
) -> None:
    """Let the routers' normalisers be averages over these batches."""
    for inputs in batches:
        readings = read(dense, inputs)
        for pupil in routers:
            assignment = pupil.router(pupil.tokens(readings(pupil.place))).assignment
            pupil.router.learner.observe(assignment.report.observation)
    for pupil in routers:
        pupil.router.normalizer.updates.zero_()  # the first observation is taken as it is
        pupil.router.commit()


def fit(
    dense: nn.Module,
    routers: Sequence[Pupil],
    batches: Sequence[Inputs | Path],
    *,
    updates: int,
    lr: float,
    bar: tqdm | None = None,
) -> list[float]:
    """Lower the routing loss of all routers by Adam, a batch each update; its step falls linearly
    to 0. All queries of short texts are scouts, and ``TEACHERS`` of longer ones. Returns the mean
    loss of the routers after each update, in nats. Of an index, queries alone learn."""
    if routers[0].router.rule.index:
        found = [_fit_queries(dense, pupil, batches, updates, lr) for pupil in routers]
        if bar is not None:
            bar.update(updates)
        return torch.tensor(found).mean(0).tolist()
    parameters = [p for pupil in routers for p in pupil.router.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.98))
    losses = []
    for update, inputs in enumerate(islice(cycle(batches), updates)):
        readings = read(dense, inputs)
        optimizer.param_groups[0]["lr"] = lr * (1 - update / updates)
        optimizer.zero_grad()
        total = 0.0
        for pupil in routers:
            loss = _loss(pupil, readings(pupil.place))
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total / len(routers))
        if bar is not None:
            bar.update()
    return losses


def _loss(pupil: Pupil, reading: Read) -> Tensor:
    router, rule, x = pupil.router, pupil.router.rule, pupil.routed(reading)
    of_queries, of_keys = router.routing(x, None)
    drawn = draw_scouts(TEACHERS, len(pupil.heads), x, reading.batch.padding_mask)
    of_scouts = gather_tokens(of_queries, drawn[1])
    shares, keys = router.shares(of_scouts, of_keys, reading.batch.padding_mask)
    scouts = Scouts(*drawn, shares, keys)
    batch = pupil.tokens(reading).behind(rule.sinks).batch  # finding sinks is no gain
    layouts = scout_layouts(scouts.queries, causal=rule.causal, gap=rule.gap, batch=batch)
    q, k = (t[:, pupil.heads] for t in reading.attended(pupil.attention))
    return routing_loss(routing_gain(q, k, layouts, scouts, impl=pupil.attention.impl))


@full_float32()
def _fit_queries(
    dense: nn.Module, pupil: Pupil, batches: Sequence[Inputs | Path], updates: int, lr: float
) -> list[float]:
    """Teach queries of an index where their attention is, by cross-entropy, all batches an update.
    A map of each head's queries is found, which overfits less than one of the layer's input."""
    router, losses = pupil.router, []
    found = zip(*(_wanted(pupil, read(dense, each)(pupil.place)) for each in batches), strict=True)
    wanted, q, x = (torch.cat(each, dim=-2) for each in found)
    white = torch.linalg.qr(q).Q * q.size(1) ** 0.5
    begun = x @ router.query_proj.weight.detach().unflatten(0, (len(q), -1)).mT
    turn = (white.mT @ normalize(begun, dim=-1) / q.size(1)).requires_grad_()  # [H, E, R]
    sharp = torch.full((len(q), 1, 1), router.temperature).log_().neg_().requires_grad_()
    vectors = router.similarity.vectors(router.centroids.detach())
    vectors = vectors.repeat_interleave(router.sharing, dim=0).mT
    optimizer = torch.optim.Adam([turn, sharp], lr=lr, betas=(0.9, 0.98))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = lr * (1 - update / updates)
        scores = router.similarity.vectors(white @ turn) @ vectors * sharp.exp()
        loss = -(wanted * scores.log_softmax(-1)).sum() / wanted.sum().clamp(min=TINY)
        turn.grad, sharp.grad = torch.autograd.grad(loss, (turn, sharp))
        optimizer.step()
        losses.append(loss.item())
    weight = _regressed(x[0].double(), (white @ turn.detach()).double())
    router.query_proj.weight.data.copy_(weight.flatten(0, 1))
    return losses


@torch.no_grad()
def _wanted(pupil: Pupil, reading: Read) -> Iterator[Tensor]:
    """Of queries of a batch, how much they want each list [H, n, K]: its share of their far
    attention over a power of how many far keys it holds, of sum 1, or 0 without such keys. Then
    they themselves, without positions [H, n, E], and what their projections read [H, n, D]."""
    rule, x, tokens = pupil.router.rule, pupil.routed(reading), pupil.tokens(reading)
    drawn, places = draw_scouts(OF_INDEX, 1, x, tokens.padding_mask)
    away = places.unsqueeze(-1) - torch.arange(x.size(1))  # [B, 1, S, N]
    far = (away if rule.causal else away.abs()) >= rule.gap
    far &= drawn.gather(-1, places).unsqueeze(-1)
    if (hidden := tokens.behind(rule.sinks).padding_mask) is not None:
        far &= ~hidden[:, None, None]
    places = places.expand(-1, len(pupil.heads), -1)
    q, k = (t[:, pupil.heads] for t in reading.attended(pupil.attention))
    logits = gather_tokens(q, places) @ k.mT * pupil.attention.head_dim**-0.5
    shares = logits.masked_fill(~far, -torch.inf).softmax(-1).nan_to_num(0.0)
    (found,) = pupil.router(tokens).assignment.rounds
    lists = one_hot(found.for_each_head().keys, rule.clusters + 1)[..., :-1].to(shares)
    wanted = shares @ lists / (far.to(shares) @ lists).clamp(min=1) ** EVENLY
    wanted /= wanted.sum(-1, keepdim=True).clamp(min=TINY)
    q, x = gather_tokens(tokens.q, places), gather_tokens(x.unsqueeze(1), places[:, :1])
    return (t.transpose(0, 1).flatten(1, 2) for t in (wanted, q, x))


def fit_layers(
    dense: nn.Module,
    clustered: nn.Module,
    orders: dict[Place, list[int]],
    measured: Sequence[Path],
    fitted: Sequence[Path],
    first: int,
    sinks: int,
    plan: Plan,
) -> tuple[dict[Place, dict], list[float]]:
    """Fit all routers to batches of :func:`~.measure.store`, the `first` of which say where they
    begin; layers that an earlier run has fitted are taken from the files that it has left beside
    those. ``orders`` and ``sinks`` as of :mod:`.measure`. Returns of each layer its recall and
    chance [H] before and after, the losses, and what its routers have learned; and the mean loss
    of all routers after each update, in nats."""
    everyone = pupils(dense, clustered, orders)
    routers = {place: [pupil for pupil in everyone if pupil.place == place] for place in orders}
    files = {(side, n): measured[0].with_name(f"{side}-{n}.pt") for side, n in routers}
    left = sum(bool(routers[place]) for place, file in files.items() if not file.is_file())
    found: dict[Place, dict] = {}
    with progress(left * (1 + plan.updates), "fit") as bar:
        for place, file in files.items():
            some, how = routers[place], (place, orders[place], plan.near, sinks)
            if file.is_file():
                found[place] = torch.load(file, weights_only=True)
                for pupil, state in zip(some, found[place]["routers"], strict=True):
                    pupil.router.load_state_dict(state)
                continue
            with torch.random.fork_rng(devices=[]):  # numbers are drawn for the layer alone
                number = hashlib.sha256(repr((plan.seed, place)).encode()).hexdigest()[:8]
                torch.manual_seed(int(number, 16))
                if some:
                    begin(dense, some, fitted[:first], seed=plan.seed)
                    calibrate(dense, some, fitted[:first])
                    bar.update()
                before = after = recall(dense, clustered, measured[:1], *how)
                losses: list[float] = []
                if some and plan.updates:
                    losses = fit(dense, some, fitted, updates=plan.updates, lr=plan.lr, bar=bar)
                    calibrate(dense, some, fitted[:first])
                    after = recall(dense, clustered, measured[:1], *how)
            states = [pupil.router.state_dict() for pupil in some]
            found[place] = {"before": before, "after": after, "losses": losses, "routers": states}
            with replaced(file) as new:
                torch.save(found[place], new)
    losses = [found[place]["losses"] for place, some in routers.items() for _ in some]
    return found, [sum(of_update) / len(losses) for of_update in zip(*losses, strict=True)]
