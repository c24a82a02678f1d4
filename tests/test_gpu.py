"""What shows on a GPU alone: TF32, half precision by the Triton kernels, no waiting, graphs."""

import pytest
import torch

from fairseq_clusterformer.attention import MultiheadAttention, parse_attention

from .kinds import CAUSAL, by_steps

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
WIDTH, HEADS = 256, 4
every_causal_kind = pytest.mark.parametrize("kind", CAUSAL)


def build(kind: str, **options) -> MultiheadAttention:
    torch.manual_seed(1)
    defaults = {"attention_window": 16, "num_clusters": 8}
    (kinds,) = parse_attention(CAUSAL[kind], num_layers=1, num_heads=HEADS, defaults=defaults)
    return MultiheadAttention(WIDTH, HEADS, kinds=kinds, causal=True, **options).to(DEVICE).eval()


def tokens(dtype: torch.dtype, length: int = 400) -> torch.Tensor:
    return torch.randn(2, length, WIDTH, device=DEVICE, dtype=dtype)


@every_causal_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_steps_equal_the_parallel_pass(kind, dtype, monkeypatch):
    """Where TF32 is allowed, no token is routed elsewhere because a product was rounded."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    module, x = build(kind).to(dtype), tokens(dtype)
    torch.testing.assert_close(by_steps(module, x)[0], module(x)[0], rtol=0, atol=2e-2)


@every_causal_kind
@torch.no_grad()
def test_a_step_does_not_wait_for_the_device(kind):
    module, x = build(kind), tokens(torch.bfloat16, 40)
    module = module.to(torch.bfloat16)
    by_steps(module, x)  # kernels are compiled and tuned
    mask = torch.zeros(2, 1, dtype=torch.bool, device=DEVICE)
    state = None
    torch.cuda.set_sync_debug_mode("error")
    try:
        for t in range(x.size(1)):
            out, state = module.step(x[:, t : t + 1], state, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out, module(x)[0][:, -1:], rtol=0, atol=2e-2)


@pytest.mark.parametrize("kind", ["window", "neural", "gated", "gated, gap", "lsh"])
def test_training_does_not_wait_for_the_device(kind):
    module, x = build(kind, dropout=0.1).train(), tokens(torch.float32).requires_grad_()
    for turn in range(3):
        torch.cuda.set_sync_debug_mode("error" if turn == 2 else "default")
        try:
            out, _ = module(x)
            out.square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("kind", ["window+neural", "gated, gap"])
def test_a_compiled_layer_is_the_layer(kind):
    module, x = build(kind), tokens(torch.float32)
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], module(x)[0], rtol=0, atol=1e-4)


def test_a_graph_draws_new_dropout_when_it_is_replayed():
    module, x = build("window", dropout=0.5).train(), tokens(torch.float16)
    module = module.to(torch.float16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            module(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out, _ = module(x)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(out.clone())
    assert not torch.equal(*results)
