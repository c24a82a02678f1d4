"""The hidden states that K-Means clusters, kept from the latest batches (CF20, Algorithm 1)."""

import torch
from torch import Tensor, nn


class OnCpu(nn.Module):
    """Mixin: its own buffers stay on the CPU and keep their type, wherever the model goes."""

    def _apply(self, fn, recurse=True):
        return self


class MemoryBank(OnCpu):
    """The latest M states, first in, first out, in half precision; saved with the model.

    Args:
        size: M.
        width: D.
    """

    def __init__(self, size: int, width: int):
        super().__init__()
        states = torch.zeros(size, width, dtype=torch.float16, device="cpu")
        self.register_buffer("states", states)
        self.register_buffer("added", torch.zeros((), dtype=torch.long, device="cpu"))

    def __len__(self) -> int:
        return min(int(self.added), len(self.states))

    @torch.no_grad()
    def add(self, states: Tensor) -> None:
        """Keep states [n, D], of which the last ones are the latest."""
        size = len(self.states)
        kept = states[-size:].to(self.states)
        self.added += len(states)
        place = torch.arange(-len(kept), 0, device="cpu") + self.added
        self.states[place % size] = kept

    def latest(self, number: int) -> Tensor:
        """The latest states, the oldest of them first: float16 [min(number, kept), D]."""
        number = min(number, len(self))
        place = torch.arange(-number, 0, device="cpu") + self.added
        return self.states[place % len(self.states)]


class Interval(OnCpu):
    """When centroids are due anew; saved with the model.

    Args:
        updates: between two clusterings; 0: an epoch.
    """

    def __init__(self, updates: int):
        super().__init__()
        self.updates = updates
        # Nothing has been seen before the first update begins.
        self.register_buffer("age", torch.full((), -1, dtype=torch.long, device="cpu"))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long, device="cpu"))

    def begin_update(self) -> bool:
        """Whether centroids are due; called before each update."""
        self.age += 1
        due = self.updates > 0 and int(self.age) >= self.updates
        if due:
            self.age.zero_()
        return due

    def begin_epoch(self, epoch: int) -> bool:
        """Whether centroids are due; called before each epoch, or what is left of one."""
        due = self.updates == 0 and epoch != int(self.epoch)
        self.epoch.fill_(epoch)
        return due
