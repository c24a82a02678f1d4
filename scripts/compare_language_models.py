#!/usr/bin/env python3
"""Train language models that differ in one thing at equal budgets, and tabulate what came of it.

    python scripts/compare_language_models.py GRID.yaml --data DATA_BIN --out RESULTS
    python scripts/compare_language_models.py GRID.yaml --out RESULTS --table

A grid names the options that all runs share, and for each run the options of its own. A run is
trained by ``fairseq-train`` and, if the grid says how, tested by ``fairseq-eval-lm``; its result
is one JSON file, written when all of it is known. Runs that have a result are skipped, so the
command can be stopped and given again, and several can share the work with ``--only``.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = str(ROOT / "fairseq_clusterformer")
BITS = "bits per symbol"


def command_line(program: str, data: Path, options: dict) -> list[str]:
    """Argument list of a fairseq program; True is a flag, None is left out."""
    module = {"fairseq-train": "fairseq_cli.train", "fairseq-eval-lm": "fairseq_cli.eval_lm"}
    argv = [sys.executable, "-m", module[program], str(data), "--user-dir", PLUGIN]
    for name, value in options.items():
        if value is None or value is False:
            continue
        argv.append("--" + name)
        if value is not True:
            argv.append(str(value))
    return argv


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


def train_and_test(name: str, grid: dict, data: Path, threads: int, keep: Path | None) -> dict:
    """One run of the grid, from nothing to its result."""
    seed = grid["runs"][name].get("seed", 1)
    options = {**grid["shared"], **grid["runs"][name], "seed": seed}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if keep is None else keep / name
        # Nothing of an interrupted run: half a training run has no speed and no curve.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        training = {
            **options,
            "task": "language_modeling",
            "log-format": "json",
            "no-epoch-checkpoints": True,
            "save-dir": folder,
        }
        argv = command_line("fairseq-train", data, training)
        seconds, memory = run_measured(argv, folder / "train.log", threads)
        inner = json_records(folder / "train.log", "train_inner")
        valid = (json_records(folder / "train.log", "valid") or [{}])[-1]
        text = (folder / "train.log").read_text()
        parameters = text.split("num. shared model params: ")[1].split()[0].replace(",", "")
        result = {
            "name": name,
            "options": {key: value for key, value in options.items()},
            "parameters": int(parameters),
            "updates": int(inner[-1]["num_updates"]),
            "train " + BITS: float(inner[-1]["loss"]),
            "curve": [[int(r["num_updates"]), float(r["loss"])] for r in inner],
            "tokens per second": round(statistics.median(float(r["wps"]) for r in inner)),
            "seconds": round(seconds),
            "peak memory MiB": round(memory),
        }
        if "valid_loss" in valid:
            result["valid " + BITS] = float(valid["valid_loss"])
        for key in ("clustering_loss", "sorting_loss", "cluster_effective", "cluster_largest"):
            if "valid_" + key in valid:
                result[key] = float(valid["valid_" + key])
        if grid.get("test"):
            testing = {**grid["test"], "path": folder / "checkpoint_last.pt"}
            argv = command_line("fairseq-eval-lm", data, testing)
            run_measured(argv, folder / "test.log", threads)
            loss = (folder / "test.log").read_text().split("Loss (base 2): ")[1].split(",")[0]
            result["test " + BITS] = float(loss)
    shown = command_line("fairseq-train", data, options)[3:]
    shown = ["DATA" if part == str(data) else part for part in shown]
    shown = ["fairseq_clusterformer" if part == PLUGIN else part for part in shown]
    result["command"] = shlex.join(["fairseq-train", *shown])
    result["machine"] = f"{platform.machine()}, {threads} thread(s), {os.cpu_count()} cores"
    result["date"] = time.strftime("%Y-%m-%d")
    return result


def write_aside(path: Path, text: str) -> None:
    """Write a whole file or none of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def table(grid: dict, out: Path) -> str:
    """Markdown table: runs that differ in their seed alone are one row, mean and range."""
    groups: dict[str, list[dict]] = {}
    for name in grid["runs"]:
        path = out / f"{name}.json"
        if path.exists():
            groups.setdefault(name.split("@")[0], []).append(json.loads(path.read_text()))

    def mean(results: list[dict], key: str, digits: int) -> str:
        values = [r[key] for r in results if key in r]
        if not values:
            return "-"
        middle = f"{statistics.mean(values):.{digits}f}"
        if len(values) == 1 or digits == 0:
            return middle
        return f"{middle} ± {(max(values) - min(values)) / 2:.{digits}f}"

    columns = (
        ("parameters", 0),
        ("valid " + BITS, 3),
        ("test " + BITS, 3),
        ("tokens per second", 0),
        ("peak memory MiB", 0),
        ("cluster_effective", 1),
    )
    used = [c for c in columns if any(c[0] in r for results in groups.values() for r in results)]
    lines = [
        "| model | seeds | " + " | ".join(c[0].replace("_", " ") for c in used) + " |",
        "| --- |" + " ---: |" * (len(used) + 1),
    ]
    for name, results in groups.items():
        cells = [mean(results, *column) for column in used]
        lines.append(f"| {name} | {len(results)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(grid: dict, out: Path, picture: Path) -> None:
    """Training loss by updates, one colour for runs that differ in their seed alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
    colours: dict[str, str] = {}
    for name in grid["runs"]:
        path = out / f"{name}.json"
        if not path.exists():
            continue
        group = name.split("@")[0]
        label = None if group in colours else group
        colours.setdefault(group, f"C{len(colours)}")
        updates, losses = zip(*json.loads(path.read_text())["curve"], strict=True)
        axes.plot(updates, losses, color=colours[group], label=label, linewidth=1.2)
    axes.set_xlabel("updates")
    axes.set_ylabel("training loss, " + BITS)
    axes.set_ylim(top=4.2)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    partial = picture.with_name("." + picture.name)
    figure.savefig(partial, format=picture.suffix[1:])
    partial.replace(picture)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", type=Path, help="YAML with shared, runs and test options")
    parser.add_argument("--data", type=Path, help="folder that a prepare script made")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--only", nargs="+", help="names of runs; default: all")
    parser.add_argument("--threads", type=int, default=1, help="of each run; default 1")
    parser.add_argument("--keep", type=Path, help="keep checkpoints and logs in this folder")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    parser.add_argument("--plot", type=Path, help="draw the training curves into this PNG")
    args = parser.parse_args()

    if not args.grid.is_file():
        sys.exit(f"GRID is {args.grid}; allowed: a YAML file that exists")
    grid = yaml.safe_load(args.grid.read_text())
    names = args.only or list(grid["runs"])
    unknown = sorted(set(names) - set(grid["runs"]))
    if unknown:
        sys.exit(f"--only is {', '.join(unknown)}; allowed: {', '.join(grid['runs'])}")
    if not (args.table or args.plot):
        if args.data is None or not (args.data / "dict.txt").is_file():
            sys.exit(
                f"--data is {args.data}; allowed: a folder with dict.txt, see scripts/prepare_*"
            )
        args.out.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = args.out / f"{name}.json"
            if path.exists():
                print(f"{name}: done before", flush=True)
                continue
            print(f"{name}: training", flush=True)
            result = train_and_test(name, grid, args.data, args.threads, args.keep)
            write_aside(path, json.dumps(result, indent=2, default=str) + "\n")
            scores = {key: value for key, value in result.items() if key.endswith(BITS)}
            print(f"{name}: {scores}", flush=True)
    if args.plot:
        plot(grid, args.out, args.plot)
    print(table(grid, args.out))


if __name__ == "__main__":
    main()
