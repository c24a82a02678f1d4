"""Sinusoidal positions that need no table."""

import math

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.utils import make_positions
from torch import Tensor
from torch.nn.functional import pad


class Sinusoids(SinusoidalPositionalEmbedding):
    """fairseq's; an exported graph computes what it would look up, and grows no table."""

    def forward(self, input: Tensor, *args, **kwargs) -> Tensor:
        if torch.compiler.is_exporting():
            return self.at(make_positions(input, self.padding_idx))
        return super().forward(input, *args, **kwargs)

    def at(self, places: Tensor) -> Tensor:
        """Embeddings [B, n, D] of places as fairseq counts them, int64 [B, n]."""
        half = self.embedding_dim // 2
        rate = torch.arange(half, dtype=torch.float32, device=places.device)
        rate = torch.exp(rate * -(math.log(10_000) / (half - 1)))
        angle = places.unsqueeze(-1) * rate
        found = torch.cat([angle.sin(), angle.cos()], dim=-1)
        return pad(found, (0, self.embedding_dim % 2)).to(self.weights.dtype)
