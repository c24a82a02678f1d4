"""Multi-head self-attention whose heads may be of several kinds."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..clustering import Report
from .attend import QKV, attend
from .heads import Convolved, HeadForm, Projected, ProjectedHeads
from .kind import Kind
from .options import Heads, OptionError, attention_kinds, check_divides, parse_layer
from .past import Past, Stores
from .tokens import Batch, Shape, Tokens, for_each

logger = logging.getLogger(__name__)


class MultiheadAttention(ProjectedHeads):
    """Projections, one kind for each share of the heads, and ranged attention. What a dense
    checkpoint lacks lies under ``routers`` and ``convolutions``.

    Args:
        embed_dim, num_heads: D, and H, which is divided equally among the kinds.
        kinds: a layer of a spec ("window(64)+gated(clusters=32)"), or of `parse_attention`.
        causal: a query sees no later token.
        dropout: of the attention weights, in training.
        kernel: see :func:`~fairseq_clusterformer.kernels.ranged_attention`.
        form, of_form: a `HeadForm`, or some of its values by name.

    Raises ValueError: D is not a multiple of H, or H not of the number of kinds, and the like.
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
        form: HeadForm | None = None,
        **of_form: Any,
    ):
        if isinstance(kinds, str):
            kinds = parse_layer(kinds)
        names = "+".join(heads.kind for heads in kinds)
        check_divides(len(kinds), f"kinds of {names}", num_heads, f"{num_heads} heads")
        super().__init__(embed_dim, num_heads, form or HeadForm(**of_form), causal=causal)
        self.kinds, self.dropout, self.impl = tuple(kinds), dropout, kernel
        size, of_keys = num_heads // len(kinds), self.kv_heads
        of_keys = num_heads if of_keys % len(kinds) else of_keys
        shape = Shape(embed_dim, size, self.head_dim, causal, of_keys // len(kinds))
        self.routers = nn.ModuleList()
        for heads in kinds:
            try:
                router = attention_kinds()[heads.kind].kind(heads.options, shape)
                if router.rule.last_place is not None and self.rotary is None:
                    raise OptionError("cache_positions", True, "with rotary positions")
            except OptionError as error:
                error.written = heads.written
                raise
            self.routers.append(router)
        readers = [i for i, router in enumerate(self.routers) if router.rule.reads_qk]
        # Heads that share keys, and those that are convolved, are computed as a whole.
        if readers and (self.kv_heads < num_heads or self.convolutions):
            readers = [0, len(kinds) - 1]
        self.exactly = slice(readers[0] * size, (readers[-1] + 1) * size) if readers else None

    def forward(
        self, x: Tensor, batch: Batch | Tensor | None = None, centroids: Tensor | None = None
    ) -> tuple[Tensor, list[Report]]:
        """:meth:`following` without a past: the output [B, N, D], and a report for each kind."""
        out, _, reports = self.following(x, None, batch, centroids, reported=True)
        return out, reports

    @property
    def can_step(self) -> bool:
        """Whether all kinds can decode step by step."""
        return all(router.rule.can_step for router in self.routers)

    def step(
        self, x: Tensor, past: Past | None = None, batch: Batch | Tensor | None = None
    ) -> tuple[Tensor, Past]:
        """:meth:`following` without gradients or reports; ``past``: None: an empty one."""
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            return self.following(x, Past() if past is None else past, batch)[:2]

    def following(
        self,
        x: Tensor,
        past: Past | None,
        batch: Batch | Tensor | None = None,
        centroids: Tensor | None = None,
        reported: bool = False,
    ) -> tuple[Tensor, Past | None, list[Report]]:
        """Attend from the next tokens of a text, one or several.

        Args:
            x: [B, N, D].
            past: what the last call returned, which is used up; ``Past()`` at first. None: there
                are no tokens before these, and none will follow, as in training.
            batch: which tokens are real and which documents they belong to; or the padding mask,
                bool [B, N], True at padding, whose output has no meaning. With a past, of these
                tokens alone, which layers may share; documents are those of single tokens then,
                [B, 1]: another than the last call's begins.
            centroids: handed on by the layer before, for kinds that take them, [B, K, D]; without
                a past.
            reported: in training: kinds report and teach, of two tokens or more.

        Returns the output [B, N, D], the past of the tokens that follow, and a report for each
        kind. Raises ValueError: with a past, a kind that cannot step; several tokens at once of
        several documents.
        """
        batch = batch if isinstance(batch, Batch) else Batch(batch)
        given: dict[str, Any] = {"decoding": not reported, "centroids": centroids}
        kept, begins, kinds = None, None, (None,) * len(self.routers)
        if past is not None:
            for router in self.routers:
                if not router.rule.can_step:
                    raise ValueError(router.why_no_steps)
                if batch.documents is not None and not router.rule.per_token:
                    raise ValueError(router.why_apart)
            documents = batch.documents is not None or past.document is not None
            if x.size(1) != 1 and documents:
                raise ValueError("documents in a prompt; allowed: one document, or step by step")
            if not x.size(1):
                return x, past, []
            before, document, mask = past.position, batch.documents, batch.padding_mask
            if before is None:
                before = torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
            if document is not None:
                begins = document != (document if past.document is None else past.document)
                before = before.masked_fill(begins, 0)
                batch = Batch(mask)  # documents are told apart by the past
            real = x.size(1) if mask is None else (~mask).sum(1, keepdim=True)
            after = before + real
            positions = before if x.size(1) == 1 else before + batch.positions(x)
            given |= {"before": before, "begins": begins, "positions": positions}
            kept, kinds = past.convolved, past.kinds or [Stores() for _ in kinds]
        elif batch.documents is not None and not all(router.by_tokens for router in self.routers):
            batch.take_apart()  # here, where a compiled graph breaks once
        around = Convolved(batch, kept, begins)
        constant = any(router.rule.reads_constants for router in self.routers)
        heads = self.project(x, around, self.exactly, constant)
        results = [self._attend(i, heads, batch, stores, given) for i, stores in enumerate(kinds)]
        outputs, kinds, reports = zip(*results, strict=True)
        if past is not None:
            past = Past(after, document, around.after, kinds)
        return self.merge(outputs), past, list(reports)

    def _attend(
        self, i: int, heads: Projected, batch: Batch, stores: Stores | None, given: dict[str, Any]
    ) -> tuple[Tensor, Stores | None, Report]:
        """Of a kind: its heads' values, its stores, its report; ``given``: of :class:`Tokens`."""
        router = self.routers[i]
        if batch.documents is not None and not router.by_tokens:  # each document as a row
            if given["centroids"] is not None and router.rule.needs_centroids:
                problem = "centroids that are handed on, in rows of several documents"
                raise ValueError(f"{problem}; allowed: each layer owns its centroids")
            place, documents = batch.apart
            alone = given | {"centroids": None}
            out, _, report = self._attend(i, heads.apart(place), documents, None, alone)
            if report.clusters is not None:
                report = report._replace(clusters=batch.together(report.clusters))
            return batch.together(out), None, report
        tokens, qkv = self._of_kind(i, heads, batch, given)
        seen = router(tokens, stores)
        if stores is None or qkv.k.size(1) < seen.assignment.groups:
            qkv = qkv.repeated()  # heads whose queries share keys have clusters of their own
        out, stores = attend(qkv, seen, router.rule, stores)
        out, report = router.attended(out[..., : self.head_dim], qkv, seen)
        return out, stores, report

    def _of_kind(self, i: int, heads: Projected, batch: Batch, given: dict) -> tuple[Tokens, QKV]:
        """What a kind reads to assign, and what its heads attend with."""
        router, number = self.routers[i], len(self.kinds)
        size, dropout = self.num_heads // number, self.dropout if self.training else 0.0
        # Heads of keys stay shared where the kind takes them as they are.
        apart = type(router).project is not Kind.project or self.kv_heads % number

        def share(x: Tensor) -> Tensor:
            x = for_each(heads.q, x) if apart else x
            return x if number == 1 else x.chunk(number, dim=1)[i]

        q, k, v = map(share, heads[1:4])
        q, k = router.project(q, k)
        read = constant = None
        if router.rule.reads_qk:
            read = q, k
            if heads.exact is not None:
                first = i * size - self.exactly.start  # of those that are exact
                read = router.project(*(t[:, first : first + size] for t in heads.exact))
            read = QKV(*read, read[1]).repeated()[:2]
        tokens = Tokens(heads.x, read, batch, impl=self.impl, **given)
        where = slice(i * size, (i + 1) * size), tokens.positions, batch
        if router.rule.reads_constants:
            of_k, of_v = map(share, heads.constant)
            constant = self._placed(q, router.project(q, of_k)[1], of_v, *where)[1:]
        return tokens, QKV(*self._placed(q, k, v, *where), dropout, self.rotary, constant)

    def observe(self, reports: list[Report]) -> None:
        """Let the kinds remember a training batch; called once its forward pass is over."""
        for router, report in zip(self.routers, reports, strict=True):
            if report.observation is not None:
                router.learner.observe(report.observation)

    def commit(self) -> None:
        """Let the kinds apply what they remembered; called before each update."""
        for router in self.routers:
            router.commit()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Also take a dense checkpoint: what is clustered starts anew, convolutions change
        nothing, and heads of keys and values that are shared here are averaged."""
        for part in ("routers", "convolutions"):
            of_part = getattr(self, part).state_dict()
            mine = {f"{prefix}{part}.{name}": tensor for name, tensor in of_part.items()}
            if not mine or mine.keys() & state_dict.keys():
                continue
            state_dict.update(mine)
            if part == "routers":
                name = prefix.removesuffix(".") or "attention"
                logger.info("%s: the checkpoint has no clusters; they start anew", name)
            else:
                for convolution in self.convolutions.values():
                    convolution.identity_()
        self.average_heads(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
