"""What may happen to queries, keys and values between their projections and the attention.

Shape letters: B batch, N tokens, C channels, H heads, E head width.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from .batch import Batch


class ShortConvolution(nn.Module):
    """A depthwise convolution over the tokens, without bias (as fla's ``ShortConvolution``).

    Causal: a token's channel is weighed with those of the ``width - 1`` tokens before it;
    otherwise its place is in the middle. It begins as the identity, and a little of the
    neighbours. Neighbours are real tokens of the same document, whatever padding is between.

    Args:
        channels: C.
        width: tokens that are weighed, the token's own included.
        causal: no later token is among them.
    """

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

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """[B, N, C] to the same; anything at padding."""
        if batch.padding_mask is not None:
            return self._without_padding(x, batch)
        weight, after = self.weight.to(x.dtype), self.width - 1 - self.own
        if batch.documents is None:
            x = pad(x.transpose(1, 2), (self.own, after))
            return conv1d(x, weight, groups=x.size(1)).transpose(1, 2)
        out, length = torch.zeros_like(x), x.size(1)
        for tap in range(self.width):
            shift = tap - self.own  # of the token that is weighed
            if abs(shift) >= length:
                continue
            here, there = (
                slice(max(0, -shift), length - max(0, shift)),
                slice(max(0, shift), length - max(0, -shift)),
            )
            same = batch.documents[:, here] == batch.documents[:, there]
            weighed = x[:, there] * weight[:, 0, tap] * same.unsqueeze(-1)
            out = out + pad(weighed, (0, 0, here.start, length - here.stop))
        return out

    def _without_padding(self, x: Tensor, batch: Batch) -> Tensor:
        """The same of rows whose real tokens are moved together."""
        mask = batch.padding_mask
        order = batch.once("real first", lambda: mask.to(torch.uint8).argsort(dim=1, stable=True))
        documents = batch.documents
        moved = x.masked_fill(mask.unsqueeze(-1), 0.0).gather(1, order.unsqueeze(-1).expand_as(x))
        if documents is not None:
            documents = documents.gather(1, order)
        out = self(moved, Batch(documents=documents))
        return torch.empty_like(out).scatter(1, order.unsqueeze(-1).expand_as(out), out)

    def step(
        self, x: Tensor, before: Tensor | None, batch: Batch, restart: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One more token [B, 1, C], and the ``width - 1`` before it, to the same."""
        if batch.padding_mask is not None:
            x = x.masked_fill(batch.padding_mask.unsqueeze(-1), 0.0)
        if before is None:
            before = x.new_zeros(x.size(0), self.width - 1, x.size(2))
        if restart is not None:
            before = before.masked_fill(restart.unsqueeze(-1), 0.0)
        seen = torch.cat([before, x], dim=1)
        out = torch.einsum("bwc,cw->bc", seen, self.weight[:, 0].to(x.dtype)).unsqueeze(1)
        if batch.padding_mask is None:
            return out, seen[:, 1:]
        return out, torch.where(batch.padding_mask.unsqueeze(-1), before, seen[:, 1:])


def rotated(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions (RoFormer, Su et al. 2021, eq. 34).

    Each pair of channels (i, i + E / 2) is turned by the position times ``base ** (-2 i / E)``.
    Products of queries and keys then depend on distances alone.

    Args:
        x: [B, H, N, E], E even.
        positions: int64 [1 or B, N].
    """
    half = x.size(-1) // 2
    rate = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].to(torch.float32) * rate
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angle.cos().to(wide), angle.sin().to(wide)
    a, b = x.to(wide).split(half, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
