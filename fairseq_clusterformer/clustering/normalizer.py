"""A normaliser of CF22 eq. 2 that no later token changes: a moving average over training
batches."""

import math

import torch
from torch import Tensor

from .learner import Learner


class AverageNormalizer(Learner):
    """Keeps, for each cluster, the log of the average of exp(s) over the tokens seen in training.

    Args:
        shape: of what is kept, the clusters last; None: nothing is kept, or observed.
        momentum: of the moving average.
        others: how many other numbers are averaged, weighed by tokens, as they are.

    Attributes:
        log_normalizer: float32 of ``shape``, to subtract from the exponents of eq. 2.
        average: float32 of ``[others]``; where there are any.
    """

    def __init__(self, shape: tuple[int, ...] | None, *, momentum: float = 0.9, others: int = 0):
        super().__init__()
        self.exchanges, self.momentum, self.others = shape is not None, momentum, others
        if shape is not None:
            self.register_buffer("log_normalizer", torch.zeros(shape))
            # Seen since the last update: a log-sum-exp, and the number of tokens.
            self.register_buffer("pending_log_mass", torch.full(shape, -math.inf))
            self.register_buffer("pending_tokens", torch.zeros(()))
            if others:
                self.register_buffer("average", torch.zeros(others))
                self.register_buffer("pending_sums", torch.zeros(others))
            self.register_buffer("updates", torch.zeros(()))  # floating point: models are averaged

    def observation(
        self, log_mass: Tensor, tokens: Tensor, others: Tensor | None = None
    ) -> Tensor | None:
        """What :meth:`observe` takes (None if nothing is kept) of a batch: the log of the sum of
        exp(s), of ``shape``, the number of tokens, and sums of the other numbers over them."""
        if not self.exchanges:
            return None
        sums = [] if others is None else [others.to(log_mass.dtype)]
        return torch.cat([log_mass.flatten(), *sums, tokens.view(1)])

    @torch.no_grad()
    def take(self) -> Tensor:
        sums = self.pending_sums if self.others else None
        taken = self.observation(self.pending_log_mass, self.pending_tokens, sums)
        self._forget()
        return taken

    @torch.no_grad()
    def observe(self, observation: Tensor) -> None:
        log_mass, sums, tokens = observation.to(self.pending_log_mass).split(
            [self.pending_log_mass.numel(), self.others, 1]
        )
        log_mass = log_mass.view_as(self.pending_log_mass)
        self.pending_log_mass.copy_(torch.logaddexp(self.pending_log_mass, log_mass))
        self.pending_tokens += tokens.squeeze(0)
        if self.others:
            self.pending_sums += sums

    @torch.no_grad()
    def commit(self) -> None:
        if not self.exchanges:
            return
        seen = self.pending_log_mass - self.pending_tokens.log()
        usable = torch.isfinite(seen).all() & (self.pending_tokens > 0)
        # The first observation is taken as it is.
        share = torch.where(self.updates > 0, 1.0 - self.momentum, 1.0).to(seen.dtype)
        pairs = [(self.log_normalizer, seen, usable)]
        if self.others:
            mean = self.pending_sums / self.pending_tokens
            pairs.append((self.average, mean, usable & torch.isfinite(mean).all()))
        for kept, new, good in pairs:
            kept.copy_(torch.where(good, torch.lerp(kept, new, share), kept))
        self.updates += usable
        self._forget()

    def _forget(self) -> None:
        self.pending_log_mass.fill_(-math.inf)
        self.pending_tokens.zero_()
        if self.others:
            self.pending_sums.zero_()
