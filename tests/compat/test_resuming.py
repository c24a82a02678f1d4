"""A damaged checkpoint is refused in one line, and stays as it is."""

import copy
import math

import pytest
import torch

from fairseq_clusterformer.compat.checks import one_line
from tests.cli.in_process import CLUSTERFORMER, TRANSFORMER, train

SHORT = "--disable-validation --no-epoch-checkpoints --decoder-layers 1 --max-update"
WEIGHTS, EXP_AVG = "model/decoder.layers.0.fc1.weight", "last_optimizer_state/state/0/exp_avg"
ITERATOR = "extra_state/train_iterator"
DAMAGES = [
    ("last_optimizer_state", {}, "it has no 'state'"),
    ("last_optimizer_state", 5, "does not fit this training"),
    ("last_optimizer_state/param_groups", [], "does not fit this training"),
    (EXP_AVG, torch.zeros(3), "the optimizer's state is the checkpoint's: "),
    (EXP_AVG, torch.full((3,), math.nan), "its optimizer's numbers are not finite"),
    ("optimizer_history", {}, "last.pt cannot be read"),
    ("optimizer_history/0/num_updates", -3, "-3}], not a list of updates"),
    ("optimizer_history/0/criterion_name", "other", "Criterion does not match"),
    ("model", [], "last.pt cannot be read (its model is no dictionary)"),
    (WEIGHTS, torch.zeros(2, 2).to_sparse(), "its model is not of named tensors"),
    (WEIGHTS, torch.zeros(2, 2, dtype=torch.complex64), "its model is not of named tensors"),
    (WEIGHTS, "gone", "fc1.weight"),
    (ITERATOR, 5, "last.pt cannot be read"),
    (f"{ITERATOR}/epoch", 10**30, "place in the data"),
    (f"{ITERATOR}/iterations_in_epoch", 10**6, "--reset-dataloader"),
    ("extra_state/previous_training_time", "x", "place in the data"),
    ("extra_state/early_stopping", [1], "place in the data"),
    ("task_state", [1], "its task_state is no dictionary"),
    ("extra_state/metrics", [1], "does not fit this training"),
    ("extra_state/metrics", {"default": []}, "its metrics lack the time"),
]


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
    part = state = copy.deepcopy(state)
    *above, last = [int(n) if n.isdigit() else n for n in path.split("/")]
    for name in above:
        part = part[name]
    part[last] = value
    if isinstance(value, str) and value == "gone":
        del part[last]
    return state


@pytest.mark.parametrize(("path", "value", "said"), DAMAGES)
def test_a_training_that_goes_on(path, value, said, trained, byte_data, tmp_path):
    line, state = trained
    torch.save(change(state, path, value), tmp_path / "checkpoint_last.pt")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    with pytest.raises((ValueError, RuntimeError)) as caught:
        train(byte_data, f"{line} {SHORT} 3", tmp_path)
    assert said in one_line(caught.value)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
