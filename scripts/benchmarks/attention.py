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
installed or does not run here is named with the reason. The floor is the least time for the
visible pairs, by ceilings that are measured at the start (``scripts/benchmarks/floor.py``).
"""

import math
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser
from scripts.benchmarks import common
from scripts.benchmarks.check import check
from scripts.benchmarks.contestants import CONTESTANTS, Clustered, Setting, build
from scripts.benchmarks.floor import Ceilings, attention_floor, measure_ceilings

SMALL = 256  # tokens of a first run, in which libraries allocate what they need once
COLUMNS = {
    "kind": "",
    "N": "",
    "milliseconds": ".3g",
    "spread": ".0%",
    "memory MiB": ".0f",
    "times as fast as dense": ".2f",
    "routing share": ".0%",
    "share of floor": ".1%",
}


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
        _, losses = self.attention.route(self.x, *self.qkv[:2])
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


def memory_of(name: str, setting: Setting) -> float | None:
    """The same, or None where the process did not survive."""
    try:
        return common.measured_memory(measure_memory, setting.device, name=name, setting=setting)
    except common.Unavailable as error:
        print(f"memory of {name} at N = {setting.length}: {error}", file=sys.stderr)
        return None


def enter(
    names: list[str], setting: Setting
) -> tuple[list[Contestant], dict[str, str], dict[str, str]]:
    """Contestants with right results; reasons why others do not run; which results are wrong."""
    ready, missing, failed = [], {}, {}
    for name in names:
        try:
            contestant = Contestant(name, setting)
            contestant.check()
            contestant.run()
            ready.append(contestant)
        except common.Unavailable as error:
            missing[name] = str(error)
        except common.CheckFailed as error:
            failed[name] = str(error)
    return ready, missing, failed


def compare(contestants: list[Contestant], ceilings: Ceilings, repeats: int) -> list[dict]:
    """Rows of the table, for contestants of one setting."""
    runs = {c.name: c.run for c in contestants}
    routing = {c.name: c.route for c in contestants if isinstance(c.attention, Clustered)}
    for route in routing.values():
        route()
    runs |= {f"routing of {name}": route for name, route in routing.items()}
    seconds = common.interleaved(runs, repeats, contestants[0].setting.device)
    dense = seconds.get("dense")
    rows = []
    for contestant in contestants:
        name, times = contestant.name, seconds[contestant.name]
        row = {
            "kind": name,
            "N": contestant.setting.length,
            "milliseconds": statistics.median(times) * 1e3,
            "spread": common.spread(times),
            "memory MiB": memory_of(name, contestant.setting),
        }
        if dense is not None:
            row["times as fast as dense"] = common.median_ratio(dense, times)
        if name in routing:
            row["routing share"] = common.median_ratio(seconds[f"routing of {name}"], times)
        floor = contestant.floor(ceilings)
        if floor is not None:
            row["floor milliseconds"] = floor * 1e3
            row["share of floor"] = floor / statistics.median(times)
        if contestant.attention.note:
            row["note"] = contestant.attention.note
        rows.append(row)
    return rows


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
    common.plot_rows(
        path,
        rows,
        {"milliseconds": "milliseconds, forward and backward", "memory MiB": "memory, MiB"},
        x=("N", "tokens"),
        series="kind",
        title=title,
        floors={"milliseconds": "floor milliseconds"},
    )


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    ceilings = measure_ceilings(args.device, common.DTYPES[args.dtype])
    print(
        f"ceilings: {ceilings.operations / 1e9:.0f} GFLOP/s in {args.dtype}, "
        f"{ceilings.bytes / 1e9:.1f} GB/s\n\n{common.table_head(COLUMNS)}"
    )
    clusters = "sqrt(N)" if args.clusters is None else args.clusters
    sizes = f"B = {args.batch}, H = {args.heads}, E = {args.width}, W = {args.window}"
    settings = (
        f"{sizes}, K = {clusters}, {args.dtype}, {args.impl}, causal, forward + backward, "
        f"routing included, medians of {args.repeats}"
    )
    rows, not_run, wrong = [], {}, {}
    for length in args.lengths:
        setting = Setting(
            length=length,
            batch=args.batch,
            heads=args.heads,
            width=args.width,
            window=args.window,
            clusters=args.clusters or math.isqrt(length),
            dtype=args.dtype,
            device=args.device,
            impl=args.impl,
        )
        contestants, missing, failed = enter(args.kinds, setting)
        for row in compare(contestants, ceilings, args.repeats) if contestants else ():
            print(common.table_row(row, COLUMNS), flush=True)
            rows.append(row)
        for found, reasons in ((not_run, missing), (wrong, failed)):
            for name, reason in reasons.items():
                found.setdefault(name, {})[length] = reason
        more = {"ceilings": asdict(ceilings), "not run": not_run, "wrong": wrong}
        common.write_record(args.json, parser.prog, args.device, settings, rows, **more)
    notes = {row["kind"]: row["note"] for row in rows if "note" in row}
    print("".join(f"\n{name}: {note}" for name, note in notes.items()))
    for what, found in (("not run", not_run), ("WRONG, not timed", wrong)):
        for name, reasons in found.items():
            for reason in dict.fromkeys(reasons.values()):
                lengths = ", ".join(str(n) for n, r in reasons.items() if r == reason)
                print(f"{what}: {name} at N = {lengths}: {reason}")
    if args.plot is not None:
        plot(args.plot, rows, f"Attention alone: {sizes}, {args.dtype}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
