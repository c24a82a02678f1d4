"""The paper's efficiency, run again: what is measured, what is compared, what cannot run."""

import json
from argparse import Namespace

import pytest

from examples.efficiency import cf22 as reproduce_efficiency
from scripts.benchmarks import common
from scripts.benchmarks.contestants import Setting

SMALL = {"figures": ((48,), 1), "table4": ((96,), 1), "table7": ((64,), 1)}
PAPERS = reproduce_efficiency.SIZES


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(common, "in_own_process", lambda *_, **__: 2.0)
    small = {"HEADS": 2, "WIDTH": 8, "FFN": 16, "CHECKED_LENGTH": 48, "SIZES": SMALL}
    for name, value in small.items():
        monkeypatch.setattr(reproduce_efficiency, name, value)


@pytest.fixture
def run(tmp_path, capsys):
    def program(*words: str) -> tuple[int, list[dict], str]:
        files = ["--json", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "rows.png")]
        status = reproduce_efficiency.main([*words, "--device=cpu", "--repeats=2", *files])
        rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
        return status, rows, capsys.readouterr().out

    return program


@pytest.mark.whole
@pytest.mark.parametrize("experiment", reproduce_efficiency.PICTURES)
def test_every_experiment_is_measured(run, tmp_path, monkeypatch, experiment):
    papers = {k: reproduce_efficiency.TABLE4[k] for k in (1, 5, 20)}
    monkeypatch.setattr(reproduce_efficiency, "TABLE4", papers)
    status, rows, printed = run(experiment)
    assert status == 0
    if experiment == "table4":
        assert [row["k"] for row in rows] == [1, 5, 20]
    else:
        assert [row["model"] for row in rows] == list(reproduce_efficiency.MODELS)
    for row in rows:
        if "not run" in row:  # of what is not installed
            continue
        assert row["training ms"] > 0
        assert row["inference ms"] > 0
        assert row["memory MiB"] == 2.0
        assert row["memory / transformer"] == 1.0
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
    assert len(printed.splitlines()) == 2 + len(rows)


def test_papers_ratios():
    ratios = reproduce_efficiency.paper("table4", "clusterformer", 1500, 30)
    assert ratios == (147.6 / 263.5, 8282 / 21268)
    assert reproduce_efficiency.paper("table4", "transformer", 1500, 1) == (1, 1)
    assert reproduce_efficiency.paper("table4", "sdpa", 1500, 1) == (None, None)
    ratios = reproduce_efficiency.paper("table7", "routing", 5000, 70)
    assert ratios == (38.5 / 127.6, 2467 / 7663)
    assert reproduce_efficiency.paper("table7", "clusterformer", 25000, 158) == (None, None)
    assert reproduce_efficiency.paper("figures", "reformer", 2000, 44) == (1 - 0.144, 1 - 0.318)
    assert reproduce_efficiency.paper("figures", "reformer", 1000, 31) == (None, None)


def test_paper_sizes():
    assert PAPERS["figures"] == ((250, 500, 1000, 1500, 2000), 20)
    assert PAPERS["table4"] == ((1500,), 64)
    assert PAPERS["table7"][0][-1] == 55000
    args = Namespace(experiment="table4", batch=64, device="cpu", impl="blocks")
    settings = reproduce_efficiency.settings_of(args, 1500)
    assert [(model, s.clusters) for model, s in settings[:2]] == [
        ("transformer", 1),
        ("clusterformer", 5),
    ]
    for _, setting in settings:
        assert not setting.causal
        assert setting.window == 2 * -(-1500 // setting.clusters)


def test_training_reaches_the_clusters():
    setting = Setting(32, heads=2, width=8, window=16, clusters=4, causal=False)
    model = reproduce_efficiency.Classifier("clusterformer", setting)
    model().backward()
    assert all(p.grad is not None for p in model.parameters())
