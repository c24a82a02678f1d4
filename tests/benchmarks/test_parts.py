"""The benchmark of parts: what is made in a part, forward and backward, counts there."""

import json
import math
from itertools import count

import pytest
import torch

from scripts.benchmarks import parts, training

TINY = "--layers 1 --embed-dim 16 --heads 2 --ffn 16 --window 8 --clusters 3 --vocabulary 40"
TINY = f"{TINY} --repeats 1 --device cpu --lengths 24".split()


def test_backward_nodes_count_where_they_were_made(monkeypatch):
    seconds = count()  # each look at the clock takes one
    monkeypatch.setattr(parts.time, "process_time", lambda: next(seconds))
    clock = parts.Clock()
    x = torch.ones(3, requires_grad=True)
    clock.enter("outer")
    y = x * 2
    clock.enter("inner")
    y = y.exp().sin()
    clock.leave()
    y = y.sum()
    clock.leave()
    assert clock.seconds == {
        **{(parts.OUTSIDE, "forward"): 1, ("outer", "forward"): 2, ("inner", "forward"): 1},
    }
    clock.watch(y)
    y.backward()
    clock.switch(parts.OUTSIDE)
    # of the sum; of the sine and the exponential; of the product
    assert clock.seconds["outer", "backward"] == 2
    assert clock.seconds["inner", "backward"] == 2


def test_parts_of_both_models(capsys, tmp_path):
    path = tmp_path / "rows.json"
    words = [*TINY, "--attention", "window+gated", "--json", str(path)]
    assert parts.main(words) == 0
    rows = json.loads(path.read_text())["rows"]
    for model in (training.DENSE, "window+gated"):
        *each, whole = [row for row in rows if row["model"] == model]
        assert {row["part"] for row in each} == {*parts.ORDER} - (
            {"routing"} if model == training.DENSE else set()
        )
        for row in each:
            assert row["forward ms"] > 0
            assert (row["backward ms"] > 0) == (row["part"] != parts.OUTSIDE)
        assert math.isclose(sum(row["share of the update"] for row in each), 1)
        both = sum(row["forward ms"] + row["backward ms"] for row in each)
        assert math.isclose(both, whole["forward ms"])
    assert "| window+gated | 24 | routing |" in capsys.readouterr().out


def test_processors_alone_have_such_clocks(capsys):
    with pytest.raises(SystemExit):
        parts.main([*TINY, "--device", "cuda"])
    assert "--device is cuda; allowed: cpu" in capsys.readouterr().err
