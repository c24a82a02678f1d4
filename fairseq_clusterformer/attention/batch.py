"""Which tokens of a batch are real, and which documents they belong to.

Shape letters: D documents of all rows, M tokens of the longest one.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..precision import not_compiled


def any_padding(padding_mask: Tensor) -> Tensor | None:
    """The mask, or None if nothing is padding; always the mask where a graph is exported, which
    cannot ask its inputs."""
    return padding_mask if torch.compiler.is_exporting() or bool(padding_mask.any()) else None


def for_each(read: Tensor, x: Tensor) -> Tensor:
    """What G groups of heads have [B, G, ...], for each group that reads it [B, Q, ...]."""
    times = read.size(1) // x.size(1)
    return x if times == 1 else x.repeat_interleave(times, dim=1)


class Batch:
    """Made once for all layers, which share what they compute from it.

    Args:
        padding_mask: bool [B, N], True where a token is padding, at either end of a row; None:
            none is.
        documents: which document of its row a token belongs to, int64 [B, N], counted from 0 and
            never falling; tokens see those of their own document only. None: each row is one.
    """

    def __init__(self, padding_mask: Tensor | None = None, documents: Tensor | None = None):
        self.padding_mask = padding_mask
        self.documents = documents
        self._made: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, given: "Batch | Tensor | None") -> "Batch":
        """What a layer was given: a batch, a padding mask, or nothing."""
        return given if isinstance(given, Batch) else cls(given)

    @property
    def is_plain(self) -> bool:
        """Whether all tokens are real, and each row is one document."""
        return self.padding_mask is None and self.documents is None

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returned the first time it was called for the key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @property
    def num_documents(self) -> int:
        """Most documents of a row, or more: a compiled graph cannot wait for the number."""
        if self.documents is None:
            return 1
        if torch.compiler.is_compiling():
            return self.documents.size(1)
        return self.cached("documents", lambda: int(self.documents.max()) + 1)

    @property
    def real_first(self) -> Tensor:
        """The tokens of each padded row, padding last, int64 [B, N]."""
        mask = self.padding_mask
        return self.cached("real first", lambda: mask.to(torch.uint8).argsort(dim=1, stable=True))

    def positions(self, x: Tensor) -> Tensor:
        """Places of x [B, N, ...] among the real tokens of their documents, int64 [1 or B, N]."""
        return self.cached("positions", lambda: self._positions(x))

    def _positions(self, x: Tensor) -> Tensor:
        if self.is_plain:
            return torch.arange(x.size(1), device=x.device).unsqueeze(0)
        real = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        if self.padding_mask is not None:
            real = (~self.padding_mask).long()
        position = real.cumsum(1) - 1
        if self.documents is None:
            return position
        begins = self.documents.diff(dim=1, prepend=self.documents[:, :1] - 1) > 0
        return position - torch.where(begins, position, 0).cummax(1).values

    @property
    def apart(self) -> tuple[Tensor, "Batch"]:
        """The documents as rows of their own: the place of each token in the batch's B * N, int64
        [D, M], and the batch that they are; of padding alone one row is left."""
        return self.cached("apart", self._apart)

    def _apart(self) -> tuple[Tensor, "Batch"]:
        numbers, mask = self.documents, self.padding_mask
        real = torch.arange(numbers.numel(), device=numbers.device)
        real = real if mask is None else real[~mask.flatten()]
        if not len(real):
            return numbers[:1, :1] * 0, Batch(mask[:1, :1])
        row = torch.arange(len(numbers), device=numbers.device).unsqueeze(-1).expand_as(numbers)
        of_each = torch.stack([row, numbers]).flatten(1)[:, real]
        sizes = of_each.unique_consecutive(dim=1, return_counts=True)[1]
        place = pad_sequence(real.split(sizes.tolist()), batch_first=True)
        hidden = torch.arange(place.size(1), device=sizes.device) >= sizes.unsqueeze(-1)
        return place, Batch(any_padding(hidden))

    def together(self, x: Tensor) -> Tensor:
        """The inverse: numbers of the documents' tokens [D, G, M, ...] to [B, G, N, ...]."""
        place, documents = self.apart
        count = self.documents.numel()
        if documents.padding_mask is not None:  # padding goes to one token more, and away
            place = place.masked_fill(documents.padding_mask, count)
        x = x.transpose(1, 2).flatten(0, 1)
        whole = x.new_zeros(count + 1, *x.shape[1:]).index_copy(0, place.flatten(), x)
        return whole[:-1].unflatten(0, self.documents.shape).transpose(1, 2)

    def take_apart(self) -> None:
        """Make :attr:`apart`. How many documents there are, and how long, is known when it is run:
        a compiled graph breaks here, unless it was made before."""
        if "apart" not in self._made:
            not_compiled(lambda: self.apart)()
