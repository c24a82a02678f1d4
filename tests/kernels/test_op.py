"""Ranged attention as an operator of torch: what torch.compile makes of it, against eager."""

from dataclasses import replace

import pytest
import torch

from fairseq_clusterformer.kernels import Layout, Own, ranged_attention
from fairseq_clusterformer.kernels.attend import operator
from fairseq_clusterformer.kernels.kernel import TENSORS

from ..conftest import sampled
from ..kinds import pads
from .layouts import LAYOUTS

IMPLEMENTATIONS = ["blocks", "cpu", "triton"]


def inputs_of(length: int, dtype=torch.float64):
    q, k, v = (torch.randn(2, length, 2, 8, dtype=dtype).transpose(1, 2) for _ in range(3))
    return [t.requires_grad_() for t in (q, k, v, torch.randn(2, 1, length, dtype=dtype))]


def layout_of(name: str, length: int) -> Layout:
    mask = pads([length, length - 7], length, "right")
    return LAYOUTS[name](torch.randint(5, (2, 1, length)), mask)


def learn(function, inputs):
    out, lse = function(*inputs)
    loss = (out * torch.linspace(-1, 1, out.size(-1))).sum()
    return out, lse, *torch.autograd.grad(loss + lse[lse.isfinite()].sum(), inputs)


@pytest.mark.parametrize("impl", sampled(["cpu", "blocks", "reference"], ["cpu"], "matrix"))
def test_several_layouts_and_the_own_key_in_one_graph(impl):
    """Each layout with a bias of its own, or none; float32 is rounded less often in eager code."""
    *qkv, bias = inputs_of(20)
    other = torch.randn(2, 2, 20, dtype=torch.float64, requires_grad=True)
    names, hidden = ("chunks", "clusters, causal", "chunks"), torch.rand(2, 2, 20) < 0.3
    layouts = [layout_of(name, 20) for name in names]

    def attend(q, k, v, bias, other):
        biased = [
            replace(layouts[0], key_bias=bias),
            layouts[1],
            replace(layouts[2], key_bias=other),
        ]
        return ranged_attention(q, k, v, biased, Own(0.3, hidden), impl=impl)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    inputs = [*qkv, bias, other]
    for got, want in zip(learn(compiled, inputs), learn(attend, inputs), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_dropout_in_a_graph_is_drawn_anew_and_replayed_backwards(impl):
    q, k, v, _ = inputs_of(12)
    layout = layout_of("clusters, causal", 12)

    def attend(v):
        return ranged_attention(q, k, v, layout, dropout=0.4, impl=impl)[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    out, other = compiled(v), compiled(v)
    assert not torch.equal(out, other)
    # Outputs are linear in v.
    (gradient,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), out.sum())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_operator_keeps_its_promises(impl):
    """Its schema, its fake outputs, its gradient; where that is quick with dynamic shapes too."""
    layout = layout_of("chunks", 9)
    q, k, v, bias = inputs_of(9)
    tensors = [getattr(layout, name) for name in TENSORS]
    absent = torch.empty(0)
    layouts = [bias, torch.tensor(5), *(absent if t is None else t for t in tensors)] * 2
    own = torch.rand(2, 2, 9) < 0.3, torch.rand(2, 2, 9, dtype=q.dtype), 0.5
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    if impl == "blocks":
        checks += ("test_aot_dispatch_dynamic",)
    arguments = (q, k, v, *own[:2], layouts, own[2], 0.3, False, impl)
    found = torch.library.opcheck(operator, arguments, test_utils=checks)
    assert found == dict.fromkeys(checks, "SUCCESS")


def test_what_cannot_be_done_is_said_by_a_graph_too():
    q, k, v, _ = inputs_of(9)
    compiled = torch.compile(
        lambda q: ranged_attention(q, k, v, layout_of("chunks", 9), impl="fast"), backend="eager"
    )
    with pytest.raises(Exception, match="impl is 'fast'; allowed"):
        compiled(q)
