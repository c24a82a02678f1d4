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
from torch import Tensor, nn
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


class Windows:
    """The windows of a batch, and what of them is padding.

    Args:
        question_tokens: int64 [B, Q].
        document_tokens: int64 [B, N].
        size: L.
        stride: M.
        padding_idx: of the dictionary.

    Attributes:
        tokens: of each window with its question, int64 [B, V, Q + L].
        rows: these, without windows beyond a document's last.
        padding: bool [B, V (Q + M)], of the sequence without overlaps.
    """

    def __init__(
        self,
        question_tokens: Tensor,
        document_tokens: Tensor,
        *,
        size: int,
        stride: int,
        padding_idx: int,
    ):
        self.length = document_tokens.size(1)
        self.size = min(size, max(self.length, 1))
        self.stride = stride
        texts = cut(document_tokens, size=self.size, stride=stride, fill=padding_idx)
        self.number = texts.size(1)
        beyond = texts[..., :1].eq(padding_idx)
        beyond[:, 0] = False  # of a document without tokens the question is left
        asked = question_tokens.unsqueeze(1).masked_fill(beyond, padding_idx)
        self.tokens = torch.cat([asked, texts], dim=2)  # eq. 1
        self.rows = Rows(self.tokens.ne(padding_idx))
        self.question_padding = asked.eq(padding_idx)
        self.document_padding = document_tokens.eq(padding_idx)
        self.padding = drop_overlaps(
            self.question_padding, self.document_padding, stride=stride, fill=True
        )

    def cut(self, question: Tensor, document: Tensor) -> Tensor:
        """[B, V, Q, D] and [B, N, D] as windows [B, V, Q + L, D]."""
        text = cut(document, size=self.size, stride=self.stride)
        return torch.cat([question, text], dim=2)

    def merged(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of ``cut``; where windows overlap, their mean (eq. 3)."""
        question, text = x.split([x.size(2) - self.size, self.size], dim=2)
        return question, merge_overlaps(text, stride=self.stride, length=self.length)

    def sequence(self, question: Tensor, document: Tensor) -> Tensor:
        """[B, V, Q, D] and [B, N, D] as [B, V (Q + M), D] (eq. 4)."""
        return drop_overlaps(question, document, stride=self.stride)

    def put_back(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of ``sequence`` (eq. 9)."""
        return put_back(states, windows=self.number, stride=self.stride, length=self.length)

    def by_place(self, sequence: Tensor) -> Tensor:
        """[B, V (Q + M), ...] as rows of the same place in each window, [B, Q + M, V, ...]."""
        return sequence.unflatten(1, (self.number, -1)).transpose(1, 2)


class Rows:
    """Rows that a layer attends within; those without a token are left out.

    Args:
        real: bool [B, R, T], True where a token stands.
    """

    def __init__(self, real: Tensor):
        self._some = real.any(-1)
        hidden = ~self.packed(real)
        self._hidden = hidden if hidden.any() else None

    def through(self, layer: nn.Module, x: Tensor) -> Tensor:
        """[B, R, T, D] through a layer of fairseq's; 0 where a row is left out."""
        out = layer(self.packed(x).transpose(0, 1), encoder_padding_mask=self._hidden)
        return self.unpacked(out.transpose(0, 1))

    def packed(self, x: Tensor) -> Tensor:
        """[B, R, ...] as [rows, ...]."""
        return x[self._some]

    def unpacked(self, rows: Tensor) -> Tensor:
        """The inverse of ``packed``."""
        x = rows.new_zeros(*self._some.shape, *rows.shape[1:])
        x[self._some] = rows
        return x


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
