"""Sinks: which keys a query sees, and where they are refused."""

import pytest
import torch

from fairseq_clusterformer.attention import MultiheadAttention, OptionError
from fairseq_clusterformer.attention.projections import Rotary, rotated

from .plain import HEADS, WIDTH, projected


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
