"""The losses that are logged: the task's alone, and what a plain forward gives."""

import math

import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion

from tests.cli.in_process import CLUSTERFORMER, load_model, load_state, quiet, train


def test_logged_losses_are_the_tasks_alone(byte_data, tmp_path):
    """In validation and in training; equal to fairseq's cross_entropy on the same model."""
    line = f"{CLUSTERFORMER} --clustering-loss-weight 7 --centroid-sorting-loss-weight 5"
    run = train(byte_data, line, tmp_path / "a", "--task-loss-weight", 3)
    usual = train(byte_data, CLUSTERFORMER, tmp_path / "b", "--max-update", 1)
    assert run.updates[0]["loss"] == usual.updates[0]["loss"]
    assert run.updates[0]["gnorm"] > 2 * usual.updates[0]["gnorm"]

    criterion = CrossEntropyCriterion(run.trainer.task, sentence_avg=False)
    model, _ = load_model(tmp_path / "a" / "checkpoint_last.pt", byte_data)
    with quiet(), torch.no_grad():
        batches = list(run.trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False))
        expected = [criterion(model, batch)[0].item() for batch in batches]
    assert [batch["loss"] for batch in run.valid] == expected
    total = sum(expected) / sum(batch["ntokens"] for batch in batches)
    saved = load_state(tmp_path / "a" / "checkpoint_last.pt")["extra_state"]["val_loss"]
    assert math.isclose(saved, total / math.log(2), abs_tol=1e-3)
