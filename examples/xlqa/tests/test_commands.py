"""Readers of words by fairseq's commands and ours: trained, validated, asked."""

import pytest

from tests.cli.in_process import train, validate
from tests.cli.tasks import QANET
from tests.cli.towns import BIDAF

BY_HEART = "--lr 0.01 --dropout 0 --batch-size 10 --validate-interval 100"
OF_QANET = "--max-update 90 --stochastic-depth 0 --attention-dropout 0"
QANET = pytest.param(f"{QANET} {OF_QANET}", marks=pytest.mark.whole)


@pytest.mark.parametrize("line", [f"{BIDAF} --max-update 120", QANET], ids=("bidaf", "qanet"))
def test_every_type_is_learned_by_heart(line, qa_data, tmp_path):
    run, task = train(qa_data, f"{line} {BY_HEART}", tmp_path), "--task clusterformer_qa"
    printed = validate(qa_data, tmp_path / "checkpoint_last.pt", task, "--batch-size", 7)
    scores = ("em", "f1", "long_f1", "answerable_accuracy")
    assert {name: printed[name] for name in scores} == dict.fromkeys(scores, 100)
    assert printed["nll"] < 0.1
    assert "type_loss" not in printed  # it is a part of the span's
    for update in run.updates + run.valid:
        assert update["nll"] == update["span_loss"]
        assert update["loss"] == pytest.approx(update["span_loss"] + update["long_loss"])
    assert run.mean_loss(-1) < 0.5 < 3 < run.mean_loss(0)
