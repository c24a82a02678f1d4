"""Time and memory of attention alone, forward and backward, for several implementations.

    python -m scripts.benchmarks.attention --lengths 1024 4096 16384
    python -m scripts.benchmarks.attention --kinds dense window --json R.json --plot R.png

Routing is included, and in ``neural+losses`` both clustering losses, forward and backward.
``scripts/benchmarks/contestants.py`` describes the contestants, and how each is set to about W
visible keys. They take turns, so a change of the machine's speed hits all of them. Medians are
reported, and the range as a share of the median. Memory is the peak beyond inputs, outputs and
gradients; on a CPU each contestant has a process of its own.

A contestant that computes wrong results is not timed, and the exit status is 1. One that is not
installed or does not run here has a row with the reason. The floor is the least time for the
visible pairs, and for reading and writing each tensor once, by ceilings that are measured at the
start. Softmax, masks, routing and sorting are not counted: they are overhead.
"""

import math
import statistics
import sys
from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser
from scripts.benchmarks import common
from scripts.benchmarks.check import check
from scripts.benchmarks.contestants import CONTESTANTS, Clustered, Setting, build

SMALL = 256  # tokens of a first run, in which libraries allocate what they need once
FLOOR = "floor milliseconds"
DRAWN_FLOORS = ("dense", "window")
COLUMNS = common.columns(
    "kind | N | milliseconds: .3g | spread: .0% | memory MiB: .0f | "
    "times as fast as dense: .2f | routing share: .0% | share of floor: .1%"
)


@dataclass(frozen=True)
class Ceilings:
    """What a machine reached in one precision."""

    operations: float  # floating-point operations per second of a large matrix product
    bytes: float  # bytes per second, read and written, of a large copy


def measure_ceilings(
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    size: int | None = None,
    copy_bytes: int | None = None,
    repeats: int = 10,
) -> Ceilings:
    """Time a product of matrices of ``size`` rows and a copy, which is of more than caches hold;
    the fastest counts."""
    on_gpu = device == "cuda"
    size = size or (8192 if on_gpu else 2048)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    seconds = _fastest(lambda: torch.mm(left, right, out=product), device, repeats)
    operations = 2 * size**3 / seconds

    copy_bytes = copy_bytes or (2**31 if on_gpu else 2**28)
    source = torch.ones(copy_bytes // dtype.itemsize, dtype=dtype, device=device)
    target = torch.empty_like(source)
    seconds = _fastest(lambda: target.copy_(source), device, repeats)
    return Ceilings(operations, 2 * copy_bytes / seconds)


def _fastest(run, device: str, repeats: int) -> float:
    run()  # the first call touches the memory
    return min(common.seconds_of(run, device) for _ in range(repeats))


def attention_floor(
    ceilings: Ceilings, pairs: int, vectors: int, width: int, dtype: torch.dtype
) -> float:
    """Seconds that softmax attention takes at least, forward and backward, for so many visible
    pairs and queries over batch and heads; there are as many keys and values as queries."""
    # A pair is two products of E numbers forward and five backward, of 2 E operations each.
    operations = pairs * width * 2 * (2 + 5)
    # q, k, v and the output; then these four again, a gradient to read and three to write.
    num_bytes = vectors * width * dtype.itemsize * (4 + 8)
    return max(operations / ceilings.operations, num_bytes / ceilings.bytes)


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
        seen = self.attention.route(self.x, *self.qkv[:2])
        losses = self.attention.losses_of(seen.assignment.report)
        if losses:
            self._backward(losses, [torch.ones_like(loss) for loss in losses])

    def _backward(self, outputs: list[Tensor], weights: list[Tensor], *inputs: Tensor) -> None:
        inputs = [t for t in (self.x, *self.attention.parameters(), *inputs) if t.requires_grad]
        torch.autograd.grad(outputs, inputs, weights, allow_unused=True)

    def floor(self, ceilings: Ceilings) -> float | None:
        """Seconds that what it sees takes at least; None if it does not say what it sees."""
        pairs, s = self.attention.pairs(self.x, *self.qkv[:2]), self.setting
        vectors, dtype = s.batch * s.heads * s.length, common.DTYPES[s.dtype]
        return pairs and attention_floor(ceilings, pairs, vectors, s.width, dtype)


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
        middle = statistics.median(times)
        row |= {"milliseconds": middle * 1e3, "spread": common.spread(times)}
        request = {"name": name, "setting": setting}
        try:
            row["memory MiB"] = common.measured_memory(measure_memory, setting.device, **request)
        except common.Unavailable as error:
            print(f"memory of {name} at N = {setting.length}: {error}", file=sys.stderr)
        if "dense" in seconds:
            row["times as fast as dense"] = common.median_ratio(seconds["dense"], times)
        if f"routing of {name}" in seconds:
            row["routing share"] = common.median_ratio(seconds[f"routing of {name}"], times)
        if (floor := contestant.floor(ceilings)) is not None:
            row |= {FLOOR: floor * 1e3, "share of floor": floor / middle}
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
    parser.add("--kinds", "default: all", nargs="+", choices=names, default=names)
    parser.add("--dtype", "", choices=list(common.DTYPES), default="float32")
    parser.add("--plot FILE", "also draw time and memory here, as PNG")
    return parser


def plot(path: Path, rows: list[dict], title: str) -> None:
    """Draw time with the floors of two kinds, and memory."""
    columns = {"milliseconds": "milliseconds, forward and backward", "memory MiB": "memory, MiB"}
    shown = []
    for row in (row for row in rows if "memory MiB" in row):
        more = {} if row["kind"] in DRAWN_FLOORS else {FLOOR: None}
        shown.append(row | {"memory MiB": max(1, row["memory MiB"])} | more)  # less is noise
    how = {"x": ("N", "tokens"), "series": "kind", "floors": {"milliseconds": FLOOR}}
    common.plot_rows(path, shown, columns, title=title, **how)


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
    sizes += f", K = {clusters}, {args.dtype}"
    settings = f"{sizes}, {args.impl}, causal, forward + backward, routing included"
    rows = (
        row
        for length in args.lengths
        for row in compare(args.kinds, setting_of(args, length), ceilings, args.repeats)
    )
    draw = partial(plot, title=f"Attention alone, causal: {sizes}")
    more = {"ceilings": asdict(ceilings), "plot": draw}
    settings += f", medians of {args.repeats}"
    return common.report(parser, args, COLUMNS, settings, rows, **more)


if __name__ == "__main__":
    sys.exit(main())
