"""Documents as overlapping windows, and as one sequence without overlaps (CF20 section 3).

Between layers a document is its tokens' states, each once, and the question's states, once for
each window: every window begins with the question, which hears of that window alone until a
cluster layer takes all of its copies (eq. 4 counts them, q ceil(x / m) + x states). Windows begin
at each multiple of the stride that is a token, so the last may lie within the one before it.

Shape letters: B batch, N tokens of the longest document, Q of the longest question, V windows of
the longest document, L tokens of a window (l in the paper), M stride (m), D width. What pads a
document or a question stands behind it.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def count_windows(length: int, stride: int) -> int:
    """V of a document of that many tokens; one, of the question alone, if it has none."""
    return max(1, -(-length // stride))


def cut(document: Tensor, *, size: int, stride: int, fill: int = 0) -> Tensor:
    """Windows of a document (CF20 eq. 1): [B, N, ...] to [B, V, L, ...].

    Args:
        size: L, at least the stride.
        stride: M.
        fill: what stands where a window reaches beyond the document.
    """
    beyond = (count_windows(document.size(1), stride) - 1) * stride + size
    return _lengthened(document, beyond, fill).unfold(1, size, stride).movedim(-1, 2)


def merge_overlaps(windows: Tensor, *, stride: int, length: int) -> Tensor:
    """Each token's mean over the windows that hold it (CF20 eq. 3): [B, V, L, D] to [B, N, D].

    The paper writes two sums of two windows, one after the other; here the mean is over all that
    meet, of which there are more than two where L > 2 M. The sums are made without scattering, so
    that they are the same in every run on every device.

    Args:
        stride: M.
        length: N.
    """
    ones = windows.new_ones(1, *windows.shape[1:3], 1)
    total, count = (_added_up(w, stride)[:, :length] for w in (windows, ones))
    return total / count


def drop_overlaps(question: Tensor, document: Tensor, *, stride: int, fill: int = 0) -> Tensor:
    """Each window's question and first M tokens (CF20 eq. 4), [B, V (Q + M), ...].

    Args:
        question: [B, V, Q, ...].
        document: [B, N, ...].
        stride: M.
        fill: what stands behind the last window's tokens.
    """
    windows = question.size(1)
    blocks = _lengthened(document, windows * stride, fill).unflatten(1, (windows, stride))
    return torch.cat([question, blocks], dim=2).flatten(1, 2)


def put_back(states: Tensor, *, windows: int, stride: int, length: int) -> tuple[Tensor, Tensor]:
    """The inverse of :func:`drop_overlaps`: the question [B, V, Q, ...] and the document
    [B, N, ...].

    Args:
        states: [B, V (Q + M), ...].
        windows: V.
        stride: M.
        length: N.
    """
    blocks = states.unflatten(1, (windows, -1))
    question, document = blocks.split([blocks.size(2) - stride, stride], dim=2)
    return question, document.flatten(1, 2)[:, :length]


def _lengthened(x: Tensor, length: int, fill: int) -> Tensor:
    more = x.new_full((x.size(0), length - x.size(1), *x.shape[2:]), fill)
    return torch.cat([x, more], dim=1)


def _added_up(windows: Tensor, stride: int) -> Tensor:
    """The sum of the windows that hold a token, [B, V M, D]."""
    number, size = windows.shape[1:3]
    parts = -(-size // stride)
    blocks = pad(windows, (0, 0, 0, parts * stride - size)).unflatten(2, (parts, stride))
    # the part j of a window lies in the block that its j-th successor begins with
    shifted = (
        pad(blocks[:, : number - j, j], (0, 0, 0, 0, j, 0)) for j in range(min(parts, number))
    )
    return sum(shifted).flatten(1, 2)
