"""Train and score models that differ in one thing, and print their table.

    python -m scripts.experiments.run GRID.yaml --data DATA --out RESULTS.jsonl --workers 2
    python -m scripts.experiments.run GRID.yaml --out RESULTS.jsonl --table --plot curves.png

GRID is a file such as examples/language_model/grid_attention.yaml; scripts/experiments/grids.py
explains its keys. DATA is a folder that a prepare command made, or holds the folders that the
grid names. Each run is one training with one seed. Its result is one line of RESULTS.jsonl, with
the commands that make it; it is written when all of it is known.

A run that has a result is not made again; a result of other options is refused. With --keep,
checkpoints and logs stay in KEEP/RUN: a training that was interrupted then goes on from its last
checkpoint, and a finished one is only scored. Nothing is overwritten or deleted.
"""

import json
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, zip_longest
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import write_aside
from scripts.experiments.grids import FILES, Run, chosen, load_grid, runs_of
from scripts.experiments.plots import draw_grid
from scripts.experiments.programs import options_of, run_together
from scripts.experiments.results import add, locked, provenance, read
from scripts.experiments.scores import TASKS, Place
from scripts.experiments.tables import table

MARK = "experiment.json"  # in KEEP/RUN


def commands(place: Place) -> dict:
    """The commands that make a run's result, as its record has them."""
    task = TASKS[place.grid["score"]]
    scoring = [place.shown(words) for words in task.tests(place).values()]
    return {"command": place.shown(task.train(place)), "scored by": scoring}


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """The first option of a record's commands that is not as in the grid's, or nothing."""
    for old, new in zip_longest(before, now, fillvalue=""):
        was, is_now = options_in(old), options_in(new)
        if was != is_now:
            both = (min(of, default=("nothing",)) for of in (was - is_now, is_now - was))
            return "{} there, and {} in the grid".format(*map(" ".join, both))
    return ""


def options_in(command: str) -> set[tuple[str, str]]:
    """Each word of a command line with the one behind it, if that is no option: in any order of
    the options."""
    words = [*shlex.split(command), "--"]
    return {(word, "" if behind[:2] == "--" else behind) for word, behind in pairwise(words)}


def check_result(place: Place, result: dict, out: Path) -> None:
    """Raise UserError for a result of other options, or none."""
    name = place.run.name
    try:
        before, now = ([of["command"], *of["scored by"]] for of in (result, commands(place)))
        other = difference(before, now)
    except (ValueError, LookupError, AttributeError, TypeError):
        raise bad_option("--out", out, "results of this grid", f"{name} is no result") from None
    if other:
        raise bad_option("--out", out, "another file for other options", f"{name}: {other}")


def kept(place: Place) -> dict:
    """What the mark in a run's folder says, or is to say in a new folder. Raises UserError: if the
    folder is someone else's, or of other options or data."""
    new = {"command": commands(place)["command"]}
    new["data"] = str(place.data.resolve()) if place.data else None  # a task may draw its own
    if not place.folder.is_dir() or not any(place.folder.iterdir()):
        return new
    try:
        state = json.loads((place.folder / MARK).read_text())
        problem = difference([state["command"]], [new["command"]])
        if not problem and state["data"] != new["data"]:
            problem = f"trained on {state['data']}"
    except FileNotFoundError:
        problem = f"no {MARK} in it, so it is not of this command"
    except (ValueError, LookupError, TypeError):
        problem = f"its {MARK} is not one"
    if problem:
        raise bad_option("--keep", place.folder, "another folder for other options", problem)
    return state


def train(place: Place, threads: int) -> dict:
    """What the log of a training says, which is made, or goes on, if it has not ended."""
    state = kept(place)
    if "trained" in state:
        return state["trained"]
    task, mark = TASKS[place.grid["score"]], place.folder / MARK
    write_aside(mark, json.dumps(state, indent=1) + "\n")
    resumed = Path(place.checkpoint()).exists()
    words = task.train(place) + options_of(task.unshown(place))
    seconds, memory = run_together({"": (words, place.log)}, threads)[""]
    record = task.read(place) | {"seconds": round(seconds), "peak memory MiB": round(memory)}
    if resumed:
        record["resumed"] = "seconds are of the last part"
    write_aside(mark, json.dumps({**state, "trained": record}, indent=1) + "\n")
    return record


def perform(run: Run, grid: dict, args: Namespace) -> str:
    """Make a run's result; returns what went wrong, or nothing."""
    task = TASKS[grid["score"]]
    print(f"{run.name}: training", flush=True)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.keep / run.name if args.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                place = Place(run, grid, args.data, folder, args.keep)
                record = {"name": run.name, "row": run.row, "data": run.data, "seed": run.seed}
                record |= train(place, args.threads)
                for test, words in task.tests(place).items():
                    log = folder / f"{test}.log"
                    log.unlink(missing_ok=True)  # of an earlier scoring
                    run_together({test: (words, log)}, args.threads)
                    record |= task.scores(place, test)
                made_by = commands(place)
                record |= made_by | provenance(made_by["command"], threads=args.threads)
        add(args.out, {run.name: record})
    except (UserError, OSError, LookupError, ValueError) as error:
        return f"{run.name}: {error}"
    print(f"{run.name}: {record['seconds']} s", flush=True)
    return ""


def check(runs: list[Run], grid: dict, args: Namespace) -> None:
    """Refuse what cannot be done, before anything is. Raises UserError: for data, files, a start
    or a folder that is missing or not of this grid."""
    check_there(runs, grid, args)
    for run in runs:
        if args.keep is not None:
            kept(Place(run, grid, args.data, args.keep / run.name, args.keep))
        if run.start:
            mark = args.keep and args.keep / run.start / MARK
            ended = mark and mark.is_file() and "trained" in json.loads(mark.read_text())
            if not (ended or args.keep and run.start in {r.name for r in runs}):
                allowed = f"a folder with {run.start}, which {run.name} starts from"
                raise bad_option("--keep", args.keep, allowed)


def check_there(runs: list[Run], grid: dict, args: Namespace) -> None:
    """Raise UserError: data or files that are missing, each with the rows that need it."""
    task, missing = TASKS[grid["score"]], {}
    for run in runs:
        lacking = set()  # folders, each with the first file that is not there
        for folder, pattern in task.files(Place(run, grid, args.data, Path())):
            there = args.data is not None and any((args.data / folder).glob(pattern))
            if not there and folder not in lacking:
                lacking.add(folder)
                allowed = f"a folder with {Path(folder) / pattern}, made by {task.made_by}"
                what = f"--data is {args.data}; allowed: {allowed}"
                missing.setdefault(what, []).append(run.row)
        for option in FILES:
            if (path := run.options.get(option)) and not Path(path).exists():
                what = f"--{option} is {path}: no such file or folder"
                missing.setdefault(what, []).append(run.row)
    lines = [f"{what}; for {', '.join(dict.fromkeys(rows))}" for what, rows in missing.items()]
    if lines:
        raise UserError(*lines)


def perform_all(runs: list[Run], grid: dict, args: Namespace) -> list[str]:
    """Make the results that are missing; what went wrong, a line for each."""
    failures = []
    # runs that start from another one's weights come after all others
    for wave in ([r for r in runs if not r.start], [r for r in runs if r.start]):
        with ThreadPoolExecutor(args.workers) as pool:
            try:
                failures += pool.map(lambda run: perform(run, grid, args), wave)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)  # the trainings got the signal too
                raise
    return [failure for failure in failures if failure]


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m scripts.experiments.run", description=__doc__)
    add_option = parser.add
    add_option("grid GRID", "YAML file", type=Path)
    add_option("--data FOLDER", "of prepared data")
    add_option("--out FILE", "of results, .jsonl", required=True)
    add_option("--only NAME", "rows, data sets, folds or runs; default: all", nargs="+")
    add_option("--workers N", "runs at a time", default=1)
    add_option("--threads N", "of each run", default=1)
    add_option("--keep FOLDER", "keep checkpoints and logs there")
    add_option("--quick", "one fold and seed, 3 updates, to see that it works")
    add_option("--table", "train nothing, print the table of what is there")
    add_option("--plot FILE", "train nothing, also draw what is there")
    args = parser.parse_args(arguments)
    args.data, args.keep = (path and path.resolve() for path in (args.data, args.keep))
    failures: list[str] = []
    try:
        grid = load_grid(args.grid)
        runs = chosen(runs_of(grid, args.quick), args.only)
        done = results(runs, grid, args)
        if not args.table and not args.plot:
            todo = [run for run in runs if run.name not in done]
            print(*(f"{name}: done before\n" for name in done), sep="", end="", flush=True)
            check(todo, grid, args)
            failures = perform_all(todo, grid, args)
            done = results(runs, grid, args)
        if not done and not failures:
            raise bad_option("--out", args.out, "a file with results of the grid", "no result")
        there = [run for run in runs if run.name in done]
        found = [(run.row, run.data.split("/")[0], done[run.name]) for run in there]
        if args.plot:
            draw_grid(grid, found, args.plot)
        print(table(grid, found))
    except UserError as error:
        failures.append(str(error))
    for failure in failures:
        print(f"{parser.prog}: error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def results(runs: list[Run], grid: dict, args: Namespace) -> dict[str, dict]:
    """The results that are there, by the names of their runs."""
    found = read(args.out)
    for run in (run for run in runs if run.name in found):
        place = Place(run, grid, args.data or Path("DATA"), Path(f"KEEP/{run.name}"))
        check_result(place, found[run.name], args.out)
    return {run.name: found[run.name] for run in runs if run.name in found}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
