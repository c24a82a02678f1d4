"""What the rivals' tests share: a layer of one kind, and its attention one query at a time."""

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
