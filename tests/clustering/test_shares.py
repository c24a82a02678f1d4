"""Shares in chunks against their definition with all scores at once, in float64."""

import math

import pytest
import torch

from fairseq_clusterformer.clustering import NeuralClustering, fuzzy, shares
from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES, Similarity
from fairseq_clusterformer.clustering.shares import assign_both
from fairseq_clusterformer.kernels.cpu import library

from ..kinds import pads

BATCH, HEADS, LENGTH, WIDTH, CLUSTERS, TEMPERATURE = 3, 2, 40, 6, 5, 0.3


def leaves(dtype=torch.float64, length=LENGTH):
    q, k = torch.randn(2, BATCH, length, HEADS, WIDTH, dtype=dtype).transpose(2, 3)
    centroids = torch.randn(HEADS, CLUSTERS, WIDTH, dtype=dtype)
    return tuple(t.requires_grad_() for t in (q, k, centroids))


def assign(q, k, centroids, similarity="cosine", log_normalizer=None, mask=None, exploration=0.0):
    if log_normalizer is None:
        log_normalizer = torch.zeros(2, HEADS, CLUSTERS)
    return assign_both(
        q,
        k,
        centroids,
        similarity=Similarity(similarity),
        temperature=TEMPERATURE,
        log_normalizer=log_normalizer,
        padding_mask=mask,
        exploration=exploration,
        probes=3,
    )


def defined(q, k, centroids, similarity, log_normalizer):
    """Exponents, and the logs of shares of all clusters, [2, B, H, N, K]."""
    phi = Similarity(similarity).vectors
    both = phi(torch.stack([q, k]))
    exponents = torch.einsum("sbhne,hke->sbhnk", both, phi(centroids)) / TEMPERATURE
    return exponents, (exponents - log_normalizer[:, None, :, None]).log_softmax(-1)


@pytest.fixture(params=["many chunks", "one chunk", "C++", "C++, poisoned"])
def computed(request, monkeypatch):
    """By torch, or in C++, also by a build whose memory is NaN until it is written."""
    flags = ["-DPOISONED"] if "poisoned" in request.param else []
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, *flags))
    monkeypatch.setattr(library, "_LOADED", {})
    monkeypatch.setattr(fuzzy, "CHUNK_NUMBERS_CPU", 1 if "many" in request.param else 1 << 20)
    monkeypatch.setattr(shares, "CPP_FROM", 0 if "C++" in request.param else math.inf)
    if "C++" in request.param and not library.can_run("shares", torch.zeros(1, 1, 1, WIDTH)):
        pytest.skip("no C++ compiler")


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("exploration", [0.0, 0.5])
def test_equal_to_the_definition(similarity, padded, exploration):
    q, k, centroids = leaves()
    normalizer = torch.randn(2, HEADS, CLUSTERS, dtype=torch.float64)
    mask = pads([LENGTH, 20, 1], LENGTH, "left") if padded else None
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else ~mask
    given = [
        t if mask is None else t.masked_fill(mask[:, None, :, None], math.nan) for t in (q, k)
    ]
    weight = torch.randn(BATCH, HEADS, LENGTH, dtype=torch.float64) * real.unsqueeze(1)

    exponents, log_shares = defined(q, k, centroids, similarity, normalizer)
    expected = log_shares.argmax(-1)
    torch.manual_seed(1)
    found = assign(*given, centroids, similarity, normalizer, mask, exploration=exploration)
    of_real = real.unsqueeze(1).expand(-1, HEADS, -1)
    assert torch.equal(found.queries[of_real], expected[0][of_real])

    for probe, place in zip(found.probes, (1, 2), strict=True):
        nearest = log_shares[0].topk(3).indices[..., place]
        assert torch.equal(probe[of_real], nearest[of_real])

    torch.manual_seed(1)  # as an activation checkpoint would draw
    drawn = torch.rand(BATCH, HEADS, LENGTH) < exploration
    lies = torch.where(drawn, torch.randint(CLUSTERS, drawn.shape), expected[1])
    assert torch.equal(found.keys[of_real], lies[of_real])
    there = log_shares[1].gather(-1, lies.unsqueeze(-1)).squeeze(-1)
    value = there.masked_fill(drawn, 0.0)
    torch.testing.assert_close(found.log_share[of_real], value[of_real], rtol=0, atol=1e-12)
    gradients = torch.autograd.grad((found.log_share * weight).sum(), (k, centroids))
    wanted = torch.autograd.grad((there * weight).sum(), (k, centroids))
    torch.testing.assert_close(gradients, wanted, rtol=1e-10, atol=1e-12)

    left_out = ~real[:, None, :, None]
    mass = exponents.masked_fill(left_out, -math.inf).logsumexp((1, 3))
    torch.testing.assert_close(found.log_mass, mass)
    for side in range(2):
        for head in range(HEADS):
            sizes = expected[side][:, head][real].bincount(minlength=CLUSTERS)
            assert found.sizes[side, head].tolist() == sizes.tolist()
    assert found.tokens.item() == real.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clusters", [1, 3, 40])
def test_both_ways_are_one(dtype, clusters, monkeypatch):
    """Ties, several probes, weights of keys, repeated tokens, one thread and several."""
    q, k = torch.randn(2, BATCH, 150, HEADS, WIDTH, dtype=dtype).transpose(2, 3)
    q[:, :, 20:60] = q[:, :, :40]
    centroids = torch.randn(HEADS, clusters, WIDTH, dtype=dtype)
    centroids[:, clusters // 2] = centroids[:, 0]  # which tie
    log_weights = torch.randn(BATCH, HEADS, 150, dtype=dtype)
    mask, found = pads([150, 99, 0], 150, "right"), []
    for least, threads in ((math.inf, 1), (0, 1), (0, 3)):
        monkeypatch.setattr(shares, "CPP_FROM", least)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for offsets in (torch.zeros(HEADS, clusters), 9 * torch.ones(HEADS, clusters)):
            of = assign_both(
                q,
                k,
                centroids,
                similarity=Similarity("cosine"),
                temperature=TEMPERATURE,
                log_normalizer=offsets,
                padding_mask=mask,
                probes=min(3, clusters),
                log_weights=log_weights,
            )
            found.append(of)
    for one, other in zip(found[:2] * 2, found[2:], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    for one, other in zip(found[2:4], found[4:], strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("sign", [-1, 1])
def test_rounding_is_that_of_what_offsets_cancel(sign):
    """Two scores near 1,000 that differ by 1e-3: within rounding, whatever is taken off both."""
    k = torch.zeros(1, HEADS, 3, WIDTH)
    k[..., 0] = 1.0
    centroids = torch.zeros(HEADS, 2, WIDTH)
    centroids[..., 0] = TEMPERATURE * torch.tensor([sign * 1000.0, sign * 1000.0 + 1e-3])
    offsets = torch.full((2, HEADS, 2), sign * 1000.0)
    found = assign(k, k, centroids, "dot", offsets)
    assert found.queries.eq(0).all()
    assert found.keys.eq(0).all()


def kept(run, *inputs):
    """Bytes that ``run`` keeps for its backward pass, besides its inputs and parameters."""
    storages = {}

    def pack(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = run()
    for t in inputs:
        storages.pop(t.untyped_storage().data_ptr(), None)
    assert result is not None
    return sum(storages.values())


def test_no_scores_are_kept():
    """Of each key a cluster (8 bytes) and a number (4); neural clustering keeps X W_c."""
    length, heads, width, clusters = 4096, 4, 64, 64
    q, k = torch.randn(2, 1, length, heads, width, requires_grad=True).transpose(2, 3)
    x = torch.randn(1, length, heads * width, requires_grad=True)
    centroids = torch.randn(heads, clusters, width, requires_grad=True)
    phi = Similarity("cosine")
    shape = {"similarity": phi, "temperature": 0.2, "exploration": 0.1}
    normalizer = torch.zeros(2, heads, clusters)
    of_shares = kept(
        lambda: assign_both(q, k, centroids, log_normalizer=normalizer, **shape), q, k
    )
    neural = NeuralClustering(heads * width, clusters, normalizer="average")
    assert of_shares < 12.5 * heads * length + 5 * centroids.numel() * 4
    assert of_shares < kept(lambda: neural(x), x)
