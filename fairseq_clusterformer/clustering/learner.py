"""What learns from data other than by gradient."""

from abc import ABC, abstractmethod

from torch import Tensor

from ..precision import Float32Buffers


class Learner(Float32Buffers, ABC):
    """It stays as it is while a batch runs, or activation checkpointing would compute the batch
    twice in different ways: :meth:`observe` stores what the batch holds, once the forward pass is
    over, and :meth:`commit` applies it before the next update. In between, each worker is given
    what all have observed."""

    exchanges = True
    """Whether :meth:`take` and :meth:`observe` exchange observations; else each worker keeps its
    own, or there are none."""

    @abstractmethod
    def observe(self, observation: Tensor) -> None:
        """Remember a training batch's observation; may be repeated."""

    def take(self) -> Tensor:
        """What was observed since the last update, as one observation; it is forgotten here."""
        raise NotImplementedError

    @abstractmethod
    def commit(self) -> None:
        """Apply what was observed since the last update, if anything was. What is not finite (an
        overflow that a loss scaler skips) is dropped."""
