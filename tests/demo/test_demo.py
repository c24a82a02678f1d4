"""The demo: its whole path with a tiny budget, and what makes its comparison fair."""

import json
import os
import sys

import filelock
import pytest

from fairseq_clusterformer.errors import UserError
from scripts.demo import demo
from scripts.demo import text as demo_text
from scripts.demo.race import Runner, run_together, tokens_per_second

TINY = ("--updates", "3", "--context", "64")
RESULTS = {
    *("dense", "windows", "default", "comparison.png", "clusters.html", "clusters.png"),
    *("generated.txt", "passage.txt", "results.json"),
}


@pytest.mark.slow
def test_whole_demo(tmp_path, capfd, monkeypatch):
    pages = {"calls": "A call calls.\n" * 30, "for": "A loop repeats what is in it.\n" * 50}
    texts = demo_text.language_reference(pages)
    for module in (demo, demo_text):
        monkeypatch.setattr(module, "language_reference", lambda: texts)
    out = tmp_path / "new" / "out"
    assert demo.main([*TINY, "--out", str(out)]) == 0
    printed = capfd.readouterr().out
    kept = {p.name for p in out.iterdir() if not p.name.startswith((".demo", "data-"))}
    assert kept == RESULTS
    record = json.loads((out / "results.json").read_text())
    assert [model["name"] for model in record["models"]] == ["dense", "windows", "default"]
    for model in record["models"]:
        row = next(line for line in printed.splitlines() if line.startswith(model["name"] + "  "))
        assert row.split()[1:4] == [
            f"{model['bits per byte']:.3f}",
            f"{model['tokens per second']:,}",
            f"{model['parameters']:,}",
        ]
        log = (out / model["name"] / "train.log").read_text()
        assert f"num. shared model params: {model['parameters']:,}" in log
        assert model["curve"][-1][0] == 3
        assert log.count("| valid | {") == 1
        assert abs(model["parameters"] / record["models"][0]["parameters"] - 1) < 0.01
    text = (out / "generated.txt").read_text(encoding="utf-8")
    assert text.startswith(demo.PROMPT)
    assert text in printed
    passage = (out / "passage.txt").read_text(encoding="utf-8")
    assert texts["valid"].startswith(passage)
    page = (out / "clusters.html").read_text(encoding="utf-8")
    for said in (record["verdict"], "taught"):
        assert said in page
    assert record["verdict"] in printed
    for name in ("comparison.png", "clusters.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_programs_run_at_the_same_time(tmp_path):
    code = "import time; print('begins'); time.sleep(1); print({!r})"
    programs = {name: (python(code.format(name)), tmp_path / name) for name in ("a", "b")}
    heard: list[tuple[str, str]] = []
    peaks = run_together(programs, 1, lambda *said: heard.append(said))
    assert sorted(heard) == [("a", "a"), ("a", "begins"), ("b", "b"), ("b", "begins")]
    assert peaks.keys() == programs.keys()
    assert min(peaks.values()) > 1
    assert (tmp_path / "a").read_text() == "begins\na\n"


@pytest.mark.parametrize("interrupted", [True, False])
def test_no_program_outlives_the_others_failure(tmp_path, interrupted):
    """Neither where one fails, nor where the user interrupts."""
    sleep = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    programs = {"sleeps": (python(sleep), tmp_path / "sleeps")}
    if not interrupted:
        fails = "import time; time.sleep(1); print('no such arch'); exit(3)"
        programs["fails"] = (python(fails), tmp_path / "fails")
    started: list[int] = []

    def listen(name: str, line: str) -> None:
        if name == "sleeps":
            started.append(int(line))
        if interrupted:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, UserError)) as error:
        run_together(programs, 1, listen)
    if not interrupted:
        assert "ended with status 3: no such arch (log: " in str(error.value)
    assert len(started) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_interruption_keeps_older_results(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with demo.workspace(out) as work:
        (work / "results.json").write_text("old")
        demo.publish(work, out)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "race", interrupt)
    assert demo.main([*TINY, "--out", str(out)]) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("demo: interrupted")
    assert (out / "results.json").read_text() == "old"
    assert (out / "unfinished").is_dir()


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
    error = capsys.readouterr().err
    assert error.startswith(f"demo: error: --out is {tmp_path}: has something else in it; allowed")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_file_as_a_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert demo.main(["--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"demo: error: --out is {tmp_path / 'file'}: ")


def test_two_demos_in_one_folder_are_refused(tmp_path, capsys):
    (tmp_path / demo.MARK).touch()
    with filelock.FileLock(tmp_path / f"{demo.MARK}.lock"):
        assert demo.main(["--out", str(tmp_path)]) == 1
    assert "another demo works in it; allowed: another folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--updates=0", "--context=many"])
def test_numbers_out_of_range_are_refused(words, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        demo.main([words, "--out", str(tmp_path)])
    error = capsys.readouterr().err
    expected = f"{words.replace('=', ' is ')}; allowed: a whole number, 1 or more"
    assert expected in error
    assert error.count("\n") == 1


# Fairness


def _runners(*bits: float) -> list[Runner]:
    names = ("dense", "windows", "default")
    return [Runner(n, {}, bits_per_byte=b) for n, b in zip(names, bits, strict=True)]


def test_verdict_says_what_clusters_add():
    said = demo.compare(*_runners(3.2, 3.3, 3.25))
    assert "The default needs 0.050 fewer bits per byte than windows alone. " in said
    assert "The default needs 0.050 more bits per byte than dense attention. " in said


def test_text_is_taken_once_and_held_out_topics_stay_held_out():
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


def test_speed_is_measured_while_all_train():
    fast = Runner("fast", {}, progress=[(t, t, 3.0) for t in range(10, 21)])
    times = [(12, 1), (16, 2), (20, 3), (21, 9), (22, 15)]
    slow = Runner("slow", {}, progress=[(*point, 3.0) for point in times])
    assert tokens_per_second([fast, slow], 100) == [100, 25]
