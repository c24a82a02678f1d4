"""The paper's efficiency, run again: what is measured, what is compared, what cannot run."""

import json
from argparse import Namespace

import pytest

from examples.efficiency import cf22
from scripts.benchmarks import common


@pytest.mark.whole
@pytest.mark.parametrize("experiment", cf22.EXPERIMENTS)
def test_every_experiment_is_measured(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "in_own_process", lambda *_, **__: 2.0)
    lengths = {"figures": (48,), "table4": (96,), "table7": (64,)}
    sizes = {name: (lengths[name], 1, *of[2:]) for name, of in cf22.EXPERIMENTS.items()}
    small = {"HEADS": 2, "WIDTH": 8, "FFN": 16, "CHECKED_LENGTH": 48, "EXPERIMENTS": sizes}
    for name, value in (small | {"CLUSTERS": (5, 20)}).items():
        monkeypatch.setattr(cf22, name, value)
    out, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    words = [experiment, "--device=cpu", "--repeats=2", f"--json={out}", f"--plot={picture}"]
    assert cf22.main(words) == 0
    rows = json.loads(out.read_text())["rows"]
    if experiment == "table4":
        assert [row["k"] for row in rows] == [1, 5, 20]
    else:
        assert [row["model"] for row in rows] == list(cf22.MODELS)
    assert rows[0]["training / transformer"] == rows[0]["inference / transformer"] == 1.0
    for row in rows:
        if "not run" not in row:  # as what is not installed
            assert min(row["training ms"], row["inference ms"], row["spread"]) > 0
            assert (row["memory MiB"], row["memory / transformer"]) == (2.0, 1.0)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


def test_a_query_sees_as_many_keys_in_every_model():
    args = Namespace(experiment="table4", batch=64, device="cpu", impl="blocks")
    settings = cf22.settings_of(args, 1500)
    found = [(model, s.clusters) for model, s in settings[:2]]
    assert found == [("transformer", 1), ("clusterformer", 5)]
    assert all(s.window == 2 * -(-1500 // s.clusters) and not s.causal for _, s in settings)
