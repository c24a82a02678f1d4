"""The best spans against every pair of tokens."""

import itertools

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.answers import best_spans


def draw(*shape: int, barred: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of starts and ends, some of them barred, and paragraphs of about four tokens."""
    start, end = torch.randn(2, *shape, dtype=torch.float64)
    for logits in (start, end):
        logits[torch.rand(shape) < barred] = -torch.inf
    return start, end, (torch.rand(shape) < 0.25).cumsum(-1)


def every_span(
    start: Tensor, end: Tensor, paragraph: Tensor, longest: int, words: Tensor | None = None
) -> list[tuple]:
    """(score, first, last) of one document, best first."""
    words = torch.arange(len(start)) if words is None else words
    pairs = itertools.combinations_with_replacement(range(len(start)), 2)
    spans = [
        (float(start[i] + end[j]), i, j + 1)
        for i, j in pairs
        if words[j] - words[i] < longest and paragraph[i] == paragraph[j]
    ]
    return sorted((span for span in spans if span[0] > -torch.inf), reverse=True)


@pytest.mark.parametrize("longest", [1, 2, 5, 40])
@pytest.mark.parametrize("length", [1, 2, 7, 23])
@pytest.mark.parametrize("top", [1, 4, 1000])
@pytest.mark.parametrize("in_words", [False, True])
def test_against_every_pair(longest, length, top, in_words):
    logits = draw(4, length)
    words = torch.arange(length).repeat(4, 1) // torch.tensor([[1], [2], [3], [4]])
    words = words if in_words else None
    spans = best_spans(*logits, max_length=longest, top=top, words=words)
    for row in range(4):
        own = [x if x is None else x[row] for x in (*logits, words)]
        expected = every_span(*own[:3], longest, own[3])
        found = [
            span
            for span in zip(*(x[row].tolist() for x in spans), strict=True)
            if span[0] > -torch.inf
        ]
        assert found == expected[:top]


def test_no_span_at_all():
    start, end, paragraph = draw(1, 9)
    for barred in (torch.full_like(end, -torch.inf), torch.full_like(end, torch.nan)):
        for pair in ((start, barred), (barred, end), (barred, barred)):
            assert best_spans(*pair, paragraph, max_length=3, top=2)[0].eq(-torch.inf).all()
    # those that there are come before
    end[0, 4] = start[0, 4] = torch.nan
    score, first, last = best_spans(start, end, paragraph, max_length=3, top=200)
    assert not score.isnan().any()
    assert ((first <= 4) & (last > 4) & (score > -torch.inf)).any()
