"""Every grid of the examples would run: each row as far as its model, and one of each kind of grid
to its scores, from data in the official formats."""

import contextlib
import importlib
import logging
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

import fairseq_cli.train
import pytest
import torch
import yaml
from fairseq import checkpoint_utils, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics

from examples.language_model import recall
from scripts.experiments import run
from scripts.experiments.grids import FILES, load_grid, runs_of
from scripts.experiments.programs import options_of
from scripts.experiments.results import read
from scripts.experiments.scores import TASKS, Place
from scripts.experiments.tables import lookup
from tests.cli.in_process import quiet
from tests.experiments.grids import FAIRSEQ, GRIDS, parse, start
from tests.experiments.small_data import CASES

every_grid = pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
#: options that do not fit a dictionary of few words
FEW_WORDS = {
    "table5_wikitext103": {"adaptive-input-cutoff": "20,40", "adaptive-softmax-cutoff": "20,40"}
}


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """The dictionaries that each task wants of its data."""
    folder = tmp_path_factory.mktemp("words")
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt", "input0/dict.txt", "label/dict.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("".join(f"word{i} 1\n" for i in range(60)))
    return folder


def build(args: Namespace, whole: bool) -> None:
    """What a training builds, without numbers: task, model and criterion, by fairseq's `whole`
    configuration, or by the options alone, which takes a tenth of the time."""
    with quiet(), torch.device("meta"):
        cfg = convert_namespace_to_omegaconf(args) if whole else None
        task = tasks.setup_task(cfg.task if whole else args)
        task.build_model(cfg.model if whole else args)
        task.build_criterion(cfg.criterion if whole else args)


@every_grid
def test_every_row_has_a_model(path, words, monkeypatch):
    """A training checks its options and kinds of attention where it builds its model. Of weights
    and vectors that others have made, rows have none here."""
    monkeypatch.setattr(recall, "train", lambda setting: {"accuracy": recall.Model(setting).tied})
    grid, wrong = load_grid(path), {}
    task = TASKS[grid["score"]]
    for each in runs_of(grid, quick=True):
        options = each.options | dict.fromkeys(FILES) | FEW_WORDS.get(path.stem, {})
        row = replace(each, folder="", options=options)
        place = Place(row, grid, words, Path("runs") / each.name, Path("keep"))
        command = [*task.train(place), *options_of(task.unshown(place))]
        try:
            if grid["score"] == "recall":
                assert recall.main(command[3 : command.index("--json")]) == 0
            elif (args := parse([*map(str, command)])) is not None:
                # fairseq's transformer reads its sizes from the whole configuration alone
                build(args, whole=grid["score"] == "translation")
        except (Exception, SystemExit) as error:
            wrong[each.name] = f"{type(error).__name__}: {error}"
        for scored in task.tests(place).values():
            parse([*map(str, scored)])
    assert not wrong


@every_grid
def test_what_is_missing_is_said_before_any_work(path, tmp_path, capsys, monkeypatch):
    """The data of each row; with these, the weights and vectors that others have made."""
    monkeypatch.chdir(tmp_path)
    grid = load_grid(path)
    task, runs = TASKS[grid["score"]], runs_of(grid, quick=True)
    places = [Place(each, grid, None, Path()) for each in runs]
    needed: dict[str, list[str]] = {}
    for folder, pattern in dict.fromkeys(file for place in places for file in task.files(place)):
        needed.setdefault(folder, []).append(pattern)
    assert set(needed) >= {each.folder for each in runs if task.needs}
    assert set(needed) >= {*grid.get("tests", {}).values()}
    files: dict[str, dict] = {}
    for each in runs:
        for option, value in each.options.items():
            is_path = isinstance(value, str) and re.search(r"/|\.(pt|txt|json|model)$", value)
            if is_path and option != "user-dir":
                assert option in FILES
                files.setdefault(f"--{option} is {value}: no such file or folder; for", {})[
                    each.row
                ] = None
    args = Namespace(data=tmp_path / "data", keep=None)
    given = [path, "--quick", "--data", args.data, "--out", "out.jsonl", "--keep", "keep"]
    if task.needs:
        assert run.main([*map(str, given)]) == 1
        said = capsys.readouterr().err
        firsts = [Path(folder) / patterns[0] for folder, patterns in needed.items()]
        assert all(f"a folder with {first}, made by {task.made_by}" in said for first in firsts)
        assert all(each.row in said for each in runs)
        for folder, patterns in needed.items():
            (args.data / folder).mkdir(parents=True, exist_ok=True)
            for pattern in patterns:
                (args.data / folder / pattern.replace("*", "de")).touch()
    if files:
        assert run.main([*map(str, given)]) == 1
        said = capsys.readouterr().err.removeprefix("python -m scripts.experiments.run: error: ")
        lines = {f"{what} {', '.join(rows)}" for what, rows in files.items()}
        assert {line.strip() for line in said.splitlines()} == lines
    else:
        run.check_there(runs, grid, args)
    assert [each.name for each in tmp_path.iterdir()] == ["data"] * bool(task.needs)


def run_here(programs: Mapping, threads: int) -> dict[str, tuple[float, float]]:
    """As `programs.run_together`, in this process: to start one takes longer than all the rest."""
    ((name, (words, log)),) = programs.items()
    words = [*map(str, words)]
    for function in (checkpoint_utils.save_checkpoint, fairseq_cli.train.should_stop_early):
        vars(function).pop("best", None)  # of an earlier training in this process
    metrics.reset()
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    with open(log, "a") as file, contextlib.redirect_stdout(file):
        root.addHandler(handler := logging.StreamHandler(file))
        handler.setFormatter(
            logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s")
        )
        try:
            if words[0] in FAIRSEQ:
                program = words[0].removeprefix("fairseq-").replace("-", "_")
                with quiet(), mock.patch("sys.argv", words):
                    importlib.import_module(f"fairseq_cli.{program}").cli_main()
            else:
                assert not start(words)
        finally:
            root.removeHandler(handler)
    return {name: (1.0, 1.0)}


@pytest.mark.parametrize("name", CASES)
def test_a_grid_of_each_kind_is_trained(name, tmp_path, monkeypatch, capsys):
    """One row, for three updates, and it is scored: every column of the table has a number."""
    row, make, smaller, only = CASES[name]
    (path,) = (path for path in GRIDS if path.match(f"{name}.yaml"))
    grid = {"like": str(path), "shared": smaller, "rows": {row: {}}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    make(tmp_path / "source", tmp_path / "data")
    monkeypatch.setattr(run, "run_together", run_here)
    words = [tmp_path / "grid.yaml", "--quick", "--data", tmp_path / "data"]
    words += ["--out", tmp_path / "out.jsonl", *(["--only", *only] if only else [])]
    assert run.main([*map(str, words)]) == 0, capsys.readouterr().err
    (result,) = read(tmp_path / "out.jsonl").values()
    for head, column in load_grid(tmp_path / "grid.yaml")["columns"].items():
        told = column if isinstance(column, dict) else {}
        longer = re.fullmatch(r"EM at \d{4}", head)  # than the documents that are asked about
        if told.get("data", result["data"]) == result["data"] and not longer:
            assert lookup(result, told.get("score", head)) is not None, head
