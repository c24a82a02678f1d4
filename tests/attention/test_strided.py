"""Strides and windows of strided heads against their loops."""

import pytest
import torch

from fairseq_clusterformer.attention.naive import naive

from .plain import WIDTH, layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize(("stride", "window"), [(1, 4), (5, 2), (4, 30), (40, 2)])
def test_what_is_seen(causal, pattern, stride, window):
    options = {"stride": stride, "strided_pattern": pattern, "window": window}
    module = layer("strided", causal=causal, **options)
    x = torch.randn(1, 19, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(x)[0][0], naive(module, x[0]), rtol=0, atol=1e-12)


def test_a_window_of_one_is_its_own_place():
    module = layer("strided", causal=True, stride=5, window=1)
    x = torch.randn(1, 19, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(module(x)[0], module.out_proj(module.v_proj(x)))
