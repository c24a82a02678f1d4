"""A training starts where it runs: in half precision there is no TPU."""

from pathlib import Path
from unittest import mock

import fairseq_cli.train
import pytest
import torch
from fairseq.distributed import utils as distributed_utils

from tests.cli.in_process import CLUSTERED_TRANSLATION, CLUSTERFORMER, QUESTIONS, Run, load_state
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
    """Losses are close to those of float32, and a training goes on from what it saved."""
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
