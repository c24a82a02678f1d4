"""Sinks: which keys a query sees, and where they are refused."""

import pytest
import torch

from fairseq_clusterformer.attention import MultiheadAttention, OptionError
from fairseq_clusterformer.attention.naive import naive
from fairseq_clusterformer.attention.projections import Rotary, rotated

from .plain import HEADS, WIDTH, layer, projected


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "spec",
    ["window(4,sinks=3)", "neural(3,clusters=2,sinks=2)"]
    + [f"strided({w},stride={s},pattern=fixed)" for s, w in [(1, 4), (5, 2), (40, 2)]]
    + [f"strided({w},stride={s})" for s, w in [(1, 4), (5, 2), (4, 30), (5, 1), (40, 2)]],
)
def test_clusters_hold_other_keys_than_sinks(spec, causal):
    """W keys of its cluster in spite of sinks that are in it as well, and each once."""
    if "sinks" in spec and not causal:
        pytest.skip("sinks are of what generates")
    module, x = layer(spec, causal=causal), torch.randn(1, 40, WIDTH).double()
    torch.testing.assert_close(module(x)[0][0], naive(module, x[0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "causal"), [("window(sinks=1)", False), ("neural(rule=leaking-chunk,sinks=1)", True)]
)
def test_they_are_of_what_generates(spec, causal):
    with pytest.raises(OptionError, match="sinks is 1; allowed: 0 but in a causal model with the"):
        MultiheadAttention(WIDTH, 2, kinds=spec, causal=causal)


@torch.no_grad()
def test_positions_in_the_cache_are_those_of_streaming_llm():
    """Keys are kept without positions, and turned by their places among those that are kept."""
    rotary = Rotary(100.0)
    kinds = "window(window=4,sinks=3,cache_positions=true)"
    module = MultiheadAttention(WIDTH, HEADS, kinds=kinds, causal=True, rotary=rotary)
    module, x = module.double().eval(), torch.randn(2, 40, WIDTH).double()
    q, k, v = projected(module, x)
    expected = torch.empty_like(q)
    for i in range(40):
        kept = sorted({*range(min(3, i + 1)), *range(max(i - 3, 0), i + 1)})
        place = torch.arange(len(kept))[None]
        keys, query = (
            rotated(k[:, :, kept], place, rotary),
            rotated(q[:, :, i : i + 1], place[:, -1:], rotary),
        )
        weights = (query @ keys.mT * q.size(-1) ** -0.5).softmax(-1)
        expected[:, :, i : i + 1] = weights @ v[:, :, kept]
    expected = module.merge([expected])
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)
    past, outputs = None, []
    for part in x.split([5, 17, *[1] * 18], dim=1):
        out, past = module.step(part, past)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=0, atol=1e-12)


def test_positions_in_the_cache_are_rotary_ones():
    with pytest.raises(OptionError, match="cache_positions is True; allowed: with rotary positi"):
        MultiheadAttention(WIDTH, 2, kinds="window(4,cache_positions=true)", causal=True)
