"""The best spans against every pair of tokens."""

import itertools

import pytest
import torch

from fairseq_clusterformer.answers import best_spans


def draw(*shape: int) -> tuple[torch.Tensor, ...]:
    """Logits of starts and ends, some of them barred, and paragraphs of about four tokens."""
    start, end = torch.randn(2, *shape, dtype=torch.float64)
    for logits in (start, end):
        logits[torch.rand(shape) < 0.3] = -torch.inf
    return start, end, (torch.rand(shape) < 0.25).cumsum(-1)


@pytest.mark.parametrize("longest", [1, 5, 40])
@pytest.mark.parametrize("length", [1, 7, 23])
@pytest.mark.parametrize("top", [1, 4, 1000])
@pytest.mark.parametrize("in_words", [False, True])
def test_against_every_pair(longest, length, top, in_words):
    start, end, paragraph = draw(4, length)
    words = torch.arange(length).repeat(4, 1) // torch.tensor([[1], [2], [3], [4]])
    given = words if in_words else None
    spans = best_spans(start, end, paragraph, max_length=longest, top=top, words=given)
    words = words if in_words else torch.arange(length).repeat(4, 1)
    for row in range(4):
        pairs = itertools.combinations_with_replacement(range(length), 2)
        every = [
            (float(start[row, i] + end[row, j]), i, j + 1)
            for i, j in pairs
            if words[row, j] - words[row, i] < longest and paragraph[row, i] == paragraph[row, j]
        ]
        expected = sorted((span for span in every if span[0] > -torch.inf), reverse=True)[:top]
        found = zip(*(x[row].tolist() for x in spans), strict=True)
        assert [span for span in found if span[0] > -torch.inf] == expected


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
