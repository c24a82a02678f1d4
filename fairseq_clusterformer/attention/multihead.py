"""Multi-head self-attention whose heads may be of several kinds.

Shape letters: B batch, N tokens, D model width, H heads, J heads of keys and values, E head width.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ..clustering import Report, State
from ..kernels import Layout, join, ranged_attention
from ..precision import at_least_float32, full_float32, is_exact
from .batch import Batch
from .kind import Assignment, Kind, Shape, Tokens, registered
from .options import OptionError
from .projections import RelativePositions, ShortConvolution, rotated
from .rings import Ring, attend_step
from .rules import own_bias, own_part
from .scouts import routing_gain, routing_loss, weighed
from .spec import Heads, parse_layer
from .summaries import as_entries, attend, means, places, summaries_of

logger = logging.getLogger(__name__)
PROJECTIONS = ("q", "k", "v")


class MultiheadAttention(nn.Module):
    """Projections, one kind for each share of the heads, and ranged attention.

    The projections have the names and the initialisation of fairseq's ``MultiheadAttention``, so
    that a dense checkpoint fits; all that is new lies under ``routers`` and ``convolutions``.

    Args:
        embed_dim: D.
        num_heads: H, divided equally among the kinds.
        kinds: as a layer of a spec ("window(64)+gated(clusters=32)"), or as
            :func:`parse_attention` returns a layer.
        causal: a query sees no later token.
        dropout: of the attention weights, in training.
        kv_heads: J, each for H / J queries (Ainslie et al. 2023); None: H.
        rotary: queries and keys carry rotary positions.
        relative: logits depend on distances, as in Transformer-XL.
        short_convolution: width of the convolutions over queries, keys and values; 0: none.
        copying_start: begin as heads that copy, see :meth:`_copy`; a causal module with a short
            convolution of 3 or more.
        kernel: see :func:`~fairseq_clusterformer.kernels.ranged_attention`.

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
        kv_heads: int | None = None,
        rotary: bool = False,
        relative: bool = False,
        short_convolution: int = 0,
        copying_start: bool = False,
        kernel: str = "auto",
    ):
        super().__init__()
        if isinstance(kinds, str):
            kinds = parse_layer(kinds)
        kv_heads = num_heads if kv_heads is None else kv_heads
        names = "+".join(heads.kind for heads in kinds)
        for number, of, divides, what in (
            (num_heads, "heads", embed_dim, f"the width of {embed_dim}"),
            (len(kinds), f"kinds of {names}", num_heads, f"{num_heads} heads"),
            (kv_heads, "heads of keys and values", num_heads, f"{num_heads} heads"),
        ):
            if number < 1 or divides % number:
                raise ValueError(
                    f"{what} do not divide among {number} {of}; allowed: a number that divides "
                    f"{divides}"
                )
        self.kinds = tuple(kinds)
        self.embed_dim, self.num_heads, self.kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim = embed_dim // num_heads
        if rotary and self.head_dim % 2:
            raise ValueError(f"rotary positions with heads {self.head_dim} wide; allowed: even")
        self.dropout, self.rotary, self.impl = dropout, rotary, kernel
        kv_dim = kv_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, kv_dim)
        self.v_proj = nn.Linear(embed_dim, kv_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.reset_parameters()
        sizes = (num_heads, self.head_dim, embed_dim)
        self.relative = RelativePositions(*sizes) if relative else None
        widths = {"q": embed_dim, "k": kv_dim, "v": kv_dim} if short_convolution else {}
        self.convolutions = nn.ModuleDict(
            {
                name: ShortConvolution(n, short_convolution, causal=causal)
                for name, n in widths.items()
            }
        )
        if copying_start:
            if not causal or short_convolution < 3:
                problem = f"a short convolution of {short_convolution}" if causal else "not causal"
                allowed = "causal, with a short convolution of 3 or more"
                raise ValueError(f"a copying start, {problem}; allowed: {allowed}")
            self._copy()
        shape = Shape(embed_dim, num_heads // len(kinds), self.head_dim, causal)
        self.routers = nn.ModuleList()
        for heads in kinds:
            try:
                self.routers.append(registered(heads.kind).kind(heads.options, shape))
            except OptionError as error:
                error.written = heads.written
                raise

    def reset_parameters(self) -> None:
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    @torch.no_grad()
    def _copy(self) -> None:
        """Begin as heads that copy: a query looks for earlier places where its own token and the
        one before stood, and adds half of what came next there to the residual stream.

        Queries have the projection of keys, which look one token further back. Outputs undo the
        projection of values (of fewer heads of values, the part that these hold). From random
        projections, training finds such heads (induction heads, Olsson et al. 2022) late and by
        chance. To begin near what training finds is mimetic initialisation (Trockman and Kolter
        2023). Rotary positions weaken it. So do kinds that put a key into the cluster of its own
        token, not of the one before: those that cluster the layer's input, lsh and routing.
        """
        shape = self.num_heads // self.kv_heads, self.head_dim, self.embed_dim
        of_keys = self.k_proj.weight.unflatten(0, (self.kv_heads, 1, -1)).expand(-1, *shape)
        self.q_proj.weight.copy_(of_keys.flatten(0, 2))
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.zeros_(projection.bias)
        of_values = torch.empty(self.v_proj.weight.shape, dtype=torch.float32)  # not by halves
        self.v_proj.weight.copy_(nn.init.orthogonal_(of_values, gain=2**-0.5))
        back = self.v_proj.weight.unflatten(0, (self.kv_heads, 1, -1)).expand(-1, *shape)
        self.out_proj.weight.copy_(back.flatten(0, 2).T / shape[0])
        of_queries, of_keys = (self.convolutions[name].weight[:, 0] for name in "qk")
        of_keys[:, -1] -= 1.0
        of_keys[:, -2] += 1.0
        for taps, before in ((of_queries, -2), (of_keys, -3)):
            taps[:, before] += 0.5

    def forward(
        self,
        x: Tensor,
        batch: Batch | Tensor | None = None,
        centroids: Tensor | None = None,
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
        if batch.documents is not None and not all(map(_by_tokens, self.routers)):
            batch.take_apart()  # here, where a compiled graph breaks once
        q, k, v = (
            self._heads(self._convolved(name, self._projected(name, x), batch))
            for name in PROJECTIONS
        )
        exact = self._exactly(x, q, k, lambda name, y: self._convolved(name, y, batch))

        def past() -> tuple[Tensor, Tensor]:
            states = x.detach()
            return tuple(
                self._heads(self._convolved(name, self._projected(name, states), batch))
                for name in ("k", "v")
            )

        outputs, reports = [], []
        for i, router in enumerate(self.routers):
            parts = (self._share(i, q), *(self._share(i, self._repeated(t)) for t in (k, v)))
            out, report = self._attend(router, i, x, parts, exact, past, batch, centroids)
            outputs.append(out)
            reports.append(report)
        return self._merge(outputs), reports

    def _attend(
        self,
        router: Kind,
        i: int,
        x: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        exact: Callable[[], tuple[Tensor, Tensor]],
        past: Callable[[], tuple[Tensor, Tensor]],
        batch: Batch,
        centroids: Tensor | None,
    ) -> tuple[Tensor, Report]:
        """Values that the heads of a kind attend to [B, H, N, E], and its report.

        Args:
            exact: makes queries and keys of all heads as kinds are to be given them.
            past: makes keys and values of all heads [B, J, N, E] of states without gradient.
        """
        if batch.documents is not None and not _by_tokens(router):
            return self._attend_apart(router, i, x, heads, exact, past, batch, centroids)
        q, k, v = heads
        q, k = router.project(q, k)

        def of_kind() -> tuple[Tensor, Tensor]:
            if is_exact(q):
                return q, k
            return router.project(*(self._share(i, t) for t in exact()))

        routing = router(
            Tokens(x, of_kind, batch, lambda: batch.positions(x), centroids, self.impl)
        )
        q, k, v = self._placed(i, q, k, v, batch.positions(x))
        gain, report = None, routing.report
        if routing.scouts is not None:
            gain = routing_gain(q, k, routing.of_scouts, routing.scouts, impl=self.impl)
        dropout = self.dropout if self.training else 0.0
        layouts = [as_kept(layout, k) for layout in routing.layouts]
        more = (routing.own, routing.summaries, *routing.memory)
        joins = len(layouts) + sum(part is not None for part in more) > 1
        wide = to_join(q, k, v) if joins else (q, k, v)
        parts = [
            ranged_attention(*wide, layout, dropout=dropout, impl=self.impl) for layout in layouts
        ]
        if routing.own is not None:
            parts.append(own_part(*wide, routing.own, batch.padding_mask, dropout))
        if (of := routing.summaries) is not None:
            at = batch.once(  # for all layers
                ("summaries", of.every, of.gap),
                lambda: places(of, batch.positions(x), len(x), batch.padding_mask),
            )
            own = None if router.causal else (k, v)
            values, lse = attend(q, means(k, v, of, at)[0], of, at, dropout, own)
            if routing.scouts is not None:
                lse = lse.masked_fill(routing.scouts.queries, -torch.inf)
            parts.append((values, lse))
        if routing.memory:
            k, v = (self._share(i, self._repeated(t)) for t in past())
            _, k, v = self._placed(i, k, router.project(k, k)[1], v, batch.positions(x))
            wide = to_join(q, k, v)
            parts += [
                ranged_attention(*wide, layout, dropout=dropout, impl=self.impl)
                for layout in routing.memory
            ]
        out = join(parts)[0][..., : self.head_dim].to(q.dtype)
        if gain is not None:
            out, gain = weighed(out, gain)
            report = report._replace(routing_loss=routing_loss(gain))
        return out, report

    def _attend_apart(
        self, router, i, x, heads, exact, past, batch, centroids
    ) -> tuple[Tensor, Report]:
        """The same for a kind that looks at whole rows: each document is a row of its own."""
        place, documents = batch.apart
        if centroids is not None and router.needs_centroids:
            raise ValueError(
                "centroids that are handed on from layer to layer, in rows of several documents; "
                "allowed: each layer owns its centroids"
            )

        def apart(t: Tensor) -> Tensor:  # [B, H, N, E]
            return t.transpose(1, 2).flatten(0, 1)[place].transpose(1, 2)

        out, report = self._attend(
            router,
            i,
            x.flatten(0, 1)[place],
            tuple(apart(t) for t in heads),
            lambda: tuple(apart(t) for t in exact()),
            lambda: tuple(apart(t) for t in past()),
            documents,
            None,
        )
        tokens = x.size(0) * x.size(1)
        if documents.padding_mask is not None:  # what is put there is dropped
            place = place.masked_fill(documents.padding_mask, tokens)

        def together(t: Tensor) -> Tensor:  # [D, G, M, ...] to [B, G, N, ...]
            t = t.transpose(1, 2).flatten(0, 1)
            whole = t.new_zeros(tokens + 1, *t.shape[1:]).index_copy(0, place.flatten(), t)
            return whole[:-1].unflatten(0, x.shape[:2]).transpose(1, 2)

        if report.clusters is not None:
            report = report._replace(clusters=together(report.clusters))
        return together(out), report

    @property
    def can_step(self) -> bool:
        """Whether all kinds can decode step by step."""
        return all(router.can_step for router in self.routers)

    @torch.no_grad()
    def step(
        self, x: Tensor, state: State, batch: Batch | Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend from one more token of a causal sequence, without gradients.

        Args:
            x: [B, 1, D].
            state: what the last call returned, which is used up; empty at first.
            batch: the padding mask, bool [B, 1], and to which document of its row each token
                belongs, [B, 1]: where that is another than the last call's, a document begins.

        Returns:
            The output [B, 1, D], equal to the last position of ``forward``, and the state.

        Raises:
            ValueError: a kind that cannot decode step by step.
        """
        for router in self.routers:
            if not router.can_step:
                raise ValueError(router.why_no_steps)
        batch, new_state = Batch.of(batch), {}
        position, restart = self._position(x, state, batch, new_state)
        real = Batch(batch.padding_mask)

        def convolved(name: str, y: Tensor, exact: str = "") -> Tensor:
            if name not in self.convolutions:
                return y
            key = f"{name}.{exact}before"
            y, new_state[key] = self.convolutions[name].step(y, state.get(key), real, restart)
            return y

        q, k, v = (self._heads(convolved(name, self._projected(name, x))) for name in PROJECTIONS)
        exact = self._exactly(x, q, k, lambda name, y: convolved(name, y, "exact."))
        reads = any(router.reads_heads for router in self.routers)
        if self.convolutions and reads and not is_exact(q):
            exact()  # its convolutions look back, whether or not this token asks for them
        outputs = []
        for i, router in enumerate(self.routers):
            if restart is not None and not router.alone:
                raise ValueError(router.why_apart)
            out, own = self._step(
                router, i, x, (q, k, v), exact, real, position, restart, under(state, f"{i}.")
            )
            outputs.append(out)
            new_state.update({f"{i}.{name}": t for name, t in own.items()})
        return self._merge(outputs), new_state

    def _step(
        self,
        router: Kind,
        i: int,
        x: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        exact: Callable[[], tuple[Tensor, Tensor]],
        batch: Batch,
        position: Tensor,
        restart: Tensor | None,
        state: State,
    ) -> tuple[Tensor, State]:
        """What :meth:`_attend` is to ``forward``: values that one more token's heads of a kind
        attend to [B, H, 1, E], and the kind's state."""
        q, few_k, few_v, of_kind = self._few(router, i, heads, exact)
        tokens = Tokens(x, of_kind, batch, lambda: position, decoding=True)
        assignment, routing = router.assign(tokens, under(state, "routing."))
        rings = tuple(_places(assignment, x))
        if rings[0].key.size(1) > few_k.size(1):
            few_k, few_v = (self._share(i, self._repeated(t)) for t in heads[1:])
        q, k, v = self._placed(i, q, few_k, few_v, position)
        new_state, others = {f"routing.{name}": t for name, t in routing.items()}, None
        if (of := summaries_of(router, assignment)) is not None:
            at = places(of, position, len(x), batch.padding_mask)
            sums, new_state["summaries"] = means(k, v, of, at, state.get("summaries"))
            others = as_entries(sums[:, :, 0], of)
        out, kept = attend_step(
            q,
            k,
            v,
            rings,
            under(state, "kept."),
            num_rings=router.num_rings,
            window=router.by_cluster,
            gap=router.gap,
            skips=router.drops,
            key_bias=None if assignment.key_bias is None else assignment.key_bias.squeeze(-1),
            own_bias=own_bias(router) if router.gap else 0.0,
            padding_mask=batch.padding_mask,
            restart=restart,
            latest=assignment.latest,
            others=others,
            impl=self.impl,
        )
        new_state |= {f"kept.{name}": t for name, t in kept.items()}
        return out[..., : self.head_dim], new_state

    def _few(
        self,
        router: Kind,
        i: int,
        heads: tuple[Tensor, Tensor, Tensor],
        exact: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor, Tensor, Callable[[], tuple[Tensor, Tensor]]]:
        """A kind's queries, its keys and values, which queries may share, and what makes queries
        and keys as the kind is to be given them."""
        shared = type(router).project is Kind.project and not self.kv_heads % len(self.kinds)
        q = self._share(i, heads[0])
        few_k, few_v = (self._share(i, t if shared else self._repeated(t)) for t in heads[1:])
        q, few_k = router.project(q, few_k)

        def of_kind() -> tuple[Tensor, Tensor]:
            if is_exact(q) and few_k.size(1) == q.size(1):
                return q, few_k
            return router.project(*(self._share(i, t) for t in exact()))

        return q, few_k, few_v, of_kind

    def _position(
        self, x: Tensor, state: State, batch: Batch, new_state: State
    ) -> tuple[Tensor, Tensor | None]:
        """Of the tokens among the real ones of their documents [B, 1], and which begin one."""
        position = state.get("position", x.new_zeros(x.size(0), 1, dtype=torch.long))
        restart = None
        if batch.documents is not None:
            restart = batch.documents != state.get("document", batch.documents)
            new_state["document"] = batch.documents
            position = position.masked_fill(restart, 0)
        real = 1 if batch.padding_mask is None else (~batch.padding_mask).long()
        new_state["position"] = position + real
        return position, restart

    def observe(self, reports: list[Report]) -> None:
        """Let the kinds remember a training batch; called once its forward pass is over."""
        for router, report in zip(self.routers, reports, strict=True):
            if report.observation is not None:
                router.observe(report.observation)

    def commit(self) -> None:
        """Let the kinds apply what they remembered; called before each update."""
        for router in self.routers:
            router.commit()

    def _projected(self, name: str, x: Tensor) -> Tensor:
        return getattr(self, f"{name}_proj")(x)

    def _convolved(self, name: str, x: Tensor, batch: Batch) -> Tensor:
        return self.convolutions[name](x, batch) if name in self.convolutions else x

    def _placed(
        self, i: int, q: Tensor, k: Tensor, v: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of a kind with their positions, and values as wide."""
        if self.rotary:
            q, k = (rotated(t, positions) for t in (q, k))
        if self.relative is not None:
            count = self.num_heads // len(self.routers)
            q, k = self.relative(q, k, positions, slice(i * count, (i + 1) * count))
            v = pad(v, (0, k.size(-1) - v.size(-1)))
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, H * E] to [B, H, N, E]."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def _repeated(self, x: Tensor) -> Tensor:
        """Heads of keys or values, once for each query."""
        times = self.num_heads // self.kv_heads
        return x if times == 1 else x.repeat_interleave(times, dim=1)

    def _exactly(
        self, x: Tensor, q: Tensor, k: Tensor, convolved: Callable[[str, Tensor], Tensor]
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """Queries and keys of all heads in full float32, where the others are not: made when a
        kind asks for them, and once."""
        made: list[tuple[Tensor, Tensor]] = []

        @full_float32()
        def in_float32() -> tuple[Tensor, Tensor]:
            projected = (
                linear(x.float(), p.weight.float(), p.bias.float())
                for p in (self.q_proj, self.k_proj)
            )
            return tuple(
                self._heads(convolved(name, y)) for name, y in zip("qk", projected, strict=True)
            )

        def exact() -> tuple[Tensor, Tensor]:
            if made:
                return made[0]
            both = (q, k) if is_exact(q) else in_float32()
            made.append((both[0], self._repeated(both[1])))
            return made[0]

        return exact

    def _share(self, i: int, x: Tensor) -> Tensor:
        """The heads of a kind."""
        return x if len(self.routers) == 1 else x.chunk(len(self.routers), dim=1)[i]

    def _merge(self, outputs: list[Tensor]) -> Tensor:
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Also take a dense checkpoint: what is clustered or convolved starts anew, and heads of
        keys and values that are now shared are averaged (Ainslie et al. 2023)."""
        for part in ("routers", "convolutions"):
            mine = {f"{prefix}{part}.{n}": t for n, t in getattr(self, part).state_dict().items()}
            if mine and not mine.keys() & state_dict.keys():
                if part == "routers":
                    name = prefix.removesuffix(".") or "attention"
                    logger.info("%s: the checkpoint has no clusters; they start anew", name)
                for convolution in self.convolutions.values() if part == "convolutions" else ():
                    convolution.identity_()
                state_dict.update(mine)
        self.average_heads(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def average_heads(self, state_dict: State, prefix: str) -> None:
        """Where a checkpoint has more heads of keys and values, take means of those that are
        one head here."""
        for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
            given, wanted = state_dict.get(prefix + name), self.kv_heads * self.head_dim
            if given is not None and len(given) > wanted and not len(given) % wanted:
                heads = given.view(self.kv_heads, -1, self.head_dim, *given.shape[1:])
                state_dict[prefix + name] = heads.mean(1).flatten(0, 1)


def _by_tokens(router: Kind) -> bool:
    """Whether a kind looks at tokens, and not at whole rows."""
    return router.rule == "recent" and router.alone


def as_kept(layout: Layout, k: Tensor) -> Layout:
    """A layout whose biases are rounded as decoding keeps them: with their keys."""
    if layout.key_bias is None:
        return layout
    return replace(layout, key_bias=layout.key_bias.to(k.dtype))


def to_join(*heads: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values of parts that :func:`join` is given: a step, which has one part,
    rounds once. A CPU's kernels compute in float32 anyway; a GPU's would be slower by far."""
    return heads if heads[0].is_cuda else tuple(map(at_least_float32, heads))


def _places(assignment: Assignment, x: Tensor) -> Iterator[Ring]:
    """Where one token reads and is kept, for each time it is assigned."""
    for probed, keys in assignment.rounds():
        if probed[0] is None:
            probed = (x.new_zeros(x.size(0), 1, 1, dtype=torch.long),)
        probed = tuple(queries.squeeze(-1) for queries in probed)
        yield Ring(probed, probed[0] if keys is None else keys.squeeze(-1))


def under(state: State, prefix: str) -> State:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
