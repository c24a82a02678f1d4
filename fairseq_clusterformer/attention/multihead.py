"""Multi-head self-attention whose heads may be of several kinds.

Shape letters: B batch, N tokens, D model width, H heads, J heads of keys and values, E head width.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..clustering import Report, State
from ..kernels import Layout
from .batch import Batch
from .heads import Projected, ProjectedHeads, check_divides
from .kind import Kind, Routing, Shape, Tokens, registered
from .options import OptionError
from .parts import QKV, attend, attend_behind
from .scouts import Scouts, routing_gain, routing_loss, scout_layouts, weighed
from .spec import Heads, parse_layer

logger = logging.getLogger(__name__)


class MultiheadAttention(ProjectedHeads):
    """Projections, one kind for each share of the heads, and ranged attention.

    The projections have the names and the initialisation of fairseq's ``MultiheadAttention``, so
    that a dense checkpoint fits; all that is new lies under ``routers`` and ``convolutions``.

    Args:
        embed_dim: D.
        num_heads: H, divided equally among the kinds.
        kinds: a layer of a spec ("window(64)+gated(clusters=32)"), or of `parse_attention`.
        causal: a query sees no later token.
        dropout: of the attention weights, in training.
        kernel: see :func:`~fairseq_clusterformer.kernels.ranged_attention`.
        projections: see :class:`~fairseq_clusterformer.attention.heads.ProjectedHeads`.

    Raises:
        ValueError: D is not a multiple of H, or H not of the number of kinds, and the like.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kinds: str | Sequence[Heads],
        causal: bool,
        dropout: float = 0.0,
        kernel: str = "auto",
        **projections: Any,
    ):
        if isinstance(kinds, str):
            kinds = parse_layer(kinds)
        names = "+".join(heads.kind for heads in kinds)
        check_divides(len(kinds), f"kinds of {names}", num_heads, f"{num_heads} heads")
        super().__init__(embed_dim, num_heads, causal=causal, **projections)
        self.kinds, self.dropout, self.impl = tuple(kinds), dropout, kernel
        heads_of_keys = self.num_heads if self.kv_heads % len(kinds) else self.kv_heads
        sizes = (num_heads // len(kinds), self.head_dim, causal, heads_of_keys // len(kinds))
        shape = Shape(embed_dim, *sizes)
        self.routers = nn.ModuleList()
        for heads in kinds:
            try:
                self.routers.append(registered(heads.kind).kind(heads.options, shape))
                if self.routers[-1].last_place is not None and self.rotary is None:
                    raise OptionError("cache_positions", True, "with rotary positions")
            except OptionError as error:
                error.written = heads.written
                raise
        readers = [i for i, router in enumerate(self.routers) if router.reads_qk]
        # Heads that share keys, and those that are convolved, are computed as a whole.
        if readers and (self.kv_heads < num_heads or self.convolutions):
            readers = [0, len(kinds) - 1]
        size = shape.num_heads
        self.exactly = slice(readers[0] * size, (readers[-1] + 1) * size) if readers else None

    def forward(
        self, x: Tensor, batch: Batch | Tensor | None = None, centroids: Tensor | None = None
    ) -> tuple[Tensor, list[Report]]:
        """Attend within each row, or within each document of it.

        Args:
            x: [B, N, D].
            batch: which tokens are real and which documents they belong to; or the padding mask,
                bool [B, N], True where a token is padding; its output has no meaning.
            centroids: handed on by the layer before, for kinds that take them, [B, K, D].

        Returns:
            The output [B, N, D], and a report for each kind.
        """
        batch = Batch.of(batch)
        if batch.documents is not None and not all(router.by_tokens for router in self.routers):
            batch.take_apart()  # here, where a compiled graph breaks once
        heads, _ = self.project(x, batch, exactly=self.exactly)
        results = [self._attend(i, heads, batch, centroids) for i in range(len(self.routers))]
        outputs, reports = zip(*results, strict=True)
        return self.merge(outputs), list(reports)

    def _attend(
        self, i: int, heads: Projected, batch: Batch, centroids: Tensor | None
    ) -> tuple[Tensor, Report]:
        """Values that the heads of a kind attend to [B, H, N, E], and its report."""
        router = self.routers[i]
        if batch.documents is not None and not router.by_tokens:  # each document as a row
            if centroids is not None and router.needs_centroids:
                raise ValueError(
                    "centroids that are handed on from layer to layer, in rows of several "
                    "documents; allowed: each layer owns its centroids"
                )
            place, documents = batch.apart
            out, report = self._attend(i, heads.apart(place), documents, None)
            if report.clusters is not None:
                report = report._replace(clusters=batch.together(report.clusters))
            return batch.together(out), report
        tokens, qkv = self._of_kind(i, heads, batch, centroids=centroids)
        qkv = qkv.repeated()
        routing: Routing = router(tokens)
        out = attend(routing.parts, qkv)[..., : self.head_dim]
        if routing.scouts is None:
            return out, routing.report
        return self._taught(out, qkv, routing.parts[0].of_scouts, routing.scouts, routing.report)

    def _taught(
        self, out: Tensor, qkv: QKV, layouts: Sequence[Layout], scouts: Scouts, report: Report
    ) -> tuple[Tensor, Report]:
        """The same output, whose gradient weighs what scouts teach, and a report of it."""
        gain = routing_gain(qkv.q, qkv.k, layouts, scouts, impl=self.impl)
        out, gain = weighed(out, gain)
        return out, report._replace(routing_loss=routing_loss(gain))

    @property
    def can_step(self) -> bool:
        """Whether all kinds can decode step by step."""
        return all(router.can_step for router in self.routers)

    @torch.no_grad()
    def step(
        self, x: Tensor, state: State, batch: Batch | Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend from the next tokens, without gradients or reports: see :meth:`following`."""
        return self.following(x, state, batch)[:2]

    def following(
        self,
        x: Tensor,
        state: State,
        batch: Batch | Tensor | None = None,
        reported: bool = False,
    ) -> tuple[Tensor, State, list[Report]]:
        """Attend from the next tokens of a causal sequence, one or several.

        Args:
            x: [B, N, D].
            state: what the last call returned, which is used up; empty at first.
            batch: the padding mask, bool [B, N]; of single tokens also to which document of its
                row each belongs, [B, 1]: another than the last call's begins. A `Batch` is of
                these tokens alone: layers that have had the same tokens may share it.
            reported: in training: kinds report and teach, of two tokens or more.

        Returns:
            The output [B, N, D], equal to the last positions of ``forward``, the state, and a
            report for each kind.

        Raises:
            ValueError: a kind that cannot step; several tokens at once of several documents.
        """
        for router in self.routers:
            if not router.can_step:
                raise ValueError(router.why_no_steps)
        batch = Batch.of(batch)
        if x.size(1) != 1 and (batch.documents is not None or "document" in state):
            raise ValueError("documents in a prompt; allowed: one document, or step by step")
        if not x.size(1):
            return x, state, []
        before, begins, after = _place(x, state, batch)
        # Documents are told apart by the state, so layers see the padding alone.
        real = batch if batch.documents is None else Batch(batch.padding_mask)
        outputs, reports = [], []
        heads, convolved = self.project(x, real, state, begins, exactly=self.exactly)
        decoding = {"before": before, "begins": begins, "reported": reported}
        decoding["positions"] = before if x.size(1) == 1 else before + real.positions(x)
        for i, router in enumerate(self.routers):
            if begins is not None and not router.per_token:
                raise ValueError(router.why_apart)
            tokens, qkv = self._of_kind(i, heads, real, **decoding)
            assignment, routing = router.assign(tokens, _under(state, f"{i}.routing."))
            if qkv.k.size(1) < assignment.groups:
                qkv = qkv.repeated()  # heads whose queries share keys have clusters of their own
            parts = router.seen(tokens, assignment, _under(state, f"{i}.kept."))
            out, kept = attend_behind(parts, qkv)
            out, report = out[..., : self.head_dim], assignment.report
            if assignment.scouts is not None:  # who teach of these tokens alone
                scouts, of_tokens = assignment.scouts, parts[0].tokens.batch
                layouts = scout_layouts(
                    scouts.queries, causal=True, gap=router.gap, batch=of_tokens
                )
                out, report = self._taught(out, qkv.repeated(), layouts, scouts, report)
            outputs.append(out)
            reports.append(report)
            after |= {f"{i}.routing.{name}": t for name, t in routing.items()}
            after |= {f"{i}.kept.{name}": t for name, t in kept.items()}
        return self.merge(outputs), after | convolved, reports

    def _of_kind(
        self, i: int, heads: Projected, batch: Batch, **others: Any
    ) -> tuple[Tokens, QKV]:
        """What a kind may read, and what its heads attend with; ``others``: of ``Tokens``."""
        router, count = self.routers[i], self.num_heads // len(self.kinds)
        whole = slice(0, self.num_heads)
        # Heads of keys stay shared where a kind takes them as they are.
        shared = type(router).project is Kind.project and self.kv_heads % len(self.kinds) == 0

        def share(x: Tensor) -> Tensor:
            if not shared and x.size(1) < self.num_heads:
                x = x.repeat_interleave(self.num_heads // x.size(1), dim=1)
            return x if len(self.kinds) == 1 else x.chunk(len(self.kinds), dim=1)[i]

        def projected(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            return router.project(share(q), share(k))

        q, k = projected(heads.q, heads.k)

        def exact() -> tuple[Tensor, Tensor]:
            both = q, k
            if heads.exact is not None:
                first = i * count - self.exactly.start  # of those that are exact
                some = slice(first, first + count)
                both = (share(t) if self.exactly == whole else t[:, some] for t in heads.exact)
                both = router.project(*both)
            return QKV(*both, both[1]).repeated()[:2]

        tokens = Tokens(heads.x, exact, batch, impl=self.impl, **others)

        def placed(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            of_kind = slice(i * count, (i + 1) * count)
            return self._add_positions(of_kind, q, k, share(v), tokens.positions, batch)

        def detached() -> tuple[Tensor, Tensor]:
            k, v = heads.detached()
            return placed(projected(heads.q, k)[1], v)[1:]

        dropout = self.dropout if self.training else 0.0
        how = {"dropout": dropout, "rotary": self.rotary, "detached": detached}
        return tokens, QKV(*placed(k, heads.v), **how)

    def observe(self, reports: list[Report]) -> None:
        """Let the kinds remember a training batch; called once its forward pass is over."""
        for router, report in zip(self.routers, reports, strict=True):
            if report.observation is not None:
                router.observe(report.observation)

    def commit(self) -> None:
        """Let the kinds apply what they remembered; called before each update."""
        for router in self.routers:
            router.commit()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Also take a dense checkpoint: what is clustered starts anew."""
        mine = {f"{prefix}routers.{n}": t for n, t in self.routers.state_dict().items()}
        if mine and not mine.keys() & state_dict.keys():
            name = prefix.removesuffix(".") or "attention"
            logger.info("%s: the checkpoint has no clusters; they start anew", name)
            state_dict.update(mine)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _place(x: Tensor, state: State, batch: Batch) -> tuple[Tensor, Tensor | None, State]:
    """How many real tokens of its document each row has had, int64 [B, 1], in which rows a
    document begins, and the state for the next tokens."""
    before, begins, after = state.get("position"), None, {}
    if before is None:
        before = torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
    if batch.documents is not None:
        begins = batch.documents != state.get("document", batch.documents)
        after["document"] = batch.documents
        before = before.masked_fill(begins, 0)
    real = x.size(1)
    if batch.padding_mask is not None:
        real = (~batch.padding_mask).sum(1, keepdim=True)
    return before, begins, {"position": before + real, **after}


def _under(state: State, prefix: str) -> State:
    """What of a state begins with a prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
