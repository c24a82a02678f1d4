"""What may happen to queries, keys and values between projections and attention; C channels."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from ..precision import HALF, at_least_float32
from .tokens import Batch, for_each, latest_real


class Rotary(NamedTuple):
    """How fast rotary positions turn."""

    #: a pair of channels (i, i + E / 2) is turned by ``base ** (-2 i / E)`` a token
    base: float = 10_000.0
    rates: tuple[float, ...] = ()  # which each pair's is multiplied by, E / 2; (): none is
    sharpness: float = 1.0  # what queries are multiplied by, as in YaRN (Peng et al. 2023)

    def turns(self, positions: Tensor, half: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What channels are multiplied by, of other pairs and of their own, for ``half`` angles of
        each position: sines, first with a minus, and cosines [1 or B, 1, N, 2 * half], at least
        float32. Angles are float64, for float32 knows one of millions to a tenth only."""
        place = torch.arange(half, device=positions.device, dtype=torch.float64)
        rate = self.base ** (-place / half)
        if self.rates:
            rate = rate * rate.new_tensor(self.rates)
        angle = positions[:, None, :, None] * rate
        wide, sin, cos = torch.promote_types(dtype, torch.float32), angle.sin(), angle.cos()
        return torch.cat([-sin, sin], dim=-1).to(wide), torch.cat([cos, cos], dim=-1).to(wide)

    def sharpened(self, q: Tensor) -> Tensor:
        return q if self.sharpness == 1 else q * self.sharpness


class QKV(NamedTuple):
    """Queries, keys and values of a kind's heads, with their positions."""

    q: Tensor  # [B, H, N, E]
    k: Tensor  # like v [B, J, N, E], each for H / J queries
    v: Tensor
    dropout: float = 0.0  # of the attention weights
    rotary: Rotary | None = None  # how queries and keys are turned
    #: keys and values of the same tokens, whose states get no gradient; None: nobody asked
    constant: tuple[Tensor, Tensor] | None = None

    def repeated(self) -> "QKV":
        """With keys and values for each query."""
        return self._replace(k=for_each(self.q, self.k), v=for_each(self.q, self.v))


class ShortConvolution(nn.Module):
    """A depthwise convolution over the tokens of C ``channels``, without bias (as fla's
    ``ShortConvolution``). Causal: a token's channel is weighed with those of the ``width - 1``
    tokens before it; otherwise its place is in the middle. It begins as the identity, and a little
    of the neighbours: real tokens of the same document, whatever padding is between."""

    def __init__(self, channels: int, width: int, *, causal: bool):
        super().__init__()
        self.width, self.own = width, width - 1 if causal else width // 2
        weight = torch.randn(channels, 1, width) * (0.3 * width**-0.5)
        weight[:, 0, self.own] += 1.0
        self.weight = nn.Parameter(weight)

    def identity_(self) -> None:
        """Change nothing: for weights that were trained without."""
        with torch.no_grad():
            self.weight.zero_()[:, 0, self.own] = 1.0

    def forward(self, x: Tensor, batch: Batch, wide: bool = False) -> Tensor:
        """[B, N, C] to the same; anything at padding. ``wide``: to at least float32; on a CPU what
        the backward pass needs of x is kept as it was given."""
        documents = batch.documents
        if batch.padding_mask is not None:  # real tokens are moved together
            order = batch.real_first.unsqueeze(-1).expand_as(x)
            x = x.masked_fill(batch.padding_mask.unsqueeze(-1), 0.0).gather(1, order)
            if documents is not None:
                documents = documents.gather(1, batch.real_first)
            out = self(x, Batch(documents=documents), wide)
            return torch.empty_like(out).scatter(1, order, out)
        weight = self.weight.to(torch.promote_types(x.dtype, torch.float32) if wide else x.dtype)
        if documents is None and (x.is_cuda or weight.dtype in HALF):  # rounded once
            x = x.to(weight.dtype)
            x = pad(x.transpose(1, 2), (self.own, self.width - 1 - self.own))
            # what attends wants the numbers of a token side by side: once, not in each layout
            return conv1d(x, weight, groups=x.size(1)).transpose(1, 2).contiguous()
        # On a CPU conv1d would take four times as long.
        convolve = _convolved if torch.compiler.is_compiling() else _Convolved.apply
        return convolve(x, weight[:, 0].T.contiguous(), self.own, documents)

    def following(
        self,
        x: Tensor,
        before: Tensor | None,
        batch: Batch,
        begins: Tensor | None = None,
        wide: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Convolve tokens [B, N, C] that stand behind others; causal. ``before``: the second
        result for these, if there are any; ``begins``: rows in which a document begins with the
        only token, bool [B, 1]. Returns [B, N, C], and the ``width - 1`` latest real tokens of
        each row, after zeros if there are fewer."""
        mask, number = batch.padding_mask, x.size(1)
        if before is None or number > 1:
            if before is not None:
                mask = None if mask is None else pad(mask, (before.size(1), 0))
                x, batch = torch.cat([before, x], dim=1), Batch(mask)
            out = self(x, batch, wide)[:, x.size(1) - number :]
            return out, latest_real(x.unsqueeze(1), self.width - 1, mask).squeeze(1)
        # One token, as fast as may be.
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        if begins is not None:
            before = before.masked_fill(begins.unsqueeze(-1), 0.0)
        seen = torch.cat([before, x], dim=1)
        weighed = at_least_float32(seen)
        out = (weighed * self.weight[:, 0].T.to(weighed.dtype)).sum(1, keepdim=True)
        latest = seen[:, 1:]
        latest = latest if mask is None else torch.where(mask.unsqueeze(-1), before, latest)
        return out if wide else out.to(x.dtype), latest


def _convolved(x: Tensor, taps: Tensor, own: int, documents: Tensor | None) -> Tensor:
    """Tokens x [B, N, C] and those around, weighed by taps [width, C]; ``own``: a token's own."""
    out = x.to(taps.dtype) * taps[own]
    for tap, here, there, same in _pairs(x, taps, own, documents):
        weighed = x[:, there].to(taps.dtype)
        out[:, here].addcmul_(weighed if same is None else weighed * same, taps[tap])
    return out


def _pairs(
    x: Tensor, taps: Tensor, own: int, documents: Tensor | None
) -> Iterator[tuple[int, slice, slice, Tensor | None]]:
    """Of each tap but ``own``: for which tokens it weighs which; if of one document [B, n, 1]."""
    length = x.size(1)
    for tap in range(len(taps)):
        shift = tap - own  # of the token that is weighed
        if shift == 0 or abs(shift) >= length:
            continue
        here = slice(max(0, -shift), length - max(0, shift))
        there = slice(max(0, shift), length - max(0, -shift))
        same = None
        if documents is not None:
            same = (documents[:, here] == documents[:, there]).unsqueeze(-1)
        yield tap, here, there, same


class _Convolved(torch.autograd.Function):
    """The same. Autograd would copy all tokens for each tap. Gradients are rounded once."""

    TOKENS = 256  # whose products a CPU's cache holds

    @staticmethod
    def forward(ctx, x, taps, own, documents):
        ctx.save_for_backward(x, taps, documents)
        ctx.own = own
        return _convolved(x, taps, own, documents)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):
        (x, taps, documents), own = ctx.saved_tensors, ctx.own
        d_out, wide = at_least_float32(d_out), at_least_float32(taps)
        d_x = d_out * wide[own] if ctx.needs_input_grad[0] else None
        d_taps = torch.zeros_like(wide) if ctx.needs_input_grad[1] else None
        tokens = _Convolved.TOKENS if x.device.type == "cpu" else x.size(1)
        everything = own, slice(None), slice(None), None
        for tap, here, there, same in (everything, *_pairs(x, taps, own, documents)):
            d_here = d_out[:, here] if same is None else d_out[:, here] * same
            if d_x is not None and tap != own:
                d_x[:, there].addcmul_(d_here, wide[tap])
            if d_taps is not None:
                parts = (t.split(tokens, dim=1) for t in (d_here, x[:, there]))
                for d_part, part in zip(*parts, strict=True):
                    d_taps[tap] += (d_part * part).sum((0, 1))
        gradients = ((d_x, x), (d_taps, taps))
        return *(None if d is None else d.to(of.dtype) for d, of in gradients), None, None


class RelativePositions(nn.Module):
    """Transformer-XL's relative positions (Dai et al. 2019, section 3.3) as a plain dot product.

    The logit of query i and key j is ((q_i + u) . k_j + (q_i + v) . W R_(i - j)) / sqrt(E), where
    R_d holds the D / 2 sines and the cosines of a distance d. Those of i - j are sums of products
    of those of i and of j. So a query gets D more numbers, and a key the cosines and the sines of
    its own position. Any layout will do, and nothing is shifted. ``width``: D, even.
    """

    def __init__(self, num_heads: int, head_dim: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"relative positions in a width of {width}; allowed: an even one")
        self.width = width
        self.content_bias = nn.Parameter(torch.zeros(num_heads, head_dim))  # u
        self.distance_bias = nn.Parameter(torch.zeros(num_heads, head_dim))  # v
        self.of_distance = nn.Parameter(torch.empty(num_heads, head_dim, width))  # W
        nn.init.normal_(self.of_distance, std=width**-0.5)

    def forward(
        self, q: Tensor, k: Tensor, positions: Tensor, heads: slice
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys of E + D numbers, whose product is the logit above by ``sqrt(E + D)``:
        of the heads of q [B, H, N, E], and k [B, J, N, E], at positions int64 [1 or B, N]."""
        half = self.width // 2
        wide = torch.promote_types(q.dtype, torch.float32)
        sin, cos = (t[..., half:] for t in Rotary().turns(positions, half, wide))
        biases = (bias[heads].unsqueeze(1) for bias in (self.content_bias, self.distance_bias))
        content, distance = (q.to(wide) + bias.to(wide) for bias in biases)
        a, b = (distance @ self.of_distance[heads].to(wide)).split(half, dim=-1)
        q_wide = torch.cat([content, a * sin + b * cos, b * sin - a * cos], dim=-1)
        scale = (q_wide.size(-1) / q.size(-1)) ** 0.5
        place = torch.cat([cos, sin], dim=-1).to(k.dtype).expand(*k.shape[:3], -1)
        return (q_wide * scale).to(q.dtype), torch.cat([k, place], dim=-1)


def rotated(x: Tensor, positions: Tensor, rotary: Rotary | None = None) -> Tensor:
    """Rotary positions (RoFormer, Su et al. 2021, eq. 34): products of queries and keys depend on
    distances alone. Of x [B, H, N, E], E even, and positions int64 [1 or B, N]; ``rotary``: how
    fast they turn; None: as Su et al. have it."""
    return turned(x, *(rotary or Rotary()).turns(positions, x.size(-1) // 2, x.dtype))


def turned(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """The same by what :meth:`Rotary.turns` returned."""
    wide = x.to(sin.dtype)
    return (wide * cos).add_(wide.roll(x.size(-1) // 2, -1).mul_(sin)).to(x.dtype)
