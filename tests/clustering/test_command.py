"""``python -m fairseq_clusterformer.clustering``, from files to files."""

import json
import re
import shlex
import statistics
import sys

import numpy as np
import pytest
import torch

from fairseq_clusterformer.clustering import __main__ as command
from fairseq_clusterformer.clustering.fitted import load_clusters
from fairseq_clusterformer.clustering.statistics import majority_accuracy
from tests.conftest import REPO_ROOT

QUICK = "--neural-epochs 4 --neural-batch-size 50 --kmeans-redos 1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """x.npy with y.csv to learn from, t.npy with ty.csv to test on; overlapping classes."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 5))
    for x, y, n in (("x", "y", 240), ("t", "ty", 90)):
        labels = random.integers(0, 3, n)
        np.save(tmp_path / f"{x}.npy", centres[labels] + random.normal(size=(n, 5)))
        np.savetxt(tmp_path / f"{y}.csv", labels, fmt="%d")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> int:
    return command.main(line.split())


def test_all_methods_in_a_table_and_a_record(folder, capsys):
    pytest.importorskip("minisom", reason="minisom is not installed")
    line = f"fit x.npy --num-clusters 4 9 --methods all --seed 1 2 {QUICK} --json runs.json"
    assert run(f"{line} --labels y.csv --test t.npy --test-labels ty.csv") == 0
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert "accuracy (%)" in head
    assert set(rule) <= set("|- ")
    assert len(lines) == 8
    record = json.loads((folder / "runs.json").read_text())
    assert record["command"].endswith("--test-labels ty.csv")
    assert record["shape"] == [240, 5]
    assert len(record["rows"]) == 16
    rows = [r for r in record["rows"] if (r["method"], r["k"]) == ("kmeans", 9)]
    assert [row["seed"] for row in rows] == [1, 2]
    assert rows[0]["options"] == {"iterations": 25, "redos": 1}
    shown = next(cells for cells in lines if cells.startswith("| kmeans | 9 |"))
    mean = statistics.mean(100 * row["accuracy"] for row in rows)
    assert shown.split("|")[3].split()[0] == f"{mean:.2f}"
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("method", ["neural", "kmeans"])
def test_what_is_kept_assigns_as_reported(method, folder, capsys):
    fitting = f"fit x.npy --num-clusters 7 --method {method} {QUICK} --out c.npz --json c.json"
    assert run(f"{fitting} --labels y.csv --test t.npy --test-labels ty.csv") == 0
    for name in "xt":
        assert run(f"assign c.npz {name}.npy --out {name}-clusters.npy") == 0
    assert "240 vectors in " in capsys.readouterr().out
    x, t = (torch.from_numpy(np.load(f"{name}-clusters.npy")) for name in "xt")
    y, ty = (torch.from_numpy(np.loadtxt(f"{name}.csv").astype(int)) for name in ("y", "ty"))
    (row,) = json.loads((folder / "c.json").read_text())["rows"]
    assert row["accuracy"] == majority_accuracy(x, y, t, ty)
    assert row["train accuracy"] == majority_accuracy(x, y, x, y)
    assert torch.equal(load_clusters("c.npz").assign(np.load("t.npy")), t)


def test_without_labels_there_is_no_accuracy(folder, capsys):
    assert run(f"fit x.npy --num-clusters 3 {QUICK}") == 0
    assert "accuracy" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit none.npy --num-clusters 3", "none.npy: no such file"),
        ("fit x.npy --num-clusters 3 241", "--num-clusters is 241; allowed: 1 to N, here 240"),
        ("fit x.npy --num-clusters 3 --seed -1", "--seed is -1; allowed: 0 to"),
        ("fit x.npy --num-clusters 3 --labels ty.csv", "90 labels; allowed: 240"),
        ("fit x.npy --num-clusters 3 --test t.npy", "given are --test; allowed: --labels, or"),
        (
            "fit x.npy --num-clusters 3 --labels y.csv --test-labels ty.csv",
            "--labels and --test-labels; a",
        ),
        (
            "fit x.npy --num-clusters 3 --labels y.csv --test y.csv --test-labels y.csv",
            "--test y.csv has 1 columns; allowed: 5",
        ),
        ("fit x.npy --num-clusters 3 4 --out c.npz", "--out keeps one fit, and 2 are asked for"),
        ("fit x.npy --num-clusters 3 --out c.npy", "--out is c.npy; allowed: a name .* .npz"),
        ("fit x.npy --num-clusters 3 --json no/c.json", "--json is no/c.json: no such folder; a"),
        ("fit x.npy --num-clusters 3 --neural-temperature 0", "temperature of neural is 0.0"),
        ("fit x.npy --num-clusters 3 --methods neural kmeans --kmeans-redos 0", "redos of kmeans"),
        ("assign x.npy x.npy --out a.npy", "x.npy: not fitted clusters"),
    ],
)
def test_mistakes_are_one_line(line, message, folder, capsys):
    before = sorted(folder.iterdir())
    assert run(line) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert sorted(folder.iterdir()) == before


def test_a_missing_library_is_named_before_any_fit(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "minisom", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("fit x.npy --num-clusters 3 --methods all --json runs.json") == 1
    assert "som needs the library minisom: pip install" in capsys.readouterr().err
    assert not (folder / "runs.json").exists()


def test_options_that_do_not_exist_are_refused(folder, capsys):
    for wrong in ("--method dbscan", "--neural-similarity l2", "--neural-w-c no", "--k 3"):
        with pytest.raises(SystemExit) as caught:
            run(f"fit x.npy --num-clusters 3 {wrong}")
        assert caught.value.code == 2
        assert wrong.split()[0] in capsys.readouterr().err


def test_as_a_program(folder, run_cli):
    name = "fairseq_clusterformer.clustering"
    words = ["fit", "x.npy", "--num-clusters", "3", "--method", "kmeans", "--labels", "y.csv"]
    done = run_cli("python", "-m", name, *words, cwd=folder)
    # With stderr, where faiss would log how it loads; fairseq asks for tensorboardX there.
    lines = [line for line in done.stdout.splitlines() if "tensorboardX" not in line]
    assert len(lines) == 3, lines
    assert lines[2].startswith("| kmeans | 3 |")


def test_commands_of_the_example_parse():
    pages = ("examples/clustering/VECTORS.md", "examples/clustering/README.md")
    text = "".join((REPO_ROOT / page).read_text() for page in pages)
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL))
    lines = [line for line in blocks.replace("\\\n", " ").splitlines() if command.PROGRAM in line]
    assert len(lines) == 2
    for line in lines:
        command.parser().parse_args(shlex.split(line.removeprefix(command.PROGRAM)))
