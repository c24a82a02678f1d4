"""Every grid of the examples would run: each row as far as its model, and one of each kind of grid
to its scores. Every result says where it comes from, by a command that today's programs read."""

import contextlib
import importlib
import logging
import re
import shlex
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

import xlqa  # noqa: F401  plug-ins of grids
from examples.language_model import recall
from examples.question_answering import distance
from openkp import prepare
from openkp.tests.conftest import pages_with_headings, write_pages
from scripts.experiments import results, run
from scripts.experiments.grids import FILES, load_grid, runs_of
from scripts.experiments.programs import options_of
from scripts.experiments.scores import TASKS, Place
from scripts.experiments.tables import lookup
from tests.cli.in_process import quiet
from tests.conftest import REPO_ROOT, sampled
from tests.corpora.commands import run as command
from tests.mnist import write_mnist
from tests.pages import PARSERS, parse, start

GRIDS = sorted(p for p in REPO_ROOT.glob("examples/**/*.yaml") if p.parent.name != "config")
WHOLE = pytest.mark.whole
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


#: one grid of each folder
FIRST = {path.parent: path for path in reversed(GRIDS)}.values()


def marked(path: Path, last: bool) -> object:
    """The last row of a grid, or all others; by default the former of one grid of each folder."""
    rows, sampled = slice(-1, None) if last else slice(-1), last and path in FIRST
    return pytest.param(path, rows, marks=() if sampled else WHOLE, id=f"{path.stem}-{last}")


@pytest.mark.parametrize(
    ("path", "rows"), [marked(path, last) for path in GRIDS for last in (True, False)]
)
def test_every_row_has_a_model(path, rows, words, monkeypatch):
    """A training checks its options and kinds of attention where it builds its model. Of weights
    and vectors that others have made, rows have none here."""
    monkeypatch.setattr(recall, "train", lambda setting: {"accuracy": recall.Model(setting).tied})
    grid, wrong = load_grid(path), {}
    assert "task" in grid["shared"] or grid["score"] in ("clustering", "recall")
    task = TASKS[grid["score"]]
    for each in runs_of(grid, quick=True)[rows]:
        given = each.options | dict.fromkeys(FILES) | FEW_WORDS.get(path.stem, {})
        row = replace(each, folder="", options=given)
        place = Place(row, grid, words, Path("runs") / each.name, Path("keep"))
        training = [*task.train(place), *options_of(task.unshown(place))]
        try:
            if grid["score"] == "recall":
                assert recall.main(training[3 : training.index("--json")]) == 0
            elif (args := parse([*map(str, training)])) is not None:
                # fairseq's transformer reads its sizes from the whole configuration alone, which
                # takes ten times as long
                whole = grid["score"] == "translation"
                with quiet(), torch.device("meta"):
                    cfg = convert_namespace_to_omegaconf(args) if whole else None
                    made = tasks.setup_task(cfg.task if whole else args)
                    made.build_model(cfg.model if whole else args)
                    made.build_criterion(cfg.criterion if whole else args)
        except (Exception, SystemExit) as error:
            wrong[each.name] = f"{type(error).__name__}: {error}"
        for scored in task.tests(place).values():
            parse([*map(str, scored)])
    assert not wrong


def run_here(programs: Mapping, threads: int) -> dict[str, tuple[float, float]]:
    """As `programs.run_together`, in this process: to start one takes longer than all the rest."""
    ((name, (words, log)),) = programs.items()
    words, root = [*map(str, words)], logging.getLogger()
    for function in (checkpoint_utils.save_checkpoint, fairseq_cli.train.should_stop_early):
        vars(function).pop("best", None)  # of an earlier training in this process
    metrics.reset()
    root.setLevel(logging.INFO)
    with open(log, "a") as file, contextlib.redirect_stdout(file):
        root.addHandler(handler := logging.StreamHandler(file))
        form = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
        handler.setFormatter(logging.Formatter(form))
        try:
            if words[0] in PARSERS:
                program = words[0].removeprefix("fairseq-").replace("-", "_")
                with quiet(), mock.patch("sys.argv", words):
                    importlib.import_module(f"fairseq_cli.{program}").cli_main()
            else:
                assert not start(words)
        finally:
            root.removeHandler(handler)
    return {name: (1.0, 1.0)}


def translations(data: Path) -> None:
    pairs = "".join(f"a boat {i}\tb taob a {i}\n" for i in range(60))
    (path := data.parent / "pairs.tsv").write_text(pairs)
    how = "--source-lang en --target-lang de --bpe-operations 280"
    assert command("prepare translation text", data, "--train", path, how) == 0


def distances(data: Path) -> None:
    told = [f"The old boat {i} sails far. The sea is wide. A wind blows. " * 3 for i in range(60)]
    (passages := data.parent / "passages.txt").write_text("\n".join(told) + "\n")
    made = data.parent / "made"
    words = ["make", made, "--passages", passages, "--pieces", 320, "--distances", 500]
    assert distance.main([*map(str, words), "--questions", "2", "--scale", "0.001"]) == 0
    model = ("--sentencepiece-model", made / "sentencepiece.model")
    assert command("prepare qa text", made, data, *model) == 0


def pages(data: Path) -> None:
    path = write_pages(data.parent / "pages.jsonl", pages_with_headings(16))
    assert prepare.main([str(data), "--train", str(path), "--valid", str(path)]) == 0


KEYPHRASES = {"arch": "etc_keyphrases_tiny", "lift": None, "update-freq": 1, "cpu": True}
HIDDEN = "sentences, hidden ones recognised"
SHORT_BLEU = {"eval-bleu-args": '{"max_len_b": 5}'}
#: by a grid's path in examples/: its row, its data (a fixture's name, or what makes it) and where
#: it is sought, options that make it smaller, and which of its data sets
CASES = {
    "language_model/grid_taught": ("window+taught", "byte_data", "", {"batch-size": 1}, []),
    "etc/babi1": ("sentences", "stories", "babi1", {}, []),
    "classification/table3": ("ClusterFormer", "pair_data", "quora", {}, ["quora"]),
    "clustering/table6": ("neural", write_mnist, "mnist", {}, ["mnist-10"]),
    "etc/openkp/openkp": ("default", pages, "openkp", KEYPHRASES, []),
    "etc/pretraining": (HIDDEN, "sentences", "", {"tokens-per-sample": 128}, []),
    "question_answering/distance": ("kmeans-64", distances, "", {}, []),
    "translation/grid_ablation": ("window+neural to neural", translations, "", SHORT_BLEU, []),
}


@pytest.mark.parametrize("name", sampled(CASES, ("language_model/grid_taught", "etc/babi1")))
def test_a_grid_of_each_kind_is_trained(name, request, tmp_path, monkeypatch, capsys):
    """One row, for three updates, and it is scored: every column of the table has a number."""
    row, made, place, smaller, only = CASES[name]
    (path,) = (path for path in GRIDS if path.match(f"{name}.yaml"))
    grid = {"like": str(path), "shared": smaller, "rows": {row: {}}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    folder = tmp_path / "data" / place
    folder.parent.mkdir(exist_ok=True)
    if isinstance(made, str):
        folder.symlink_to(request.getfixturevalue(made))
    else:
        made(folder)
    monkeypatch.setattr(run, "run_together", run_here)
    words = [tmp_path / "grid.yaml", "--quick", "--data", tmp_path / "data"]
    words += ["--out", tmp_path / "out.jsonl", *(["--only", *only] if only else [])]
    assert run.main([*map(str, words)]) == 0, capsys.readouterr().err
    (result,) = results.read(tmp_path / "out.jsonl").values()
    for head, column in load_grid(tmp_path / "grid.yaml")["columns"].items():
        told = column if isinstance(column, dict) else {}
        longer = re.fullmatch(r"EM at \d{4}", head)  # than the documents that are asked about
        if told.get("data", result["data"]) == result["data"] and not longer:
            assert lookup(result, told.get("score", head)) is not None, head


def test_every_result_has_the_fields_of_provenance(capsys):
    assert results.main(["--check"]) == 0, capsys.readouterr().err
    complete = dict.fromkeys(results.FIELDS, "x")
    for changed, is_wrong in (
        ({}, False),
        ({"cpu": None}, True),
        ({"cpu": None, "added": {}}, False),
        ({"command": None, "added": {}}, True),
    ):
        assert bool(list(results.problems(complete | changed))) == is_wrong


@every_grid
def test_results_are_of_todays_grids(path):
    out = path.parent / "results" / path.stem.removeprefix("grid_")
    args = Namespace(data=None, out=out.with_suffix(".jsonl"))
    grid = load_grid(path)
    assert set(results.read(args.out)) == set(run.results(runs_of(grid), grid, args))


def test_every_command_of_a_result_parses_today():
    """Those that differ in a number or a fold once; but those that are of an older commit."""
    found = {}
    for _, records in results.results():
        for record in records:
            for line in [record["command"], *record.get("scored by", [])]:
                if line is not None and not line.startswith("of commit "):
                    key = re.sub(r"DATA\S*|KEEP/[^ ']*|--seed \d+|'KEEP[^']*'", "", line)
                    found.setdefault(re.sub(r"(\d+\.)?\d+", "0", key), line)
    assert len(found) > 20
    for line in {*found.values()}:
        words = shlex.split(line.split(";")[0])
        here = REPO_ROOT / "fairseq_clusterformer/trained"  # a file that is to be there
        parse([str(here / word) if word == "reader-en/tokenizer.json" else word for word in words])
