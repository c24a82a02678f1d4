"""Documents as overlapping windows, and as one sequence without overlaps (CF20 section 3).

Every window begins with a copy of the question. Between layers, a document is the states of its
tokens, each once, and of the question's copies, one for each window. By eq. 4 these are
q ceil(x / m) + x states. A copy sees its own window only, until a cluster layer takes all copies.
Windows begin at each multiple of the stride that is a token, so the last may lie within the one
before it.

Shape letters: B batch, D width, N tokens of the longest document, Q of the longest question.
V windows of the longest document, L tokens of a window (l in the paper), M stride (m). Padding
follows a document or a question.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class Windows:
    """The windows of a batch, and what of them is padding.

    Args:
        question_tokens, document_tokens: int64 [B, Q] and [B, N].
        size, stride: L, and M, which is at most L.
        padding_idx: of the dictionary.
        at_once: tokens that a layer is given at once, see :class:`Rows`.

    Attributes:
        tokens: of each window with its question, int64 [B, V, Q + L].
        padding: bool [B, V (Q + M)], of the sequence without overlaps.
    """

    def __init__(
        self,
        question_tokens: Tensor,
        document_tokens: Tensor,
        size: int,
        stride: int,
        padding_idx: int,
        at_once: int | None = None,
    ):
        self.length, self.stride = document_tokens.size(1), stride
        self.size = min(size, max(self.length, 1))
        self.number = max(1, -(-self.length // stride))  # of a document without tokens, 1
        texts = self._texts(document_tokens, fill=padding_idx)
        beyond = texts[..., :1].eq(padding_idx)
        beyond[:, 0] = False  # of a document without tokens the question is left
        asked = question_tokens.unsqueeze(1).masked_fill(beyond, padding_idx)
        self.tokens = torch.cat([asked, texts], dim=2)  # eq. 1
        self._rows = Rows(self.tokens.ne(padding_idx), at_once)
        self.question_padding = asked.eq(padding_idx)
        self.document_padding = document_tokens.eq(padding_idx)
        self.padding = self.sequence(self.question_padding, self.document_padding, fill=True)

    def through(
        self, layer: nn.Module, windows: Callable[[slice], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A sliding-window layer: the question [B, V, Q, D] and the document [B, N, D], each token
        with its mean over the windows that hold it (eq. 2 and 3); ``windows`` makes some of them,
        [B, some of V, Q + L, D].

        The paper adds two windows at a time; here the mean is over all that meet, which are more
        than two where L > 2 M. Nothing is scattered, so sums are the same in every run on every
        device.
        """
        questions, total, first = [], None, 0
        parts = -(-self.size // self.stride)
        for _, x in self._rows.through(layer, windows):
            question, text = x.split([x.size(2) - self.size, self.size], dim=2)
            questions.append(question.clone())  # a view would keep the text
            # the sum of the windows that hold a token: the part j of a window lies in the block
            # that its j-th successor begins with
            text = pad(text, (0, 0, 0, parts * self.stride - self.size))
            text = text.unflatten(2, (parts, self.stride))
            shifted = (pad(text[:, :, j], (0, 0, 0, 0, j, parts - 1 - j)) for j in range(parts))
            added = sum(shifted).flatten(1, 2)
            if total is None:
                beyond = added.size(1) + (self.number - text.size(1)) * self.stride
                total = added.new_zeros(len(added), beyond, added.size(2))
            total[:, first : first + added.size(1)] += added
            first += text.size(1) * self.stride
        token = torch.arange(self.length, device=total.device)
        begun, ended = (
            torch.div(t, self.stride, rounding_mode="floor") + 1
            for t in (token, token - self.size)
        )
        total = total[:, : self.length].div_((begun - ended.clamp(min=0)).unsqueeze(-1))
        return torch.cat(questions, dim=1), total

    def _texts(self, document: Tensor, part: slice = slice(None), fill: int = 0) -> Tensor:
        """[B, N, ...] as some windows [B, some of V, L, ...]; `fill` stands beyond it."""
        first, last, _ = part.indices(self.number)
        beyond = (last - 1 - first) * self.stride + self.size
        text = document[:, first * self.stride : first * self.stride + beyond]
        return _lengthened(text, beyond, fill).unfold(1, self.size, self.stride).movedim(-1, 2)

    def cut(self, question: Tensor, document: Tensor, part: slice) -> Tensor:
        """[B, V, Q, D] and [B, N, D] as some of the windows [B, some of V, Q + L, D]."""
        return torch.cat([question[:, part], self._texts(document, part)], dim=2)

    def sequence(self, question: Tensor, document: Tensor, fill: int = 0) -> Tensor:
        """[B, V, Q, ...] and [B, N, ...] as [B, V (Q + M), ...]: each window's question and first
        M tokens (eq. 4); `fill` stands behind the last window's tokens."""
        blocks = _lengthened(document, self.number * self.stride, fill)
        blocks = blocks.unflatten(1, (self.number, self.stride))
        return torch.cat([question, blocks], dim=2).flatten(1, 2)

    def by_place(self, sequence: Tensor, part: slice = slice(None)) -> Tensor:
        """[B, V (Q + M), ...] as rows of the same place in each window, [B, Q + M, V, ...], or
        some of these rows."""
        return sequence.unflatten(1, (self.number, -1)).transpose(1, 2)[:, part]


def put_back(states: Tensor, *, windows: int, stride: int, length: int) -> tuple[Tensor, Tensor]:
    """The inverse of :meth:`Windows.sequence` (eq. 9), for V windows, stride M and length N."""
    blocks = states.unflatten(1, (windows, -1))
    question, document = blocks.split([blocks.size(2) - stride, stride], dim=2)
    return question, document.flatten(1, 2)[:, :length]


class Rows:
    """Rows that a layer attends within; those without a token are left out.

    Args:
        real: bool [B, R, T], True where a token stands.
        at_once: tokens that a layer is given at once, or one of the R rows, if that has more;
            None: all.
    """

    def __init__(self, real: Tensor, at_once: int | None = None):
        batch, number, length = real.shape
        step = number if at_once is None else max(1, at_once // (batch * length))
        self._portions = []
        for first in range(0, number, step):
            part = slice(first, min(first + step, number))
            own = real[:, part].any(-1)
            hidden = ~real[:, part][own]
            some = bool(own.any())
            self._portions.append((part, own if some else None, hidden if hidden.any() else None))

    def through(
        self, layer: nn.Module, rows: Callable[[slice], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield, portion by portion, which rows, and these [B, some of R, T, D] after an encoder
        layer, 0 where no token is; ``rows`` makes them."""
        for part, own, hidden in self._portions:
            given = rows(part)
            x = torch.zeros_like(given)
            if own is not None:
                out, *_ = layer(given[own].transpose(0, 1), hidden)
                out = out.transpose(0, 1)
                x = x.to(out.dtype)
                x[own] = out if hidden is None else out.masked_fill(hidden[..., None], 0)
            yield part, x


def _lengthened(x: Tensor, length: int, fill: int) -> Tensor:
    more = x.new_full((x.size(0), length - x.size(1), *x.shape[2:]), fill)
    return torch.cat([x, more], dim=1)
