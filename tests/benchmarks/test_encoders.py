"""The benchmark of encoders: every model trains, and the record says of what it is."""

import json

import pytest

from scripts.benchmarks import common, encoders


def test_all_models_have_times_and_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "in_own_process", lambda measure, **request: measure(**request))
    monkeypatch.setattr(encoders, "WORDS", 500)
    models = ["full", "etc", encoders.BLOCKS, "window+taught"]
    options = "--lengths 128 256 --parts 4 --size tiny --repeats 1 --device cpu --impl blocks"
    arguments = [*options.split(), "--models", *models, "--json", str(tmp_path / "r.json")]
    assert encoders.main(arguments) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["settings"] == "size tiny, parts 4, batch 1, impl blocks, repeats 1"
    assert [(row["model"], row["tokens"]) for row in found["rows"]] == [
        (model, length) for model in models for length in (128, 256)
    ]
    assert all(row["seconds"] > 0 and row["peak MiB"] > 100 for row in found["rows"])
    first, second = found["rows"][2:4]
    assert second["times half the length"] == pytest.approx(second["seconds"] / first["seconds"])
    assert first["times as fast as full"] == pytest.approx(
        found["rows"][0]["seconds"] / first["seconds"]
    )
    assert len(capsys.readouterr().out.splitlines()) == 2 + 8
