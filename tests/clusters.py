"""The clusters of each kind by its equations: of one text, in evaluation.

Rounds are pairs: the clusters that each query looks into [H or 1, N, P], and the one of each key
[H or 1, N]. With them come biases of keys [H, N], or None.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_clusterformer.attention import Batch, MultiheadAttention
from fairseq_clusterformer.attention.heads import Convolved
from fairseq_clusterformer.attention.tokens import Tokens
from fairseq_clusterformer.clustering.fuzzy import lowest_argmax


@torch.no_grad()
def assert_clusters(layer: MultiheadAttention, x: Tensor, centroids: Tensor | None) -> None:
    """That the kinds of a layer assign x [N, D] by their equations; ``centroids``: handed on."""
    size = layer.num_heads // len(layer.kinds)
    heads = layer.project(x[None], Convolved(Batch()))
    of_all = [t[0].repeat_interleave(layer.num_heads // t.size(1), 0) for t in heads[1:3]]
    for place, (kind, router) in enumerate(zip(layer.kinds, layer.routers, strict=True)):
        q, k = router.project(*(t[place * size : (place + 1) * size] for t in of_all))
        given = None if centroids is None else centroids[None]
        tokens = Tokens(x[None], (q[None], k[None]), Batch(), centroids=given)
        found, _ = router.assign(tokens, {})
        if kind.kind not in ASSIGN:  # by position alone, or of a plug-in
            continue
        rounds, bias = ASSIGN[kind.kind](router, x, q, k, centroids)
        assert len(found.rounds) == len(rounds)
        for one, (looks, of_keys) in zip(found.rounds, rounds, strict=True):
            same = torch.stack(one.queries, -1)[0].sort(-1).values == looks.sort(-1).values
            assert same.all()
            pair = (t.repeat_interleave(size // len(t), 0) for t in (one.of_keys[0], of_keys))
            assert torch.equal(*pair)
        assert (found.key_bias is None) == (bias is None)
        if bias is not None:
            torch.testing.assert_close(found.key_bias[0], bias, rtol=0, atol=1e-12)


def strided(router, x, q, k, _):
    place = torch.arange(len(x))[None] % (router.options.stride or router.options.clusters)
    if router.options.pattern == "fixed":
        last = (router.options.stride or router.options.clusters) - 1
        return alike(torch.zeros_like(place), (place != last).long())
    return alike(place)


def kmeans(router, x, q, k, _):
    return alike(phi("cosine", x, router.clustering.centroids).argmax(-1)[None])


def routing(router, x, q, k, _):
    return alike(*(phi("cosine", t, router.means.centroids).argmax(-1) for t in (q, k)))


def lsh(router, x, q, k, _):
    turned = [k @ rotation for rotation in router.rotations.to(k)]
    buckets = [torch.cat([t, -t], -1)[..., : router.rule.clusters].argmax(-1) for t in turned]
    return [alike(bucket)[0][0] for bucket in buckets], None


def neural(router, x, q, k, centroids):
    """CF22 eq. 2 and 4."""
    part = router.clustering
    centroids = part.centroids if centroids is None else centroids
    s = phi(router.options.similarity, part.w_c(x), centroids) / part.temperature
    if part.normalizer == "running":
        offsets = torch.stack([s[: j + 1].logsumexp(0) for j in range(len(s))])
    else:
        mean = part.log_normalizer if part.normalizer == "average" else s.logsumexp(0)
        offsets = mean.to(s).expand_as(s)
    return alike(lowest_argmax(s - offsets, offsets)[None])


def gated(router, x, q, k, _):
    offsets = router.normalizer.log_normalizer.to(x)[:, :, None]
    s = phi(router.options.similarity, torch.stack([q, k]), router.centroids)
    of_q, of_k = (s / router.temperature - offsets).log_softmax(-1)
    return alike(of_q.argmax(-1), of_k.argmax(-1))[0], of_k.amax(-1)


def taught(router, x, q, k, _):
    if router.convolution is not None:
        x = router.convolution(x[None], Batch())[0]
    of_q, of_k = router.routing(x[None], Tokens(x[None], (q[None], k[None]), Batch()))
    each = router.centroids.repeat_interleave(router.sharing, 0)
    looks = phi(router.options.similarity, of_q[0], each).topk(router.options.probes).indices
    s = phi(router.options.similarity, of_k[0], router.centroids) / router.temperature
    keys = (s - router.normalizer.log_normalizer.to(x)[:, None]).argmax(-1)
    if router.gate is not None:
        held = router.gate(x[None])[0] / router.temperature >= router.normalizer.average[:, None]
        keys = keys.where(held, router.rule.clusters)
    return [(looks, keys.repeat_interleave(router.sharing, 0))], None


def alike(queries: Tensor, keys: Tensor | None = None):
    """One round; keys as queries, if they are not given."""
    return [(queries[..., None], queries if keys is None else keys)], None


def phi(similarity: str, x: Tensor, centroids: Tensor) -> Tensor:
    """Of vectors [..., N, E] and centroids [..., K, E], CF22 eq. 2."""
    if similarity == "cosine":
        x, centroids = normalize(x, dim=-1), normalize(centroids.to(x), dim=-1)
    return x @ centroids.mT / (x.size(-1) ** 0.5 if similarity == "scaled-dot" else 1)


ASSIGN = {f.__name__: f for f in (strided, kmeans, routing, lsh, neural, gated, taught)}
