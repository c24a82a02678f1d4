"""Kills commands at random moments and gives each again: it must end right, with the same files as
a run that nobody killed.

Half of the kills come at a random time, the others at a random change of a file or folder.
"""

import os
import random
import shutil
import signal
import sys
import time
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
    "answer --cpu --document {text} --html out.html --index out --question What?",
    f"fairseq-train {{data}} {CLUSTERFORMER} --save-dir out --save-interval-updates 2",
]
#: what is the same to a user, but never the same in its bytes
VOLATILE = (JOURNAL, LOCK, ".safetensors-index", "train.log")
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink"}


def forked(
    words: Sequence[str], place: Path, *, change: int = 0, after: float = 0
) -> tuple[int, int, float, str]:
    """Run a command in a child; kill it and its children at a change of a file or a time. Returns
    its status (negative: a signal), its changes of files, its seconds, and what it printed."""
    count, printed, start = place / "count", place / "printed", time.monotonic()
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

    process = begin(work, place)
    if after:
        time.sleep(after)
        try:
            os.killpg(process, signal.SIGKILL)
        except ProcessLookupError:  # not yet a group of its own
            os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    seen = int(count.read_text()) if status >= 0 else 0
    return status, seen, time.monotonic() - start, printed.read_text()


def files_of(place: Path) -> dict[Path, object]:
    """All that a command has written, by name."""
    paths = [*place.glob("out*"), *(place / "out").rglob("*")]
    files = [path for path in paths if path.is_file() and path.name not in VOLATILE]
    found: dict[Path, object] = {path: path.read_bytes() for path in files}
    for path in (path for path in files if path.suffix == ".pt"):
        model = torch.load(path, weights_only=False)["model"].items()
        found[path] = {key: value.tolist() for key, value in model}
    return found


def kill(line: str, kills: int, inputs: Path, folder: Path) -> list[str]:
    """Kill a command so many times, by turns at a change and at a time, each followed by the same
    command; return what went wrong, a line each."""
    draw, wrong = random.Random(line), []
    place = folder / "run"  # always the same, since some outputs hold it

    def begun() -> list[str]:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return make_words(line, inputs, place, random.Random(1))

    words = begun()
    status, changes, seconds, said = forked(words, place)
    expected = files_of(place)
    for number in range(-1, kills):
        how: dict = {"after": draw.uniform(0, seconds)}
        if number % 2:
            how = {"change": draw.randint(1, changes)}
        if number >= 0:  # else the whole command is given again
            words = begun()
            forked(words, place, **how)
        again, *_, said = forked(words, place)
        found = files_of(place)
        differ = [key for key in {*found, *expected} if found.get(key) != expected.get(key)]
        if status or again or differ:
            wrong.append(f"{line}, killed {number} at {how}: {again}, {differ}; {said[-400:]}")
    return wrong
