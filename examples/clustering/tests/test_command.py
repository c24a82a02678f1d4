"""``python -m examples.clustering``, from files to files."""

import gzip
import io
import json
import re
import struct
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from examples.clustering import __main__ as command
from examples.clustering.__main__ import majority_accuracy
from examples.clustering.clusters import Clusters, load_clusters
from examples.clustering.matrices import read_labels, read_matrix
from fairseq_clusterformer.errors import UserError
from tests.conftest import REPO_ROOT

QUICK = "--neural-epochs 4 --neural-batch-size 50 --kmeans-redos 1"
MOVED = "python -m examples.clustering, in the repository"
LABELLED = "--labels y.csv --test t.npy --test-labels ty.csv"


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
    assert run(f"{line} {LABELLED}") == 0
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert "accuracy (%)" in head
    assert set(rule) <= set("|-: ")
    assert len(lines) == 8
    record = json.loads((folder / "runs.json").read_text())
    assert record["command"].endswith("--test-labels ty.csv")
    assert record["shape"] == [240, 5]
    assert len(record["rows"]) == 16
    rows = [r for r in record["rows"] if (r["method"], r["k"]) == ("kmeans", 9)]
    assert [row["seed"] for row in rows] == [1, 2]
    assert rows[0]["options"] == {"iterations": 25, "redos": 1}
    shown = next(cells for cells in lines if cells.startswith("| kmeans | 9 |"))
    assert shown.split("|")[3].strip() == ", ".join(f"{100 * r['accuracy']:.2f}" for r in rows)


@pytest.mark.parametrize("method", ["neural", "kmeans"])
def test_what_is_kept_assigns_as_reported(method, folder, capsys):
    fitting = f"fit x.npy --num-clusters 7 --method {method} {QUICK} --out c.npz --json c.json"
    assert run(f"{fitting} {LABELLED}") == 0
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


FIT = "fit x.npy --num-clusters 3"
MISTAKES = {
    "fit none.npy --num-clusters 3": "the file is none.npy: cannot be read .*No such file",
    f"{FIT} 241": "--num-clusters is 241; allowed: 1 to N, here 240",
    f"{FIT} --seed -1": "--seed is -1; allowed: 0 or more",
    f"{FIT} --labels ty.csv": r"shape \(90,\); allowed: \(240,\), a label for each row of x.npy",
    f"{FIT} --test t.npy": "given are --test; allowed: --labels, or",
    f"{FIT} --labels y.csv --test-labels ty.csv": "--labels and --test-labels; a",
    f"{FIT} --labels y.csv --test y.csv --test-labels y.csv": "it has 1; allowed: 5 columns",
    f"{FIT} 4 --out c.npz": "--out is c.npz: fits: 2; allowed: .* for one fit",
    f"{FIT} --out c.npy": "--out is c.npy: .*; allowed: a name that ends in .npz",
    f"{FIT} --out x.npz": "--out is x.npz: it exists; allowed: a new file",
    f"{FIT} --json y.csv --labels y.csv": "--json is y.csv: it is one of the inputs",
    f"{FIT} --json no/c.json": "--json is no/c.json: no such folder; a",
    f"{FIT} --neural-temperature 0": "--neural-temperature is 0.0; allowed: above 0",
    f"{FIT} --methods neural kmeans --kmeans-redos 0": "--kmeans-redos is 0; allowed: 1 or more",
    "assign x.npy x.npy --out a.npy": "x.npy: cannot be read",
    "draw none.npz --out c.png": "none.npz: cannot be read .*No such file",
    "draw wide.npz --out c.png": "they have 17 values each; allowed: centroids of square",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_one_line(line, folder, capsys):
    (folder / "x.npz").write_text("the user's")
    Clusters(torch.zeros(3, 17), spherical=False).save("wide.npz")
    before = sorted(folder.iterdir())
    assert run(line) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(MISTAKES[line], err), err
    assert sorted(folder.iterdir()) == before


def test_a_missing_library_is_named_before_any_fit(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "minisom", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(f"{FIT} --methods all --json runs.json") == 1
    assert "som: minisom is not installed; allowed: pip install" in capsys.readouterr().err
    assert not (folder / "runs.json").exists()


@pytest.mark.parametrize(
    ("module", "status"),
    [("examples", 0), pytest.param("fairseq_clusterformer", 1, marks=pytest.mark.whole)],
)
def test_as_a_program(module, status, folder, run_cli):
    words = f"fit x.npy --num-clusters 3 --method kmeans --labels y.csv --out {folder}/c.npz"
    words = words.replace("x.npy", f"{folder}/x.npy").replace("y.csv", f"{folder}/y.csv")
    name = f"{module}.clustering"
    done = run_cli("python", "-m", name, *words.split(), cwd=REPO_ROOT, check=False)
    assert done.returncode == status
    lines = [line for line in done.stdout.splitlines() if "tensorboardX" not in line]
    if status:
        assert lines == ["clustering has moved; allowed: " + MOVED]
    else:
        assert lines[2].startswith("| kmeans | 3 |")


def test_every_centroid_is_drawn_in_its_place(folder):
    """Of 13, number k is dark in its pixel k alone."""
    Clusters(torch.eye(13, 16), spherical=False).save("c.npz")
    assert run("draw c.npz --out c.png") == 0
    dark = 1 - matplotlib.image.imread("c.png")[..., 0]
    assert dark.shape == (160, 800)
    cells = dark.reshape(2, 80, 10, 80).swapaxes(1, 2).reshape(20, 80, 80)
    assert cells[13:].max() == 0
    for k in range(13):
        rows, columns = np.where(cells[k] > 0.5)
        assert (int(rows.mean() / 20), int(columns.mean() / 20)) == divmod(k, 4)


# Files of matrices and labels
NUMBERS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def csv(array) -> bytes:
    file = io.BytesIO()
    np.savetxt(file, array, delimiter=",", fmt="%d")
    return file.getvalue()


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "write"), [("x.npy", npy), ("x.csv", csv), ("x-idx3-ubyte", idx), ("x.ubyte", idx)]
)
def test_every_format(name, write, gz, tmp_path):
    path, labels = tmp_path / (name + gz), tmp_path / ("y" + name + gz)
    for file, array in ((path, NUMBERS), (labels, NUMBERS[:, 1])):
        image = "idx3" in name and array.ndim == 2  # which is flattened row by row
        data = write(array.reshape(4, 2, 3) if image else array)
        file.write_bytes(gzip.compress(data, mtime=0) if gz else data)
    matrix = read_matrix(path)
    assert matrix.dtype == np.float32
    assert matrix.tolist() == NUMBERS.tolist()
    assert read_labels(labels, path, 4).tolist() == [10, 70, 130, 190]


DAMAGED = bytearray(gzip.compress(idx(NUMBERS), mtime=0))
DAMAGED[len(DAMAGED) // 2] ^= 0xFF
WITH_NAN = np.where(NUMBERS == 80, np.nan, NUMBERS.astype(float))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.npy", npy(WITH_NAN), "nan at row 1, column 2 .* finite"),
        ("x.npy", npy(np.full((2, 2), 1e300)), r"1e\+300 at row 0, column 0"),
        ("x.npy", npy(np.zeros((2, 3, 4))), r"shape \(2, 3, 4\); allowed: a matrix"),
        ("x.npy", npy(np.array([["a", "b"]])), "<U1, not numbers"),
        ("x.npy", npy(NUMBERS)[:-3], "cannot be read"),
        ("x.csv", b"1,two\n", "cannot be read"),
        ("x-ubyte", idx(NUMBERS) + b"1", r"25 bytes for the shape \(4, 6\)"),
        ("x-ubyte", b"\0\0\x0d\2", "begins with 00 00 0d 02"),
        ("x-ubyte.gz", bytes(DAMAGED), "cannot be read"),
        ("x.txt", b"1,2\n", "not a known format; allowed: .npy"),
    ],
)
def test_bad_matrices_are_named(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        read_matrix(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], r"shape \(3,\); allowed: \(4,\), a label for each row of x.npy"),
        ([0, 1, 2, -1], "not whole numbers; allowed: 0 or more"),
        ([0, 1, 2, np.nan], "not whole numbers"),
    ],
)
def test_bad_labels_are_named(labels, message, tmp_path):
    np.save(tmp_path / "y.npy", np.array(labels))
    with pytest.raises(UserError, match=message):
        read_labels(tmp_path / "y.npy", Path("x.npy"), 4)
