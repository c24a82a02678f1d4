"""The demo: its whole path with a tiny budget, and what makes its comparison fair."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scripts.demo import demo
from scripts.demo import text as demo_text
from scripts.demo.race import Runner, tokens_per_second
from tests.visual.test_clusters import assert_stands_alone, picture_width

TINY = ("--updates", "4", "--context", "64")
RESULTS = (
    "clusterformer_lm",
    "clusters.html",
    "clusters.png",
    "generated.txt",
    "passage.txt",
    "results.json",
    "transformer_lm",
)


@pytest.mark.slow
def test_whole_demo(tmp_path, run_cli):
    out = tmp_path / "new" / "out"
    printed = run_cli("scripts/demo.py", *TINY, "--out", out, timeout=900).stdout
    kept = [path.name for path in out.iterdir() if not path.name.startswith((".demo", "data-"))]
    assert sorted(kept) == sorted(RESULTS)
    assert "Traceback" not in printed
    assert "Warning" not in printed
    models = json.loads((out / "results.json").read_text())["models"]
    for model in models:
        check_numbers(model, out / model["name"], printed)
    ours, dense = (model["parameters"] for model in models)
    assert abs(ours - dense) < 0.01 * dense
    check_equal_options(out)
    check_text(out, printed)
    check_pictures(out)


def check_numbers(model: dict, folder: Path, printed: str) -> None:
    """What is printed of a model and kept of it is what fairseq logged."""
    row = next(line for line in printed.splitlines() if line.startswith(model["name"] + "  "))
    assert row.split()[1:4] == [
        f"{model['bits per byte']:.3f}",
        f"{model['tokens per second']:,}",
        f"{model['parameters']:,}",
    ]
    assert 3 < model["bits per byte"] < 9
    log = (folder / "train.log").read_text()
    assert f"num. shared model params: {model['parameters']:,}" in log
    assert '"num_updates": "4"' in log
    loss = re.search(r"Loss \(base 2\): ([\d.]+)", (folder / "test.log").read_text())
    assert float(loss[1]) == model["bits per byte"]


def check_equal_options(out: Path) -> None:
    """The models differ in what they must differ in."""
    ours, dense = (
        torch.load(out / name / "checkpoint_last.pt")["cfg"]
        for name in ("clusterformer_lm", "transformer_lm")
    )
    # base_shuffle is of BASE layers, of which there are none
    allowed = {"model": {"_name", "base_shuffle", "decoder_ffn_embed_dim", "max_target_positions"}}
    for part in ("model", "optimizer", "lr_scheduler", "dataset", "task", "optimization"):
        # a named architecture's options are a namespace
        one, other = (
            c[part] if isinstance(c[part], dict) else vars(c[part]) for c in (ours, dense)
        )
        different = {name for name in one.keys() & other.keys() if one[name] != other[name]}
        assert different <= allowed.get(part, set()), part


def check_text(out: Path, printed: str) -> None:
    """The text is printed as it is kept."""
    text = (out / "generated.txt").read_text(encoding="utf-8")
    assert text.startswith(demo.PROMPT)
    assert text in printed
    assert len(text.encode()) >= len(demo.PROMPT) + demo.LENGTH


def check_pictures(out: Path) -> None:
    """They show the passage, which no model was trained on."""
    passage = (out / "passage.txt").read_text(encoding="utf-8")
    assert demo_text.language_reference()["valid"].startswith(passage)
    assert 1000 < len(passage.encode()) <= demo.SHOWN
    assert_stands_alone((out / "clusters.html").read_text(encoding="utf-8"), passage)
    assert picture_width(out / "clusters.png") == 1600


@pytest.mark.slow
def test_interrupted_run_ends_its_programs_and_keeps_old_results(tmp_path):
    out = tmp_path / "out"
    with demo.workspace(out) as work:
        (work / "results.json").write_text("old")
        demo.publish(work, out)
    command = [sys.executable, str(SCRIPTS / "demo.py"), "--updates", "100000", "--out", str(out)]
    with open(tmp_path / "printed", "w") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
    try:
        _wait_for(lambda: len(_children(process.pid)) == 2)
        children = _children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert (tmp_path / "printed").read_text().splitlines()[-1].startswith("demo: interrupted")
    assert (out / "results.json").read_text() == "old"


def _wait_for(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def _children(pid: int) -> list[str]:
    """Processes that a process of several threads has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


# The folder


def test_results_appear_at_once_and_replace_older_ones(tmp_path):
    out = tmp_path / "out"
    for number in "12":
        with demo.workspace(out) as work:
            (work / "model").mkdir()
            (work / "model" / number).touch()
            (work / "results.json").write_text(number)
            demo.publish(work, out)
    assert [path.name for path in (out / "model").iterdir()] == ["2"]
    assert (out / "results.json").read_text() == "2"
    assert not (out / "unfinished").exists()


def test_what_is_unfinished_stays_apart(tmp_path):
    def interrupted():
        with demo.workspace(tmp_path) as work:
            (work / "results.json").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (tmp_path / "results.json").exists()
    with demo.workspace(tmp_path) as work:
        assert list(work.iterdir()) == []


def test_folder_of_somebody_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    assert demo.main(["--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"demo: error: --out {tmp_path}: holds something else; allowed is")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_file_as_a_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert demo.main(["--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"demo: error: --out {tmp_path / 'file'}: ")


def test_two_demos_in_one_folder_are_refused(tmp_path, capsys):
    with open(tmp_path / demo.MARK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert demo.main(["--out", str(tmp_path)]) == 1
    assert "another demo is at work in it; allowed is another folder" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--updates", "--context", "--rows", "--threads"])
@pytest.mark.parametrize("value", ["0", "-3", "many", "1000000"])
def test_numbers_out_of_range_are_refused(option, value, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        demo.main([f"{option}={value}", "--out", str(tmp_path)])
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: is '{value}'; allowed: a whole number from " in error


def test_failed_program_is_told_with_its_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(demo.DENSE, "arch", "no_such_arch")
    before = _children(os.getpid())  # other tests' servers of processes
    assert demo.main([*TINY, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("demo: error: fairseq_cli.train ended with status 2: ")
    assert "no_such_arch" in error
    assert (tmp_path / "out" / "unfinished" / "transformer_lm" / "train.log").exists()
    assert not (tmp_path / "out" / "results.json").exists()
    assert _children(os.getpid()) == before


# Fairness


def test_text_is_told_once_and_held_out_topics_stay_held_out():
    copied = "This paragraph stands in two topics, as many of the reference do."
    own = "A topic that has a paragraph which was held out, and a long one of its own."
    pages = {
        "calls": f"Calls\n\n{copied}\n",
        "long": f"{own}\n\n{copied}\n\nIts end.\n",
        "copy": f"{copied}\n\nIts end.\n",
        "short": "Another.\n",
    }
    assert demo_text.language_reference(pages) == {
        "train": f"{own}\n\nIts end.\n\n\nAnother.\n\n\n",
        "valid": f"Calls\n\n{copied}\n\n\n",
    }


def test_no_line_of_the_held_out_topics_is_trained_on():
    texts = demo_text.language_reference()
    held_out = {line.strip() for line in texts["valid"].splitlines() if len(line.strip()) > 40}
    trained_on = {line.strip() for line in texts["train"].splitlines()}
    assert len(held_out) > 300
    assert not held_out & trained_on
    assert 0.07 < len(texts["valid"]) / len(texts["train"]) < 0.15


def test_speed_is_measured_while_both_train():
    fast = Runner("fast", {}, progress=[(t, t) for t in range(10, 21)])
    slow = Runner("slow", {}, progress=[(12, 1), (16, 2), (20, 3), (21, 9), (22, 15)])
    assert tokens_per_second([fast, slow], 100) == [100, 25]
