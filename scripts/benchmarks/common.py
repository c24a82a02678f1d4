"""What the benchmarks share: turns, clocks, memory, tables, records and pictures."""

import argparse
import json
import multiprocessing
import os
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.kernels import IMPLEMENTATIONS, chosen
from fairseq_clusterformer.kernels.cpu import library
from fairseq_clusterformer.outputs import write_aside
from scripts.experiments.plots import Line, Panel, draw
from scripts.experiments.results import provenance
from scripts.experiments.tables import markdown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIB = 2**20


class Unavailable(Exception):
    """Something cannot be measured here; the message gives the reason in a few words."""


class CheckFailed(Exception):
    """Something computes wrong results, so its speed means nothing."""


@contextmanager
def reason_in(row: dict) -> Iterator[None]:
    """Note in a row of results why something cannot be measured, or is not timed."""
    try:
        yield
    except Unavailable as error:
        row["not run"] = str(error)
    except torch.OutOfMemoryError:
        row["not run"] = "out of memory"
    except CheckFailed as error:
        row["wrong"] = str(error)


def one_line(error: BaseException) -> str:
    """An error's kind and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def make_parser(module: str, description: str, numbers: Mapping[str, tuple]) -> Parser:
    """A parser for ``python -m module``, with the options that all benchmarks have, and those with
    whole numbers: default and help. A list takes several numbers."""
    parser = Parser(prog=f"python -m {module}", description=description)
    for name, (default, what) in {**numbers, "--repeats": (3, "medians of so many")}.items():
        several = "+" if isinstance(default, list) else None
        parser.add(f"{name} N", what, nargs=several, default=default)
    about = "default: cuda if there is a GPU, else cpu"
    parser.add("--device", about, choices=("cpu", "cuda"))
    about = "implementation of ranged attention; default: the fastest that runs there"
    parser.add("--impl", about, choices=list(IMPLEMENTATIONS))
    parser.add("--json FILE", "also write the results here")
    return parser


def settle_device(parser: Parser, args: argparse.Namespace) -> None:
    """Fill in ``--device`` and ``--impl`` where they were left open."""
    if args.device is None:
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda: torch sees no GPU; allowed: cpu")
    if args.impl is None:
        args.impl = chosen("auto", torch.empty(0, device=args.device))


def seconds_of(run: Callable[[], object], device: str, clock=time.perf_counter) -> float:
    """Seconds of one call, until the device has done its work."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = clock()
    run()
    wait()
    return clock() - start


def own_seconds(run: Callable[[], object], device: str) -> float:
    """The same, but on a CPU those of the processor, to which other programs do not add."""
    return seconds_of(run, device, time.perf_counter if device == "cuda" else time.process_time)


def in_turns(runs: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, list]:
    """What each run returns. The runs take turns, so a change of the machine's speed hits all."""
    turns = [{name: run() for name, run in runs.items()} for _ in range(repeats)]
    return {name: [turn[name] for turn in turns] for name in runs}


def interleaved(
    runs: dict[Any, Callable[[], object]], repeats: int, device: str
) -> dict[Any, list[float]]:
    """Seconds of each run, in turns."""
    timed = {name: partial(seconds_of, run, device) for name, run in runs.items()}
    return in_turns(timed, repeats)


def spread(values: Sequence[float]) -> float:
    """Range of the values, as a share of their median."""
    return (max(values) - min(values)) / statistics.median(values)


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios of values that were taken in the same turn."""
    return statistics.median(v / o for v, o in zip(values, others, strict=True))


def peak_memory(device: str) -> float:
    """MiB at the peak: of this process on a CPU, of its tensors on a GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    # getrusage would count what a parent had when it forked
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def memory_before(device: str) -> float:
    """MiB in use now, to be subtracted from a later :func:`peak_memory`."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / MIB
    return peak_memory(device)


def available_memory(device: str) -> int:
    """Bytes that can still be allocated."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    memory = Path("/proc/meminfo").read_text()
    free = int(re.search(r"MemAvailable:\s+(\d+) kB", memory)[1]) * 1024
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and limit.read_text().strip().isdecimal():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def require_memory(needed: float, device: str) -> None:
    """Stop before the machine swaps, or kills this process. Raises Unavailable: with the memory
    that is needed and the memory that is free."""
    free = available_memory(device)
    if needed > free:
        sizes = f"{needed / 2**30:.3g} GiB, of which {free / 2**30:.3g} are free"
        raise Unavailable(f"would need {sizes}")


def _measured(measure: Callable[..., Any], request: dict[str, Any]) -> Any:
    library.PROCESS = os.getpid()  # the server has computed nothing
    return measure(**request)


def in_own_process(measure: Callable[..., Any], **request: object) -> Any:
    """What ``measure(**request)`` returns in a process of its own.

    A process's peak of memory never falls, so each measurement needs a new process. A server
    imports the modules once, and each new process is a fork of it. Raises Unavailable: ``measure``
    raised it, or the process was killed.
    """
    context = multiprocessing.get_context("forkserver")
    # Not the module that python -m runs: each new process runs it again.
    fairseq = ["fairseq_clusterformer.plugin"] if "fairseq" in sys.modules else []
    context.set_forkserver_preload(["scripts.benchmarks.check", *fairseq])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_measured, measure, request).result()
        except BrokenProcessPool:
            raise Unavailable("its process was killed, probably for too much memory") from None
        except (MemoryError, torch.OutOfMemoryError):
            raise Unavailable("out of memory") from None


def measured_memory(measure: Callable[..., float], device: str, **request: object) -> float:
    """What ``measure(**request)`` returns: on a CPU in a process of its own."""
    return measure(**request) if device == "cuda" else in_own_process(measure, **request)


def columns(line: str) -> dict[str, str]:
    """Columns of a table and the formats of their numbers, from a line as of its head."""
    parts = (part.partition(": ") for part in line.split(" | "))
    return {name: form for name, _, form in parts}


def table_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """A row by its columns' formats. A row that was not measured gives its reason instead."""
    values = [(row.get(name), form) for name, form in columns.items()]
    cells = ["-" if value is None else format(value, form) for value, form in values]
    for key, what in (("not run", "not run"), ("wrong", "WRONG, not timed")):
        if key in row:
            cells = [str(row[name]) for name in list(columns)[:3] if name in row]
            cells.append(f"{what}: {row[key]}")
    return f"| {' | '.join(cells)} |"


def shown_command(program: str) -> str:
    """This process's command line, without the files that its results go to."""
    line = shlex.join([program, *sys.argv[1:]]).replace(shlex.quote(program), program)
    return re.sub(r" --(json|plot)[ =]('[^']*'|\S+)", "", line)


def report(
    parser: Parser,
    args: argparse.Namespace,
    columns: Mapping[str, str],
    settings: str,
    rows: Iterable[dict],
    *,
    plot: Callable[[Path, list[dict]], None] | None = None,
    **more,
) -> int:
    """Print each row as it is measured, record all in ``--json`` with ``more``, and draw them into
    ``--plot``; returns the exit status."""
    done: list[dict] = []
    try:
        for row in rows:
            if not done:
                print(markdown(list(columns), []))
            print(table_row(row, columns), flush=True)
            done.append(row)
            if args.json:
                threads, command = torch.get_num_threads(), shown_command(parser.prog)
                record = provenance(command, threads=threads, device=args.device)
                record |= {"settings": settings, **more, "rows": done}
                write_aside(args.json, json.dumps(record, indent=2) + "\n")
    except (UserError, ValueError, CheckFailed, Unavailable) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    if plot is not None and args.plot is not None:
        plot(args.plot, done)
    return 1 if any("wrong" in row for row in done) else 0


def report_by_length(
    parser: Parser,
    args: argparse.Namespace,
    columns: Mapping[str, str],
    shown: Sequence[str],
    names: Sequence[str | None],
    measure: Callable[..., dict],
) -> int:
    """Report what ``measure`` returns of each name, which is in the first column, and length, with
    its seconds against half the length and ``full``; ``shown``: options of the settings."""
    seconds: dict[tuple, float] = {}

    def rows() -> Iterator[dict]:
        for name, length in product(names, args.lengths):
            row = {next(iter(columns)): name, "tokens": length}
            with reason_in(row):
                row |= in_own_process(measure, name=name, length=length, args=args)
                found = seconds[name, length] = row["seconds"]
                if half := seconds.get((name, length // 2)):
                    row["times half the length"] = found / half
                if full := seconds.get(("full", length)):
                    row["times as fast as full"] = full / found
            yield row

    settings = ", ".join(f"{name} {getattr(args, name)}" for name in shown)
    return report(parser, args, columns, settings, rows())


def plot_rows(
    path: Path,
    rows: list[dict],
    columns: Mapping[str, str],
    *,
    x: tuple[str, str],
    series: str,
    title: str,
    floors: Mapping[str, str] | None = None,
) -> None:
    """Draw a panel for each column, by its label, and a line for each value of ``series``. Columns
    with ``floors`` have a lower bound in another column, which is drawn as dotted lines."""

    def points(column: str) -> dict[str, dict[float, list[float]]]:
        found: dict[str, dict[float, list[float]]] = {}
        for row in rows:
            if row.get(column):
                found.setdefault(row[series], {})[row[x[0]]] = [row[column]]
        return found

    panels = []
    for column, label in columns.items():
        lines = [Line(name, found) for name, found in points(column).items()]
        values = [value for line in lines for (value,) in line.points.values()]
        drawn: list[dict] = []  # neural+losses sees what neural sees
        for name, found in points((floors or {}).get(column, "")).items():
            if found not in drawn:
                drawn.append(found)
                lines.append(Line(f"floor of {name}", found, bound=True))
        if values:
            far = max(values) >= 10 * min(values)  # else the axis begins at 0
            limits = (None, None) if far else (0, None)
            panels.append(Panel(lines, x[1], label, log="xy" if far else "x", limits=limits))
    if panels:
        draw(panels, path, title)
