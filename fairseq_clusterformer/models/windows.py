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

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


def count_windows(length: int, stride: int) -> int:
    """V of a document of that many tokens; one, of the question alone, if it has none."""
    return max(1, -(-length // stride))


def cut(
    document: Tensor, *, size: int, stride: int, fill: int = 0, part: slice = slice(None)
) -> Tensor:
    """Windows of a document (CF20 eq. 1): [B, N, ...] to [B, V, L, ...], or ``part`` of the V.

    Args:
        size, stride: L, and M, which is at most L.
        fill: what stands where a window reaches beyond the document.
    """
    first, last, _ = part.indices(count_windows(document.size(1), stride))
    beyond = (last - 1 - first) * stride + size
    text = document[:, first * stride : first * stride + beyond]
    return _lengthened(text, beyond, fill).unfold(1, size, stride).movedim(-1, 2)


def merge_overlaps(portions: Iterable[Tensor], *, stride: int, length: int) -> Tensor:
    """Each token's mean over the windows that hold it (CF20 eq. 3): [B, N, D].

    The paper adds two windows at a time; here the mean is over all that meet, which are more than
    two where L > 2 M. Nothing is scattered, so sums are the same in every run on every device.

    Args:
        portions: of the windows, in their order, [B, some of V, L, D] each.
        stride, length: M and N.
    """
    total, first = None, 0
    for windows in portions:
        size = windows.size(2)
        added = _added_up(windows, stride)
        if total is None:
            beyond = added.size(1) + (count_windows(length, stride) - windows.size(1)) * stride
            total = added.new_zeros(len(added), beyond, added.size(2))
        total[:, first : first + added.size(1)] += added
        first += windows.size(1) * stride
    token = torch.arange(length, device=total.device)
    begun, ended = (torch.div(t, stride, rounding_mode="floor") + 1 for t in (token, token - size))
    return total[:, :length].div_((begun - ended.clamp(min=0)).unsqueeze(-1))


def drop_overlaps(question: Tensor, document: Tensor, *, stride: int, fill: int = 0) -> Tensor:
    """Each window's question and first M tokens (CF20 eq. 4), [B, V (Q + M), ...], of questions
    [B, V, Q, ...] and documents [B, N, ...]; ``fill`` stands behind the last window's tokens."""
    windows = question.size(1)
    blocks = _lengthened(document, windows * stride, fill).unflatten(1, (windows, stride))
    return torch.cat([question, blocks], dim=2).flatten(1, 2)


def put_back(states: Tensor, *, windows: int, stride: int, length: int) -> tuple[Tensor, Tensor]:
    """The inverse of :func:`drop_overlaps`, for V windows, stride M and length N."""
    blocks = states.unflatten(1, (windows, -1))
    question, document = blocks.split([blocks.size(2) - stride, stride], dim=2)
    return question, document.flatten(1, 2)[:, :length]


class Windows:
    """The windows of a batch, and what of them is padding.

    Args:
        question_tokens, document_tokens: int64 [B, Q] and [B, N].
        size, stride: L and M.
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
        self.length = document_tokens.size(1)
        self.size = min(size, max(self.length, 1))
        self.stride = stride
        texts = cut(document_tokens, size=self.size, stride=stride, fill=padding_idx)
        self.number = texts.size(1)
        beyond = texts[..., :1].eq(padding_idx)
        beyond[:, 0] = False  # of a document without tokens the question is left
        asked = question_tokens.unsqueeze(1).masked_fill(beyond, padding_idx)
        self.tokens = torch.cat([asked, texts], dim=2)  # eq. 1
        self._rows = Rows(self.tokens.ne(padding_idx), at_once)
        self.question_padding = asked.eq(padding_idx)
        self.document_padding = document_tokens.eq(padding_idx)
        self.padding = drop_overlaps(
            self.question_padding, self.document_padding, stride=stride, fill=True
        )

    def through(
        self, layer: nn.Module, windows: Callable[[slice], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A sliding-window layer: the question [B, V, Q, D] and the document
        [B, N, D], each token with its mean over the windows that hold it (eq. 2 and 3).

        Args:
            windows: makes some of the windows, [B, some of V, Q + L, D].
        """
        questions = []

        def texts() -> Iterator[Tensor]:
            for _, x in self._rows.through(layer, windows):
                question, text = x.split([x.size(2) - self.size, self.size], dim=2)
                questions.append(question.clone())  # a view would keep the text
                yield text

        document = merge_overlaps(texts(), stride=self.stride, length=self.length)
        return torch.cat(questions, dim=1), document

    def cut(self, question: Tensor, document: Tensor, part: slice) -> Tensor:
        """[B, V, Q, D] and [B, N, D] as some of the windows [B, some of V, Q + L, D]."""
        text = cut(document, size=self.size, stride=self.stride, part=part)
        return torch.cat([question[:, part], text], dim=2)

    def sequence(self, question: Tensor, document: Tensor) -> Tensor:
        """[B, V, Q, D] and [B, N, D] as [B, V (Q + M), D] (eq. 4)."""
        return drop_overlaps(question, document, stride=self.stride)

    def put_back(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of ``sequence`` (eq. 9)."""
        return put_back(states, windows=self.number, stride=self.stride, length=self.length)

    def by_place(self, sequence: Tensor, part: slice = slice(None)) -> Tensor:
        """[B, V (Q + M), ...] as rows of the same place in each window, [B, Q + M, V, ...], or
        some of these rows."""
        return sequence.unflatten(1, (self.number, -1)).transpose(1, 2)[:, part]


BANDS = 4  # of rows by their lengths: as many calls of a layer, with little padding in each


class Rows:
    """Rows that a layer attends within; those without a token are left out.

    Args:
        real: bool [B, R, T], True where a token stands.
        at_once: tokens that a layer is given at once, or one of the R rows, if that has more;
            short rows are then given apart, without padding that they all have. None: all.
    """

    def __init__(self, real: Tensor, at_once: int | None = None):
        batch, number, length = real.shape
        step = number if at_once is None else max(1, at_once // (batch * length))
        ends = (real * torch.arange(1, length + 1, device=real.device)).amax(-1)
        bands = ends.gt(0).long() if at_once is None else (ends * BANDS).div(length).ceil()
        self._portions = []
        for first in range(0, number, step):
            part = slice(first, min(first + step, number))
            groups = []
            for band in bands[:, part].unique().tolist():
                own = bands[:, part].eq(band)
                if band:
                    most = length if at_once is None else int(ends[:, part][own].max())
                    hidden = ~real[:, part][own][:, :most]
                    groups.append((own, most, hidden if hidden.any() else None))
            self._portions.append((part, groups))

    def through(
        self, layer: nn.Module, rows: Callable[[slice], Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield, portion by portion, which rows, and these [B, some of R, T, D] after an encoder
        layer, 0 where no token is; ``rows`` makes them."""
        for part, groups in self._portions:
            given, x = rows(part), None
            for own, most, hidden in groups:
                out, *_ = layer(given[own][:, :most].transpose(0, 1), hidden)
                out = out.transpose(0, 1)
                x = out.new_zeros(given.shape) if x is None else x
                x[own, :most] = out if hidden is None else out.masked_fill(hidden[..., None], 0)
            yield part, torch.zeros_like(given) if x is None else x


def _lengthened(x: Tensor, length: int, fill: int) -> Tensor:
    more = x.new_full((x.size(0), length - x.size(1), *x.shape[2:]), fill)
    return torch.cat([x, more], dim=1)


def _added_up(windows: Tensor, stride: int) -> Tensor:
    """The sum of the windows that hold a token, up to a multiple of the stride."""
    size = windows.size(2)
    parts = -(-size // stride)
    blocks = pad(windows, (0, 0, 0, parts * stride - size)).unflatten(2, (parts, stride))
    # the part j of a window lies in the block that its j-th successor begins with
    shifted = (pad(blocks[:, :, j], (0, 0, 0, 0, j, parts - 1 - j)) for j in range(parts))
    return sum(shifted).flatten(1, 2)
