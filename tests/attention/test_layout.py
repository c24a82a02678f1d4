"""Layouts against a plain loop that asks, of every query and key, whether one sees the other."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.layout import (
    chunk_layout,
    own_chunk_layout,
    recent_layouts,
    window_layouts,
    without_own,
)
from fairseq_clusterformer.kernels import Layout

from ..kinds import pads

BATCH, CPU = 3, torch.device("cpu")


def seen(layout: Layout, length: int) -> torch.Tensor:
    """How often each query token sees each key token, int [B, N, N], for one group of heads."""
    identity = torch.arange(length).expand(BATCH, 1, -1)
    query_order = identity if layout.query_order is None else layout.query_order
    key_order = identity if layout.key_order is None else layout.key_order
    counts = torch.zeros(BATCH, length, length, dtype=torch.long)
    for b in range(BATCH):
        lo, hi = layout.lo[min(b, len(layout.lo) - 1), 0], layout.hi[min(b, len(layout.hi) - 1), 0]
        for slot, query in enumerate(query_order[b, 0].tolist()):
            for key in key_order[b, 0, lo[slot] : max(lo[slot], hi[slot])].tolist():
                if not layout.earlier_only or key <= query:
                    counts[b, query, key] += 1
    return counts


def masks(length: int):
    yield None
    for side in ("left", "right"):
        yield pads([length, length // 2, 0], length, side)


def batches(length: int):
    """Without padding, with it on either side, and of several documents with and without it."""
    for documents in (None, torch.rand(BATCH, length).lt(0.3).long().cumsum(1)):
        for mask in masks(length):
            yield Batch(mask, documents)


def places(batch: Batch, row: int, length: int) -> list[list[int]]:
    """The real tokens of each document of a row."""
    documents: dict[int, list[int]] = {}
    for j in range(length):
        if batch.padding_mask is None or not batch.padding_mask[row, j]:
            number = 0 if batch.documents is None else int(batch.documents[row, j])
            documents.setdefault(number, []).append(j)
    return list(documents.values())


def seen_by_all(layouts: tuple[Layout, ...], length: int) -> torch.Tensor:
    return sum(seen(layout, length) for layout in layouts)


@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("window", [None, 1, 4, 40])
@pytest.mark.parametrize("causal", [True, False])
def test_window(length, window, causal):
    for batch in batches(length):
        layouts = window_layouts(length, window, causal=causal, batch=batch, device=CPU)
        expected = torch.zeros(BATCH, length, length, dtype=torch.long)
        for b in range(BATCH):
            for real in places(batch, b, length):
                for i, query in enumerate(real):
                    for j, key in enumerate(real):
                        if causal:
                            sees = j <= i and (window is None or i - j < window)
                        else:
                            sees = window is None or abs(i - j) <= window
                        expected[b, query, key] = int(sees)
        assert torch.equal(seen_by_all(layouts, length), expected)


@pytest.mark.parametrize("length", [2, 17])
@pytest.mark.parametrize("num_clusters", [1, 4])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("gap", [0, 1, 4])
def test_clusters_by_the_recent_rule(length, num_clusters, window, causal, apart, gap):
    """``gap`` tokens away: as many places among the row's tokens, padding included, which is at
    its ends."""
    queries = torch.randint(num_clusters, (BATCH, 1, length))
    keys = torch.randint(num_clusters, (BATCH, 1, length)) if apart else queries
    for batch in batches(length):
        layouts = recent_layouts(
            queries,
            num_clusters,
            window,
            causal=causal,
            gap=gap,
            batch=batch,
            key_clusters=keys if apart else None,
        )
        expected = torch.zeros(BATCH, length, length, dtype=torch.long)
        for b in range(BATCH):
            for real in places(batch, b, length):
                for i in real:
                    members = [j for j in real if keys[b, 0, j] == queries[b, 0, i]]
                    before = [j for j in members if i - j >= gap]
                    after = [] if causal else [j for j in members if j - i >= max(gap, 1)]
                    if window is not None:
                        both = not causal and gap == 0
                        before = before[-window - both :]
                        after = after[:window]
                    expected[b, i, before + after] = 1
        assert torch.equal(seen_by_all(layouts, length), expected)


@pytest.mark.parametrize("length", [1, 2, 7, 17])
@pytest.mark.parametrize("num_clusters", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("earlier_only", [True, False])
def test_clusters_by_the_chunk_rule(length, num_clusters, earlier_only):
    """CF22 eq. 5, 8 and 13 with the ring of eq. 11, written as they stand."""
    clusters = torch.randint(num_clusters, (BATCH, 1, length))
    for mask in masks(length):
        layout = chunk_layout(clusters, num_clusters, earlier_only=earlier_only, padding_mask=mask)
        expected = torch.zeros(BATCH, length, length, dtype=torch.long)
        for b in range(BATCH):
            real = [j for j in range(length) if mask is None or not mask[b, j]]
            ordered = sorted(real, key=lambda j: int(clusters[b, 0, j]))
            size = -(-len(real) // num_clusters) or 1
            chunks = [ordered[i : i + size] for i in range(0, len(ordered), size)]
            for i, chunk in enumerate(chunks):
                visible = set(chunk) | set(chunks[i - 1])
                for query in chunk:
                    for key in visible:
                        expected[b, query, key] = int(key <= query or not earlier_only)
        assert torch.equal(seen(layout, length), expected)


@pytest.mark.parametrize("length", [1, 2, 7, 17])
@pytest.mark.parametrize("chunk", [1, 3, 7, 30])
def test_clusters_by_the_chunk_rule_of_kmeans(length, chunk):
    """CF20 eq. 6: u = argsort(v), a_k = u[m k : m (k + 1)]."""
    clusters = torch.randint(4, (BATCH, 1, length))
    for mask in masks(length):
        layout = own_chunk_layout(clusters, 4, chunk, padding_mask=mask)
        expected = torch.zeros(BATCH, length, length, dtype=torch.long)
        for b in range(BATCH):
            real = [j for j in range(length) if mask is None or not mask[b, j]]
            ordered = sorted(real, key=lambda j: int(clusters[b, 0, j]))
            for start in range(0, len(ordered), chunk):
                own = torch.tensor(ordered[start : start + chunk])
                expected[b, own.unsqueeze(1), own] = 1
        assert torch.equal(seen(layout, length), expected)


@pytest.mark.parametrize("gap", [0, 1, 4])
def test_the_future_moves_no_range_of_the_recent_rule(gap):
    clusters, batch = torch.randint(4, (BATCH, 1, 30)), Batch()

    def of(clusters):
        (layout,) = recent_layouts(clusters, 4, 3, causal=True, gap=gap, batch=batch)
        return seen(layout, clusters.size(-1))

    whole = of(clusters)
    for length in range(1, 30):
        prefix = of(clusters[..., :length])
        assert torch.equal(whole[:, :length, :length], prefix)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_without_ones_own_key(causal):
    for batch in batches(17):
        (layout,) = window_layouts(17, 4, causal=causal, batch=batch, device=CPU)
        before, after = (seen(side, 17) for side in without_own(layout))
        both = seen(layout, 17)
        assert torch.equal(before, both.tril(-1))
        assert torch.equal(after, both.triu(1))
