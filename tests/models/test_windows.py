"""Windows of documents against CF20's equations, transcribed token by token."""

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.models.windows import (
    Rows,
    count_windows,
    cut,
    drop_overlaps,
    merge_overlaps,
    put_back,
)

WIDTH = 3
# tokens, window, stride: shorter than a window, whole strides, several overlaps, none, one token
SHAPES = [
    *((1, 4, 3), (3, 4, 3), (4, 4, 3), (6, 4, 3), (7, 4, 3), (11, 4, 3), (12, 4, 3)),
    *(
        (12, 7, 3),
        (13, 7, 2),
        (10, 6, 1),
        (9, 4, 4),
        (8, 4, 4),
        (5, 30, 2),
        (5, 30, 20),
        (0, 4, 3),
    ),
]
every_shape = pytest.mark.parametrize(("length", "size", "stride"), SHAPES)
every_question = pytest.mark.parametrize("question", [0, 1, 5])


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64, requires_grad=True)


def holding(token: int, windows: int, size: int, stride: int) -> list[int]:
    """The windows that hold a token."""
    return [k for k in range(windows) if stride * k <= token < stride * k + size]


@every_shape
def test_cut(length, size, stride):
    """Eq. 1: X[m k : m k + l]."""
    x = states(2, length)
    windows = cut(x, size=size, stride=stride, fill=7)
    number = count_windows(length, stride)
    assert windows.shape == (2, number, size, WIDTH)
    assert number == max(1, len(range(0, length, stride)))
    for k in range(number):
        text = x[:, stride * k : stride * k + size]
        assert torch.equal(windows[:, k, : text.size(1)], text)
        assert (windows[:, k, text.size(1) :] == 7).all()


@every_shape
def test_overlaps_are_averaged(length, size, stride):
    """Eq. 3, with its gradient."""
    number = count_windows(length, stride)
    windows = states(2, number, size)
    merged = merge_overlaps([windows], stride=stride, length=length)
    rows = []
    for token in range(length):
        found = [windows[:, k, token - stride * k] for k in holding(token, number, size, stride)]
        rows.append(sum(found) / len(found))
    assert merged.shape == (2, length, WIDTH)
    if not length:
        return
    expected = torch.stack(rows, 1)
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-12)
    weight = torch.randn_like(merged)
    gradients = [torch.autograd.grad((x * weight).sum(), windows)[0] for x in (merged, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@every_shape
@pytest.mark.parametrize("at_once", [1, 2])
def test_portions(length, size, stride, at_once):
    """Some windows at a time are cut and merged as all are."""
    number = count_windows(length, stride)
    x, windows = states(2, length), states(2, number, size)
    parts = [slice(first, first + at_once) for first in range(0, number, at_once)]
    cuts = [cut(x, size=size, stride=stride, fill=7, part=part) for part in parts]
    assert torch.equal(torch.cat(cuts, dim=1), cut(x, size=size, stride=stride, fill=7))
    merged = merge_overlaps([windows[:, part] for part in parts], stride=stride, length=length)
    whole = merge_overlaps([windows], stride=stride, length=length)
    torch.testing.assert_close(merged, whole, rtol=0, atol=1e-12)


def test_short_rows_are_given_without_padding():
    """In inference; the layer's states of tokens are the same, and of a row without one 0."""
    lengths = torch.tensor([[8, 2, 0], [8, 8, 3]])
    real = torch.arange(8) < lengths.unsqueeze(-1)
    given, shapes = torch.randn(2, 3, 8, WIDTH), []

    def layer(x: Tensor, hidden: Tensor | None) -> tuple[Tensor]:
        shapes.append(tuple(x.shape[:2]))
        x = x if hidden is None else x.masked_fill(hidden.t().unsqueeze(-1), 0)
        return (x + x.sum(0),)

    found = {}
    for at_once in (None, 16, 1000):
        parts = Rows(real, at_once).through(layer, lambda part: given[:, part])
        found[at_once] = torch.cat([x for _, x in parts], dim=1)
        torch.testing.assert_close(found[at_once][real], found[None][real])
        assert not found[at_once][0, 2].any()
    # all at once, one window of both documents at once, and all windows by their lengths
    assert shapes == [(8, 5), (8, 2), (2, 1), (8, 1), (3, 1), (2, 1), (3, 1), (8, 3)]


def test_two_windows_as_the_paper_adds_them():
    """Eq. 3 to the letter, where no more than two windows meet."""
    question, size, stride = 2, 5, 3
    given = states(1, 3, question + size).detach()[0]
    overlap = size - stride
    written = [h.clone() for h in given]
    for k in range(1, 3):
        written[k][question : question + overlap] += given[k - 1][question + stride :]
        written[k][question : question + overlap] /= 2
    for k in range(2):
        written[k][question + stride :] += given[k + 1][question : question + overlap]
        written[k][question + stride :] /= 2
    merged = merge_overlaps([given[None, :, question:]], stride=stride, length=9)
    windows = cut(merged, size=size, stride=stride)[0]
    for k in range(3):
        real = min(size, 9 - stride * k)
        text = written[k][question : question + real]
        torch.testing.assert_close(windows[k, :real], text, rtol=0, atol=1e-12)


@every_shape
@every_question
def test_overlaps_are_dropped_and_states_put_back(length, size, stride, question):
    """Eq. 4: [H_0[0 : q + m]; ...; H_k[0 : q + m]]."""
    number = count_windows(length, stride)
    asked, x = states(2, number, question), states(2, length)
    sequence = drop_overlaps(asked, x, stride=stride, fill=7)
    windows = torch.cat([asked, cut(x, size=size, stride=stride, fill=7)], dim=2)
    expected = torch.cat([windows[:, k, : question + stride] for k in range(number)], dim=1)
    assert torch.equal(sequence, expected)
    back = put_back(sequence, windows=number, stride=stride, length=length)
    assert torch.equal(back[0], asked)
    assert torch.equal(back[1], x)
    # a mask goes the same way
    mask = torch.zeros(2, length, dtype=torch.bool)
    hidden = drop_overlaps(mask.new_zeros(2, number, question), mask, stride=stride, fill=True)
    assert (~hidden).sum(1).tolist() == [question * number + length] * 2
    assert (sequence[hidden] == 7).all()
