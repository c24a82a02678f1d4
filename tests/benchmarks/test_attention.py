"""The benchmark of attention: what it times is right, and what is wrong it does not time."""

import json

import pytest
import torch
from torch import Tensor

from scripts.benchmarks import attention as benchmark
from scripts.benchmarks import common
from scripts.benchmarks.attention import Ceilings, Contestant, attention_floor, measure_ceilings
from scripts.benchmarks.check import check
from scripts.benchmarks.common import CheckFailed, Unavailable, in_own_process
from scripts.benchmarks.contestants import (
    CONTESTANTS,
    Clustered,
    Local,
    Setting,
    build,
)

TINY = "--heads 2 --width 8 --window 8 --repeats 2 --device cpu --lengths 48".split()
SETTING = Setting(48, heads=2, width=8, window=8, clusters=3)
FROM_PYPI = {"local": "local_attention", "reformer": "reformer_pytorch"}
FROM_PYPI["routing"] = "routing_transformer"
OWN = {"window", "neural", "neural+losses", "gated", "taught", "taught+losses"}


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """Neither the machine's ceilings nor processes: each has a test of its own."""
    monkeypatch.setattr(benchmark, "measure_ceilings", lambda *_: Ceilings(1e9, 1e9))
    monkeypatch.setattr(common, "in_own_process", lambda *_, **__: 3.5)


class WrongBackwards(Clustered):
    """The right output, and a gradient that is not its own."""

    def forward(self, x, q, k, v):
        out, losses = super().forward(x, q, k, v)
        return 2 * out - out.detach(), losses


class Peeping(torch.nn.Module):
    """Weights over every token, though it should be causal."""

    setting = SETTING

    def forward(self, x, q, k, v):
        return v.mean(2, keepdim=True).expand_as(v), []

    def visible(self, *_):
        return None


def missing(setting):
    raise ModuleNotFoundError("No module named 'local_attention'")


def inputs(setting: Setting) -> list[Tensor]:
    contestant = Contestant("dense", setting)
    return [contestant.x, *contestant.qkv]


@pytest.mark.whole
def test_every_contestant_is_timed_or_named(capsys, tmp_path):
    path, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    assert benchmark.main([*TINY, "--json", str(path), "--plot", str(picture)]) == 0
    record, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert [row["kind"] for row in record["rows"]] == list(CONTESTANTS)
    assert record["command"].startswith("python -m scripts.benchmarks.attention")
    assert str(tmp_path) not in record["command"]
    assert {"machine", "cpu", "commit", "date", "settings", "ceilings"} <= record.keys()
    for row in record["rows"]:
        if row["kind"] in FROM_PYPI and "not run" in row:
            continue
        assert row["milliseconds"] > 0
        assert row["memory MiB"] == 3.5
        assert f"| {row['kind']} | 48 |" in printed
        assert ("routing share" in row) == (row["kind"] in OWN)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_wrong_or_not_installed_is_not_timed(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(CONTESTANTS, "window", (WrongBackwards, {"kind": "window"}))
    monkeypatch.setitem(CONTESTANTS, "local", (missing, {}))
    path = tmp_path / "rows.json"
    line = [*TINY, "--json", str(path), "--kinds", "dense", "local"]
    assert benchmark.main(line) == 0
    assert benchmark.main([*line, "window"]) == 1
    printed = capsys.readouterr().out
    assert "| window | 48 | WRONG, not timed: its " in printed
    assert "| local | 48 | not run: not installed: No module named 'local_attention'" in printed
    rows = json.loads(path.read_text())["rows"]
    assert ["milliseconds" in row for row in rows] == [True, False, False]
    with pytest.raises(CheckFailed, match="sees a later token"):
        check(Peeping(), *inputs(SETTING))


def test_bidirectional_contestants_are_right():
    setting = Setting(50, heads=2, width=8, window=18, clusters=6, causal=False)
    for kind in ("dense", "dense-math", "neural+losses", "gated", "reformer", "routing"):
        if kind in FROM_PYPI:
            pytest.importorskip(FROM_PYPI[kind])
        check(build(kind, setting), *inputs(setting))
    with pytest.raises(Unavailable, match="causal attention only"):
        Local(setting)


@pytest.mark.whole
def test_memory_is_of_a_process_of_its_own():
    setting, memory = Setting(768, heads=2, width=8), benchmark.measure_memory
    names = ("dense-math", "dense")
    matrix, tiled = (in_own_process(memory, name=name, setting=setting) for name in names)
    assert matrix > 2 * 768**2 * 4 / 2**20  # at least one matrix for each head
    assert tiled < matrix / 2


def test_floors(monkeypatch):
    """Of what is visible, by what the fastest run reached: the larger of two times."""
    seconds = iter([9.0, 4.0, 2.0] * 2)  # of the product, then of the copy
    monkeypatch.setattr("scripts.benchmarks.common.seconds_of", lambda *_: next(seconds))
    found = measure_ceilings(size=8, copy_bytes=64, repeats=3)
    assert found == Ceilings(operations=2 * 8**3 / 2, bytes=2 * 64 / 2)
    ceilings = Ceilings(operations=100.0, bytes=10.0)
    # a pair: 2 E operations of two products forward, and of five backward
    assert attention_floor(ceilings, 1000, 4, 8, torch.float32) == 1000 * 8 * 2 * 7 / 100
    # a vector: four tensors forward, eight backward
    assert attention_floor(ceilings, 1, 4, 8, torch.float32) == 4 * 8 * 4 * 12 / 10
    floor = Contestant("window", SETTING).floor(Ceilings(1.0, float("inf")))
    assert floor == 2 * (8 * 9 // 2 + 40 * 8) * 8 * 14  # heads, pairs, E, operations
    seen = Contestant("neural", SETTING)
    given = (seen.x, *seen.qkv[:2])
    visible = seen.attention.visible(*given, torch.arange(48))
    assert seen.attention.pairs(*given) == 2 * int(visible.sum())
