"""A layer under torch.compile: one graph, and what the layer computes without."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch, MultiheadAttention

from ..kinds import WIDTH, build
from .plain import documents


@pytest.mark.parametrize(
    ("spec", "causal"),
    [
        ("neural(clusters=3)", True),
        pytest.param("neural(clusters=3)+gated(clusters=3,gap=4)", True, marks=pytest.mark.whole),
        ("taught(clusters=3,index=3)", True),
        pytest.param("lsh+routing", False, marks=pytest.mark.whole),
    ],
)
def test_a_layer_is_one_graph(spec, causal):
    module = MultiheadAttention(
        16, 4, kinds=spec, causal=causal, rotary=True, short_convolution=3
    ).eval()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    results = []
    for layer in (module, compiled):
        x = torch.linspace(-1, 1, 2 * 40 * 16).cos().view(2, 40, 16).requires_grad_()
        out, reports = layer(x)
        losses = [r.clustering_loss for r in reports if r.clustering_loss is not None]
        sum(losses, out.square().sum()).backward()
        results.append((out, x.grad, *losses))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-5)
    torch._dynamo.reset()


def test_documents_that_were_taken_apart_break_no_graph():
    """By a kind that looks at whole rows."""
    module = build("neural, running normaliser", causal=True, dtype=torch.float32).train()
    x = torch.randn(*documents().shape, WIDTH)
    there = Batch(None, documents())
    there.take_apart()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    expected, found = module(x, Batch(None, documents()))[0], compiled(x, there)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.whole
def test_a_step_is_one_graph():
    """Behind a prompt, where a chunk of the summaries ends."""
    module = build("taught, sinks, summaries, probes", causal=True, dtype=torch.float32).eval()
    x = torch.randn(2, 10, WIDTH)
    found = []
    for step in (module.step, torch.compile(module.step, backend="eager", fullgraph=True)):
        _, state = module.step(x[:, :7])
        outputs = []
        for token in x[:, 7:].split(1, dim=1):
            out, state = step(token, state)
            outputs.append(out)
        found.append(torch.cat(outputs, dim=1))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)
    torch._dynamo.reset()
