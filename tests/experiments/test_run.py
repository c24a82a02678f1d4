"""The runner: it resumes, refuses results and checkpoints of other options, and deletes nothing.

Most tests replace fairseq's programs by a script that writes such logs, which takes no time.
"""

import json
import sys
from pathlib import Path

import pytest
import yaml

from fairseq_clusterformer.errors import UserError
from scripts.experiments import programs, results, run, scores
from scripts.experiments.grids import Run, load_grid, runs_of
from tests.conftest import REPO_ROOT

EXAMPLES = REPO_ROOT / "examples"
FAKE = """
import json, os, sys
from pathlib import Path
data, words = Path(sys.argv[1]), sys.argv[2:]
options = {w: v for w, v in zip(words, words[1:]) if w.startswith("--")}
if "--path" in options:
    print("Loss (base 2): " + Path(options["--path"]).read_text() + ", Perplexity: 2")
    sys.exit()
last = Path(options["--save-dir"], "checkpoint_last.pt")
begin = int(last.read_text()) if last.exists() else 0
print("num. shared model params: 1,234 (num. trained: 1,234)")
for update in range(begin + 1, 6):
    record = {"num_updates": str(update), "loss": str(5 - update), "wps": "100"}
    print("2026 | train_inner | " + json.dumps(record), flush=True)
    last.write_text(str(update))
    if update == 3 and (data / options["--arch"]).exists():
        os.kill(os.getpid(), 9)
record = {"valid_num_updates": "5", "valid_loss": options["--lr"]}
print("2026 | valid | " + json.dumps(record))
"""
GRID = {
    "score": "language_model",
    "shared": {"task": "language_modeling", "lr": 0.5, "max-update": 5},
    "seeds": [1, 2],
    "rows": {"dense": {"arch": "a"}, "window": {"arch": "b", "seeds": [1]}},
    "test": {"gen-subset": "test"},
    "columns": {"valid bits per symbol": 1, "test bits per symbol": 1},
    "plot": {"title": "loss", "points": "curve", "x": "updates", "y": "loss"},
}


class Case:
    """A grid, its data, and the runner's command line."""

    def __init__(self, folder: Path):
        self.out, self.keep, self.data = folder / "out.jsonl", folder / "keep", folder / "data"
        self.data.mkdir()
        (self.data / "dict.txt").write_text("a 1\n")
        (self.data / "test.idx").touch()
        self.grid = folder / "grid.yaml"
        self.write(GRID)

    def write(self, grid: dict) -> None:
        self.grid.write_text(yaml.safe_dump(grid, sort_keys=False))

    def __call__(self, *more: object) -> int:
        words = [self.grid, "--data", self.data, "--out", self.out, *more]
        return run.main([str(word) for word in words])

    def result(self, name: str) -> dict:
        return results.read(self.out)[name]


@pytest.fixture
def case(tmp_path: Path, monkeypatch) -> Case:
    (tmp_path / "fake.py").write_text(FAKE)
    fake = [sys.executable, str(tmp_path / "fake.py")]
    for program in ("fairseq-train", "fairseq-eval-lm"):
        monkeypatch.setitem(programs.PROGRAMS, program, fake)
    return Case(tmp_path)


def test_a_grid_becomes_results_a_table_and_a_picture(case, capsys, tmp_path):
    assert case("--workers", 2) == 0
    printed = capsys.readouterr().out
    assert "| model | valid bits per symbol | test bits per symbol |\n" in printed
    assert "| dense | 0.5, 0.5 | 5.0, 5.0 |\n| window | 0.5 | 5.0 |\n" in printed
    result = case.result("dense@2")
    assert result["command"].startswith("fairseq-train DATA --user-dir fairseq_clusterformer")
    assert result["command"].endswith("--arch a --seed 2")
    assert result["scored by"][0].endswith("--path KEEP/dense@2/checkpoint_last.pt")
    assert (result["parameters"], result["updates"]) == (1234, 5)
    assert {*results.FIELDS} <= result.keys()

    before = case.out.read_bytes()
    (case.data / "dict.txt").unlink()  # nothing is trained again
    assert case() == 0
    assert "dense@2: done before" in capsys.readouterr().out
    assert case("--plot", tmp_path / "curves.png") == 0
    assert case.out.read_bytes() == before
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_training_that_was_stopped_goes_on(case, capsys):
    (case.data / "b").touch()  # window is killed after three updates
    assert case("--keep", case.keep) == 1
    assert "window@1: fairseq-train ended with status -9" in capsys.readouterr().err
    assert set(results.read(case.out)) == {"dense@1", "dense@2"}
    (case.data / "b").unlink()
    assert case("--keep", case.keep) == 0
    result = case.result("window@1")
    assert [update for update, _ in result["curve"]] == [1, 2, 3, 4, 5]
    assert "resumed" in result
    assert (case.keep / "window@1" / "train.log").read_text().count('"num_updates": "1"') == 1
    # a new --out keeps the checkpoints
    checkpoint = case.keep / "dense@1" / "checkpoint_last.pt"
    checkpoint.write_text("7.5")  # trained again, it would be 5
    case.out = case.out.with_name("other.jsonl")
    assert case("--keep", case.keep, "--only", "dense@1") == 0
    assert checkpoint.read_text() == "7.5"
    assert case.result("dense@1")["test bits per symbol"] == 7.5


def test_two_commands_do_not_share_a_folder(case, capsys):
    (case.keep / "dense@1").mkdir(parents=True)
    with results.locked(case.keep / "dense@1"):
        assert case("--keep", case.keep, "--only", "dense@1") == 1
    assert "dense@1: another command is at work there" in capsys.readouterr().err
    assert not case.out.exists()


WORDS = "fairseq-train DATA --user-dir fairseq_clusterformer --task language_modeling --lr 0.5 "
WORDS += "--max-update 5 --arch a --seed "


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (None, "no experiment.json"),
        ({"command": f"{WORDS}3", "data": "/elsewhere"}, "--seed 3 there, and --seed 1 in"),
        ({"command": f"{WORDS}1", "data": "/elsewhere"}, "trained on /elsewhere"),
    ],
)
def test_folders_of_others_are_refused(mark, said, case, capsys):
    (folder := case.keep / "dense@1").mkdir(parents=True)
    (folder / "checkpoint_last.pt").write_text("someone's")
    if mark:
        (folder / run.MARK).write_text(json.dumps(mark))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert case("--keep", case.keep) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--keep is {folder}: " in line
    assert said in line
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert not case.out.exists()


def test_results_of_other_options_are_refused(case, capsys):
    assert case("--only", "dense@1") == 0
    before = case.out.read_bytes()
    for change, option, said in (
        ({"shared": {**GRID["shared"], "lr": 0.25}}, [], "--lr 0.5 there, and --lr 0.25 in the"),
        ({"test": {"gen-subset": "valid"}}, ["--table"], "--gen-subset test there, and --gen-"),
    ):
        case.write(GRID | change)
        assert case(*option) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert "allowed: another file for other options" in line
    assert case.out.read_bytes() == before


def test_a_run_starts_from_another_one(case, capsys):
    rows = {"start": {"arch": "a"}, "next": {"arch": "b", "from": "start@1"}}
    case.write(GRID | {"rows": rows, "seeds": [1]})
    assert case("--only", "next") == 1
    assert "--keep is None; allowed: a folder with start@1" in capsys.readouterr().err
    assert case("--keep", case.keep) == 0
    command = case.result("next@1")["command"]
    assert "--finetune-from-model KEEP/start@1/checkpoint_last.pt" in command


def test_all_that_is_missing_is_named_before_any_work(case, capsys):
    rows = {"a": {"arch": "a", "lift": "none.pt"}, "b": {"folder": "x"}, "c": {"lift": "none.pt"}}
    case.write(GRID | {"rows": rows, "seeds": [1]})
    assert case() == 1
    file, data = capsys.readouterr().err.splitlines()
    assert file.endswith("error: --lift is none.pt: no such file or folder; for a, c")
    made = "made by clusterformer prepare lm; for "
    assert data.endswith(f"; allowed: a folder with x/dict.txt, {made}b")
    (case.data / "test.idx").unlink()  # what is scored when all is trained
    case.write(GRID)
    assert case() == 1
    assert f"a folder with test.idx, {made}dense, window" in capsys.readouterr().err
    assert not case.out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "lstm"], "--only is lstm; allowed: dense, window"),
        (["--data", "/nowhere"], "--data is /nowhere; allowed: a folder with"),
        (["--table"], "no result; allowed: a file with results of the grid"),
    ],
)
def test_bad_input_is_one_line(case, capsys, words, said):
    assert case(*words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    columns = ({"x": -1}, {"x": None}, {"x": {"digits": -1}}, {"x": {"score": 3}})
    for content in ("[1]", "[" * 2000, *(yaml.safe_dump(GRID | {"columns": c}) for c in columns)):
        case.grid.write_text(content)
        assert case() == 1
        assert "GRID is" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[1]", "{}", '{"name": "dense@1"}', "\0"])
def test_a_file_that_is_no_result_is_kept(content, case, capsys):
    case.out.write_text(content)
    assert case() == 1
    assert "allowed: results of " in capsys.readouterr().err
    assert case.out.read_text() == content
    case.out = case.out.with_suffix("")
    assert case("--table") == 1
    assert "out; allowed: a file that ends in .jsonl" in capsys.readouterr().err


def test_what_is_scored(tmp_path):
    """The average of a training; of Natural Questions and of CF20's table 4 development sets."""
    qa, keyphrases = scores.TASKS["qa"], scores.TASKS["keyphrases"]

    def of(row: Run, grid: dict) -> scores.Place:
        return scores.Place(row, grid, tmp_path, tmp_path / "a", keep=tmp_path)

    place = of(Run("a", "", 1, "squad", {"store-ema": True}), {"tests": {"SQuAD": "squad"}})
    (averaging, average), (_, scored) = qa.tests(place).items()
    assert average[-2:] == ["--output", str(tmp_path / "a" / "checkpoint_average.pt")]
    assert scored[scored.index("--checkpoint") + 1] == average[-1]
    assert qa.scores(place, averaging) == {}
    for name, split in (("table2_quasar_t", "test"), ("table2_nq", "valid"), ("kinds", "")):
        grid = load_grid(EXAMPLES / "question_answering" / f"{name}.yaml")
        for words in qa.tests(of(runs_of(grid)[0], grid)).values():
            assert " ".join([*words, ""]).partition("--split ")[2].split(" ")[0] == split
    row = Run("a", "", 1, "openkp", {"max-update": 3})
    assert "validate-after-updates" not in keyphrases.unshown(of(row, {}))


def test_a_grid_like_another(tmp_path):
    """Own keys stand over those of the other, nested ones too; rows are those that it names."""

    def load(name: str, **grid: object) -> dict:
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(grid))
        return load_grid(tmp_path / f"{name}.yaml")

    load("a", **GRID)
    load("b", like="a.yaml", shared={"lr": 0.1}, rows={"window": {}})
    own = {"dense": {"lr": 0.3}, "new": {"arch": "c"}, "window": {}}
    grid = load("c", like="b.yaml", seeds=[7], test={"cpu": True}, rows=own)
    shared = {"task": "language_modeling", "lr": 0.1, "max-update": 5}
    assert grid["shared"] == shared
    assert grid["test"] == {"gen-subset": "test", "cpu": True}
    assert {each.name: each.options for each in runs_of(grid)} == {
        "dense@7": {**shared, "lr": 0.3, "seed": 7},
        "new@7": {**shared, "arch": "c", "seed": 7},
        "window@1": {**shared, "arch": "b", "seed": 1},
    }
    (tmp_path / "g.yaml").write_text(yaml.safe_dump({"like": "./f.yaml", "rows": {}}))
    for name, like, row, said in (
        ("d", "a.yaml", "windov", "rows is windov; allowed: dense, window"),
        ("e", "nope.yaml", "window", "nope.yaml"),
        ("e", "/dev/zero", "window", "GRID is /dev/zero: it is a device; allowed"),
        ("f", "g.yaml", "window", r"like is \S+yaml: in \S+, which is like itself"),
    ):
        with pytest.raises(UserError, match=said):
            load(name, like=like, rows={row: {}})
