"""Readers of words by fairseq's commands and ours: trained, validated, asked."""

from pathlib import Path

import pytest

from tests.cli.in_process import Run, train, validate
from tests.cli.tasks import QANET
from tests.cli.towns import BIDAF

TASK = "--task clusterformer_qa --valid-subset valid"
BY_HEART = "--lr 0.01 --dropout 0 --batch-size 10 --validate-interval 100"
LINES = {
    "bidaf": f"{BIDAF} {BY_HEART} --max-update 120",
    "qanet": f"{QANET} {BY_HEART} --max-update 90 --stochastic-depth 0 --attention-dropout 0",
}


@pytest.fixture(scope="module")
def by_heart(qa_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A reader that knows all answers."""
    folder = tmp_path_factory.mktemp("bidaf")
    return folder, train(qa_data, LINES["bidaf"], folder)


@pytest.mark.parametrize("name", ["bidaf", pytest.param("qanet", marks=pytest.mark.whole)])
def test_every_type_is_learned_by_heart(name, by_heart, qa_data, tmp_path):
    folder, run = by_heart
    if name == "qanet":
        folder, run = tmp_path, train(qa_data, LINES[name], tmp_path)
    printed = validate(qa_data, folder / "checkpoint_last.pt", TASK, "--batch-size", 7)
    scores = ("em", "f1", "long_f1", "answerable_accuracy")
    assert {name: printed[name] for name in scores} == dict.fromkeys(scores, 100)
    assert printed["nll"] < 0.1
    assert "type_loss" not in printed  # it is a part of the span's
    for update in run.updates + run.valid:
        assert update["nll"] == update["span_loss"]
        assert update["loss"] == pytest.approx(update["span_loss"] + update["long_loss"])
    assert run.mean_loss(-1) < 0.5 < 3 < run.mean_loss(0)
