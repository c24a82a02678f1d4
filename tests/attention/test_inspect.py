"""What a layer is said to see is what it attends."""

import pytest
import torch
from torch import nn

from fairseq_clusterformer.attention.inspect import seen_keys, tokens_seen
from fairseq_clusterformer.attention.layout import chunk_layout, cluster_layout
from fairseq_clusterformer.kernels import Layout

from .plain import BATCH, WIDTH, attend, layer

LENGTH = 13

# kinds in which a key counts once and without a bias
FORMS = {
    "full": ("full", True, {}),
    "window": ("window", False, {"window": 2}),
    "neural, recent": ("neural", True, {"window": 3}),
    "neural, chunk": ("neural", False, {"cluster_rule": "chunk"}),
    "neural, leaking": ("neural", True, {"cluster_rule": "leaking-chunk"}),
    "lsh": ("lsh", True, {"hash_rounds": 1, "window": 2}),
    "lsh, chunk": ("lsh", False, {"hash_rounds": 1, "cluster_rule": "chunk"}),
    "routing": ("routing", True, {"window": 2}),
    "routing, chunk": ("routing", False, {"cluster_rule": "chunk"}),
    "strided": ("strided", True, {"window": 2}),
    "kmeans": ("kmeans", True, {"window": 2, "kmeans_bank_size": 100}),
}


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_tokens_seen_are_those_attended(form):
    kind, causal, options = FORMS[form]
    module = layer(kind, causal=causal, num_clusters=4, **options)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    (seen,) = tokens_seen(module, x).values()

    def sees(row: int, head: int, query: int) -> list[int]:
        groups = seen.size(1)
        return seen[row % len(seen), head % groups, query].nonzero().flatten().tolist()

    torch.testing.assert_close(module(x)[0], attend(module, x, sees), rtol=0, atol=1e-12)


def test_a_router_that_another_follows_is_named_in_its_place():
    layers = nn.Sequential(layer("window", causal=True, window=1))
    (name,) = tokens_seen(layers, torch.randn(1, LENGTH, WIDTH, dtype=torch.float64))
    assert name == "0.routers.0"


def test_seen_keys_of_every_rule():
    window, num_clusters = 3, 4
    clusters = torch.randint(num_clusters, (2, 1, LENGTH))
    seen = seen_keys(cluster_layout(clusters, num_clusters, window, causal=True))
    for b in range(2):
        for i in range(LENGTH):
            own = [j for j in range(i + 1) if clusters[b, 0, j] == clusters[b, 0, i]]
            assert seen[b, 0, i].nonzero().flatten().tolist() == own[-window:]

    chunks = seen_keys(chunk_layout(torch.zeros(1, 1, 8, dtype=torch.long), 4))
    assert chunks[0, 0, 0].nonzero().flatten().tolist() == [0, 1, 6, 7]

    slot = torch.arange(5).view(1, 1, 5)
    everything = seen_keys(Layout(lo=torch.zeros_like(slot), hi=slot + 1))
    assert torch.equal(everything[0, 0], torch.ones(5, 5).tril().bool())
