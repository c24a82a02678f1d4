"""Where an update of a whole language model goes, part by part, forward and backward.

    python -m scripts.benchmarks.parts --lengths 1024 --json RESULT.json
    python -m scripts.benchmarks.parts --attention window window+taught --dtype bfloat16

The models are those of ``scripts.benchmarks.training``, and take turns. Seconds are those of the
processor, on one thread, medians of ``--repeats`` updates after a first one. A part of the
backward pass is whatever undoes what that part did in the forward pass; the loss in chunks makes
its gradients in the forward pass.
"""

import logging
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import nn

from scripts.benchmarks import common, training

OUTSIDE, REST, OUTPUT = "optimizer", "norms, activations, residuals", "output and loss"
#: part of a module, by the end of its name; of the others it is that of what they are in
PARTS = {
    **dict.fromkeys(("embed_tokens", "embed_positions"), "embedding"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj"), "projections"),
    **dict.fromkeys(("fc1", "fc2"), "feed-forward"),
    **{"self_attn": "attention", "routers": "routing", "output_projection": OUTPUT},
}
ORDER = (*dict.fromkeys(PARTS.values()), REST, OUTSIDE)
COLUMNS = common.columns(
    "model | N | part | forward ms: .1f | backward ms: .1f | share of the update: .1%"
)


class Clock:
    """Processor seconds of each part and direction. Notes where in the autograd graph each part
    of the forward pass began."""

    def __init__(self):
        self.seconds: Counter = Counter()
        self.at, self.since = (OUTSIDE, "forward"), time.process_time()
        self.within: list[str] = []
        self.begins: list[tuple[int, str]] = []

    def switch(self, part: str, direction: str = "forward") -> None:
        now = time.process_time()
        self.seconds[self.at] += now - self.since
        self.at, self.since = (part, direction), now
        if direction == "forward":
            self.begins.append((torch.autograd._get_sequence_nr(), part))

    def enter(self, part: str, *_) -> None:
        self.within.append(part)
        self.switch(part)

    def leave(self, *_) -> None:
        self.within.pop()
        self.switch(self.within[-1] if self.within else OUTSIDE)

    def watch(self, loss: torch.Tensor) -> None:
        """Let each node of a loss's graph switch to the part that it was made in."""
        starts = [number for number, _ in self.begins]
        nodes, seen = [loss.grad_fn], set()
        while nodes:
            node = nodes.pop()
            if node in seen or node is None:
                continue
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            number = node._sequence_nr()
            if number < 2**63:  # else it adds to the gradient that the last node made
                _, part = self.begins[bisect_right(starts, number) - 1]
                node.register_prehook(lambda _, part=part: self.switch(part, "backward"))


def attach(clock: Clock, trainer: Trainer) -> None:
    """Let a trainer's modules and its optimizer tell the clock what they do."""

    def attach_to(module: nn.Module, part: str) -> None:
        module.register_forward_pre_hook(partial(clock.enter, part))
        module.register_forward_hook(clock.leave)

    attach_to(trainer.get_criterion(), OUTPUT)
    attach_to(trainer.get_model(), REST)
    for name, module in trainer.get_model().named_modules():
        names = name.split(".")
        dense = names[-1] == "self_attn" and not hasattr(module, "routers")
        if names[-1] in PARTS and not isinstance(module, nn.ModuleList):
            # fairseq's attention multiplies by the weights of its projections itself
            attach_to(module, "projections" if dense else PARTS[names[-1]])
        elif names[-2:-1] == ["routers"]:
            attach_to(module, PARTS["routers"])
    backward = trainer.optimizer.backward

    def watched(loss: torch.Tensor) -> None:
        clock.watch(loss)
        clock.switch(OUTPUT, "backward")
        backward(loss)
        clock.switch(OUTSIDE)

    trainer.optimizer.backward = watched


def timed_attention(clock: Clock, attend: Callable, *args, **kwargs) -> torch.Tensor:
    """torch's attention, which fairseq's dense model calls."""
    clock.enter(PARTS["self_attn"])
    out = attend(*args, **kwargs)
    clock.leave()
    return out


def make_run(model: str, data: Path, length: int, args: Namespace) -> Callable[[], Counter]:
    """What makes one update, and returns the seconds of each part and direction."""
    trainer = training.make_trainer(training.configuration(model, data, length, args), args.impl)
    batches = trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=False)
    trainer.begin_epoch(1)
    batch = next(iter(batches))
    clock = Clock()
    attach(clock, trainer)
    attend = partial(timed_attention, clock, nn.functional.scaled_dot_product_attention)

    def run() -> Counter:
        clock.seconds, clock.begins, clock.since = Counter(), [], time.process_time()
        with mock.patch.object(nn.functional, "scaled_dot_product_attention", attend):
            trainer.train_step([batch])
        clock.switch(OUTSIDE)
        return clock.seconds

    return run


def rows_of(data: Path, args: Namespace) -> Iterator[dict]:
    """Rows of the table: each model's parts at each length, and their sum."""
    for length in args.lengths:
        models = training.DENSE, *args.attention
        runs = {model: make_run(model, data, length, args) for model in models}
        for model, turns in common.in_turns(runs, args.repeats + 1).items():
            turns = turns[1:]
            total = statistics.median(turn.total() for turn in turns)
            for part in ORDER:
                row = {"model": model, "N": length, "part": part}
                both = 0.0
                for direction in ("forward", "backward"):
                    seconds = statistics.median(turn[part, direction] for turn in turns)
                    both += seconds
                    row[f"{direction} ms"] = 1e3 * seconds
                if both:
                    yield row | {"share of the update": both / total}
            yield {"model": model, "N": length, "part": "all", "forward ms": 1e3 * total}


def main(argv: list[str] | None = None) -> int:
    parser = training.make_parser("scripts.benchmarks.parts", __doc__)
    args = parser.parse_args(argv)
    if args.device == "cuda":
        parser.error(f"--device is {args.device}; allowed: cpu")
    args.device = "cpu"
    training.settle(parser, args)
    for name in ("fairseq", "hydra"):
        logging.getLogger(name).setLevel(logging.WARNING)
    metrics.reset()
    torch.set_num_threads(1)
    settings = f"{training.sizes_of(args)}, {args.dtype}, {args.impl}, medians of {args.repeats}"
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary)
        training.random_data(data, 2 * max(args.lengths) * args.batch, args.vocabulary)
        return common.report(parser, args, COLUMNS, settings, rows_of(data, args))


if __name__ == "__main__":
    sys.exit(main())
