"""Every result of examples/ says where it comes from, by a command that today's programs read."""

import argparse
import json
import re
import shlex

import pytest

from scripts.experiments import results, run
from scripts.experiments.grids import load_grid, runs_of
from tests.experiments.grids import GRIDS, parse

#: where the results of a grid are, if not in the folder of the grid's name
FOLDERS = {f"grid_{name}": name for name in "attention cf20 clustering gated speed".split()}
FOLDERS |= {f"grid_{name}": name for name in "ablation iwslt14 multi30k".split()}
FOLDERS |= {f"grid_{name}": name for name in "far far_8192 far_long short_convolution".split()}


def test_every_result_has_the_fields_of_provenance(capsys):
    assert results.main(["--check"]) == 0, capsys.readouterr().err


def test_what_is_missing_is_reported():
    complete = dict.fromkeys(results.FIELDS, "x")
    assert list(results.problems(complete)) == []
    assert list(results.problems(complete | {"cpu": None})) != []
    assert list(results.problems(complete | {"cpu": None, "added": {}})) == []
    assert list(results.problems(complete | {"command": None, "added": {}})) != []


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_results_are_of_todays_grids(path):
    out = path.parent / "results" / FOLDERS.get(path.stem, path.stem)
    args = argparse.Namespace(data=None, out=out.with_suffix(".jsonl"))
    grid = load_grid(path)
    found = run.results(runs_of(grid), grid, args)
    assert set(results.read(args.out)) == set(found)


def commands() -> set[str]:
    """Every command of a result, those that differ in a number or a fold once."""
    found = {}
    for _, records in results.results():
        for record in records:
            for command in [record["command"], *record.get("scored by", [])]:
                if command is not None:
                    key = re.sub(r"DATA\S*|KEEP/[^ ']*|--seed \d+|'KEEP[^']*'", "", command)
                    found.setdefault(re.sub(r"(\d+\.)?\d+", "0", key), command)
    return set(found.values())


def test_every_command_parses_today():
    todo = commands()
    assert len(todo) > 20
    for command in todo:
        parse(shlex.split(command.split(";")[0]))


def test_grids_say_which_task_they_train():
    """Else fairseq takes its default, and the command of a result trains something else."""
    for path in GRIDS:
        grid = json.loads(json.dumps(load_grid(path)))
        own = grid["score"] in ("clustering", "recall")
        assert own or "task" in grid["shared"], path
