"""Kills commands at random moments and gives each again: it must end right, with the same files as
a run that nobody killed.

    python -m tests.kills --kills 50 [--only WORD]

Half of the kills come at a random time, the others at a random change of a file or folder.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fairseq_clusterformer.compat.saving import LOCK
from fairseq_clusterformer.outputs import JOURNAL
from tests import malformed
from tests.cli.in_process import CLUSTERFORMER
from tests.malformed import begin, make_inputs, make_words, run_words

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
    count, start = place / "count", time.monotonic()

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
            os.write(os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), str(seen).encode())

    process = begin(work, place)
    if after:
        time.sleep(after)
        try:
            os.killpg(process, signal.SIGKILL)
        except ProcessLookupError:  # not yet a group of its own
            os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    seen = int(count.read_text()) if status >= 0 else 0
    said = (place / "printed").read_text() if (place / "printed").exists() else ""
    return status, seen, time.monotonic() - start, said


def files_of(place: Path) -> dict[str, object]:
    """All that a command has written, by name."""
    found: dict[str, object] = {}
    for path in [*place.glob("out*"), *sorted((place / "out").rglob("*"))]:
        if path.name in VOLATILE or path.is_dir():
            continue
        found[str(path)] = path.read_bytes()
        if path.suffix == ".pt":
            model = torch.load(path, weights_only=False)["model"].items()
            found[str(path)] = {key: value.tolist() for key, value in model}
    return found


def kill(
    lines: Sequence[str],
    kills: int,
    seed: int,
    inputs: Path,
    folder: Path,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Kill each command in turn; return what went wrong, a line each."""
    draw, wrong = random.Random(seed), []
    place = folder / "run"  # always the same, since some outputs hold it
    whole: dict[str, tuple[int, float, dict]] = {}

    def begun(line: str) -> list[str]:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return make_words(line, inputs, place, random.Random(1))[0]

    for number in range(kills):
        line = lines[number % len(lines)]
        words = begun(line)
        if line not in whole:
            status, changes, seconds, said = forked(words, place)
            if status:
                return [*wrong, f"{line} does not run: {said[-600:]}"]
            whole[line] = changes, seconds, files_of(place)
            status, *_, said = forked(words, place)
            if status or files_of(place) != whole[line][2]:
                wrong.append(f"{line}, given again: status {status}, {said[-300:]}")
            begun(line)
        changes, seconds, expected = whole[line]
        if number // len(lines) % 2:
            how = {"after": draw.uniform(0, seconds)}
        else:
            how = {"change": draw.randint(1, changes)}
        forked(words, place, **how)
        status, *_, said = forked(words, place)
        found = files_of(place)
        names_differ = sorted(found.keys() ^ expected.keys())
        differ = names_differ or [key for key in found if found[key] != expected[key]]
        told = f"{line[:60]}, killed at {how}: status {status}"
        if status or differ:
            wrong.append(f"{told}, differ: {differ}; {said[-400:]}")
        say(f"{'WRONG ' if status or differ else ''}{told} {differ or ''}")
    return wrong


def main() -> int:
    """Kill as often as asked for; returns 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="commands that hold this")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (inputs := Path(folder, "inputs")).mkdir()
        make_inputs(inputs)
        lines = [line for line in COMMANDS if args.only in line]
        wrong = kill(lines, args.kills, args.seed, inputs, Path(folder))
    print(*wrong, f"{args.kills} kills, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
