"""Which queries the backward pass of a tile of keys reads, in texts of thousands of tokens."""

import importlib

import torch

from fairseq_clusterformer.kernels import Layout
from fairseq_clusterformer.kernels.layout import Call

from ..conftest import REPO_ROOT  # noqa: F401  sets TRITON_INTERPRET before Triton is imported

LENGTH, WINDOW = 5000, 100


def test_all_queries_that_see_a_key_and_few_others():
    """One head sees what is behind, one what is ahead, and of one only a few queries see."""
    backward = importlib.import_module("fairseq_clusterformer.kernels.triton.backward")
    slot = torch.arange(LENGTH)
    lo = torch.stack([(slot - WINDOW + 1).clamp(min=0), slot, slot]).unsqueeze(0)
    hi = torch.stack([slot + 1, (slot + WINDOW).clamp(max=LENGTH), slot + 1]).unsqueeze(0)
    hi[0, 2, :4000] = hi[0, 2, 4200:] = 0
    q = torch.zeros(1, 3, LENGTH, 8)
    layout = Layout(lo, hi)
    call = Call(q, q, q, None, None, layout, 0.0)
    found = backward._spans_of(backward.arguments(call), layout)
    spans = found["spans"]
    assert found["key_tiles"] == -(-LENGTH // backward.SPAN)
    for head in range(3):
        for tile, (begin, end) in enumerate(spans[head].tolist()):
            first, last = tile * backward.SPAN, (tile + 1) * backward.SPAN
            sees = (lo[0, head] < last) & (hi[0, head] > first) & (hi[0, head] > lo[0, head])
            places = sees.nonzero().flatten().tolist()
            if places:
                assert begin <= places[0]
                assert places[-1] < end
                assert end - begin < len(places) + 2 * backward.TILE
            else:
                assert begin >= end or end - begin <= backward.TILE
