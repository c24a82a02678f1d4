"""Mistakes and Ctrl-C end fairseq's commands in one line."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from fairseq.dataclass.initialize import hydra_init
from hydra import compose, initialize_config_dir
from hydra._internal.utils import run_and_report
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from torch.multiprocessing import ProcessRaisedException

from fairseq_clusterformer.compat import checks
from fairseq_clusterformer.outputs import hold
from tests.cli.in_process import CLUSTERFORMER
from tests.conftest import REPO_ROOT
from tests.forked import Forked

CONFIG = REPO_ROOT / "examples/language_model/config"
MISTAKE = "--stride is -2; allowed: 0 or more"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch):
    """What Python calls at the end of a ``fairseq-train`` that fails."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-train", "data"])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(JobReturn, "return_value", JobReturn.return_value)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    checks.report_in_one_line()
    return lambda error: sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (ValueError(MISTAKE), f"ValueError: {MISTAKE}"),
        (ProcessRaisedException(f"-- 0:\nTraceback\n E: {MISTAKE}\n", 0, 1), f"E: {MISTAKE}"),
        (ValueError(f"Caught\nOriginal Traceback\n  x\nE: {MISTAKE}\n"), f"E: {MISTAKE}"),
        (FileNotFoundError(2, "No", "x"), "FileNotFoundError: [Errno 2] No: 'x'"),
        (Exception("Use `--ddp-backend`"), "Exception: Use `--ddp-backend`"),
        (ImportError("no 'libnat'"), "ImportError: no 'libnat'"),
    ],
)
def test_mistakes(error, printed, hook, capsys):
    hook(error)
    assert capsys.readouterr().err.strip() == printed
    for other in (AssertionError(), ValueError("too many values")):
        assert checks.one_line(other) is None


def test_a_job_of_hydra(hook, capsys):
    job = JobReturn(status=JobStatus.FAILED, _return_value=ValueError(MISTAKE))
    with pytest.raises(ValueError, match=MISTAKE):
        run_and_report(lambda: job.return_value)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dataset.batch_size=x", "dataset.batch_size: Value 'x' of type 'str' could not be conve"),
        ("common.log_format=x", "Invalid value 'x', expected one of [json, none, simple, tqdm]"),
        ("model.num_clustrs=3", "num_clustrs: Key 'num_clustrs' is not in struct; allowed: num_c"),
        ("model.zzz=3", "zzz: Key 'zzz' is not in struct; allowed: what the configuration names"),
        ("~common.fp8", "Could not delete from config. 'common.fp8' does not exist."),
        ("common: {seed: 1.5}", "'given' with schema; common.seed: Value '1.5' of type 'float'"),
        ("comon: {seed: 1}", "comon: Key 'comon' not in 'FairseqConfig'; allowed: common"),
    ],
)
def test_what_hydra_reads(given, said, hook, tmp_path, capsys):
    in_file = ": " in given
    name, folder = ("given", tmp_path) if in_file else ("bytes", CONFIG)
    (tmp_path / "given.yaml").write_text(given)
    hydra_init(name)
    with initialize_config_dir(str(folder)), pytest.raises(CompactHydraException) as caught:
        run_and_report(lambda: compose(name, [] if in_file else [given]))
    hook(caught.value)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_ctrl_c(hook, capsys):
    hook(KeyboardInterrupt())
    assert capsys.readouterr().err == "fairseq-train: interrupted\n"


@pytest.mark.whole  # on a busy machine the processes may not end in time to say what is saved
def test_ctrl_c_in_several_processes(byte_data, tmp_path):
    """A terminal sends it to all of them. The folder is free again, with its checkpoint."""
    line = CLUSTERFORMER.replace("world-size 1", "world-size 2").replace("-update 6", "-update 0")
    last, printed = tmp_path / "saved" / "checkpoint_last.pt", tmp_path / "printed"
    words = [str(Path(sys.executable).with_name("fairseq-train")), str(byte_data), *line.split()]
    words += ["--user-dir", str(REPO_ROOT / "fairseq_clusterformer"), "--batch-size", "2"]
    words += ["--save-interval-updates", "2", "--save-dir", str(last.parent)]
    printed.touch()
    where = {"stdin": Path(os.devnull), "stdout": printed, "stderr": printed}
    command = Forked(words, cwd=tmp_path, env={**os.environ, "PYTHONFAULTHANDLER": "1"}, **where)
    end = time.monotonic() + 300
    while not last.exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(120) != 0
    assert "\nfairseq-train: interrupted\n" in printed.read_text()
    assert "Traceback" not in printed.read_text()
    hold(last.parent / ".training", "--save-dir", last).release()
