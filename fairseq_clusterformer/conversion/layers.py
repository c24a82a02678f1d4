"""Fits the routers of a clustered model layer after layer, and keeps each that is done."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_clusterformer.outputs import replaced

from .fit import Pupil, begin, calibrate, fit, pupils
from .heads import recall
from .model import Place
from .reading import Progress


class Fitting(NamedTuple):
    """What is fitted to what, and how; ``Plan`` in :mod:`~.convert` says more."""

    dense: nn.Module
    clustered: nn.Module
    orders: dict[Place, list[int]]  # which head comes to each place of a layer
    measured: list[Path]  # batches of :func:`~.reading.store`
    fitted: list[Path]
    first: int  # so many of them say where routers begin
    near: int
    sinks: int
    updates: int
    lr: float
    seed: int

    def layer(self, place: Place, routers: Sequence[Pupil], progress: Callable) -> dict:
        """Fit those of a layer, with numbers drawn for it alone; its recall and chance [H]
        before and after, the losses, and what the routers have learned."""
        some = self.fitted[: self.first]

        def measure() -> tuple[Tensor, Tensor]:
            how = (self.orders, self.near, self.sinks, [place])
            return recall(self.dense, self.clustered, self.measured, *how)[place]

        losses: list[float] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_number_of(self.seed, place))
            if routers:
                begin(self.dense, routers, some, seed=self.seed)
                calibrate(self.dense, routers, some)
            before = after = measure()
            if routers and self.updates:
                how = {"updates": self.updates, "lr": self.lr, "progress": progress}
                losses = fit(self.dense, routers, self.fitted, **how)
                calibrate(self.dense, routers, some)
                after = measure()
        states = [pupil.router.state_dict() for pupil in routers]
        return {"before": before, "after": after, "losses": losses, "routers": states}


def fit_layers(
    fitting: Fitting, folder: Path, progress: Progress
) -> tuple[dict[Place, dict], list[float]]:
    """Fit all routers; layers that an earlier run has fitted are taken from their files in a
    folder. Returns what :meth:`Fitting.layer` says of each layer, and the mean loss of all routers
    after each update, in nats."""
    routers: dict[Place, list[Pupil]] = {place: [] for place in fitting.orders}
    for pupil in pupils(fitting.dense, fitting.clustered, fitting.orders):
        routers[pupil.place].append(pupil)
    every = [pupil for of_layer in routers.values() for pupil in of_layer]
    key = _number_of(*fitting[2:], [str(pupil.router) for pupil in every])
    files = {(side, n): folder / f"{side}-{n}-{key:08x}.pt" for side, n in routers}
    done = {place: file for place, file in files.items() if file.is_file()}
    found = {place: torch.load(file, weights_only=True) for place, file in done.items()}
    left = sum(bool(routers[place]) for place in files if place not in found)
    steps = progress(range(left * fitting.updates), "fit")

    def counted(updates: range) -> Iterator[int]:
        for update in updates:
            next(steps)
            yield update

    for place, file in files.items():
        if place in found:
            for pupil, state in zip(routers[place], found[place]["routers"], strict=True):
                pupil.router.load_state_dict(state)
            continue
        found[place] = fitting.layer(place, routers[place], counted)
        with replaced(file) as new:
            torch.save(found[place], new)
    next(steps, None)  # which ends the bar
    losses = [found[pupil.place]["losses"] for pupil in every]
    return found, [sum(of_update) / len(losses) for of_update in zip(*losses, strict=True)]


def _number_of(*values: object) -> int:
    """A number below 2**32 that stands for values, the same in each run."""
    return int(hashlib.sha256(repr(values).encode()).hexdigest()[:8], 16)
