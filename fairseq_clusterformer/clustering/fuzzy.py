"""Fuzzy clustering (CF22) of a sequence, chunk by chunk: scores [B, N, K] never exist whole."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from ..precision import at_least_float32, full_float32

SIMILARITIES = ("dot", "scaled-dot", "cosine")
# Scores of one chunk, in numbers: what a CPU's second-level cache holds; a GPU wants more.
CHUNK_NUMBERS_CPU, CHUNK_NUMBERS_GPU = 1 << 17, 1 << 24
# Scores this close, relative to their magnitude, are a tie: what decides between them is rounding,
# which differs from device to device and from one batch to the next.
TIE = 1e-5
NORM_EPS = 1e-12  # as in torch.nn.functional.normalize


class Similarity(NamedTuple):
    """phi, as inner products of scaled vectors: "dot", "scaled-dot" (by sqrt(D)) or "cosine"."""

    kind: str

    def scale(self, x: Tensor) -> Tensor | float:
        """What each vector [..., D] is multiplied by, [..., 1] or one number."""
        if self.kind == "cosine":
            return x.norm(dim=-1, keepdim=True).clamp(min=NORM_EPS).reciprocal()
        return x.size(-1) ** -0.25 if self.kind == "scaled-dot" else 1.0

    def vectors(self, x: Tensor) -> Tensor:
        """Vectors whose inner products are phi; differentiable."""
        return x * self.scale(x)

    def backward(self, d_vectors: Tensor, vectors: Tensor, scale: Tensor | float) -> Tensor:
        """The gradient of x from that of ``vectors(x)``, which is overwritten."""
        if self.kind == "cosine":
            along = (d_vectors * vectors).sum(-1, keepdim=True)
            d_vectors.addcmul_(vectors, along, value=-1)
        return d_vectors.mul_(scale)


class FuzzyClusters(NamedTuple):
    """What :func:`fuzzy_clusters` finds."""

    clusters: Tensor  # of each token, int64 [B, N] (0 at padding)
    #: log of eq. 2's denominator over the row [B, K] (-inf for a row of padding alone)
    log_mass: Tensor | None
    #: centroids Chat [B, K, D] (0 for such a row), differentiable in ``keys`` and ``centroids``
    updated: Tensor | None
    #: log of the running denominator after the last token, float64 [B, 1, K]; last: torch.compile
    #: counts what has no gradient without None
    so_far: Tensor | None


def fuzzy_clusters(
    keys: Tensor,
    centroids: Tensor,
    *,
    similarity: Similarity,
    temperature: float,
    normalizer: str | Tensor,
    padding_mask: Tensor | None = None,
    so_far: Tensor | None = None,
    update: bool = True,
) -> FuzzyClusters:
    """Assignments and updated centroids (eq. 2 to 4) of keys X W_c [B, N, D], finite at padding,
    and centroids [K, D] or [B, K, D]; phi is divided by the temperature inside the exponent of
    eq. 2. To call within full_float32().

    Args:
        normalizer: denominator of eq. 2 in assignments: "sentence" (all of the row), "running"
            (the tokens so far), or the log of one for each cluster [K].
        so_far: what was returned for the tokens before; None: the first is the row's first.
        update: False: clusters alone, with nothing to differentiate.
    """
    vectors = similarity.vectors(centroids)
    if isinstance(normalizer, Tensor):
        normalizer = normalizer.to(keys.dtype)
    args = keys, vectors, padding_mask, similarity, temperature, normalizer, so_far
    return FuzzyClusters(*_FuzzyClusters.apply(*args)) if update else _assigned(False, *args)


@torch.no_grad()
def _assigned(update: bool, *args: Any) -> FuzzyClusters:
    keys, vectors, padding_mask, similarity, temperature, normalizer, so_far = args
    (batch, length, width), num_clusters = keys.shape, vectors.size(-2)
    average = isinstance(normalizer, Tensor)
    sentence = not average and normalizer == "sentence"
    log_mass = updated = None
    if update or sentence:
        peak = keys.new_full((batch, num_clusters), -math.inf)
        total = keys.new_zeros(batch, num_clusters)
        updated = keys.new_zeros(batch, num_clusters, width if update else 0)
    clusters = torch.zeros(batch, length, dtype=torch.long, device=keys.device)
    parts = chunks(keys, num_clusters)

    def scores_of(part: slice) -> Tensor:
        unit = keys[:, part] * similarity.scale(keys[:, part])
        return _scores(unit, vectors, temperature, padding_mask, part)

    for part in parts:
        scores, offsets = scores_of(part), normalizer
        if not sentence:
            if not average:  # in float64, or step by step it drifts until rounding decides ties
                # One sum, as if it had never been interrupted: the same to the last bit.
                parts_so_far = [t for t in (so_far, scores.double()) if t is not None]
                offsets = torch.cat(parts_so_far, dim=1).logcumsumexp(1)[:, -scores.size(1) :]
                so_far = offsets[:, -1:]
            clusters[:, part] = lowest_argmax(scores - offsets, offsets)
        if not (update or sentence):
            continue
        # Online softmax over tokens: rescale what was summed by exp(old maximum - new).
        higher = torch.maximum(peak, scores.amax(1))
        shift = higher.clamp(min=torch.finfo(keys.dtype).min)  # finite where nothing was seen
        decay = (peak - shift).exp_()
        weights = (scores - shift.unsqueeze(1)).exp_()
        total.mul_(decay).add_(weights.sum(1))
        if update:
            updated.mul_(decay.unsqueeze(-1)).baddbmm_(weights.transpose(1, 2), keys[:, part])
        peak = higher
    if update or sentence:
        log_mass = peak + total.log()
        updated.div_(total.clamp(min=torch.finfo(keys.dtype).tiny).unsqueeze(-1))
    for part in parts if sentence else ():
        scores = scores if len(parts) == 1 else scores_of(part)
        mass = log_mass.unsqueeze(1)
        clusters[:, part] = lowest_argmax(scores - mass, mass)
    if padding_mask is not None:
        clusters.masked_fill_(padding_mask, 0)
    return FuzzyClusters(clusters, log_mass, updated if update else None, so_far)


class _FuzzyClusters(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        found = _assigned(True, *args)
        ctx.save_for_backward(*args[:3], found.log_mass, found.updated)
        ctx.similarity, ctx.temperature = args[3:5]
        some = found.clusters, found.log_mass, found.so_far
        ctx.mark_non_differentiable(*(x for x in some if x is not None))
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_float32()
    def backward(ctx, *gradients):
        keys, vectors, padding_mask, log_mass, updated = ctx.saved_tensors
        d_keys, d_updated = torch.empty_like(keys), gradients[2]
        d_vectors = torch.zeros_like(updated)
        # Softmax backward: dS = U * (dU - delta), delta = sum over tokens of U * dU.
        delta = (updated * d_updated).sum(-1).unsqueeze(1)
        shift = log_mass.masked_fill(torch.isinf(log_mass), 0.0).unsqueeze(1)
        for part in chunks(keys, vectors.size(-2)):
            chunk = keys[:, part]
            scale = ctx.similarity.scale(chunk)
            unit = chunk * scale
            weights = _scores(unit, vectors, ctx.temperature, padding_mask, part)
            weights.sub_(shift).exp_()
            d_scores = torch.bmm(chunk, d_updated.transpose(1, 2)).sub_(delta)
            d_scores.mul_(weights).div_(ctx.temperature)
            d_vectors.baddbmm_(d_scores.transpose(1, 2), unit)
            d_unit = torch.matmul(d_scores, vectors)
            d_chunk = ctx.similarity.backward(d_unit, unit, scale)
            d_keys[:, part] = d_chunk.baddbmm_(weights, d_updated)
        return d_keys, d_vectors.sum_to_size(vectors.shape), None, None, None, None, None


class ClusterSums(torch.autograd.Function):
    """Sum of the vectors of each cluster's tokens [B, K, D], differentiable in x: it turns eq. 6
    into K inner products. Of x [B, N, D], clusters int64 [B, N] in [0, K), K, a similarity, and
    each token's weight [B, N], 0 at padding, in whose precision sums are."""

    @staticmethod
    def forward(ctx, x, clusters, num_clusters, similarity, weight):
        batch, _, width = x.shape
        # Number the clusters of all rows through, so that one index_add_ sums them.
        row = torch.arange(batch, device=x.device).unsqueeze(-1) * num_clusters
        index = clusters + row
        sums = weight.new_zeros(batch * num_clusters, width)
        for part in chunks(x, width):
            chunk = x[:, part].to(weight.dtype)
            scale = similarity.scale(chunk) * weight[:, part].unsqueeze(-1)
            sums.index_add_(0, index[:, part].flatten(), (chunk * scale).flatten(0, 1))
        ctx.save_for_backward(x, index, weight)
        ctx.similarity = similarity
        return sums.view(batch, num_clusters, width)

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_float32()
    def backward(ctx, d_sums):
        x, index, weight = ctx.saved_tensors
        d_sums = d_sums.flatten(0, 1)
        d_x = torch.empty_like(x)
        for part in chunks(x, x.size(-1)):
            chunk = x[:, part].to(weight.dtype)
            scale = ctx.similarity.scale(chunk)
            d_vectors = d_sums.index_select(0, index[:, part].flatten()).view_as(chunk)
            d_vectors.mul_(weight[:, part].unsqueeze(-1))
            d_x[:, part] = ctx.similarity.backward(d_vectors, chunk * scale, scale)
        return d_x, None, None, None, None


def chunks(x: Tensor, numbers: int) -> list[slice]:
    """Slices of tokens of x [..., N, D], of so many that ``numbers`` for each of them fit."""
    limit = CHUNK_NUMBERS_CPU if x.device.type == "cpu" else CHUNK_NUMBERS_GPU
    step = max(16, limit // max(1, x.shape[:-2].numel() * numbers))
    return [slice(begin, begin + step) for begin in range(0, x.size(-2), step)]


def _scores(
    unit: Tensor, vectors: Tensor, temperature: float, padding_mask: Tensor | None, part: slice
) -> Tensor:
    """The exponents s of eq. 2 of a chunk [B, n, K], by scaled vectors; -inf at padding."""
    # Not a matmul of [B, N, D] and [D, K]: its rounding depends on whether gradients are
    # recorded, and an activation checkpoint would assign another cluster the second time.
    by_row = vectors.dim() == 3
    scores = torch.bmm(unit, vectors.mT) if by_row else linear(unit, vectors)
    scores.div_(temperature)
    if padding_mask is not None:
        scores.masked_fill_(padding_mask[:, part].unsqueeze(-1), -math.inf)
    return scores


def lowest_argmax(scores: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Index of the largest of K scores; the lowest where several tie: :func:`largest_few`."""
    return largest_few(scores, 1, offsets)[0]


def largest_few(scores: Tensor, number: int, offsets: Tensor | None = None) -> tuple[Tensor, ...]:
    """Indices of the largest of K scores [..., K], in order; the lowest first where several tie. A
    tie is what lies within ``TIE`` times the largest magnitude of the K scores and of ``offsets``,
    which were subtracted from them and broadcast. (All clusters tie at the first token of a text
    and where it is repeated, if the offsets are the log-sum-exp of the tokens so far.)"""
    largest = scores.amax(-1, keepdim=True)
    magnitude = torch.maximum(largest, -scores.amin(-1, keepdim=True))
    if offsets is not None:  # they may nearly cancel what rounding was relative to
        magnitude = torch.maximum(magnitude, offsets.abs().amax(-1, keepdim=True))
    found: list[Tensor] = []
    while True:
        best = scores >= largest - TIE * magnitude
        found.append(best.view(torch.uint8).argmax(-1))  # of several, the first
        if len(found) == number:
            return tuple(found)
        scores = scores.scatter(-1, found[-1].unsqueeze(-1), -torch.inf)
        largest = scores.amax(-1, keepdim=True)


@torch.no_grad()
@full_float32()
def nearest_by_cosine(vectors: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid of each vector [..., N, D] of any length, int64 [..., N], without the
    cosines to all of them; centroids are of length 1, [K, D] or such that products broadcast."""
    clusters = torch.empty(vectors.shape[:-1], dtype=torch.long, device=vectors.device)
    for part in chunks(vectors, centroids.size(-2)):
        unit = normalize(at_least_float32(vectors[..., part, :]), dim=-1)
        clusters[..., part] = lowest_argmax(unit @ centroids.to(unit.dtype).mT)
    return clusters
