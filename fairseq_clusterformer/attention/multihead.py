"""Multi-head self-attention whose heads may be of several kinds.

Shape letters: B batch, N tokens, D model width, H heads, E head width.
"""

import torch
from torch import Tensor, nn

from ..clustering import Report, State
from ..kernels import join, ranged_attention
from .base import AttentionConfig, Router, build_router
from .rings import attend_step


class MultiheadAttention(nn.Module):
    """Projections, one router for each kind, and ranged attention.

    The projections have the names and the initialisation of fairseq's ``MultiheadAttention``, so
    that a dense checkpoint fits; all that is new lies under ``routers``.

    Args:
        embed_dim: D.
        num_heads: H, divided equally among the kinds.
        kinds: names of registered kinds, as :func:`parse_attention` returns for a layer.
        config: options of the kinds.
        causal: a query sees no later token.
        dropout: of the attention weights, in training.

    Raises:
        ValueError: D is not a multiple of H, or H not of the number of kinds.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kinds: tuple[str, ...],
        config: AttentionConfig,
        causal: bool,
        dropout: float = 0.0,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(
                f"the width of {embed_dim} does not divide among {num_heads} heads; "
                "allowed: a number of heads that divides the width"
            )
        if num_heads % len(kinds):
            raise ValueError(
                f"{num_heads} heads do not divide among the {len(kinds)} kinds of "
                f"{'+'.join(kinds)}; allowed: a number of kinds that divides {num_heads}"
            )
        self.kinds = kinds
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.impl = config.kernel
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.reset_parameters()
        self.routers = nn.ModuleList(
            build_router(
                kind,
                config,
                embed_dim=embed_dim,
                num_heads=num_heads // len(kinds),
                head_dim=self.head_dim,
                causal=causal,
            )
            for kind in kinds
        )

    def reset_parameters(self) -> None:
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, centroids: Tensor | None = None
    ) -> tuple[Tensor, list[Report]]:
        """Attend within each row.

        Args:
            x: [B, N, D].
            padding_mask: bool [B, N], True where a token is padding; its output has no meaning.
            centroids: handed on by the layer before, for kinds that take them, [B, K, D].

        Returns:
            The output [B, N, D], and a report for each router.
        """
        q, k, v = self._project(x)
        outputs, reports = [], []
        for router, q_part, k_part, v_part in self._by_kind(q, k, v):
            q_part, k_part = router.project(q_part, k_part)
            routing = router(x, q_part, k_part, padding_mask, centroids)
            dropout = self.dropout if self.training else 0.0
            out, _ = join(
                [
                    ranged_attention(
                        q_part, k_part, v_part, layout, dropout=dropout, impl=self.impl
                    )
                    for layout in routing.layouts
                ]
            )
            outputs.append(out)
            reports.append(routing.report)
        return self._merge(outputs), reports

    @property
    def can_step(self) -> bool:
        """Whether all kinds can decode step by step."""
        return all(router.can_step for router in self.routers)

    @torch.no_grad()
    def step(
        self, x: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend from one more token of a causal sequence, without gradients.

        Args:
            x: [B, 1, D].
            state: what the last call returned, which is used up; empty at first.
            padding_mask: bool [B, 1].

        Returns:
            The output [B, 1, D], equal to the last position of ``forward``, and the state.

        Raises:
            ValueError: a kind that cannot decode step by step.
        """
        for router in self.routers:
            if not router.can_step:
                raise ValueError(router.why_no_steps)
        q, k, v = self._project(x)
        outputs, new_state = [], {}
        for i, (router, q_part, k_part, v_part) in enumerate(self._by_kind(q, k, v)):
            routing, kept = _under(state, f"{i}.routing."), _under(state, f"{i}.kept.")
            q_part, k_part = router.project(q_part, k_part)
            step = router.step(x, q_part, k_part, routing, padding_mask)
            out, kept = attend_step(
                q_part,
                k_part,
                v_part,
                step.rings,
                kept,
                num_rings=router.num_rings,
                window=router.window,
                own_apart=router.own_apart,
                own_bias=step.own_bias,
                padding_mask=padding_mask,
                impl=self.impl,
            )
            outputs.append(out)
            new_state.update({f"{i}.routing.{name}": t for name, t in step.state.items()})
            new_state.update({f"{i}.kept.{name}": t for name, t in kept.items()})
        return self._merge(outputs), new_state

    def observe(self, reports: list[Report]) -> None:
        """Let the routers remember a training batch; called once its forward pass is over."""
        for router, report in zip(self.routers, reports, strict=True):
            if report.observation is not None:
                router.observe(report.observation)

    def commit(self) -> None:
        """Let the routers apply what they remembered; called before each update."""
        for router in self.routers:
            router.commit()

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, N, E]."""
        by_head = (*x.shape[:2], self.num_heads, self.head_dim)
        q, k, v = (
            projection(x).view(by_head).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return q, k, v

    def _by_kind(self, *tensors: Tensor) -> list[tuple[Router, Tensor, Tensor, Tensor]]:
        if len(self.routers) == 1:
            return [(self.routers[0], *tensors)]
        share = self.num_heads // len(self.routers)
        return list(zip(self.routers, *(t.split(share, dim=1) for t in tensors), strict=True))

    def _merge(self, outputs: list[Tensor]) -> Tensor:
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return self.out_proj(out.transpose(1, 2).flatten(2))


def _under(state: State, prefix: str) -> State:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
