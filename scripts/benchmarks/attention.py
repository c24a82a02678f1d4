"""Time and memory of attention alone, forward and backward, for several implementations.

    python -m scripts.benchmarks.attention --lengths 1024 4096 16384
    python -m scripts.benchmarks.attention --kinds dense window --json R.json --plot R.png

Routing is included: ``neural`` computes similarities, assigns, sorts and attends. In
``neural+losses`` both clustering losses go forward and backward too, down to W_c, the centroids
and the layer's input. ``scripts/benchmarks/contestants.py`` describes the others, and how each is
set to about W visible keys. ``neural`` sees at most W, and fewer where clusters are small, as with
K = sqrt(N). The contestants take turns within one run, so a change of the machine's speed hits all
of them. Medians are reported, and the range as a share of the median. Memory is the peak beyond
inputs, outputs and gradients; on a CPU each contestant has a process of its own.

A contestant that computes wrong results is not timed, and the exit status is 1. One that is not
installed or does not run here has a row with the reason. The floor is the least time for the
visible pairs, by ceilings that are measured at the start (``scripts/benchmarks/floor.py``).
"""

import math
import statistics
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser
from scripts.benchmarks import common
from scripts.benchmarks.check import check
from scripts.benchmarks.contestants import CONTESTANTS, Clustered, Setting, build
from scripts.benchmarks.floor import Ceilings, attention_floor, measure_ceilings

SMALL = 256  # tokens of a first run, in which libraries allocate what they need once
COLUMNS = common.columns(
    "kind | N | milliseconds: .3g | spread: .0% | memory MiB: .0f | "
    "times as fast as dense: .2f | routing share: .0% | share of floor: .1%"
)


class Contestant:
    """One attention with its inputs: q, k, v [B, H, N, E] and the layer's input x [B, N, D]."""

    def __init__(self, name: str, setting: Setting):
        torch.manual_seed(0)
        self.name, self.setting = name, setting
        shape = (setting.batch, setting.length, setting.heads, setting.width)
        options = {"dtype": common.DTYPES[setting.dtype], "device": setting.device}
        self.weight, *self.qkv = (torch.randn(shape, **options).transpose(1, 2) for _ in range(4))
        for tensor in self.qkv:
            tensor.requires_grad_()
        self.x = torch.randn(*shape[:2], setting.heads * setting.width, **options)
        self.attention = build(name, setting)
        if isinstance(self.attention, Clustered) and self.attention.losses:
            self.x.requires_grad_()

    def check(self) -> None:
        """Raises CheckFailed or Unavailable."""
        check(self.attention, self.x, *self.qkv)

    def run(self) -> None:
        """One forward and backward pass."""
        out, losses = self.attention(self.x, *self.qkv)
        self._backward([out, *losses], [self.weight, *map(torch.ones_like, losses)], *self.qkv)
        self.attention.after_backward()

    def route(self) -> None:
        """Its routing alone, with the backward pass of the losses if it has any."""
        losses = self.attention.losses_of(self.attention.route(self.x, *self.qkv[:2]))
        if losses:
            self._backward(losses, [torch.ones_like(loss) for loss in losses])

    def _backward(self, outputs: list[Tensor], weights: list[Tensor], *inputs: Tensor) -> None:
        inputs = [t for t in (self.x, *self.attention.parameters(), *inputs) if t.requires_grad]
        torch.autograd.grad(outputs, inputs, weights, allow_unused=True)

    def floor(self, ceilings: Ceilings) -> float | None:
        """Seconds that what it sees takes at least; None if it does not say what it sees."""
        pairs = self.attention.pairs(self.x, *self.qkv[:2])
        if pairs is None:
            return None
        s = self.setting
        vectors = s.batch * s.heads * s.length
        return attention_floor(ceilings, pairs, vectors, s.width, common.DTYPES[s.dtype])


def measure_memory(name: str, setting: Setting) -> float:
    """MiB beyond inputs, outputs and gradients, at the peak of a forward and backward pass."""
    contestant = Contestant(name, setting)
    Contestant(name, replace(setting, length=SMALL)).run()
    # The output and the three gradients do not count: make room for them, and touch it.
    given = [torch.ones_like(contestant.weight) for _ in range(4)]
    before = common.memory_before(setting.device)
    del given
    contestant.run()
    return common.peak_memory(setting.device) - before


def compare(names: list[str], setting: Setting, ceilings: Ceilings, repeats: int) -> list[dict]:
    """Rows of the table for one setting."""
    rows = {name: {"kind": name, "N": setting.length} for name in names}
    ready = {}
    for name, row in rows.items():
        with common.reason_in(row):
            contestant = Contestant(name, setting)
            contestant.check()
            contestant.run()
            ready[name] = contestant
    runs = {name: c.run for name, c in ready.items()}
    for name, contestant in ready.items():
        if isinstance(contestant.attention, Clustered):
            contestant.route()
            runs[f"routing of {name}"] = contestant.route
    seconds = common.interleaved(runs, repeats, setting.device)
    for name, contestant in ready.items():
        row, times = rows[name], seconds[name]
        row["milliseconds"] = statistics.median(times) * 1e3
        row["spread"] = common.spread(times)
        request = {"name": name, "setting": setting}
        try:
            row["memory MiB"] = common.measured_memory(measure_memory, setting.device, **request)
        except common.Unavailable as error:
            print(f"memory of {name} at N = {setting.length}: {error}", file=sys.stderr)
        if "dense" in seconds:
            row["times as fast as dense"] = common.median_ratio(seconds["dense"], times)
        if f"routing of {name}" in seconds:
            row["routing share"] = common.median_ratio(seconds[f"routing of {name}"], times)
        floor = contestant.floor(ceilings)
        if floor is not None:
            row["floor milliseconds"] = floor * 1e3
            row["share of floor"] = floor / statistics.median(times)
    return list(rows.values())


def make_parser() -> Parser:
    numbers = {
        "--lengths": ([1024, 4096, 16384], "tokens"),
        "--batch": (1, ""),
        "--heads": (8, ""),
        "--width": (64, "of a head"),
        "--window": (128, "keys that a query sees"),
        "--clusters": (None, "default: sqrt(N)"),
    }
    parser = common.make_parser("scripts.benchmarks.attention", __doc__, numbers)
    names = list(CONTESTANTS)
    parser.add_argument("--kinds", nargs="+", default=names, choices=names, help="default: all")
    parser.add_argument("--dtype", choices=list(common.DTYPES), default="float32")
    parser.add_argument("--plot", type=Path, help="also draw time and memory here, as PNG")
    return parser


def plot(path: Path, rows: list[dict], title: str) -> None:
    """Draw time with the floors, and memory."""
    columns = {"milliseconds": "milliseconds, forward and backward", "memory MiB": "memory, MiB"}
    drawn = (row for row in rows if "memory MiB" in row)
    rows = [row | {"memory MiB": max(1, row["memory MiB"])} for row in drawn]  # less is noise
    floors = {"milliseconds": "floor milliseconds"}
    x = ("N", "tokens")
    common.plot_rows(path, rows, columns, x=x, series="kind", title=title, floors=floors)


def setting_of(args: Namespace, length: int) -> Setting:
    """What the options say, at one length."""
    names = ("batch", "heads", "width", "window", "dtype", "device", "impl")
    given = {name: getattr(args, name) for name in names}
    return Setting(length=length, clusters=args.clusters or math.isqrt(length), **given)


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    ceilings = measure_ceilings(args.device, common.DTYPES[args.dtype])
    print(
        f"ceilings: {ceilings.operations / 1e9:.0f} GFLOP/s in {args.dtype}, "
        f"{ceilings.bytes / 1e9:.1f} GB/s\n"
    )
    clusters = "sqrt(N)" if args.clusters is None else args.clusters
    sizes = f"B = {args.batch}, H = {args.heads}, E = {args.width}, W = {args.window}"
    settings = (
        f"{sizes}, K = {clusters}, {args.dtype}, {args.impl}, causal, forward + backward, "
        f"routing included, medians of {args.repeats}"
    )
    rows = (
        row
        for length in args.lengths
        for row in compare(args.kinds, setting_of(args, length), ceilings, args.repeats)
    )
    title = f"Attention alone, causal: {sizes}, K = {clusters}, {args.dtype}"
    more = {"ceilings": asdict(ceilings), "plot": partial(plot, title=title)}
    return common.report(parser, args, COLUMNS, settings, rows, **more)


if __name__ == "__main__":
    sys.exit(main())
