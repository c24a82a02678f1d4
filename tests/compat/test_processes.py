"""A training starts where it runs: in half precision there is no TPU."""

from pathlib import Path
from unittest import mock

import fairseq_cli.train
import pytest
import torch
from fairseq.distributed import utils as distributed_utils

from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    QUESTIONS,
    Run,
    assert_equal_states,
    load_state,
)
from tests.cli.in_process import train as train_in_process

LINES = {"byte_data": CLUSTERFORMER, "parallel_data": CLUSTERED_TRANSLATION, "qa_data": QUESTIONS}


def train(data: Path, line: str, folder: Path) -> Run:
    """By ``call_main``, as the command does, which the shorter way leaves out."""
    main = fairseq_cli.train.main

    def call(cfg) -> None:
        distributed_utils.call_main(cfg, main)

    with mock.patch.object(fairseq_cli.train, "main", call):
        return train_in_process(data, line, folder)


@pytest.mark.parametrize("data", LINES)
def test_bfloat16(data, request, tmp_path):
    """Losses are close to those of float32, and a training goes on as if it had not stopped."""
    folder, line = request.getfixturevalue(data), f"{LINES[data]} --disable-validation"
    whole = train(folder, f"{line} --max-update 3", tmp_path / "float32")
    line += " --bf16 --max-update"
    half, last = train(folder, f"{line} 2", tmp_path), tmp_path / "checkpoint_last.pt"
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    sections = load_state(last)["cfg"].values()
    assert not any(of.get("tpu") for of in sections if hasattr(of, "get"))
    resumed = train(folder, f"{line} 3", tmp_path)
    assert len(resumed.updates) == 1
    for number, run in enumerate((half, half, resumed)):
        found = run.mean_loss(min(number, len(run.updates) - 1))
        assert found == pytest.approx(whole.mean_loss(number), rel=0.01)
    unbroken = train(folder, f"{line} 3", tmp_path / "unbroken")
    assert_equal_states(resumed.model.state_dict(), unbroken.model.state_dict())
    weights = [run.trainer.optimizer.fp32_params for run in (resumed, unbroken)]
    assert all(map(torch.equal, *weights))


def test_weights_from_elsewhere_stay(byte_data, tmp_path):
    """What was updated is not taken for a model that is another."""
    line, last = f"{CLUSTERFORMER} --disable-validation --bf16", tmp_path / "checkpoint_last.pt"
    train(byte_data, f"{line} --max-update 1", tmp_path)
    state = load_state(last)
    state["model"]["decoder.layers.0.fc1.weight"].zero_()
    torch.save(state, last)
    run = train(byte_data, f"{line} --max-update 2 --lr 0", tmp_path)
    assert not run.model.decoder.layers[0].fc1.weight.any()
