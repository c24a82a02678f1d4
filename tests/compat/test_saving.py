"""What a training saves stays whole, and no other training changes it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from fairseq_clusterformer.compat.saving import LOCK
from tests.cli.in_process import CLUSTERFORMER, TRANSFORMER, assert_equal_states, load_state, train

SAVING = "--save-interval-updates 2 --disable-validation"
EPOCHS = "--max-update 0 --batch-size 80"
WHOLE = pytest.mark.whole


def test_copies_are_whole(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("before")

    def killed(_, path):
        Path(path).write_text("n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_text() == "before"
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_text() == "new"


@pytest.mark.parametrize("size", [0, 1000, -1])
@pytest.mark.parametrize("line", [CLUSTERFORMER, TRANSFORMER])
def test_a_broken_checkpoint(line, size, byte_data, tmp_path, caplog):
    """Training goes on from the newest whole one, to the same end."""
    train(byte_data, f"{line} {SAVING} --max-update 4", tmp_path)
    last, whole = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_1_4.pt"
    last.write_bytes(last.read_bytes()[:size])
    broken = tmp_path / "checkpoint_1_2.pt"
    broken.write_bytes(b"")
    caplog.set_level("WARNING")
    train(byte_data, f"{line} {SAVING}", tmp_path)
    (said,) = (m for m in caplog.messages if "cannot be read" in m)
    assert f"{last} cannot be read (" in said
    assert f"from {whole}, the newest whole one" in said
    train(byte_data, f"{line} {SAVING}", tmp_path / "whole")
    expected = load_state(tmp_path / "whole" / "checkpoint_last.pt")["model"]
    assert_equal_states(load_state(last)["model"], expected)


def test_a_missing_checkpoint(byte_data, tmp_path, caplog):
    """Training does not begin again where others lie, and so keeps the best."""
    train(byte_data, f"{CLUSTERFORMER} {SAVING} --max-update 4", tmp_path)
    (tmp_path / "checkpoint_last.pt").unlink()
    caplog.set_level("WARNING")
    run = train(byte_data, f"{CLUSTERFORMER} {SAVING}", tmp_path)
    (said,) = (m for m in caplog.messages if "is missing" in m)
    assert f"from {tmp_path / 'checkpoint_1_4.pt'}, the newest whole one" in said
    assert run.trainer.get_num_updates() == 4 + len(run.updates) > 4


def test_no_checkpoint_is_whole(byte_data, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"")
    (tmp_path / "checkpoint_best.pt").write_bytes(b"PK")
    said = r"last.pt cannot be read \(it is .* empty, cut off or damaged\); allowed: "
    with pytest.raises(ValueError, match=said):
        train(byte_data, CLUSTERFORMER, tmp_path)


@pytest.mark.parametrize(
    ("end", "more"),
    [
        ("--max-update 2", "--max-update 3"),
        pytest.param(f"{EPOCHS} --max-epoch 1", "--max-epoch 2", marks=WHOLE),
        pytest.param(f"{EPOCHS} --lr 0 --patience 1", "--max-epoch 4 --patience 99", marks=WHOLE),
    ],
)
def test_a_finished_training(end, more, byte_data, tmp_path, caplog):
    """The same command does nothing, and says so; one that goes further goes on."""

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}

    line = f"{CLUSTERFORMER} {end}"
    made, before = train(byte_data, line, tmp_path), files()
    caplog.set_level("INFO")
    train(byte_data, line, tmp_path)
    assert files() == before
    (said,) = (m for m in caplog.messages if m.endswith("there is nothing to do"))
    assert said.startswith(f"{tmp_path}/checkpoint_last.pt is finished (")
    further = train(byte_data, line, tmp_path, *more.split())
    assert further.trainer.get_num_updates() > made.trainer.get_num_updates()


def test_a_folder_in_which_another_training_saves(byte_data, tmp_path, monkeypatch):
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('process 7 on server', file=file, flush=True); print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, tmp_path / LOCK]
    step = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", lambda *_: pytest.fail("training began"))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        expected = rf"{tmp_path}: another training \(process 7 on server\) is at work in it; all"
        with pytest.raises(ValueError, match=expected):
            train(byte_data, CLUSTERFORMER, tmp_path)
        other.kill()
    assert (tmp_path / LOCK).exists()  # which holds no one up
    monkeypatch.setattr(Trainer, "train_step", step)
    train(byte_data, f"{CLUSTERFORMER} --max-update 1", tmp_path)
