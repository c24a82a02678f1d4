"""flex_attention, which is not ours, against the reference."""

import math

import pytest
import torch

from fairseq_clusterformer.kernels import Layout, ranged_attention

from ..kinds import pads
from .layouts import BATCH, HEADS, WIDTH, every_layout, make_inputs, make_layout, run


@every_layout
@pytest.mark.parametrize(("length", "bias", "padded"), [(9, True, False), (131, False, True)])
def test_equal_to_the_reference(name, length, bias, padded):
    """In one block, and in two of queries and more of keys, with garbage in the padding."""
    mask = pads([length, 64, 0], length, "left") if padded else None
    layout = make_layout(name, length, 1 if padded else HEADS, mask)
    q, k, v, key_bias = make_inputs(length, bias=bias)
    weight = torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64)
    expected = run("reference", q, k, v, key_bias, layout, weight)
    if padded:
        q, k, v = (t.masked_fill(mask.view(BATCH, 1, length, 1), math.nan) for t in (q, k, v))
    for got, want in zip(run("flex", q, k, v, key_bias, layout, weight), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_half_precision_has_a_float32_log_sum_exp():
    q, k, v, _ = make_inputs(20, dtype=torch.bfloat16)
    layout = make_layout("full, causal", 20, 1)
    out, lse = ranged_attention(q, k, v, layout, impl="flex")
    want, exact = ranged_attention(q, k, v, layout, impl="reference")
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out, want, rtol=0.02, atol=0.02)  # weights are rounded
    torch.testing.assert_close(lse, exact)


def test_a_query_that_sees_nothing_spoils_no_gradient():
    q, k, v, _ = (t if t is None else t.requires_grad_() for t in make_inputs(9))
    slot = torch.arange(9).view(1, 1, 9)
    out, lse = ranged_attention(q, k, v, Layout(lo=(slot - 3).clamp(min=0), hi=slot), impl="flex")
    assert out[:, :, 0].eq(0).all()
    assert lse[:, :, 0].eq(-math.inf).all()
    torch.logaddexp(lse, torch.full_like(lse, -math.inf))[..., 1:].sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k))


def test_dropout_is_refused():
    q, k, v, _ = make_inputs(9)
    with pytest.raises(ValueError, match="dropout is 0.1; allowed for the kernel flex: 0; the ke"):
        ranged_attention(q, k, v, make_layout("chunks", 9, 1), dropout=0.1, impl="flex")
