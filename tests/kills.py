"""Kills commands at random changes of a file or folder and gives each again: it must end right,
with the same files as a run that nobody killed."""

import os
import random
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fairseq_clusterformer.compat.saving import LOCK
from fairseq_clusterformer.outputs import JOURNAL
from tests import malformed
from tests.cli.in_process import CLUSTERFORMER
from tests.malformed import begin, make_words, run_words

#: they write to out, or to out.pt
COMMANDS = [line for line in malformed.COMMANDS if " out" in line and "fairseq-train" not in line]
COMMANDS += [
    "answer --cpu --document {text.txt} --html out.html --index out --question What?",
    f"fairseq-train {{data}} {CLUSTERFORMER} --save-dir out --save-interval-updates 2",
]
#: what is the same to a user, but never the same in its bytes
VOLATILE = (JOURNAL, LOCK, ".safetensors-index", "train.log")
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink"}


def forked(words: Sequence[str], place: Path, change: int = 0) -> tuple[int, int, str]:
    """Run a command in a child; kill it and its children at a change of a file. Returns its status
    (negative: a signal), its changes of files, and what it printed."""
    count, printed = place / "count", place / "printed"
    printed.touch()  # by now: the child may be killed before it prints

    def work() -> int | None:
        seen, here = 0, os.getpid()
        os.setsid()

        def watch(event: str, details: tuple) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(details[2], int) and details[2] & 0o101
            if os.getpid() == here and (writes or event in CHANGES):
                seen += 1
                if seen == change:
                    os.killpg(0, signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            return run_words([*words])
        finally:
            count.write_text(str(seen))

    status = os.waitstatus_to_exitcode(os.waitpid(begin(work, place), 0)[1])
    return status, int(count.read_text()) if status >= 0 else 0, printed.read_text()


def files_of(place: Path) -> dict[Path, object]:
    """All that a command has written, by name."""
    paths = [*place.glob("out*"), *(place / "out").rglob("*")]
    files = [path for path in paths if path.is_file() and path.name not in VOLATILE]
    found: dict[Path, object] = {path: path.read_bytes() for path in files}
    for path in (path for path in files if path.suffix == ".pt"):
        model = torch.load(path, weights_only=False)["model"].items()
        found[path] = {key: value.tolist() for key, value in model}
    return found


def kill(line: str, kills: int, inputs: Path, place: Path) -> list[str]:
    """Kill a command so many times, each followed by the same command; return what went wrong, a
    line each. The folder is always the same, since some outputs hold it."""
    draw, wrong, changes = random.Random(line), [], 0
    for number in range(kills + 1):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        words = make_words(line, inputs, place, random.Random(1))
        change = draw.randint(1, changes) if number else 0
        status, seen, said = forked(words, place, change)
        if not number:  # the whole command, which is given again as well
            changes, expected = seen, files_of(place)
            wrong += [f"{line}: {status}, {said[-400:]}"] * bool(status)
        again, _, said = forked(words, place)
        found = files_of(place)
        differ = [key for key in {*found, *expected} if found.get(key) != expected.get(key)]
        if again or differ:
            wrong.append(f"{line}, killed at change {change}: {again}, {differ}; {said[-400:]}")
    return wrong
