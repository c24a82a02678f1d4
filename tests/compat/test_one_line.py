"""Mistakes and Ctrl-C end fairseq's commands in one line."""

import sys
from pathlib import Path

import pytest
from fairseq.trainer import Trainer
from hydra.core.utils import JobReturn, JobStatus
from torch.multiprocessing import ProcessRaisedException

from fairseq_clusterformer.compat import one_line
from tests.cli.in_process import CLUSTERFORMER, train

MISTAKE = "--stride is -2; allowed: 0 or more"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch):
    """What Python calls at the end of a ``fairseq-train`` that fails."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-train", "data"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(JobReturn, "return_value", JobReturn.return_value)
    one_line.report_in_one_line()
    return lambda error: sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (ValueError(MISTAKE), f"ValueError: {MISTAKE}"),
        (ProcessRaisedException(f"-- 0:\nTraceback\n E: {MISTAKE}\n", 0, 1), f"E: {MISTAKE}"),
        (
            FileNotFoundError(2, "No such file", "x/dict.txt"),
            "FileNotFoundError: [Errno 2] No such file: 'x/dict.txt'",
        ),
        (ValueError("too many values"), "Traceback|ValueError: too many values"),
    ],
)
def test_mistakes(error: Exception, printed: str, hook, capsys) -> None:
    hook(error)
    found = capsys.readouterr().err.strip()
    assert found in (printed, printed.split("|")[-1])


def test_a_job_of_hydra(hook) -> None:
    job = JobReturn(status=JobStatus.FAILED, _return_value=ValueError(MISTAKE))
    with pytest.raises(SystemExit, match=f"ValueError: {MISTAKE}"):
        _ = job.return_value
    job.return_value = KeyError("x")
    with pytest.raises(KeyError):
        _ = job.return_value


@pytest.mark.parametrize(
    ("saving", "said"),
    [
        ("--save-interval-updates 2", "{}/checkpoint_last.pt has 2, from which the same command"),
        ("", "{} has no checkpoint of it yet"),
    ],
)
def test_ctrl_c(
    saving: str, said: str, hook, byte_data: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    step = Trainer.train_step

    def train_step(trainer: Trainer, *args):
        if trainer.get_num_updates() == 3:
            raise KeyboardInterrupt
        return step(trainer, *args)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(byte_data, f"{CLUSTERFORMER} {saving}", tmp_path)
    capsys.readouterr()
    hook(caught.value)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fairseq-train: interrupted at 3 updates; {said.format(tmp_path)}")
