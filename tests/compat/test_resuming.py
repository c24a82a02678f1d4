"""A damaged checkpoint is refused in one line, before anything is trained."""

import copy
import math
import os
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.compat import resuming
from tests.cli.in_process import CLUSTERFORMER, TRANSFORMER, train

SHORT = "--disable-validation --no-epoch-checkpoints --decoder-layers 1 --max-update"


@pytest.fixture(
    scope="module",
    params=[CLUSTERFORMER, pytest.param(TRANSFORMER, marks=pytest.mark.whole)],
    ids=["ours", "dense"],
)
def trained(request, byte_data, tmp_path_factory) -> tuple[str, dict]:
    """The options of a training, and its checkpoint after two updates."""
    folder = tmp_path_factory.mktemp("trained")
    train(byte_data, f"{request.param} {SHORT} 2", folder)
    return request.param, torch.load(folder / "checkpoint_last.pt", weights_only=True)


def change(state: dict, path: str, value: object) -> dict:
    """A copy of a checkpoint with one part changed; "gone": without it."""
    state = copy.deepcopy(state)
    *above, last = [int(n) if n.lstrip("-").isdigit() else n for n in path.split("/")]
    part = state
    for name in above:
        part = part[name]
    if isinstance(value, str) and value == "gone":
        del part[last]
    else:
        part[last] = value
    return state


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("last_optimizer_state", {}, "its last_optimizer_state is damaged"),
        ("last_optimizer_state/param_groups", [], "is of other parameters"),
        ("last_optimizer_state/state/0/exp_avg", torch.zeros(3), "exp_avg does not fit a param"),
        ("optimizer_history/0/criterion_name", "other", "Criterion does not match"),
        ("model/decoder.layers.0.fc1.weight", "gone", "fc1.weight"),
        ("extra_state/train_iterator/iterations_in_epoch", 10**6, "this training has no such bat"),
        ("extra_state/metrics", [1], "does not fit this training"),
        ("extra_state/metrics/default", {}, "its metrics lack the time"),
    ],
)
def test_a_training_that_goes_on(path, value, said, trained, byte_data, tmp_path):
    line, state = trained
    torch.save(change(state, path, value), tmp_path / "checkpoint_last.pt")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    with pytest.raises(ValueError, match="; allowed: ") as caught:
        train(byte_data, f"{line} {SHORT} 3", tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model", "gone"),
        ("model", []),
        ("model/decoder.layers.0.fc1.weight", torch.zeros(2, 2).to_sparse()),
        ("model/decoder.layers.0.fc1.weight", torch.zeros(2, 2, dtype=torch.complex64)),
        ("optimizer_history", {}),
        ("optimizer_history/0/num_updates", -3),
        ("optimizer_history/0/lr_scheduler_state", {"lr": None}),
        ("extra_state/train_iterator", 5),
        ("extra_state/train_iterator/epoch", -3),
        ("extra_state/train_iterator/epoch", 10**30),
        ("extra_state/train_iterator/shuffle", "x"),
        ("extra_state/previous_training_time", "x"),
        ("extra_state/early_stopping", [1]),
        ("last_optimizer_state", 5),
        ("last_optimizer_state/loss_scale", "x"),
        ("task_state", [1]),
    ],
)
def test_what_every_checkpoint_has(path, value, trained):
    _, state = trained
    resuming.check_state(state)
    with pytest.raises(resuming.DamagedError):
        resuming.check_state(change(state, path, value))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adafactor])
def test_what_an_optimizer_has(optimizer):
    """Its own state fits, also without an option that a newer torch adds."""
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    found = optimizer(layer.parameters(), lr=0.1)
    layer(torch.ones(3)).sum().backward()
    found.step()
    state = found.state_dict()
    fitting = resuming.fitting_state(found, change(state, "param_groups/0/weight_decay", "gone"))
    assert fitting["param_groups"] == state["param_groups"]
    damages = [("param_groups", 5), ("param_groups/0/params", [0]), ("param_groups/0/lr", "x")]
    damages += [("param_groups/0/lr", math.nan), ("state", []), ("state", {7: {}})]
    if optimizer is not torch.optim.SGD:
        damages += [("state/0/step", "x"), ("state/0", {}), ("state/1/step", "gone")]
        name = "exp_avg" if optimizer is torch.optim.Adam else "row_var"
        kept = state["state"][0][name]
        damages += [(f"state/0/{name}", kept.to_sparse()), (f"state/0/{name}", kept * math.inf)]
    for path, value in damages:
        with pytest.raises(resuming.DamagedError):
            resuming.fitting_state(found, change(state, path, value))


def test_a_file_of_every_kind(tmp_path: Path, trained, byte_data):
    """Also where a command of fairseq's loads it."""
    for number, written in enumerate((b"", b"PK\3\4", os.urandom(99), [], {}, {"model": {}})):
        path = tmp_path / f"{number}.pt"
        if isinstance(written, bytes):
            path.write_bytes(written)
        else:
            torch.save(written, path)
        with pytest.raises(ValueError, match=f"the checkpoint is {path}: cannot be read"):
            resuming.checkpoint_utils.load_checkpoint_to_cpu(str(path))
