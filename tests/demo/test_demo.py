"""The demo: its whole path with a tiny budget, and what makes its comparison fair."""

import json
import os
import time
from itertools import pairwise

import pytest

from fairseq_clusterformer.errors import UserError
from scripts.demo import demo
from scripts.demo import race as race_module
from scripts.demo import text as demo_text
from scripts.demo.race import Runner, tokens_per_second
from scripts.experiments.programs import run_together

TINY = ("--minutes", "0.001", "--context", "64")
RESULTS = {
    *("dense", "windows", "clusters", "comparison.png", "clusters.html"),
    *("generated.txt", "passage.txt", "results.json", "data"),
}


@pytest.mark.whole
def test_whole_demo(tmp_path, capfd, monkeypatch):
    texts = {"train": b"def f(value):\n    return value\n" * 200, "valid": b"value = f(3)\n" * 50}
    for module in (demo, demo_text):
        monkeypatch.setattr(module, "library", lambda: texts)
    monkeypatch.setattr(demo, "unlearned", lambda runner: "")
    out = tmp_path / "new" / "out"
    assert demo.main([*TINY, "--out", str(out)]) == 0
    printed = capfd.readouterr().out
    kept = {p.name for p in out.iterdir() if not p.name.startswith(".")}
    assert kept == RESULTS
    record = json.loads((out / "results.json").read_text())
    assert [model["name"] for model in record["models"]] == ["dense", "windows", "clusters"]
    for model in record["models"]:
        log = (out / model["name"] / "train.log").read_text()
        assert f"num. shared model params: {model['parameters']:,}" in log
        assert model["curve"][-1][0] == model["updates"]
        assert abs(model["parameters"] / record["models"][0]["parameters"] - 1) < 0.01
    text = (out / "generated.txt").read_text(encoding="utf-8")
    assert text[demo.TOLD :].rstrip("\n") in printed
    passage = (out / "passage.txt").read_bytes()
    assert texts["valid"].startswith(passage)
    page = (out / "clusters.html").read_text(encoding="utf-8")
    assert all(record["verdict"] in said for said in (page, printed))


def python(code: str) -> list[str]:
    return ["python", "-u", "-c", code]


def test_programs_run_at_the_same_time(tmp_path):
    code = "import time; print('begins'); time.sleep(1); print({!r})"
    programs = {name: (python(code.format(name)), tmp_path / name) for name in ("a", "b")}
    heard: list[tuple[str, str]] = []
    done = run_together(programs, 1, lambda *said: heard.append(said))
    assert sorted(heard) == [("a", "a"), ("a", "begins"), ("b", "b"), ("b", "begins")]
    assert {line for _, line in heard[:2]} == {"begins"}
    assert all(seconds >= 1 and memory > 1 for seconds, memory in done.values())
    assert (tmp_path / "a").read_text() == "begins\na\n"


@pytest.mark.parametrize("interrupted", [True, False])
def test_no_program_outlives_the_others_failure(tmp_path, interrupted):
    """Neither where one fails, nor where the user interrupts."""
    sleep = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    programs = {"sleeps": (python(sleep), tmp_path / "sleeps")}
    error, said = KeyboardInterrupt, ""
    if not interrupted:
        fails = "import time; time.sleep(1); print('no such arch'); exit(3)"
        programs["fails"] = (python(fails), tmp_path / "fails")
        error, said = UserError, r"ended with status 3: no such arch \(log: "
    started: list[int] = []

    def listen(name: str, line: str) -> None:
        if name == "sleeps":
            started.append(int(line))
        if interrupted:
            raise KeyboardInterrupt

    with pytest.raises(error, match=said):
        run_together(programs, 1, listen)
    (process,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


# Fairness


def test_the_clock_stops_all_models(tmp_path, monkeypatch):
    """None is stopped by its updates; their learning rates fall by their own speeds."""
    seen = {}

    def run_together(programs, threads, listen):
        seen.update({name: dict(pairwise(words)) for name, (words, _) in programs.items()})
        return dict.fromkeys(programs, (1.0, 1.0))

    monkeypatch.setattr(race_module, "run_together", run_together)
    runners = [Runner(name, demo.of_updates(n)) for name, n in (("slow", 70), ("fast", 700))]
    where = {"data": tmp_path, "work": tmp_path, "threads": 1}
    race_module.race(runners, demo.shared_options(64, 2), seconds=90, **where)
    for name, updates in (("slow", "70"), ("fast", "700")):
        assert seen[name]["--stop-time-hours"] == "0.025"
        assert seen[name]["--max-update"] == str(demo.MANY)
        assert seen[name]["--total-num-update"] == updates
        assert seen[name]["--decoder-layers"] == "2"


def test_something_is_printed_while_nothing_happens(monkeypatch, capsys):
    assert race_module.EVERY < 10
    monkeypatch.setattr(race_module, "EVERY", 0.01)
    with race_module.alive(lambda: str(Runner("dense", {}, [(0.0, 7, 3.21)]))):
        time.sleep(0.1)
    assert "s; dense 7 (3.21 bits per byte)" in capsys.readouterr().out


def test_what_was_not_learned_is_not_shown():
    for updates, bits, said in (
        (100, 2.4, ""),
        (37, 2.4, "37 updates are too few, about 100 are needed"),
        (100, 4.0, "4.00 bits per byte cannot be read"),
    ):
        runner = Runner("clusters", {}, [(0.0, updates, bits)], bits_per_byte=bits)
        assert demo.unlearned(runner) == said


def test_held_out_files_are_whole_and_tests_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_text, "HELD_OUT", 2)
    names = ["a.py", "b/c.py", "d.py", "test/e.py", "b/site-packages/f.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n" * 3)
    texts = demo_text.library(tmp_path)
    whole = [f"# {name}\n".encode() * 3 for name in names[:3]]
    assert sum(len(text) for text in texts.values()) == sum(map(len, whole))
    for text in whole:
        assert (text in texts["train"]) != (text in texts["valid"])
    assert demo_text.first_lines(b"one\ntwo\nthree\n", 9) == b"one\ntwo\n"


def test_speed_is_measured_while_all_train():
    fast = Runner("fast", {}, progress=[(t, t, 3.0) for t in range(10, 21)])
    times = [(12, 1), (16, 2), (20, 3), (21, 9), (22, 15)]
    slow = Runner("slow", {}, progress=[(*point, 3.0) for point in times])
    assert tokens_per_second([fast, slow], 100) == [100, 25]
    heard = Runner("heard", {})
    heard.listen("| Start iterating over samples")
    heard.listen('| train_inner | {"num_updates": 1, "loss": 8}')
    assert 0 < heard.began <= heard.progress[0][0]
