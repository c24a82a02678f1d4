"""Trains language models at the same time with fairseq's own programs, and measures each."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from scripts.experiments.programs import fairseq, run_together

SHORTEST = 0.1  # seconds, of a race of a few updates
EVERY = 8  # seconds after which something is printed


@dataclass
class Runner:
    """One of the models that race."""

    name: str  # of the model, and of its folder
    options: dict  # of ``fairseq-train``, in addition to the shared ones
    #: for each log line its time, the updates done by then, and bits per byte
    progress: list[tuple[float, int, float]] = field(default_factory=list)
    parameters: int = 0
    peak_memory: float = 0.0  # MiB of the training
    bits_per_byte: float = 0.0  # on the held-out text
    began: float = 0.0  # when its first update did

    @property
    def updates(self) -> int:
        """How many it has made."""
        return self.progress[-1][1] if self.progress else 0

    def listen(self, line: str) -> None:
        """Take the numbers from a line of a log."""
        if "| train_inner | {" in line:
            record = json.loads(line[line.index("{") :])
            self.progress.append(
                (time.monotonic(), int(record["num_updates"]), float(record["loss"]))
            )
        elif "Start iterating over samples" in line:
            self.began = self.began or time.monotonic()
        elif "num. shared model params: " in line:
            count = line.split("num. shared model params: ")[1].split()[0]
            self.parameters = int(count.replace(",", ""))
        elif "| valid | {" in line:
            self.bits_per_byte = float(json.loads(line[line.index("{") :])["valid_loss"])

    def __str__(self) -> str:
        bits = f" ({self.progress[-1][2]:.2f} bits per byte)" if self.progress else ""
        return f"{self.name} {self.updates}{bits}"


def race(
    runners: list[Runner], shared: dict, *, seconds: float, data: Path, work: Path, threads: int
) -> None:
    """Train all models at the same time and for the same time, each with its own threads, in a
    folder of ``work`` that becomes empty first; fills in the runners. Raises UserError: if one
    fails; the others are then stopped."""
    programs = {}
    for runner in runners:
        folder = work / runner.name
        shutil.rmtree(folder, ignore_errors=True)  # of the trial
        folder.mkdir()
        options = {"stop-time-hours": seconds / 3600, "log-interval": 1}
        options = {**shared, **options, **runner.options, "save-dir": folder}
        programs[runner.name] = fairseq("fairseq-train", data, options), folder / "train.log"
    by_name = {runner.name: runner for runner in runners}
    with alive(lambda: f"updates: {', '.join(map(str, runners))}"):
        done = run_together(programs, threads, lambda name, line: by_name[name].listen(line))
    for runner in runners:
        _, runner.peak_memory = done[runner.name]


@contextmanager
def alive(status: Callable[[], str]) -> Iterator[None]:
    """Print every few seconds how long this has lasted, and where it is."""
    began, ended = time.monotonic(), Event()

    def tell() -> None:
        while not ended.wait(EVERY):
            print(f"  {time.monotonic() - began:3.0f} s; {status()}", flush=True)

    thread = Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.stdout.flush()


def tokens_per_second(runners: list[Runner], tokens: int) -> list[float]:
    """Speed of each model, by the tokens of an update, while all of them trained, so that none had
    the machine to itself."""
    begin = max(runner.progress[0][0] for runner in runners)
    end = min(runner.progress[-1][0] for runner in runners)
    speeds = []
    for runner in runners:
        together = [point for point in runner.progress if begin <= point[0] <= end]
        if len(together) < 2:  # a race of a few updates, the first of which takes longer
            together = [(runner.began, 0, 0.0), *runner.progress]
        (first, updates, _), (last, more, _) = together[0], together[-1]
        speeds.append((more - updates) * tokens / max(last - first, SHORTEST))
    return speeds
