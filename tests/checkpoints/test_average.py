"""Averaged checkpoints: equal to a plain loop, whatever is shared, half or infinite."""

import math
import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from tests.documents.commands import error
from tests.documents.commands import run as run_command


def write(path: Path, updates: int, **tensors: torch.Tensor) -> Path:
    """A checkpoint with what fairseq puts into one."""
    tied = torch.randn(50, 40)
    model = {
        "encoder.weight": tied,
        "decoder.weight": tied,
        "half": (torch.randn(30) * 100).half(),
        "bfloat": torch.randn(30).bfloat16(),
        "double": torch.randn(3, dtype=torch.float64),
        "version": torch.tensor([updates]),
        "pending_log_mass": torch.full((2,), -math.inf),
        **tensors,
    }
    state = {
        "args": Namespace(arch="transformer", dropout=updates),
        "model": {name: tensor for name, tensor in model.items() if tensor is not None},
        "optimizer_history": [{"num_updates": 1}, {"num_updates": updates}],
        "last_optimizer_state": {"exp_avg": torch.zeros(50, 40)},
        "extra_state": {"train_iterator": {"epoch": 3}},
    }
    torch.save(state, path)
    return path


def run(*arguments: object) -> int:
    return run_command("average", *arguments)


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


@pytest.fixture
def averaged(tmp_path: Path) -> tuple[list[dict], dict]:
    """Three checkpoints, the newest in the middle, and their average."""
    inputs = [write(tmp_path / f"{n}.pt", n) for n in (10, 30, 20)]
    assert run("--inputs", *inputs, "--output", tmp_path / "out" / "average.pt") == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == ["average.pt"]
    return [load(path) for path in inputs], load(tmp_path / "out" / "average.pt")


def test_of_checkpoints_without_a_history(tmp_path):
    for n in (1, 2):
        state = load(write(tmp_path / f"{n}.pt", n))
        del state["optimizer_history"]
        torch.save(state, tmp_path / f"{n}.pt")
    inputs = tmp_path / "1.pt", tmp_path / "2.pt"
    assert run("--inputs", *inputs, "--output", tmp_path / "average.pt") == 0


def test_average_is_a_plain_loop_s(averaged):
    inputs, output = averaged
    assert output["model"].keys() == inputs[0]["model"].keys()
    for name in ("encoder.weight", "decoder.weight", "half", "bfloat", "double"):
        total = sum(state["model"][name].double() for state in inputs)
        mean, found = total / 3, output["model"][name]
        assert found.dtype == inputs[0]["model"][name].dtype
        # one rounding to the tensor's own precision, and those of a sum in float32
        unit = torch.finfo(found.dtype).eps + 4 * torch.finfo(torch.float32).eps
        largest = total.abs().max() if found.dtype == torch.float32 else mean.abs().max()
        assert (found.double() - mean).abs().max() <= unit * largest, name


def test_half_precision_is_summed_in_float32(tmp_path, capsys):
    """Also of files whose names are not UTF-8; the average is ours, and replaced when asked."""
    out, half = tmp_path / os.fsdecode(b"caf\xe9.pt"), torch.full((1,), 60000.0).half()
    big = [write(tmp_path / f"{n}.pt", n, half=half) for n in (1, 2)]
    for _ in range(2):
        assert run("--inputs", *big, "--output", out) == 0
        assert "caf\\udce9.pt: the average of 1.pt, 2.pt" in capsys.readouterr().out
    found = load(out)["model"]["half"]
    assert (found.dtype, found.item()) == (torch.float16, 60000.0)


@pytest.mark.parametrize("tied_is_newest", [False, True])
def test_what_is_shared_in_one_file_only_is_averaged_apart(tied_is_newest, tmp_path):
    tied = write(tmp_path / "tied.pt", 1 + 2 * tied_is_newest)
    apart = write(tmp_path / "apart.pt", 2, **{"decoder.weight": torch.ones(50, 40)})
    inputs = [apart, tied] if tied_is_newest else [tied, apart]
    assert run("--inputs", *inputs, "--output", tmp_path / "average.pt") == 0
    found = load(tmp_path / "average.pt")["model"]
    for name in ("encoder.weight", "decoder.weight"):
        mean = (load(tied)["model"][name] + load(apart)["model"][name]) / 2
        torch.testing.assert_close(found[name], mean, rtol=0, atol=0)


def test_all_else_is_the_newest_s_without_the_optimizer(averaged):
    output = averaged[1]
    model = output["model"]
    assert model["encoder.weight"].data_ptr() == model["decoder.weight"].data_ptr()
    assert model["pending_log_mass"].tolist() == [-math.inf, -math.inf]
    assert (model["version"].tolist(), model["version"].dtype) == ([30], torch.int64)
    assert output["args"].dropout == 30
    assert output["optimizer_history"][-1] == {"num_updates": 30}
    assert output["extra_state"] == {"train_iterator": {"epoch": 3}}
    assert output["last_optimizer_state"] is None


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"half": torch.zeros(31).half()}, "half is [30] in "),
        ({"half": None}, "missing in "),
        ({"more": torch.zeros(2)}, "more is missing in "),
        (
            {"double": torch.full((3,), math.nan).double()},
            "double holds numbers that are not finite",
        ),
    ],
)
def test_other_parameters_are_refused(tensors, says, tmp_path, capsys):
    one = write(tmp_path / "one.pt", 1)
    other = write(tmp_path / "other.pt", 2, **tensors)
    line = error(capsys, "average", "--inputs", one, other, "--output", tmp_path / "average.pt")
    assert says in line
    assert next(iter(tensors)) in line
    assert str(other) in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.pt", "other.pt"]


def test_moving_averages(tmp_path, capsys):
    paths = [write(tmp_path / f"{n}.pt", n) for n in (10, 30)]
    line = error(capsys, "average", "--inputs", *paths, "--output", tmp_path / "out.pt", "--ema")
    assert f"--ema is given: {paths[0]} has none; allowed: checkpoints of --store-ema" in line
    for number, path in enumerate(paths):
        state = load(path)
        state["extra_state"]["ema"] = {"half": torch.full((30,), 2.0 + number).half()}
        torch.save(state, path)
    assert run("--inputs", *paths, "--output", tmp_path / "out.pt", "--ema") == 0
    found = load(tmp_path / "out.pt")
    assert (found["model"]["half"] == 2.5).all()
    assert found["model"]["double"].shape == (3,)
    assert "ema" not in found["extra_state"]
