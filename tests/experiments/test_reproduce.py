"""The paper's tables: equal budgets, nothing trained twice, and what they print."""

import gzip
import json
import os
import signal
import statistics
from pathlib import Path

import numpy
import pytest
import yaml

from scripts.benchmarks import cf22 as reproduce_efficiency
from scripts.experiments import reproduce
from scripts.experiments.reproduce import table
from scripts.experiments.reproduce_runs import Training, runs_of

SUITE = {
    "shared": {"lr": 0.1, "dropout": 0.3},
    "rows": {
        "dense": {"options": {"encoder-attention": "full"}, "paper": {"A": 80.0, "B MAP": 60.0}},
        "window": {"options": {"encoder-attention": "window", "dropout": 0.0}},
    },
    "data": {
        "a": {"folds": 2, "options": {"lr": 0.2}},
        "b": {"best": "map", "seeds": [1, 2, 3]},
    },
    "columns": {
        "A": {"data": "a", "score": "accuracy"},
        "B MAP": {"data": "b", "score": "map", "percent": True},
    },
}


def result(row: str, data: str, **test: float) -> dict:
    return {"row": row, "data": data, "set": data.split("/")[0], "test": test}


def test_runs_take_turns_and_the_narrower_option_wins():
    runs = runs_of(SUITE, quick=False)
    assert [(r.row, r.data, r.seed) for r in runs] == [
        ("dense", "a/fold0", 1),
        ("window", "a/fold0", 1),
        ("dense", "b", 1),
        ("window", "b", 1),
        ("dense", "a/fold1", 1),
        ("window", "a/fold1", 1),
        ("dense", "b", 2),
        ("window", "b", 2),
        ("dense", "b", 3),
        ("window", "b", 3),
    ]
    assert runs[1].options == {"lr": 0.2, "dropout": 0.0, "encoder-attention": "window"}
    assert [runs[0].best, runs[2].best] == ["accuracy", "map"]
    assert len({run.name for run in runs}) == len(runs)


def test_quick_is_one_run_a_row_and_data_set():
    runs = runs_of(SUITE, quick=True)
    assert len(runs) == 4
    assert all(run.options["max-update"] == 3 for run in runs)


@pytest.mark.parametrize("name", reproduce.TABLES)
def test_rows_of_a_table_differ_in_attention_losses_or_method_alone(name):
    folder = reproduce.EXAMPLES / reproduce.TABLES[name]
    suite = yaml.safe_load((folder / f"{name}.yaml").read_text())
    allowed = {"encoder-attention", "hash-rounds"}  # of hashing, keys that a query sees
    allowed |= {"clustering-loss-weight", "centroid-sorting-loss-weight", "method"}
    for row in suite["rows"].values():
        assert row["options"].keys() <= allowed
        assert row.get("paper", {}).keys() <= suite["columns"].keys()
    assert {column["data"] for column in suite["columns"].values()} == suite["data"].keys()


def test_the_table_has_means_spreads_and_the_papers_numbers():
    results = [
        result("dense", "a/fold0", accuracy=80.0),
        result("dense", "a/fold1", accuracy=81.0),
        result("dense", "b", map=0.5, mrr=0.6),
        result("window", "a/fold0", accuracy=70.0),
    ]
    spread = statistics.stdev([80.0, 81.0])
    assert table(SUITE, results).splitlines()[2:] == [
        f"| dense | 80.5 ± {spread:.1f} (2) | 80.0 | 50.0 | 60.0 |",
        "| window | 70.0 | - | - | - |",
    ]


def test_a_table_with_means():
    columns = {"A": SUITE["columns"]["A"], "C": {"data": "c", "score": "accuracy"}}
    results = [result("dense", "a", accuracy=80.0), result("dense", "c", accuracy=70.0)]
    assert table(SUITE | {"columns": columns, "mean": True}, results).splitlines()[2:] == [
        "| dense | 80.0 | 80.0 | 70.0 | - | 75.0 | - |",
        "| window | - | - | - | - | - | - |",
    ]
    del columns["C"]  # a mean of one is none
    one = table(SUITE | {"columns": columns, "mean": True}, results)
    assert one.splitlines()[2:] == ["| dense | 80.0 | 80.0 |", "| window | - | - |"]


def fake_suite(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "EXAMPLES", tmp_path)
    (tmp_path / "classification").mkdir()
    path = tmp_path / "classification" / "table2.yaml"
    path.write_text(yaml.safe_dump(SUITE, sort_keys=False))
    for folder in ("a/fold0", "a/fold1", "b"):
        (tmp_path / "data" / folder / "input0").mkdir(parents=True)
    out = tmp_path / "out"
    return ["table2", "--data", str(tmp_path / "data"), "--out", str(out)], out / "table2"


def test_what_has_a_result_is_not_trained_again(tmp_path, monkeypatch, capsys):
    words, out = fake_suite(tmp_path, monkeypatch)

    def measure(run: Training, data: Path, log: Path) -> dict:
        if run.data == "a/fold1" and run.row == "window":
            raise ValueError("it broke")
        if run.data == "b" and run.row == "window" and run.seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        score = {"accuracy": 50.0 + run.seed, "map": run.seed / 10, "mrr": 0.0}
        return {"test": score}

    monkeypatch.setattr(Training, "measure", measure)
    assert reproduce.main(words) == 1
    said = capsys.readouterr()
    assert "window-a-fold1-1: ValueError: it broke (log: " in said.err
    assert "window-b-2: its process ended with status -9" in said.err
    assert "| dense | 51.0 ± 0.0 (2) | 80.0 | 20.0 ± 10.0 (3) | 60.0 |" in said.out
    assert len(list(out.glob("*.json"))) == 8
    for log in (out / "logs").iterdir():
        log.unlink()

    assert reproduce.main(words) == 1  # what broke is tried again, and nothing else
    assert {log.name for log in (out / "logs").iterdir()} == {
        "window-a-fold1-1.log",
        "window-b-2.log",
    }


def test_results_of_other_options_do_not_count(tmp_path, monkeypatch, capsys):
    words, out = fake_suite(tmp_path, monkeypatch)
    run = runs_of(SUITE, quick=False)[0]
    out.mkdir(parents=True)
    measured = result("dense", "a/fold0", accuracy=80.0) | {"command": "of another learning rate"}
    (out / f"{run.name}.json").write_text(json.dumps(measured))
    assert reproduce.main([*words, "--show"]) == 0
    assert "| dense | - |" in capsys.readouterr().out


def test_show_trains_nothing_and_plots(tmp_path, monkeypatch, capsys):
    words, out = fake_suite(tmp_path, monkeypatch)
    out.mkdir(parents=True)
    run = next(run for run in runs_of(SUITE, quick=False) if run.data == "b")
    measured = result("dense", "b", map=0.5, mrr=0.6) | {"curve": [[1, 2.0], [2, 1.0]]}
    measured["command"] = run.command
    (out / f"{run.name}.json").write_text(json.dumps(measured))
    picture = tmp_path / "curves.png"
    assert reproduce.main([*words, "--show", "--only", "b", "--plot", str(picture)]) == 0
    assert "| dense | 50.0 | 60.0 |" in capsys.readouterr().out
    assert picture.stat().st_size > 1000
    assert not (out / "logs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rows lstm", "--rows is lstm; allowed: dense, window"),
        ("--only c", "--only is c; allowed: a, b"),
        ("--workers 0", "'0'; allowed"),
        ("--plot curves.png", "--plot without --only; allowed: one data set, of a, b"),
    ],
)
def test_bad_values_are_told(tmp_path, monkeypatch, capsys, words, message):
    good, _ = fake_suite(tmp_path, monkeypatch)
    with pytest.raises(SystemExit) as stop:
        reproduce.main([*good, *words.split()])
    assert stop.value.code != 0
    assert message in capsys.readouterr().err


def test_missing_data_and_foreign_results_are_told(tmp_path, monkeypatch, capsys):
    words, out = fake_suite(tmp_path, monkeypatch)
    (tmp_path / "data" / "b" / "input0").rmdir()
    with pytest.raises(SystemExit):
        reproduce.main(words)
    assert "which has no b; allowed" in capsys.readouterr().err
    (out / "dense-b-1.json").write_text("[1]")
    with pytest.raises(SystemExit):
        reproduce.main([*words, "--show"])
    assert "dense-b-1.json is no result of this command" in capsys.readouterr().err


def test_time_and_memory_are_handed_on(tmp_path, monkeypatch, capsys):
    handed = []
    monkeypatch.setattr(reproduce_efficiency, "main", lambda words: handed.append(words) or 0)
    assert reproduce.main(["figure3", "--out", str(tmp_path), "--quick"]) == 0
    assert handed == [["fig3", "--out", str(tmp_path), "--quick"]]
    for option in ("--show", "--only mr", "--workers 2", "--plot a.png"):
        with pytest.raises(SystemExit):
            reproduce.main(["table4", "--out", str(tmp_path), *option.split()])
        told = f"{option.split()[0]} with table4; allowed with it: --out and --quick"
        assert told in capsys.readouterr().err
    assert len(handed) == 1


def write_images(folder: Path) -> None:
    """As MNIST's four files: images of one bright pixel, a place a class."""
    folder.mkdir(parents=True)
    rng = numpy.random.default_rng(1)
    for part, count in (("train", 200), ("t10k", 50)):
        labels = rng.integers(0, 10, count).astype(numpy.uint8)
        images = numpy.zeros((count, 4, 4), numpy.uint8)
        images.reshape(count, 16)[numpy.arange(count), labels] = 200
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim])
            head += b"".join(size.to_bytes(4, "big") for size in array.shape)
            data = gzip.compress(head + array.tobytes())
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(data)


def test_table6_clusters_images_once(tmp_path, capsys):
    words = ["table6", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--quick"]
    words += ["--rows", "neural", "K-Means", "--only", "mnist-10"]
    with pytest.raises(SystemExit):
        reproduce.main(words)
    assert "has no mnist-10; allowed: a folder that holds mnist/" in capsys.readouterr().err
    write_images(tmp_path / "mnist")
    assert reproduce.main(words) == 0
    results = [json.loads(p.read_text()) for p in (tmp_path / "out").glob("*/*.json")]
    score = {result["row"]: 100 * result["test"]["accuracy"] for result in results}
    assert capsys.readouterr().out.splitlines() == [
        "| model | K = 10 | paper |",
        "| --- | ---: | ---: |",
        f"| neural | {score['neural']:.1f} | 60.7 |",
        f"| K-Means | {score['K-Means']:.1f} | 59.2 |",
    ]
    assert all(result["command"].startswith("python -m fairseq_clus") for result in results)

    for log in (tmp_path / "out" / "table6-quick" / "logs").iterdir():
        log.unlink()
    assert reproduce.main(words) == 0  # nothing is clustered again
    assert list((tmp_path / "out" / "table6-quick" / "logs").iterdir()) == []


def test_what_clustering_refuses_is_told(tmp_path, capsys):
    write_images(tmp_path / "mnist")
    words = ["table6", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--quick"]
    assert reproduce.main([*words, "--rows", "K-Means", "--only", "mnist-300"]) == 1
    assert (
        "K-Means-mnist-300-1: InputError: --num-clusters is 300; allowed"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        reproduce.main([*words, "--only", "mnist-10", "--plot", "curves.png"])
    assert "--plot with table6, which trains nothing; allowed" in capsys.readouterr().err
