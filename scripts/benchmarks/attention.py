#!/usr/bin/env python3
"""Time and memory of attention alone, forward and backward, beside other implementations.

    python scripts/benchmark_attention.py --lengths 1024 4096 16384
    python scripts/benchmark_attention.py --kinds dense window --json RESULT.json --plot RESULT.png

Routing is included: ``neural`` computes similarities, assigns, sorts and attends; in
``neural+losses`` both clustering losses go forward and backward too, down to W_c, the centroids
and the layer's input. ``attention_contestants.py`` says what the others are, and how each is set
to about W visible keys; ``neural`` sees W at most, and fewer where clusters are small, as with
K = sqrt(N). They take turns within one run, so that a machine whose speed drifts is unfair to
none; medians are reported, and the range as a share of the median. Memory is the peak
beyond inputs, outputs and gradients, on a CPU each contestant in a process of its own.

A contestant that computes wrong results is not timed, and the exit status is 1; one that is not
installed or does not run here is named with the reason. The floor is what the machine's own
ceilings, measured at the start, allow for the visible pairs (see ``efficiency_floor.py``).
"""

import math
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser, whole_number
from scripts.benchmarks.common import (
    DTYPES,
    MIB,
    CheckFailed,
    Unavailable,
    add_device_options,
    in_own_process,
    interleaved,
    markdown,
    median_ratio,
    peak_memory,
    plot_panels,
    settle_device,
    spread,
    write_record,
)
from scripts.benchmarks.contestants import CONTESTANTS, Clustered, Setting, build, check
from scripts.benchmarks.floor import Ceilings, attention_floor, measure_ceilings

SMALL = 256  # tokens of a first run, in which libraries allocate what they need once
COLUMNS = ("kind", "N", "milliseconds", "spread", "memory MiB", "times as fast as dense")
COLUMNS += ("routing share", "share of floor")


class Contestant:
    """One attention with its inputs: q, k, v [B, H, N, E] and the layer's input x [B, N, D]."""

    def __init__(self, name: str, setting: Setting):
        torch.manual_seed(0)
        self.name, self.setting = name, setting
        shape = (setting.batch, setting.length, setting.heads, setting.width)
        options = {"dtype": DTYPES[setting.dtype], "device": setting.device}
        self.weight, *self.qkv = (torch.randn(shape, **options).transpose(1, 2) for _ in range(4))
        for tensor in self.qkv:
            tensor.requires_grad_()
        self.x = torch.randn(*shape[:2], setting.heads * setting.width, **options)
        self.attention = build(name, setting)
        if getattr(self.attention, "losses", False):
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
        return attention_floor(ceilings, pairs, vectors, s.width, DTYPES[s.dtype])


def measure_memory(name: str, setting: Setting) -> float:
    """MiB beyond inputs, outputs and gradients, at the peak of a forward and backward pass."""
    contestant = Contestant(name, setting)
    Contestant(name, replace(setting, length=SMALL)).run()
    # The output and the three gradients are counted as given: make room for them, and touch it.
    given = [torch.ones_like(contestant.weight) for _ in range(4)]
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / MIB
    else:
        before = peak_memory(setting.device)
    del given
    contestant.run()
    return peak_memory(setting.device) - before


def memory_of(name: str, setting: Setting) -> float | None:
    """The same from a process of its own on a CPU; None if that died."""
    try:
        if setting.device == "cuda":
            return measure_memory(name, setting)
        return in_own_process(measure_memory, name=name, setting=setting)
    except Unavailable as error:
        print(f"memory of {name} at N = {setting.length}: {error}", file=sys.stderr)
        return None


def enter(
    names: list[str], setting: Setting
) -> tuple[list[Contestant], dict[str, str], dict[str, str]]:
    """The contestants that compute what they should, why others do not run, and who fails."""
    ready, missing, failed = [], {}, {}
    for name in names:
        try:
            contestant = Contestant(name, setting)
            contestant.check()
            contestant.run()
            ready.append(contestant)
        except Unavailable as error:
            missing[name] = str(error)
        except CheckFailed as error:
            failed[name] = str(error)
    return ready, missing, failed


def compare(contestants: list[Contestant], ceilings: Ceilings, repeats: int) -> list[dict]:
    """Rows of the table, for contestants of one setting."""
    runs = {c.name: c.run for c in contestants}
    routing = {c.name: c.route for c in contestants if isinstance(c.attention, Clustered)}
    for route in routing.values():
        route()
    runs |= {f"routing of {name}": route for name, route in routing.items()}
    seconds = interleaved(runs, repeats, contestants[0].setting.device)
    dense = seconds.get("dense")
    rows = []
    for contestant in contestants:
        name, times = contestant.name, seconds[contestant.name]
        row = {
            "kind": name,
            "N": contestant.setting.length,
            "milliseconds": statistics.median(times) * 1e3,
            "spread": spread(times),
            "memory MiB": memory_of(name, contestant.setting),
        }
        if dense is not None:
            row["times as fast as dense"] = median_ratio(dense, times)
        if name in routing:
            row["routing share"] = median_ratio(seconds[f"routing of {name}"], times)
        floor = contestant.floor(ceilings)
        if floor is not None:
            row["floor milliseconds"] = floor * 1e3
            row["share of floor"] = floor / statistics.median(times)
        if contestant.attention.note:
            row["note"] = contestant.attention.note
        rows.append(row)
    return rows


def shown(row: dict) -> str:
    """A row of the printed table."""
    formats = ("", "", ".3g", ".0%", ".0f", ".2f", ".0%", ".1%")
    values = (row.get(column) for column in COLUMNS)
    return markdown(
        None if value is None else format(value, spec)
        for value, spec in zip(values, formats, strict=True)
    )


def plot(path: Path, rows: list[dict]) -> None:
    floors = {
        name: [(r["N"], r["floor milliseconds"]) for r in rows if r["kind"] == name]
        for name in ("dense", "window", "neural")
    }
    plot_panels(
        path,
        rows,
        [("milliseconds", "milliseconds, forward + backward"), ("memory MiB", "memory, MiB")],
        x=("N", "tokens"),
        series="kind",
        floors={name: points for name, points in floors.items() if points},
    )


def make_parser() -> Parser:
    parser = Parser(prog="benchmark_attention.py", description=__doc__)
    names = list(CONTESTANTS)
    parser.add_argument("--kinds", nargs="+", default=names, choices=names, help="default: all")
    parser.add_argument("--lengths", nargs="+", type=whole_number, default=[1024, 4096, 16384])
    parser.add_argument("--batch", type=whole_number, default=1)
    parser.add_argument("--heads", type=whole_number, default=8)
    parser.add_argument("--width", type=whole_number, default=64, help="of a head")
    parser.add_argument("--window", type=whole_number, default=128, help="keys that a query sees")
    parser.add_argument("--clusters", type=whole_number, help="default: sqrt(N)")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--repeats", type=whole_number, default=3)
    add_device_options(parser)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--plot", type=Path, help="also draw time and memory here, as PNG")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    settle_device(parser, args)
    ceilings = measure_ceilings(args.device, DTYPES[args.dtype])
    print(
        f"ceilings: {ceilings.operations / 1e9:.0f} GFLOP/s in {args.dtype}, "
        f"{ceilings.bytes / 1e9:.1f} GB/s\n\n{markdown(COLUMNS)}\n"
        + markdown(["---", *["---:"] * (len(COLUMNS) - 1)])
    )
    clusters = "sqrt(N)" if args.clusters is None else args.clusters
    settings = (
        f"B = {args.batch}, H = {args.heads}, E = {args.width}, W = {args.window}, K = {clusters}"
        f", {args.dtype}, {args.impl}, causal, forward + backward, routing included, "
        f"medians of {args.repeats}"
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
            print(shown(row), flush=True)
            rows.append(row)
        for found, reasons in ((not_run, missing), (wrong, failed)):
            for name, reason in reasons.items():
                found.setdefault(name, {})[length] = reason
        more = {"ceilings": asdict(ceilings), "not run": not_run, "wrong": wrong}
        write_record(args.json, args.device, settings, rows, **more)
    notes = {row["kind"]: row["note"] for row in rows if "note" in row}
    print("".join(f"\n{name}: {note}" for name, note in notes.items()))
    for what, found in (("not run", not_run), ("WRONG, not timed", wrong)):
        for name, reasons in found.items():
            for reason in dict.fromkeys(reasons.values()):
                lengths = ", ".join(str(n) for n, r in reasons.items() if r == reason)
                print(f"{what}: {name} at N = {lengths}: {reason}")
    if args.plot is not None and rows:
        plot(args.plot, rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
