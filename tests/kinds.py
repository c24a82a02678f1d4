"""Every kind of attention, as the conformance suite runs it: one line a kind."""

import pytest
import torch

from fairseq_clusterformer.attention import AttentionConfig, MultiheadAttention

WINDOW = 5
CLUSTERS = 3
WIDTH = 16
HEADS = 4

CAUSAL = {
    "full": (("full",), {}),
    "window": (("window",), {}),
    "neural": (("neural",), {}),
    "neural, running normaliser": (("neural",), {"cluster_normalizer": "running"}),
    "neural, dot": (("neural",), {"cluster_similarity": "dot", "cluster_temperature": 1.0}),
    "neural, one cluster": (("neural",), {"num_clusters": 1}),
    "neural, many clusters": (("neural",), {"num_clusters": 100}),
    "gated": (("gated",), {}),
    "gated, many clusters": (("gated",), {"num_clusters": 100}),
    "window+neural": (("window", "neural"), {}),
    "lsh": (("lsh",), {}),
    "window+lsh, many buckets": (("window", "lsh"), {"num_clusters": 100, "hash_rounds": 3}),
    "routing": (("routing",), {}),
    "window+routing, many clusters": (("window", "routing"), {"num_clusters": 100}),
    "strided": (("strided",), {}),
    "strided, fixed": (("strided",), {"strided_pattern": "fixed"}),
    "kmeans": (("kmeans",), {"kmeans_interval": 1}),
    "window+kmeans, many clusters": (("window", "kmeans"), {"num_clusters": 100}),
}
BIDIRECTIONAL = {
    "full": (("full",), {}),
    "window": (("window",), {}),
    "neural, chunk": (("neural",), {"cluster_rule": "chunk"}),
    "neural, recent": (("neural",), {"cluster_rule": "recent"}),
    "neural, chunk, centroids handed on": (
        ("neural",),
        {"cluster_rule": "chunk", "own_centroids": False},
    ),
    "neural, chunk, many clusters": (("neural",), {"cluster_rule": "chunk", "num_clusters": 100}),
    "gated": (("gated",), {}),
    "window+neural": (("window", "neural"), {"cluster_rule": "chunk"}),
    "lsh, chunk": (("lsh",), {"cluster_rule": "chunk"}),
    "lsh, recent": (("lsh",), {"cluster_rule": "recent"}),
    "window+lsh, chunk, many buckets": (
        ("window", "lsh"),
        {"cluster_rule": "chunk", "num_clusters": 100},
    ),
    "routing, chunk": (("routing",), {"cluster_rule": "chunk"}),
    "routing, recent": (("routing",), {"cluster_rule": "recent"}),
    "window+routing, chunk, many clusters": (
        ("window", "routing"),
        {"cluster_rule": "chunk", "num_clusters": 100},
    ),
    "strided": (("strided",), {}),
    "strided, fixed": (("strided",), {"strided_pattern": "fixed"}),
    "kmeans, chunk": (("kmeans",), {"cluster_rule": "chunk", "kmeans_interval": 1}),
    "kmeans, recent": (("kmeans",), {"cluster_rule": "recent", "kmeans_interval": 1}),
    "window+kmeans, chunk, many clusters": (
        ("window", "kmeans"),
        {"cluster_rule": "chunk", "num_clusters": 100},
    ),
}

# Kinds (and whether causal) whose query and key are one vector: a token's own key, which would
# outweigh all others, counts only where nothing else is seen, as in the papers.
OWN_KEY_LAST = {("lsh", True), ("lsh", False), ("routing", True)}

# By the kernel blocks every kind; by triton those whose layouts differ: its interpreter is slow.
BY_TRITON = ("neural, many clusters", "gated", "window+neural", "lsh")
_CAUSAL = [("blocks", kind) for kind in CAUSAL] + [("triton", kind) for kind in BY_TRITON]
_BIDIRECTIONAL = [("blocks", kind) for kind in BIDIRECTIONAL]
_BIDIRECTIONAL += [("triton", kind) for kind in ("window+neural", "routing, chunk")]

every_causal_kind = pytest.mark.parametrize("kind", CAUSAL)
every_kind = pytest.mark.parametrize(
    ("kind", "causal"), [(k, True) for k in CAUSAL] + [(k, False) for k in BIDIRECTIONAL]
)
every_causal_kind_and_kernel = pytest.mark.parametrize(("impl", "kind"), _CAUSAL)
every_bidirectional_kind_and_kernel = pytest.mark.parametrize(("impl", "kind"), _BIDIRECTIONAL)
every_kind_and_kernel = pytest.mark.parametrize(
    ("impl", "kind", "causal"),
    [(*both, True) for both in _CAUSAL] + [(*both, False) for both in _BIDIRECTIONAL],
)


class HandedOn(MultiheadAttention):
    """A layer that is always given the same centroids."""

    def __init__(self, *args, config: AttentionConfig, **kwargs):
        super().__init__(*args, config=config, **kwargs)
        centroids = torch.randn(1, config.num_clusters, WIDTH)
        self.register_buffer("given", centroids, persistent=False)

    def forward(self, x, padding_mask=None, centroids=None):
        return super().forward(x, padding_mask, self.given.expand(len(x), -1, -1))


def build(
    kind: str, *, causal: bool, dtype=torch.float64, impl: str = "blocks", **changes
) -> MultiheadAttention:
    """A layer of the kind, in evaluation, whose moving averages have seen some batches."""
    kinds, options = (CAUSAL if causal else BIDIRECTIONAL)[kind]
    options = {"window": WINDOW, "num_clusters": CLUSTERS, **options, **changes}
    config = AttentionConfig(**options)
    layer = MultiheadAttention if config.own_centroids else HandedOn
    module = layer(WIDTH, HEADS, kinds=kinds, config=config, causal=causal).to(dtype)
    for _ in range(3):
        _, reports = module(torch.randn(2, 30, WIDTH, dtype=dtype))
        module.observe(reports)
        module.commit()
    module.impl = impl
    return module.eval()


def pads(lengths: list[int], total: int, side: str) -> torch.Tensor:
    """Padding mask, bool [B, total], with that many real tokens a row."""
    place = torch.arange(total).expand(len(lengths), -1)
    real = torch.tensor(lengths).unsqueeze(-1)
    return place < total - real if side == "left" else place >= real
