"""What a kind of attention reads of a batch, and what it says: which token is in which cluster."""

from dataclasses import InitVar, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..clustering.report import Report
from .batch import Batch, any_padding, for_each


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
    #: in decoding, or in a later segment of a text, real tokens of the document before these,
    #: int64 [B, 1]
    before: Tensor | None = None
    begins: Tensor | None = None  # rows in which a document begins in decoding, bool [B, 1]
    decoding: bool = False  # nobody reads a report

    def __post_init__(self, heads: tuple[Tensor, Tensor] | None):
        self.q, self.k = (None, None) if heads is None else heads
        if self.positions is None:
            self.positions = self.batch.positions(self.x)

    @property
    def padding_mask(self) -> Tensor | None:
        """Bool [B, N], True where a token is padding; None: none is."""
        return self.batch.padding_mask

    def behind(self, number: int) -> "Tokens":
        """The same for parts that do not see the first ``number`` real tokens of each document:
        these count as padding, and positions begin behind them."""
        positions = self.positions - number

        def make() -> Batch:
            hidden = (positions < 0).expand(self.x.shape[:2])
            if self.padding_mask is not None:
                hidden = hidden | self.padding_mask
            # where nothing waits for a device, and no graph is traced
            if self.decoding and not hidden.is_cuda and not torch.compiler.is_compiling():
                hidden = any_padding(hidden)
            return Batch(hidden, self.batch.documents)

        before = None if self.before is None else (self.before - number).clamp(min=0)
        batch = self.batch.cached(("behind", number), make)
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
        """By one clustering, each query to one cluster, int64 [B, G, N]; ``keys``: None, as the
        queries."""
        return cls((Round((queries,), keys),), **others)

    @property
    def groups(self) -> int:
        """Groups of heads whose keys are assigned apart."""
        return self.rounds[0].of_keys.size(1) if self.rounds else 1
