"""Clustering on its own: every method finds what is there; from files to files."""

import gzip
import io
import json
import re
import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix
from torch.nn.functional import normalize

from examples.clustering import fit as command
from examples.clustering.fit import METHODS, Clusters, fit
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.errors import UserError
from tests.conftest import REPO_ROOT

NEURAL = {"epochs": 10, "batch_size": 100}
FITS = {"neural": NEURAL, "som": {"epochs": 3}}
#: four of 100 vectors around the points of the axes, in every direction
X, Y = make_blobs([100] * 4, centers=10 * np.eye(4, 6), cluster_std=0.7, random_state=0)
X = X.astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
def test_blobs_are_found_by_seeds(method):
    """The best of a few seeds finds them exactly; more clusters mix none."""
    if method == "som":
        pytest.importorskip("minisom", reason="minisom is not installed")

    def fitted(number: int, seed: int = 1) -> Clusters:
        torch.manual_seed(seed + number)  # which decides nothing
        return fit(method, X, number, seed=seed, **FITS.get(method, {}))

    assert max(adjusted_rand_score(Y, fitted(4, s).assign(X)) for s in range(6)) == 1.0
    clusters = fitted(16)
    assert clusters.centroids.shape == (16, 6)
    assert ((contingency_matrix(Y, clusters.assign(X)) > 0).sum(0) == 1).all()
    torch.rand(9)
    assert torch.equal(fitted(16).centroids, clusters.centroids)
    assert not torch.equal(fitted(16, 2).centroids, clusters.centroids)
    alone = torch.cat([clusters.assign(X[i : i + 1]) for i in range(0, 400, 9)])
    assert torch.equal(alone, clusters.assign(X)[::9])


@pytest.mark.parametrize("w_c", ["identity", "learned"])
def test_neural_assigns_by_the_equations_over_all_vectors(w_c):
    """CF22 eq. 2 and 4 over all of x as one sentence, written out; at any scale."""
    fitted = fit("neural", X, 8, w_c=w_c, **NEURAL)
    weight = torch.eye(6) if fitted.w_c is None else fitted.w_c
    assert (w_c == "learned") != torch.equal(weight, torch.eye(6))
    keys = normalize(torch.from_numpy(X).double() @ weight.double().T, dim=-1)
    u = torch.softmax(normalize(fitted.centroids.double(), dim=-1) @ keys.T / 0.1, dim=1)
    scaled = fit("neural", X * 2.0**10, 8, w_c=w_c, **NEURAL)
    for each in (fitted, scaled):
        assert torch.equal(each.assign(X), u.argmax(0))


def test_majority_accuracy_is_that_of_the_contingency_matrix():
    random = np.random.default_rng(0)
    train, test = (random.integers(0, (12, 5), (n, 2)) for n in (70, 90))
    train = train[train[:, 0] != 7]  # a cluster that only the test set meets: always wrong
    counts = contingency_matrix(train[:, 1], train[:, 0])
    label_of = dict(zip(np.unique(train[:, 0]), counts.argmax(0), strict=True))
    right = [label_of.get(cluster) == label for cluster, label in test]
    assert 0 < sum(right) < 90
    parts = [torch.from_numpy(a[:, i].copy()) for a in (train, test) for i in (0, 1)]
    assert command.majority_accuracy(*parts) == pytest.approx(np.mean(right))


QUICK = "--neural-epochs 4 --neural-batch-size 50 --neural-sorting-weight .1 --kmeans-redos 1"
FIT = f"fit x.npy --num-clusters 3 {QUICK}"
LABELLED = "--labels y.csv --test t.npy --test-labels ty.csv"


def run(line: str) -> int:
    return program(command.NAME, command.main, line.split())


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


def test_what_is_kept_assigns_as_reported(folder, run_cli):
    words = f"-m examples.clustering {FIT} --out c.pt --json c.json {LABELLED}"
    run_cli("python", *words.split(), env={"PYTHONPATH": str(REPO_ROOT)})
    clusters = Clusters(**torch.load("c.pt"))
    x, t = (clusters.assign(np.load(f"{name}.npy")) for name in "xt")
    y, ty = (torch.from_numpy(np.loadtxt(f"{name}.csv").astype(int)) for name in ("y", "ty"))
    row = json.loads((folder / "c.json").read_text())
    assert (row["method"], row["k"], row["seed"]) == ("neural", 3, 1)
    assert row["options"]["batch_size"] == 50
    assert row["accuracy"] == command.majority_accuracy(x, y, t, ty)
    assert row["train accuracy"] == command.majority_accuracy(x, y, x, y)


MISTAKES = {
    "fit x.npy --num-clusters 241": "--num-clusters is 241; allowed: 1 to N, here 240",
    "fits x.npy --num-clusters 2": "fit is fits; allowed: fit",
    f"{FIT} --seed -1": "--seed is -1; allowed: a whole number, 0 or more",
    f"{FIT} {LABELLED.replace(' y', ' ty')}": "allowed: .* the 240 rows of x.npy",
    f"{FIT} --test t.npy": "given are --test; allowed: --labels, --test, --test-labels, or none",
    f"{FIT} --labels y.csv --test y.csv --test-labels y.csv": "it has 1; allowed: 5 columns",
    f"{FIT} --out x.npz": "--out is x.npz: it exists; allowed: a new file",
    f"{FIT} --json y.csv {LABELLED}": "--json is y.csv: it is one of the inputs",
    f"{FIT} --neural-temperature 0": "--neural-temperature is 0; allowed: a .*number, above 0",
    f"{FIT} --neural-sorting-weight -1": "--neural-sorting-weight is -1; allowed: .* 0 or more",
    f"{FIT} --method som --json runs.json": "som: minisom is not installed; allowed: pip inst",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_one_line(line, folder, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (folder / "x.npz").write_text("the user's")
    before = sorted(folder.iterdir())
    with suppress(SystemExit):  # of argparse
        assert run(line) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(MISTAKES[line], err), err
    assert sorted(folder.iterdir()) == before


NUMBERS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def npy(array: object) -> bytes:
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


CSV = "\n".join(",".join(map(str, row)) for row in NUMBERS.tolist()).encode()


def test_every_format(tmp_path):
    for name, data in {
        "x.npy": npy(NUMBERS),
        "x.csv.gz": gzip.compress(CSV, mtime=0),
        "x-idx3-ubyte": idx(NUMBERS.reshape(4, 2, 3)),  # flattened row by row
    }.items():
        (tmp_path / name).write_bytes(data)
        matrix = command.read_matrix(tmp_path / name)
        assert matrix.dtype == np.float32
        assert matrix.tolist() == NUMBERS.tolist()


def test_bad_files_are_named(tmp_path):
    for name, data in (
        ("x.npy", npy(np.where(NUMBERS == 80, np.nan, NUMBERS.astype(float)))),
        ("x.npy", npy(np.zeros((2, 3, 4)))),
        ("x.npy", npy([["a", "b"]])),
        ("x-ubyte", b"\0" + idx(NUMBERS)),
        ("x-ubyte.gz", gzip.compress(idx(NUMBERS))[:-9]),
        ("x.txt", b"1,2\n"),
        *(("y.npy", npy(labels)) for labels in ([0, 1, 2], [0, 1, 2, -1], [0, 1, 2, 0.5])),
    ):
        (path := tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=f"the file is {path}: .*; allowed: "):
            command.read_labels(path, path, 4) if name[0] == "y" else command.read_matrix(path)
