"""Transformer-XL: all segments at once against a loop over them, and its relative positions."""

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import MultiheadAttention

WIDTH, HEADS, SEGMENT = 8, 2, 3
CLOSE = {"rtol": 0, "atol": 1e-12}


def layer(kinds: str, causal: bool, **options) -> MultiheadAttention:
    module = MultiheadAttention(WIDTH, HEADS, kinds=kinds, causal=causal, **options).double()
    for bias in (p for p in module.parameters() if p.dim() < 3):
        torch.nn.init.normal_(bias, std=0.5)
    return module


def layers(causal: bool, spec: str = "", **options) -> list[MultiheadAttention]:
    return [layer(f"xl({spec or f'window={2 * SEGMENT}'})", causal, **options) for _ in range(3)]


def by_segments(
    stack: list[MultiheadAttention], x: Tensor, causal: bool, length: int = SEGMENT
) -> Tensor:
    """As Dai et al. 2019 write it (section 3.2), one row: each segment after the one before. The
    latest states of each layer are its memory, of so many tokens."""
    memories, outputs = [x[:0]] * len(stack), []
    for segment in x.split(SEGMENT):
        states, kept = segment, []
        for module, memory in zip(stack, memories, strict=True):
            both = torch.cat([memory, states])
            kept.append(both[-length:].detach())
            q = module.q_proj(states).view(len(states), HEADS, -1)
            k, v = (f(both).view(len(both), HEADS, -1) for f in (module.k_proj, module.v_proj))
            logits = torch.einsum("ihe,jhe->hij", q, k)
            if module.relative is not None:
                logits = transformer_xl(module, q, k)
            if causal:
                late = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1 + len(memory))
                logits = logits.masked_fill(late, -torch.inf)
            weights = (logits * (WIDTH // HEADS) ** -0.5).softmax(-1)
            attended = torch.einsum("hij,jhe->ihe", weights, v).flatten(1)
            states = states + module.out_proj(attended)
        outputs.append(states)
        memories = kept
    return torch.cat(outputs)


def transformer_xl(module: MultiheadAttention, q: Tensor, k: Tensor) -> Tensor:
    """Terms (a) to (d) of section 3.3, [H, N, M], each pair's distance by itself."""
    positions, before = module.relative, len(k) - len(q)
    rate = 10_000.0 ** (-torch.arange(0, WIDTH, 2).double() / WIDTH)
    rows = []
    for i in range(len(q)):
        angles = [(before + i - j) * rate for j in range(len(k))]
        r = torch.stack([torch.cat([angle.sin(), angle.cos()]) for angle in angles])
        r = torch.einsum("hed,jd->jhe", positions.of_distance, r)
        content = ((q[i] + positions.content_bias) * k).sum(-1)
        rows.append((content + ((q[i] + positions.distance_bias) * r).sum(-1)).T)
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, {"relative": True}], ids=["plain", "relative"])
@pytest.mark.parametrize(
    ("length", "spec", "memory"),
    [
        *((length, "window=6", 3) for length in (1, 3, 11)),
        (11, "segment=3,memory=2", 2),
        (14, "window=6,memory=7", 7),
    ],
)
def test_all_segments_at_once_are_the_loop(causal, options, length, spec, memory):
    """The outputs, and the gradients of the input and of every parameter."""
    stack = layers(causal, spec, **options)
    x = torch.randn(length, WIDTH, dtype=torch.float64, requires_grad=True)
    grown = torch.randn(length, WIDTH, dtype=torch.float64)
    leaves = [x, *(p for module in stack for p in module.parameters())]

    def ours() -> Tensor:
        states = x.unsqueeze(0)
        for module in stack:
            states = states + module(states)[0]
        return states[0]

    found = []
    for out in (ours(), by_segments(stack, x, causal, memory)):
        found.append([out, *torch.autograd.grad((out * grown).sum(), leaves)])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-11)
