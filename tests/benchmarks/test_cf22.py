"""The paper's efficiency, run again: what is kept, what is compared, what cannot run."""

import json

import pytest
import torch

from scripts.benchmarks import cf22 as reproduce_efficiency
from scripts.benchmarks import common
from scripts.benchmarks.contestants import CONTESTANTS, Clustered, Setting


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(common, "in_own_process", lambda *_, **__: 2.0)
    for name, value in {"HEADS": 2, "WIDTH": 8, "FFN": 16, "CHECKED_LENGTH": 48}.items():
        monkeypatch.setattr(reproduce_efficiency, name, value)


@pytest.fixture
def run(tmp_path, capsys):
    def program(*words: str) -> tuple[int, list[dict], str]:
        options = "--quick --device cpu --batch 1 --repeats 2 --max-length 250".split()
        status = reproduce_efficiency.main([*words, *options, "--out", str(tmp_path)])
        rows = json.loads((tmp_path / "efficiency.json").read_text())["rows"]
        return status, rows, capsys.readouterr().out

    return program


def test_every_experiment_is_measured_and_kept(run, tmp_path, monkeypatch):
    status, rows, printed = run()
    assert status == 0
    assert {row["group"]["experiment"] for row in rows} == {"figures", "table4", "table7"}
    for experiment in ("figures", "table7"):
        models = [r["model"] for r in rows if r["group"]["experiment"] == experiment]
        assert models == list(reproduce_efficiency.MODELS)
    clusters = [row["k"] for row in rows if row["group"]["experiment"] == "table4"]
    assert clusters == [1, 5, 20, 60]
    for row in rows:
        if "not run" in row:  # of what is not installed
            continue
        assert row["training ms"] > 0
        assert row["inference ms"] > 0
        assert row["memory MiB"] == 2.0
        assert row["memory / transformer"] == 1.0
    for name in ("fig3", "fig4", "table4", "table7"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len(printed.splitlines()) == 2 + 3 + len(rows)

    def fail(*_):
        pytest.fail("measured again")

    monkeypatch.setattr(reproduce_efficiency, "measure", fail)
    assert run()[1:] == (rows, printed)
    with pytest.raises(pytest.fail.Exception):
        run("--force")


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


def test_paper_sizes(monkeypatch):
    parser = reproduce_efficiency.make_parser()
    args = parser.parse_args(["fig4", "table4", "table7"])
    groups = reproduce_efficiency.groups(args)
    sizes = [(g.experiment, g.length, g.batch) for g in groups]
    assert ("figures", 2000, 20) in sizes
    assert ("table4", 1500, 64) in sizes
    assert sizes[-1] == ("table7", 55000, 2)
    setting = reproduce_efficiency.setting_of(groups[0], groups[0].entries[0], "cpu", "blocks")
    assert not setting.causal
    assert setting.window == 2 * -(-groups[0].length // setting.clusters)


def test_what_does_not_fit_says_what_it_would_need(run, monkeypatch):
    monkeypatch.setattr(CONTESTANTS["dense-math"][0], "bytes_needed", lambda *_: 2.0**60)
    status, rows, printed = run("fig4")
    assert status == 0
    reason = next(r["not run"] for r in rows if r["model"] == "transformer")
    assert reason.startswith("would need 1.07e+09 GiB, of which ")
    assert f"| transformer | 128 | 11 | not run: {reason} |" in printed
    clustered = next(r for r in rows if r["model"] == "clusterformer")
    assert clustered["training ms"] > 0
    assert "memory / transformer" not in clustered


def test_what_is_wrong_is_not_timed(run, monkeypatch):
    class Wrong(Clustered):
        def forward(self, x, q, k, v):
            out, losses = super().forward(x, q, k, v)
            return out + 0.1, losses

    broken = (Wrong, {"kind": "neural", "losses": True})
    monkeypatch.setitem(CONTESTANTS, "neural+losses", broken)
    status, rows, printed = run("fig3")
    assert status == 1
    row = next(r for r in rows if r["model"] == "clusterformer")
    assert "differs from softmax attention" in row["wrong"]
    assert "training ms" not in row
    assert "WRONG, not timed" in printed


def test_training_reaches_the_clusters():
    setting = Setting(32, heads=2, width=8, window=16, clusters=4, causal=False)
    model = reproduce_efficiency.Classifier("clusterformer", setting)
    logits, loss = model(torch.randn(1, 32, 16))
    assert logits.shape == (1, reproduce_efficiency.CLASSES)
    (logits.sum() + loss).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fig9", "EXPERIMENT is fig9; allowed: fig3, fig4, table4, table7"),
        ("--repeats 0", "--repeats is 0; allowed"),
    ],
)
def test_bad_values_are_reported_in_one_line(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        reproduce_efficiency.main(words.split())
    assert stop.value.code != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_file_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "efficiency.json").write_text('{"rows": [{"kind": "dense"}]}')
    assert reproduce_efficiency.main(["fig3", "--out", str(tmp_path), "--device", "cpu"]) == 1
    assert (
        "efficiency.json is something else; allowed: a folder whose efficiency.json"
        in capsys.readouterr().err
    )
