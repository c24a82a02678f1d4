"""What a kind of attention reads of a batch, and what it says: which token is in which cluster.
Shape letters: D documents of all rows, M tokens of the longest one."""

from collections.abc import Callable, Hashable
from dataclasses import InitVar, dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ..clustering.report import Report
from ..precision import not_compiled


def any_padding(padding_mask: Tensor) -> Tensor | None:
    """The mask, or None if nothing is padding, unless a graph is exported, which cannot ask."""
    return padding_mask if torch.compiler.is_exporting() or bool(padding_mask.any()) else None


def either(*masks: Tensor | None) -> Tensor | None:
    """Where one of them is True; None: nowhere."""
    some = [mask for mask in masks if mask is not None]
    return reduce(torch.logical_or, some) if some else None


def for_each(read: Tensor, x: Tensor) -> Tensor:
    """What G groups of heads have [B, G, ...], for each group that reads it [B, Q, ...]."""
    times = read.size(1) // x.size(1)
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def gather_tokens(x: Tensor, places: Tensor) -> Tensor:
    """The tokens of [B, H, N, C] at places int64 [B, H, S], [B, H, S, C]."""
    return x.gather(2, places.unsqueeze(-1).expand(*places.shape, x.size(-1)))


def latest_real(x: Tensor, number: int, padding_mask: Tensor | None) -> Tensor:
    """The latest real tokens of x [B, H, N, C], so many, after zeros if there are fewer."""
    first = max(0, x.size(2) - number)
    if padding_mask is None:
        x = x[:, :, first:]
    else:
        x = x.masked_fill(padding_mask[:, None, :, None], 0)
        order = (~padding_mask).long().argsort(dim=1, stable=True)[:, first:]  # padding first
        x = gather_tokens(x, order.unsqueeze(1).expand(-1, x.size(1), -1))
    return pad(x, (0, 0, number - x.size(2), 0))


class Batch:
    """Made once for all layers, which share what they compute from it: ``padding_mask``, bool
    [B, N], is True at padding, at either end of a row (None: there is none); ``documents`` are the
    documents of their row that tokens belong to and see alone, int64 [B, N], counted from 0 and
    never falling (None: each row is one)."""

    def __init__(self, padding_mask: Tensor | None = None, documents: Tensor | None = None):
        self.padding_mask, self.documents = padding_mask, documents
        self._made: dict[Hashable, Any] = {}

    @property
    def is_plain(self) -> bool:
        """Whether all tokens are real, and each row is one document."""
        return self.padding_mask is None and self.documents is None

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returned the first time it was called for the key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @cached_property
    def real_first(self) -> Tensor:
        """The tokens of each padded row, padding last, int64 [B, N]."""
        return self.padding_mask.to(torch.uint8).argsort(dim=1, stable=True)

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

    @cached_property
    def apart(self) -> tuple[Tensor, "Batch"]:
        """The documents as rows of their own: the place of each token in the batch's B * N, int64
        [D, M], and the batch that they are; of padding alone one row is left."""
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
        if "apart" not in vars(self):
            not_compiled(lambda: self.apart)()


class Shape(NamedTuple):
    """What a kind is built for."""

    embed_dim: int  # D
    num_heads: int  # H, heads of this kind
    head_dim: int  # E
    causal: bool  # a query sees no later token
    kv_heads: int | None = None  # J; None: H


@dataclass
class Tokens:
    """What a kind may read: a batch, or in decoding one more token of each row, or several.

    ``q`` and ``k``, of a kind that ``reads_qk``, are queries and keys [B, H, N, E] as
    ``Kind.project`` returned them, without positions, in full float32 or float64: what is assigned
    must not depend on how a product was rounded.
    """

    x: Tensor  # input of the attention layer [B, N, D]
    heads: InitVar[tuple[Tensor, Tensor] | None]
    batch: Batch  # which tokens are real, and of which document; in decoding, padding alone
    #: of each token among the real ones of its document, int64 [1 or B, N]
    positions: Tensor | None = None
    centroids: Tensor | None = None  # handed on by the layer before, [B, K, D]
    impl: str = "auto"  # of :func:`~fairseq_clusterformer.kernels.ranged_attention`
    #: in decoding, or in a later segment, real tokens of the document before, int64 [B, 1]
    before: Tensor | None = None
    begins: Tensor | None = None  # rows in which a document begins in decoding, bool [B, 1]
    decoding: bool = False  # nobody reads a report

    def __post_init__(self, heads: tuple[Tensor, Tensor] | None):
        self.q, self.k = (None, None) if heads is None else heads
        if self.positions is None:
            self.positions = self.batch.positions(self.x)

    @property
    def padding_mask(self) -> Tensor | None:
        return self.batch.padding_mask

    def behind(self, number: int) -> "Tokens":
        """The same for parts that do not see the first ``number`` real tokens of each document:
        these count as padding, and positions begin behind them."""
        if number == 0:
            return self

        def make() -> tuple[Batch, Tensor, Tensor | None]:
            positions = self.positions - number
            hidden = either((positions < 0).expand(self.x.shape[:2]), self.padding_mask)
            # where nothing waits for a device, and no graph is traced
            if self.decoding and not hidden.is_cuda and not torch.compiler.is_compiling():
                hidden = any_padding(hidden)
            before = None if self.before is None else (self.before - number).clamp(min=0)
            return Batch(hidden, self.batch.documents), positions, before

        batch, positions, before = self.batch.cached(("behind", number), make)
        return replace(self, heads=None, batch=batch, positions=positions, before=before)


class Round(NamedTuple):
    """Clusters by one clustering."""

    #: whose keys each query sees, int64 [B, G, N] in [0, K), anything at padding; several differ
    #: from each other at every token
    queries: tuple[Tensor, ...]
    #: of each key, likewise; K: in none, for a kind that ``drops_keys``. Fewer groups [B, J, N]
    #: are those of heads whose queries share keys. None: as the queries
    keys: Tensor | None = None

    @property
    def of_keys(self) -> Tensor:
        """The clusters of keys."""
        return self.queries[0] if self.keys is None else self.keys

    def for_each_head(self) -> "Round":
        """With clusters of keys for each group of queries."""
        keys = None if self.keys is None else for_each(self.queries[0], self.keys)
        return self._replace(keys=keys)


@dataclass(frozen=True)
class Assignment:
    """To which cluster each token belongs, as a query and as a key."""

    rounds: tuple[Round, ...] = ()  # of assignments; none: all tokens are in one cluster
    #: added to the logits of a key that is seen by its cluster, floating point [B, G, N]
    key_bias: Tensor | None = None
    #: how many of the latest keys a query sees, if fewer than W, int64 [1 or B, N]
    latest: Tensor | None = None
    report: Report = Report()  # for the losses, the log and the layer above

    @classmethod
    def once(cls, queries: Tensor, keys: Tensor | None = None, **others: Any) -> "Assignment":
        """By one clustering, each token to one cluster, int64 [B, G, N]; no keys: as queries."""
        return cls((Round((queries,), keys),), **others)

    @property
    def groups(self) -> int:
        """Groups of heads whose keys are assigned apart."""
        return self.rounds[0].of_keys.size(1) if self.rounds else 1
