"""Grids of trainings that differ in one thing: run what is missing, tabulate what is there.

A grid is a YAML file: options that all runs share, and for each run the options of its own. The
result of a run is one JSON file, written when all of it is known; runs that have one are skipped,
so a command can be stopped and given again, and several can share the work with ``--only``.
Names such as ``dense@1`` and ``dense@2`` are seeds of one row of the table.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from fairseq_clusterformer.errors import write_aside

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = str(ROOT / "fairseq_clusterformer")


def command_line(program: str, data: Path, options: dict) -> list[str]:
    """Argument list of a fairseq program."""
    module = "fairseq_cli." + program.removeprefix("fairseq-").replace("-", "_")
    start = [sys.executable, "-m", module, str(data), "--user-dir", PLUGIN]
    return start + options_of(options)


def options_of(options: dict) -> list[str]:
    """Words of a command line; True is a flag, None and False are left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name)
        if value is not True:
            words.append(str(value))
    return words


def shown_command(data: Path, options: dict) -> str:
    """The command of a training, as one that reads the result would type it."""
    shown = command_line("fairseq-train", data, options)[3:]
    places = {str(data): "DATA", PLUGIN: "fairseq_clusterformer"}
    return shlex.join(["fairseq-train", *(places.get(part, part) for part in shown)])


def run_measured(argv: list[str], log: Path, threads: int) -> tuple[float, float]:
    """Run to the end; wall seconds and peak memory in MiB. Exits with the log's end on failure."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    with open(log, "w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        end = "\n".join(log.read_text().splitlines()[-5:])
        sys.exit(f"{end}\nfailed: {shlex.join(argv)}\nlog: {log}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def json_records(log: Path, tag: str) -> list[dict]:
    """fairseq's JSON log lines of one kind ("train_inner", "valid", ...)."""
    lines = [line for line in log.read_text().splitlines() if f"| {tag} | {{" in line]
    return [json.loads(line[line.index("{") :]) for line in lines]


def training_record(log: Path) -> dict:
    """What every training's result tells: size, curve, speed."""
    inner = json_records(log, "train_inner")
    if not inner:
        sys.exit(f"{log} tells of no update; allowed: a log-interval of no more than there are")
    parameters = log.read_text().split("num. shared model params: ")[1].split()[0]
    return {
        "parameters": int(parameters.replace(",", "")),
        "updates": int(inner[-1]["num_updates"]),
        "curve": [[int(r["num_updates"]), float(r["loss"])] for r in inner],
        "tokens per second": round(statistics.median(float(r["wps"]) for r in inner)),
    }


def machine(threads: int) -> dict:
    """Where and when a result was made."""
    return {
        "machine": f"{platform.machine()}, {threads} thread(s), {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


def groups(grid: dict, out: Path) -> dict[str, list[dict]]:
    """The results that are there, by name without the seed."""
    found: dict[str, list[dict]] = {}
    for name in grid["runs"]:
        path = out / f"{name}.json"
        if path.exists():
            found.setdefault(name.split("@")[0], []).append(json.loads(path.read_text()))
    return found


def table(grid: dict, out: Path, columns: Sequence[tuple[str, int]]) -> str:
    """Markdown table: runs that differ in their seed alone are one row, mean and half the range.

    Args:
        columns: key of a result and decimals.
    """

    def mean(results: list[dict], key: str, digits: int) -> str:
        values = [r[key] for r in results if key in r]
        if not values:
            return "-"
        middle = f"{statistics.mean(values):.{digits}f}"
        if len(values) == 1 or digits == 0:
            return middle
        return f"{middle} ± {(max(values) - min(values)) / 2:.{digits}f}"

    rows = groups(grid, out)
    used = [c for c in columns if any(c[0] in r for results in rows.values() for r in results)]
    lines = [
        "| model | seeds | " + " | ".join(c[0].replace("_", " ") for c in used) + " |",
        "| --- |" + " ---: |" * (len(used) + 1),
    ]
    for name, results in rows.items():
        cells = [mean(results, *column) for column in used]
        lines.append(f"| {name} | {len(results)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(grid: dict, out: Path, picture: Path, *, loss: str, top: float) -> None:
    """Training loss by updates, one colour for runs that differ in their seed alone."""
    curves = {
        name: [result["curve"] for result in results]
        for name, results in groups(grid, out).items()
    }
    plot_curves(curves, picture, loss=loss, top=top)


def plot_curves(
    curves: dict[str, list[list]], picture: Path, *, loss: str, top: float | None = None
) -> None:
    """Curves, each a list of [update, loss]; those of one name share a colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
    for number, (name, of_name) in enumerate(curves.items()):
        for seed, curve in enumerate(of_name):
            updates, losses = zip(*curve, strict=True)
            label = None if seed else name
            axes.plot(updates, losses, color=f"C{number}", label=label, linewidth=1.2)
    axes.set_xlabel("updates")
    axes.set_ylabel(loss)
    axes.set_ylim(top=top)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    partial = picture.with_name("." + picture.name)
    figure.savefig(partial, format=picture.suffix[1:])
    partial.replace(picture)


def make_parser(description: str) -> argparse.ArgumentParser:
    """Options of every grid."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=Path, help="YAML with shared, runs and test options")
    parser.add_argument("--data", type=Path, help="folder that a prepare script made")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--only", nargs="+", help="names of runs; default: all")
    parser.add_argument("--threads", type=int, default=1, help="of each run; default 1")
    parser.add_argument("--keep", type=Path, help="keep checkpoints and logs in this folder")
    parser.add_argument(
        "--table", action="store_true", help="train nothing, print the table of what is there"
    )
    parser.add_argument(
        "--plot", type=Path, help="train nothing, draw what is there into this PNG"
    )
    return parser


def run_grid(
    args: argparse.Namespace,
    run: Callable[[str, dict, argparse.Namespace], dict],
    *,
    dictionary: str,
    scores: Callable[[str], bool],
) -> dict:
    """Do what the options of :func:`make_parser` ask for, but table and plot.

    Args:
        run: makes the result of one run of the grid, by its name.
        dictionary: pattern of a file that a data folder holds.
        scores: which keys of a result to print.

    Returns:
        The grid.
    """
    if not args.grid.is_file():
        sys.exit(f"GRID is {args.grid}; allowed: a YAML file that exists")
    grid = yaml.safe_load(args.grid.read_text())
    names = args.only or list(grid["runs"])
    unknown = sorted(set(names) - set(grid["runs"]))
    if unknown:
        sys.exit(f"--only is {', '.join(unknown)}; allowed: {', '.join(grid['runs'])}")
    if args.table or args.plot:
        if not groups(grid, args.out):
            sys.exit(f"--out is {args.out}; allowed with --table and --plot: results of the grid")
        return grid
    if args.data is None or not any(args.data.glob(dictionary)):
        sys.exit(
            f"--data is {args.data}; allowed: a folder with {dictionary}, see scripts/prepare_*"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = args.out / f"{name}.json"
        if path.exists():
            print(f"{name}: done before", flush=True)
            continue
        print(f"{name}: training", flush=True)
        result = run(name, grid, args)
        write_aside(path, json.dumps(result, indent=2, default=str) + "\n")
        print(f"{name}: { {k: v for k, v in result.items() if scores(k)} }", flush=True)
    return grid
