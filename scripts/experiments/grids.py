"""Grids of trainings: what each run of a YAML file is, and which were asked for.

A grid is a YAML file with these keys:

``score``    how a trained model is scored, of ``scores.TASKS``
``shared``   options of ``fairseq-train`` that all runs share
``rows``     for each row of the table, the options of its own. These keys of a row are no options:
             ``seeds``, ``folder`` and ``from`` stand for the grid's, ``paper`` has the paper's
             number for each column
``seeds``    of every row (default: 1)
``folder``   what to train on, a folder below ``--data`` (default: ``--data`` itself)
``from``     the run whose last checkpoint a training starts from
``data``     instead of ``folder``, several data sets: of each, ``options``, ``folds``, ``seeds``,
             and ``best``, the validation score that chooses the epoch
``test``, ``tests``, ``split``, ``breakdown``    what is scored after training, see ``scores``
``columns``  of the table, see ``tables``
``plot``     what ``--plot`` draws, see ``run``
``like``     another grid beside it, whose keys and options stand where this one has none; of the
             other's rows, it takes those that it names, with their seeds
"""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import yaml

from fairseq_clusterformer.errors import bad_option, check_no_device
from scripts.experiments.tables import cell, lookup

WRONG_FORM = (TypeError, AttributeError, RecursionError)
OF_ROW = ("seeds", "folder", "from", "paper")
#: options that name files or folders that somebody else has made
FILES = ("pretrained", "pretrained-checkpoint", "lift", "word-vectors")
FILES += ("finetune-from-model",)
#: options of a run that only shows that everything works
QUICK = {"max-update": 3, "log-interval": 1, "max-valid-steps": 3}


@dataclass(frozen=True)
class Run:
    """One training: a row of the table, on one data set and fold, with one seed."""

    row: str  # as the table names it
    data: str  # the data set and fold, such as ``mr/fold0``; empty where the grid names none
    seed: int
    folder: str  # what it trains on, below ``--data``
    options: dict = field(hash=False)  # of the program, the seed among them
    start: str = ""  # name of the run whose weights it starts from
    best: str = "accuracy"  # validation score that chooses the epoch

    @property
    def name(self) -> str:
        """Of the result's file and of the run's folder."""
        parts = [self.row, self.data] if self.data else [self.row]
        return f"{'-'.join(parts)}@{self.seed}".replace("/", "-")


def load_grid(path: Path, of: tuple[Path, ...] = ()) -> dict:
    """Read a grid, which the files `of` are like. Raises UserError: if it is something else."""
    try:
        grid = _read(path, of)
        runs_of(grid)
        for column in grid["columns"].values():
            column = column if isinstance(column, dict) else {"digits": column}
            cell([1.0], column.get("digits", 1)), lookup({}, column.get("score", ""))
    except (OSError, ValueError, yaml.YAMLError, LookupError, *WRONG_FORM):
        raise bad_option("GRID", path, "a YAML file with score, shared, rows, columns") from None
    return grid


def _read(path: Path, of: tuple[Path, ...]) -> dict:
    check_no_device("GRID", path, "a YAML file")
    grid = yaml.safe_load(path.read_text(encoding="utf-8"))
    if other := grid.pop("like", None):
        of = (*of, path.absolute())
        if (path.parent / other).absolute() in of or len(of) > 20:
            raise bad_option("like", other, "another grid", f"in {path}, which is like itself")
        base = load_grid(path.parent / other, of)
        for row in (row for row, own in grid["rows"].items() if not own):
            if row not in base["rows"]:
                raise bad_option("rows", row, f"{', '.join(base['rows'])}; others have options")
        rows = {row: {**base["rows"].get(row, {}), **own} for row, own in grid["rows"].items()}
        options = {
            key: {**base[key], **own}
            for key, own in grid.items()
            if isinstance(own, dict) and isinstance(base.get(key), dict)
        }
        grid = {**base, **grid, **options, "rows": rows}
    return grid


def runs_of(grid: dict, quick: bool = False) -> list[Run]:
    """Every run of a grid: all rows with one fold and seed, then with the next, so that an
    unfinished table compares rows that had the same."""
    found = []
    for data, described in grid.get("data", {"": {}}).items():
        folds = [f"{data}/fold{n}" for n in range(described.get("folds", 0))] or [data]
        seeds = described.get("seeds", grid.get("seeds", [1]))
        more = (seed for own in grid["rows"].values() for seed in own.get("seeds", ()))
        places = list(product(folds, dict.fromkeys([*seeds, *more])))
        for row, own in grid["rows"].items():
            of_row = [place for place in places if place[1] in own.get("seeds", seeds)]
            for fold, seed in of_row[:1] if quick else of_row:
                run = _run(grid, row, fold, seed, described)
                if quick:
                    run.options.update(grid.get("quick", QUICK))
                found.append((places.index((fold, seed)), run))
    return [run for _, run in sorted(found, key=lambda pair: pair[0])]


def _run(grid: dict, row: str, fold: str, seed: int, described: dict) -> Run:
    own = grid["rows"][row]
    options = {**grid["shared"], **described.get("options", {}), **own, "seed": seed}
    folder = own.get("folder", grid.get("folder", fold))
    options = {key: value for key, value in options.items() if key not in OF_ROW}
    start, best = own.get("from", grid.get("from", "")), described.get("best", "accuracy")
    return Run(row, fold, seed, folder, options, start, best)


def chosen(runs: list[Run], only: list[str] | None) -> list[Run]:
    """The runs that ``--only`` asks for: by name, by row, by data set or fold, or by both. Raises
    UserError: for a word that names nothing."""
    words = set(only or ())
    folds = {run: {run.data, run.data.split("/")[0]} - {""} for run in runs}
    all_rows, all_data = {run.row for run in runs}, {part for run in runs for part in folds[run]}
    names, rows, data = words & {run.name for run in runs}, words & all_rows, words & all_data
    if unknown := words - names - rows - data:
        allowed = ", ".join(sorted(all_rows | all_data))
        raise bad_option("--only", ", ".join(sorted(unknown)), allowed)

    def asked(run: Run) -> bool:
        both = (not rows or run.row in rows) and (not data or bool(data & folds[run]))
        return run.name in names or both and bool(rows or data)

    return [run for run in runs if not words or asked(run)]
