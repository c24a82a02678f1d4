"""The hidden states that K-Means clusters, and when it does (CF20, Algorithm 1)."""

from collections import deque

import torch
from torch import Tensor


class MemoryBank:
    """The latest states, first in, first out; on the CPU and in half precision.

    Args:
        size: M, states that it keeps.
    """

    def __init__(self, size: int):
        self.size = size
        self._batches: deque[Tensor] = deque()
        self._count = 0

    def add(self, states: Tensor) -> None:
        """Keep states [n, D], of which the last ones are the latest."""
        if not len(states):
            return
        self._batches.append(states[-self.size :].detach().to("cpu", torch.float16))
        self._count += len(self._batches[-1])
        while self._count - len(self._batches[0]) >= self.size:
            self._count -= len(self._batches.popleft())

    def latest(self, number: int) -> Tensor:
        """The latest states, the oldest of them first: float16 [min(number, kept), D]."""
        if not self._batches:
            return torch.empty(0, 0, dtype=torch.float16, device="cpu")
        number = min(number, self.size)
        return torch.cat(list(self._batches))[-number:]

    def fill(self, states: Tensor) -> None:
        """Hold what ``latest`` returned, and nothing else."""
        self._batches.clear()
        self._count = 0
        self.add(states)


class Interval:
    """When centroids are due anew.

    Args:
        updates: between two clusterings; 0: an epoch.
    """

    def __init__(self, updates: int):
        self.updates = updates
        self.age = -1  # nothing has been seen before the first update begins
        self.epoch = 0  # no epoch has begun

    def begin_update(self) -> bool:
        """Whether centroids are due; called before each update."""
        self.age += 1
        due = 0 < self.updates <= self.age
        if due:
            self.age = 0
        return due

    def begin_epoch(self, epoch: int) -> bool:
        """Whether centroids are due; called before each epoch, or what is left of one."""
        due = self.updates == 0 and self.epoch not in (0, epoch)
        self.epoch = epoch
        return due
