"""fairseq-eval-lm and the validation loss: the task's alone, and what a plain forward gives."""

import math
from pathlib import Path

import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from torch import Tensor, nn

from tests.cli.in_process import CLUSTERFORMER, eval_lm, load_model, load_state, quiet, train


def tokens_of(data: Path, split: str, task) -> Tensor:
    """A split read from its text, after the ``</s>`` that fairseq begins a data set with."""
    text = (data.parent / "text" / f"{split}.txt").read_bytes()
    first_byte = task.dictionary.index("<00>")
    return torch.tensor([task.dictionary.eos(), *(first_byte + byte for byte in text)])


@torch.no_grad()
def bits_per_token(model: nn.Module, tokens: Tensor, targets: int) -> float:
    """Mean negative log2 probability of all but the first token, in blocks of so many."""
    total, count = 0.0, len(tokens) - 1
    for start in range(0, count, targets):
        end = min(start + targets, count)
        logits, _ = model(tokens[start:end].unsqueeze(0))
        log_probs = logits[0].double().log_softmax(-1)
        total -= log_probs.gather(-1, tokens[start + 1 : end + 1, None]).sum().item()
    return total / count / math.log(2)


class TestEvalLm:
    def test_blocks_and_batches(self, byte_data, checkpoint):
        model, task = load_model(checkpoint, byte_data)
        tokens = tokens_of(byte_data, "test", task)
        for length in (64, 37):
            bits = bits_per_token(model, tokens, length)
            for batch_size in (1, 7):
                line = f"--tokens-per-sample {length} --batch-size {batch_size}"
                results = eval_lm(byte_data, checkpoint, line)
                assert math.isclose(results["loss"], bits, rel_tol=1e-6)


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
