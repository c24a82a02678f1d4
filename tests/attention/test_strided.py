"""Strided heads against a plain loop over positions."""

import pytest
import torch

from .plain import BATCH, WIDTH, attend, layer

LENGTH = 19


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize(("stride", "window"), [(1, 4), (3, 2), (5, 2), (4, 30), (40, 2)])
def test_what_is_seen(causal, pattern, stride, window):
    options = {"stride": stride, "strided_pattern": pattern, "window": window}
    module = layer("strided", causal=causal, **options)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)

    def sees(row: int, head: int, query: int) -> list[int]:
        place = stride - 1 if pattern == "fixed" else query % stride
        column = [j for j in range(LENGTH) if j % stride == place]
        before = [j for j in column if j < query]
        after = [] if causal else [j for j in column if j > query][:window]
        if causal:  # W with its own, which stands in the column or is seen besides it
            before = before[-(window - 1) :] if window > 1 else []
        elif not causal and query % stride != place:
            before = before[-window - 1 :]  # what stands at the query's place, and W before
        else:
            before = before[-window:]
        return [*before, query, *after]

    torch.testing.assert_close(module(x)[0], attend(module, x, sees), rtol=0, atol=1e-12)


def test_a_window_of_one_is_its_own_place():
    module = layer("strided", causal=True, stride=5, window=1)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    expected = attend(module, x, lambda row, head, query: [query])
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)


def test_the_default_stride_is_the_number_of_clusters():
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    for options in ({"num_clusters": 7}, {"num_clusters": 3, "stride": 7}):
        module = layer("strided", causal=True, window=LENGTH, **options)
        expected = attend(module, x, lambda row, head, query: list(range(query % 7, query + 1, 7)))
        torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)
