"""The heads of a layer: queries, keys and values, and what becomes of their values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..clustering import State
from ..precision import exact_linear, full_float32, is_exact
from ..products import mapped
from .options import Heads, check_divides
from .projections import QKV, RelativePositions, Rotary, ShortConvolution, turned
from .tokens import Batch

BIASES = ("all", "qkv", "none")


class Projected(NamedTuple):
    """A layer's input and its heads, without positions."""

    x: Tensor  # [B, N, D]
    q: Tensor  # [B, H, N, E]
    k: Tensor  # as v [B, J, N, E]
    v: Tensor
    #: queries and keys in full float32, of ``exactly``'s heads; None: the others are
    exact: tuple[Tensor, Tensor] | None = None
    #: keys and values of x without its gradient; None: nobody asked
    constant: tuple[Tensor, Tensor] | None = None

    def apart(self, place: Tensor) -> "Projected":
        """Of other rows, whose tokens stand at these places of the B * N, int64 [rows, M]."""

        def moved(t: Tensor) -> Tensor:  # [B, H, N, E]
            return t.transpose(1, 2).flatten(0, 1)[place].transpose(1, 2)

        both = (None if pair is None else tuple(map(moved, pair)) for pair in self[4:])
        return Projected(self.x.flatten(0, 1)[place], *map(moved, self[1:4]), *both)


@dataclass
class Convolved:
    """What the convolutions of a layer read around its tokens, and keep for the next ones."""

    batch: Batch  # of the tokens
    before: State | None = None  # what was kept of those before; None: nothing is
    begins: Tensor | None = None  # rows in which a document begins, bool [B, 1]
    after: State = field(default_factory=dict)

    def __call__(self, convolution: ShortConvolution, name: str, x: Tensor) -> Tensor:
        if self.before is None:
            return convolution(x, self.batch)
        given = x, self.before.get(name), self.batch, self.begins
        x, self.after[name] = convolution.following(*given)
        return x


@dataclass(frozen=True)
class HeadForm:
    """What all heads of a layer have in common."""

    kv_heads: int | None = None  # J, each for H / J queries (Ainslie et al. 2023); None: H
    head_dim: int | None = None  # E; None: D / H
    biases: str = "all"  # of projections; "qkv": all but the output's; "none"
    #: epsilon of a root-mean-square norm over each query and each key; None: no norm
    qk_norm: float | None = None
    rotary: bool | Rotary | None = None  # positions of queries and keys, and how fast they turn
    relative: bool = False  # logits depend on distances, as in Transformer-XL
    short_convolution: int = 0  # width of convolutions over queries, keys and values; 0: none
    copying_start: bool = False  # as heads that copy; causal, with a convolution of 3 or more


class AttentionPlan(NamedTuple):
    """The attention of an encoder's or a decoder's layers; made once, and handed down."""

    layers: tuple[tuple[Heads, ...], ...]  # kinds of each layer's heads
    form: HeadForm = HeadForm()  # of all layers, as the kernel
    kernel: str = "auto"
    kept: tuple[int, ...] = ()  # the numbers of these layers in the deeper model they are part of


class ProjectedHeads(nn.Module):
    """Projections with the names and the initialisation of fairseq's ``MultiheadAttention``, so
    that a dense checkpoint fits: of D to H heads; ``causal``: a query sees no later token."""

    def __init__(self, embed_dim: int, num_heads: int, form: HeadForm, *, causal: bool):
        super().__init__()
        kv_heads = num_heads if form.kv_heads is None else form.kv_heads
        if form.head_dim is None:
            check_divides(num_heads, "heads", embed_dim, f"the width of {embed_dim}")
        check_divides(kv_heads, "heads of keys and values", num_heads, f"{num_heads} heads")
        self.embed_dim, self.num_heads, self.kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim = form.head_dim or embed_dim // num_heads
        if form.rotary and self.head_dim % 2:
            raise ValueError(f"rotary positions with heads {self.head_dim} wide; allowed: even")
        self.rotary = Rotary() if form.rotary is True else form.rotary or None
        q_dim, kv_dim = num_heads * self.head_dim, kv_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, q_dim, bias=form.biases != "none")
        self.k_proj = nn.Linear(embed_dim, kv_dim, bias=form.biases != "none")
        self.v_proj = nn.Linear(embed_dim, kv_dim, bias=form.biases != "none")
        self.out_proj = nn.Linear(q_dim, embed_dim, bias=form.biases == "all")
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)
        normed = "" if form.qk_norm is None else "qk"
        norms = {name: nn.RMSNorm(self.head_dim, form.qk_norm) for name in normed}
        self.norms = nn.ModuleDict(norms)
        sizes = (num_heads, self.head_dim, embed_dim)
        self.relative = RelativePositions(*sizes) if form.relative else None
        self.convolutions, width = nn.ModuleDict(), form.short_convolution
        for name, channels in (("q", q_dim), ("k", kv_dim), ("v", kv_dim)) if width else ():
            self.convolutions[name] = ShortConvolution(channels, width, causal=causal)
        if form.copying_start:
            if not causal or width < 3:
                problem = f"a short convolution of {width}" if causal else "not causal"
                allowed = "causal, with a short convolution of 3 or more"
                raise ValueError(f"a copying start, {problem}; allowed: {allowed}")
            start_copying(self)

    def split(self, name: str, x: Tensor) -> Tensor:
        """Projected queries ("q"), keys or values [B, N, H * E] as heads [B, H, N, E]; queries and
        keys with their norm, if they have one."""
        x = x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
        return self.norms[name](x).to(x.dtype) if name in self.norms else x  # autocast widens it

    def project(
        self, x: Tensor, around: Convolved, exactly: slice | None = None, constant: bool = False
    ) -> Projected:
        """Queries, keys and values of all heads of x [B, N, D], without positions. ``exactly``:
        heads whose queries and keys are also needed in full float32; ``constant``: whether keys
        and values are also needed of x without its gradient."""
        q, k, v = (self.heads_of(name, x, around) for name in "qkv")
        exact = kept = None
        if exactly is not None and not is_exact(q):
            exact = self._exact(x, around, exactly)
        if constant:
            kept = tuple(self.heads_of(name, x.detach(), around) for name in "kv")
        return Projected(x, q, k, v, exact, kept)

    def heads_of(
        self, name: str, x: Tensor, around: Convolved, exactly: slice | None = None
    ) -> Tensor:
        """Queries ("q"), keys or values of all heads, or ``exactly`` of some, [B, N, D] to [B, H
        or J, N, E]."""
        projection, kept = getattr(self, f"{name}_proj"), f"{name}.before"
        if exactly is None:
            x = mapped(projection, x)
        else:
            rows = slice(exactly.start * self.head_dim, exactly.stop * self.head_dim)
            bias = None if projection.bias is None else projection.bias[rows]
            x, kept = exact_linear(x, projection.weight[rows], bias), f"{name}.exact.before"
        if name in self.convolutions:
            x = around(self.convolutions[name], kept, x)
        return self.split(name, x)

    @full_float32()
    def _exact(self, x: Tensor, around: Convolved, heads: slice) -> tuple[Tensor, Tensor]:
        q, k = (self.heads_of(name, x, around, heads) for name in "qk")
        return QKV(q, k, k).repeated()[:2]

    def _placed(
        self, q: Tensor, k: Tensor, v: Tensor, heads: slice, positions: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of some heads with their positions, and values as wide."""
        if self.rotary is not None:
            key = "turns", self.rotary, self.head_dim // 2, q.dtype
            turns = batch.cached(key, lambda: self.rotary.turns(positions, *key[2:]))
            q, k = (turned(t, *turns) for t in (self.rotary.sharpened(q), k))
        if self.relative is not None:
            q, k = self.relative(q, k, positions, heads)
            v = pad(v, (0, k.size(-1) - v.size(-1)))
        return q, k, v

    def merge(self, outputs: Sequence[Tensor]) -> Tensor:
        """The layer's output [B, N, D] of the values of all heads, [B, H, N, E] each."""
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return mapped(self.out_proj, out.transpose(1, 2).flatten(2))

    def average_heads(self, state_dict: State, prefix: str) -> None:
        """Where a checkpoint has more heads of keys and values, take means of those that are
        one head here (Ainslie et al. 2023)."""
        for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
            given, wanted = state_dict.get(prefix + name), self.kv_heads * self.head_dim
            if given is not None and len(given) > wanted and not len(given) % wanted:
                heads = given.view(self.kv_heads, -1, self.head_dim, *given.shape[1:])
                state_dict[prefix + name] = heads.mean(1).flatten(0, 1)


@torch.no_grad()
def start_copying(attention: ProjectedHeads) -> None:
    """Begin as heads that copy (mimetic initialisation, Trockman and Kolter 2023): a query looks
    for earlier places where its own token and the one before stood, and adds half of what came
    next there to the residual stream (induction heads, Olsson et al. 2022).

    W_q is a copy of W_k. The key convolution is shifted back by one token. W_o is the transpose
    of W_v (with shared heads, divided by the heads that share it). Rotary positions weaken it. So
    do kinds that put a key into the cluster of its own token, not of the one before: those that
    cluster the layer's input, lsh and routing.
    """
    shape = attention.num_heads // attention.kv_heads, attention.head_dim, attention.embed_dim

    def for_queries(weight: Tensor) -> Tensor:
        return weight.unflatten(0, (attention.kv_heads, 1, -1)).expand(-1, *shape).flatten(0, 2)

    attention.q_proj.weight.copy_(for_queries(attention.k_proj.weight))
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
    of_values = torch.empty(attention.v_proj.weight.shape, dtype=torch.float32)  # not by halves
    attention.v_proj.weight.copy_(nn.init.orthogonal_(of_values, gain=2**-0.5))
    attention.out_proj.weight.copy_(for_queries(attention.v_proj.weight).T / shape[0])
    of_queries, of_keys = (attention.convolutions[name].weight[:, 0] for name in "qk")
    of_keys[:, -1] -= 1.0
    of_keys[:, -2] += 1.0
    for taps, before in ((of_queries, -2), (of_keys, -3)):
        taps[:, before] += 0.5
