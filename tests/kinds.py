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
    "window+neural": (("window", "neural"), {}),
}
BIDIRECTIONAL = {
    "full": (("full",), {}),
    "window": (("window",), {}),
    "neural, chunk": (("neural",), {"cluster_rule": "chunk"}),
    "neural, recent": (("neural",), {"cluster_rule": "recent"}),
    "neural, chunk, many clusters": (("neural",), {"cluster_rule": "chunk", "num_clusters": 100}),
    "window+neural": (("window", "neural"), {"cluster_rule": "chunk"}),
}

every_causal_kind = pytest.mark.parametrize("kind", CAUSAL)
every_bidirectional_kind = pytest.mark.parametrize("kind", BIDIRECTIONAL)
every_kind = pytest.mark.parametrize(
    ("kind", "causal"), [(k, True) for k in CAUSAL] + [(k, False) for k in BIDIRECTIONAL]
)


def build(kind: str, *, causal: bool, dtype=torch.float64, **config) -> MultiheadAttention:
    """A layer of the kind, in evaluation, whose moving averages have seen some batches."""
    kinds, options = (CAUSAL if causal else BIDIRECTIONAL)[kind]
    options = {"window": WINDOW, "num_clusters": CLUSTERS, **options, **config}
    module = MultiheadAttention(
        WIDTH, HEADS, kinds=kinds, config=AttentionConfig(**options), causal=causal
    ).to(dtype)
    for _ in range(3):
        _, reports = module(torch.randn(2, 30, WIDTH, dtype=dtype))
        module.observe(reports)
        module.commit()
    return module.eval()


def pads(lengths: list[int], total: int, side: str) -> torch.Tensor:
    """Padding mask, bool [B, total], with that many real tokens a row."""
    place = torch.arange(total).expand(len(lengths), -1)
    real = torch.tensor(lengths).unsqueeze(-1)
    return place < total - real if side == "left" else place >= real
