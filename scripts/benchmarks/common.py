"""What the benchmarks share: turns, clocks, memory, records and pictures."""

import argparse
import inspect
import json
import logging
import multiprocessing
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from fairseq_clusterformer.errors import write_aside
from fairseq_clusterformer.kernels import IMPLEMENTATIONS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIB = 2**20


class Unavailable(Exception):
    """Why something cannot be measured here, in a few words."""


class CheckFailed(Exception):
    """Something computes wrong results, so its speed means nothing."""


def one_line(error: BaseException) -> str:
    """An error's kind and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """``--device`` and ``--impl``; :func:`settle_device` fills in what is left open."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda if there is one, else cpu"
    )
    parser.add_argument(
        "--impl", help="of ranged attention; default: blocks on the CPU, triton on CUDA"
    )


def settle_device(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Choose the defaults of ``--device`` and ``--impl``; refuses what is not there."""
    if args.device is None:
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, and torch sees no GPU; allowed here: cpu")
    if args.impl is None:
        args.impl = "triton" if args.device == "cuda" else "blocks"
    if args.impl not in IMPLEMENTATIONS:
        parser.error(f"--impl is {args.impl}; allowed: {', '.join(IMPLEMENTATIONS)}")


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Seconds of one call; on CUDA between two events, synchronised before and after."""
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(
    runs: dict[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, list[float]]:
    """Seconds of each run, taken in turns, so that a drifting machine is unfair to none."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            seconds[name].append(seconds_of(run, device))
    return seconds


def spread(values: Sequence[float]) -> float:
    """Range of the values, as a share of their median."""
    return (max(values) - min(values)) / statistics.median(values)


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios of values that were taken side by side."""
    return statistics.median(v / o for v, o in zip(values, others, strict=True))


def peak_memory(device: str) -> float:
    """MiB at the peak: of this process, or of its tensors on the GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    # getrusage would count what a parent had when it forked
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


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
    """Stop before the machine swaps or kills.

    Raises:
        Unavailable: naming what would be needed and what there is.
    """
    free = available_memory(device)
    if needed > free:
        raise Unavailable(
            f"would need {needed / 2**30:.3g} GiB, of which {free / 2**30:.3g} are free"
        )


def in_own_process(measure: Callable[..., Any], **request: object) -> Any:
    """What ``measure(**request)`` returns in a process of its own.

    Because the peak of a process's memory never falls. The modules are imported once, by a server
    that each process is a fork of.

    Raises:
        Unavailable: it said so, or it was killed.
    """
    context = multiprocessing.get_context("forkserver")
    # As a module: what only __main__ imports, every fork would import again. The server gets the
    # environment, but not sys.path.
    context.set_forkserver_preload([inspect.getmodule(measure).__spec__.name])
    places = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    if places[0] not in places[1].split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure, **request).result()
        except BrokenProcessPool:
            raise Unavailable("its process was killed, as for too much memory") from None
        except (MemoryError, torch.OutOfMemoryError):
            raise Unavailable("out of memory") from None


def machine(device: str) -> str:
    """What the numbers were taken on."""
    text = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if device == "cuda":
        text += f", {torch.cuda.get_device_name()}"
    return f"{text}, torch {torch.__version__}"


def shown_command(without: Sequence[str] = ("--json", "--plot")) -> str:
    """This process's command line, but for where its results go."""
    words, left = [], iter(sys.argv[1:])
    for word in left:
        name, _, value = word.partition("=")
        if name not in without:
            words.append(word)
        elif not value:
            next(left, None)
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *words])


def write_record(path: Path | None, device: str, settings: str, rows: list[dict], **more) -> None:
    """Write the rows with the command, the machine, the settings and the date; not if None."""
    if path is None:
        return
    record = {
        "command": shown_command(),
        "machine": machine(device),
        "settings": settings,
        "date": time.strftime("%Y-%m-%d"),
        **more,
        "rows": rows,
    }
    write_aside(path, json.dumps(record, indent=2) + "\n")


def markdown(cells: Sequence[object]) -> str:
    """One row of a table; what is missing is a dash."""
    return "| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |"


def plot_panels(
    path: Path,
    rows: list[dict],
    panels: Sequence[tuple[str, str]],
    *,
    x: tuple[str, str],
    series: str,
    floors: dict[str, list[tuple[float, float]]] | None = None,
) -> None:
    """A panel for each column, log-log, a line for each series.

    Args:
        path: of the picture.
        rows: those without a value are left out.
        panels: column and its label.
        x: the same of the horizontal axis.
        series: column that tells the lines apart.
        floors: points of dotted lines in the first panel.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq turns all of them up
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(5.2 * len(panels), 4.2),
        dpi=150,
        layout="constrained",
        squeeze=False,
    )
    names = list(dict.fromkeys(row[series] for row in rows))
    for panel, (column, label) in zip(axes.flat, panels, strict=True):
        for number, name in enumerate(names):
            points = [(r[x[0]], r[column]) for r in rows if r[series] == name and r.get(column)]
            if points:
                style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
                panel.plot(*zip(*sorted(points), strict=True), "o", label=name, ms=3, **style)
        panel.set(xscale="log", yscale="log", xlabel=x[1], ylabel=label)
        panel.grid(alpha=0.3, which="both")
    for name, points in (floors or {}).items():
        line = zip(*sorted(points), strict=True)
        axes.flat[0].plot(*line, color="black", linestyle=":", label=f"floor, {name}")
    axes.flat[0].legend(fontsize=7)
    partial = path.with_name(path.name + ".partial")
    pyplot.savefig(partial, format="png")
    pyplot.close(figure)
    partial.replace(path)
