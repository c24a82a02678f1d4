"""What the rivals' tests share: a layer of one kind, and its attention one query at a time."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_clusterformer.attention import Batch, MultiheadAttention, parse_layer
from fairseq_clusterformer.attention.heads import Convolved

BATCH, HEADS, WIDTH = 2, 2, 8  # each head is 4 wide
LENGTHS = [[9, 1, 7], [4, 13], [17]]  # of the documents of each row
TOTAL = 17


def documents() -> Tensor:
    """The number of each token's document, int64 [B, N]."""
    return torch.stack(
        [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS]
    )


def layer(kind: str, *, causal: bool, **options) -> MultiheadAttention:
    """In float64 and evaluation."""
    kinds = parse_layer(kind, **options)
    module = MultiheadAttention(WIDTH, HEADS, kinds=kinds, causal=causal, kernel="blocks")
    return module.double().eval()


def projected(module: MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, H, N, E] that the layer's only kind attends."""
    heads = module.project(x, Convolved(Batch()))
    return *module.routers[0].project(heads.q, heads.k), heads.v


@torch.no_grad()
def attend(
    module: MultiheadAttention, x: Tensor, sees: Callable[[int, int, int], list[int]]
) -> Tensor:
    """The layer's output [B, N, D] where ``sees(row, head, query)`` are the tokens that the query
    attends; one that stands there twice counts twice."""
    q, k, v = projected(module, x)
    out = torch.zeros_like(v)
    for b in range(v.size(0)):
        for h in range(v.size(1)):
            for i in range(v.size(2)):
                keys = sees(b, h, i)
                logits = [float(q[b, h, i] @ k[b, h, j]) / math.sqrt(v.size(3)) for j in keys]
                total = sum(math.exp(logit) for logit in logits)
                for j, logit in zip(keys, logits, strict=True):
                    out[b, h, i] += math.exp(logit) / total * v[b, h, j]
    return module.out_proj(out.transpose(1, 2).flatten(2))
