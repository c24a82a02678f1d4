"""Counting sort of tokens by cluster: stable, deterministic, two passes over the ids.

Shape letters: R rows, N tokens, K clusters.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import place_of

TILE = 128  # tokens that a program ranks among themselves


@triton.jit
def _ranks(clusters, row, tile, length, TILE: tl.constexpr):
    """Of a tile of tokens: the tokens, their clusters, how many earlier ones of the tile share
    each one's cluster, and whether a later one does."""
    lane = tl.arange(0, TILE)
    token = tile * TILE + lane
    exists = token < length
    cluster = tl.load(clusters + row * length + token, mask=exists, other=-1)
    same = cluster[:, None] == cluster[None, :]
    earlier = lane[None, :] < lane[:, None]
    rank = tl.sum((same & earlier).to(tl.int32), 1)
    followed = tl.sum((same & (lane[None, :] > lane[:, None])).to(tl.int32), 1) > 0
    return token, cluster, exists, rank, followed


@triton.jit(do_not_specialize=["length", "num_clusters", "tiles"])
def _count(clusters, counts, length, num_clusters, tiles, TILE: tl.constexpr):
    """Tokens of each cluster in each tile, [R, K, tiles]: written by the last of them."""
    row, tile = place_of(tiles)
    token, cluster, exists, rank, followed = _ranks(clusters, row, tile, length, TILE)
    entry = counts + (row * num_clusters + cluster) * tiles + tile
    tl.store(entry, rank + 1, mask=exists & (followed == 0))


@triton.jit(do_not_specialize=["length", "num_clusters", "tiles"])
def _place(clusters, begins, order, codes, length, num_clusters, tiles, TILE: tl.constexpr):
    """Write each token to its slot."""
    row, tile = place_of(tiles)
    token, cluster, exists, rank, followed = _ranks(clusters, row, tile, length, TILE)
    begin = tl.load(begins + (row * num_clusters + cluster) * tiles + tile, mask=exists, other=0)
    slot = row * length + begin + rank
    tl.store(order + slot, token.to(tl.int64), mask=exists)
    tl.store(codes + slot, cluster * length + token, mask=exists)


def counting_sort(clusters: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, then by position.

    Args:
        clusters: int64 [..., N] in [0, K).
        num_clusters: K.

    Returns:
        The token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N]. As
        ``torch.sort`` of the codes gives them.
    """
    length = clusters.size(-1)
    flat = clusters.contiguous().view(-1, length)
    rows, tiles = flat.size(0), triton.cdiv(length, TILE)
    counts = torch.zeros(rows, num_clusters * tiles, dtype=torch.int32, device=clusters.device)
    order, codes = torch.empty_like(flat), torch.empty_like(flat)
    grid = (tiles * rows,)
    with torch.cuda.device_of(flat):
        _count[grid](flat, counts, length, num_clusters, tiles, TILE=TILE)
        begins = counts.cumsum(-1, dtype=torch.int32) - counts
        _place[grid](flat, begins, order, codes, length, num_clusters, tiles, TILE=TILE)
    return order.view(clusters.shape), codes.view(clusters.shape)
