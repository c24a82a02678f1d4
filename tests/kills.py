"""Kills commands at random moments and gives each again: it must end right, with the same files as
a run that nobody killed.

    python -m tests.kills --kills 50

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fairseq.trainer  # before the forks  # noqa: F401
import torch

from fairseq_clusterformer.cli.main import main as clusterformer
from fairseq_clusterformer.outputs import JOURNAL
from tests.cli.in_process import SIZES, TRAINING
from tests.cli.in_process import train as fairseq_train

#: by name; each reads what `write_inputs` wrote and writes to out
COMMANDS = {
    "prepare lm": "prepare lm text text out/data --bytes",
    "prepare translation": "prepare translation text --source-lang de --target-lang en"
    " --train pairs/train --valid pairs/valid --test pairs/test --bpe-operations 270 out/data",
    "prepare classification": "prepare classification text labels/train.tsv out/data"
    " --valid labels/valid.tsv --tokenised",
    "average": "average --inputs 1.pt 2.pt --output out/average.pt",
    "bundle": "bundle python-code out/bundle",
    "export": "export python-code out/exported --to transformers",
    "perplexity": "perplexity --checkpoint python-code --text short.txt --teacher-forced"
    " --max-blocks 1 --out out/numbers.json",
    "answer": "answer --document short.txt --html out/page.html --index out/index"
    " --question What?",
    "draw": "draw --checkpoint python-code --text short.txt --out out/drawn",
    "clustering": "fit x.npy --num-clusters 3 --out out/c.npz --neural-epochs 2",
    "fairseq-train": f"{TRAINING} --arch clusterformer_lm {SIZES} --attention window+neural"
    " --attention-window 8 --num-clusters 4 --criterion clusterformer_cross_entropy --cpu"
    " --distributed-world-size 1 --num-workers 0 --no-progress-bar --save-interval-updates 2",
}
#: what is the same to a user, but never the same in its bytes
VOLATILE = (JOURNAL, ".safetensors-index", "train.log")
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink"}


def write_inputs(folder: Path) -> None:
    """What all commands read, of which some is prepared by the command before."""
    draw = random.Random(1)
    words = [f"{a}{b}" for a in "bdkm" for b in ("a", "en", "or")]

    def lines(count: int) -> str:
        return "".join(" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(count))

    for place, count in (("text/train.txt", 200), ("text/valid.txt", 40), ("text/test.txt", 9)):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(lines(count))
    (folder / "short.txt").write_text(lines(9))
    (folder / "pairs").mkdir()
    for split, count in (("train", 60), ("valid", 9), ("test", 9)):
        for language in ("de", "en"):
            (folder / "pairs" / f"{split}.{language}").write_text(lines(count))
    (folder / "labels").mkdir()
    for split, count in (("train", 60), ("valid", 12)):
        rows = (f"{'ab'[i % 2]}\t{line}\n" for i, line in enumerate(lines(count).splitlines()))
        (folder / "labels" / f"{split}.tsv").write_text("".join(rows))
    for number in (1, 2):
        state = {"model": {"weight": torch.full((300, 300), float(number))}}
        torch.save(state | {"args": None, "extra_state": {}}, folder / f"{number}.pt")
    import numpy

    numpy.save(folder / "x.npy", numpy.random.default_rng(1).normal(size=(90, 4)))
    (folder / "out").mkdir()


def run(name: str) -> int:
    """A command in this process."""
    words = COMMANDS[name].split()
    if name == "fairseq-train":
        import fairseq_clusterformer.plugin  # noqa: F401  as --user-dir does

        fairseq_train(Path("data"), COMMANDS[name], Path("out"))
        return 0
    if name == "clustering":
        from examples.clustering.__main__ import main

        return main(words)
    return clusterformer(words)


@dataclass
class Ended:
    """How a run ended: its status (negative: a signal), changes of files, seconds, its words."""

    status: int
    changes: int
    seconds: float
    said: str


def forked(name: str, folder: Path, *, change: int = 0, after: float = 0) -> Ended:
    """Run a command in a fork; kill it and its children at a change of a file or a time."""
    log, count, start = folder / "log", folder / "count", time.monotonic()
    process = os.fork()
    if process == 0:
        os.setsid()
        os.chdir(folder)
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        seen, here = 0, os.getpid()

        def watch(event: str, details: tuple) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(details[2], int) and details[2] & 0o101
            if os.getpid() == here and (writes or event in CHANGES):
                seen += 1
                if seen == change:
                    os.killpg(0, signal.SIGKILL)

        status = 1
        try:
            sys.addaudithook(watch)
            status = run(name)
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), str(seen).encode())
            os._exit(status)
    if after:
        time.sleep(after)
        try:
            os.killpg(process, signal.SIGKILL)
        except ProcessLookupError:  # not yet a group of its own
            os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    seen = int(count.read_text()) if status >= 0 else 0
    said = log.read_text() if log.exists() else ""
    return Ended(status, seen, time.monotonic() - start, said)


def files_of(folder: Path) -> dict[str, object]:
    """All that a command has written, by name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name in VOLATILE or path.is_dir():
            continue
        data: object = path.read_bytes()
        if path.suffix == ".pt" and path.parent.name == "out":
            data = {
                key: value.tolist()
                for key, value in torch.load(path, weights_only=False)["model"].items()
            }
        found[name] = data
    return found


def kill(
    names: list[str], kills: int, seed: int, folder: Path, say: Callable[[str], None] = print
) -> list[str]:
    """Kill each command in turn; return what went wrong, a line each."""
    draw, wrong = random.Random(seed), []
    inputs = folder / "inputs"
    inputs.mkdir()
    write_inputs(inputs)
    if "fairseq-train" in names:
        shutil.copytree(inputs, folder / "first")
        assert forked("prepare lm", folder / "first").status == 0
        shutil.copytree(folder / "first" / "out" / "data", inputs / "data")
    place = folder / "run"  # always the same, since some outputs hold it
    whole: dict[str, tuple[Ended, dict]] = {}
    for number in range(kills):
        name = names[number % len(names)]
        if name not in whole:
            shutil.copytree(inputs, place)
            ended = forked(name, place)
            if ended.status:
                return [*wrong, f"{name} does not run: {ended.said[-600:]}"]
            whole[name] = ended, files_of(place / "out")
            again = forked(name, place)
            if again.status or files_of(place / "out") != whole[name][1]:
                wrong.append(f"{name}, given again: status {again.status}, {again.said[-300:]}")
            shutil.rmtree(place)
        ended, expected = whole[name]
        shutil.copytree(inputs, place)
        if number // len(names) % 2:
            how = {"after": draw.uniform(0, ended.seconds)}
        else:
            how = {"change": draw.randint(1, ended.changes)}
        forked(name, place, **how)
        again = forked(name, place)
        found = files_of(place / "out")
        names_differ = sorted(found.keys() ^ expected.keys())
        differ = names_differ or [key for key in found if found[key] != expected[key]]
        line = f"{name}, killed at {how}: status {again.status}"
        if again.status or differ:
            wrong.append(f"{line}, differ: {differ}; {again.said[-400:]}")
        say(f"{'WRONG ' if again.status or differ else ''}{line} {differ or ''}")
        shutil.rmtree(place)
    return wrong


def main() -> int:
    """Kill as often as asked for; returns 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=[*COMMANDS])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = kill(args.commands, args.kills, args.seed, Path(folder))
    print(*wrong, f"{args.kills} kills, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
