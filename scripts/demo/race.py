"""Trains language models at the same time with fairseq's own programs, and measures each."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from scripts.experiments.programs import fairseq, run_together

SHORTEST = 0.1  # seconds, of a race of a few updates


@dataclass
class Runner:
    """One of the models that race."""

    name: str  # of the model, and of its folder
    options: dict  # of ``fairseq-train``, in addition to the shared ones; with max-update
    #: for each log line its time, the updates done by then, and bits per byte
    progress: list[tuple[float, int, float]] = field(default_factory=list)
    parameters: int = 0
    peak_memory: float = 0.0  # MiB of the training
    bits_per_byte: float = 0.0  # on the held-out text

    def listen(self, line: str) -> None:
        """Take the numbers from a line of a log; prints ten lines in all its updates."""
        updates = self.options["max-update"]
        if "| train_inner | {" in line:
            record = json.loads(line[line.index("{") :])
            done, loss, speed = (float(record[key]) for key in ("num_updates", "loss", "wps"))
            tenths = self.progress[-1][1] * 10 // updates if self.progress else 0
            self.progress.append((time.monotonic(), int(done), loss))
            if done * 10 // updates > tenths:
                shown = f"update {done:.0f} of {updates}, {loss:.2f} bits per byte"
                print(f"  {self.name:8} {shown}, {speed:,.0f} tokens/s", flush=True)
        elif "num. shared model params: " in line:
            count = line.split("num. shared model params: ")[1].split()[0]
            self.parameters = int(count.replace(",", ""))
        elif "| valid | {" in line:
            self.bits_per_byte = float(json.loads(line[line.index("{") :])["valid_loss"])


def race(runners: list[Runner], shared: dict, *, data: Path, work: Path, threads: int) -> None:
    """Train all models at the same time, each with its own threads, in a folder of ``work``; fills
    in the runners. Raises UserError: if one fails; the others are then stopped."""
    programs = {}
    for runner in runners:
        folder = work / runner.name
        folder.mkdir()
        options = {**shared, **runner.options, "save-dir": folder}
        programs[runner.name] = fairseq("fairseq-train", data, options), folder / "train.log"
    by_name = {runner.name: runner for runner in runners}
    done = run_together(programs, threads, lambda name, line: by_name[name].listen(line))
    for runner in runners:
        _, runner.peak_memory = done[runner.name]


def tokens_per_second(runners: list[Runner], tokens: int) -> list[float]:
    """Speed of each model, by the tokens of an update, while all of them trained, so that none had
    the machine to itself."""
    begin = max(runner.progress[0][0] for runner in runners)
    end = min(runner.progress[-1][0] for runner in runners)
    speeds = []
    for runner in runners:
        together = [point for point in runner.progress if begin <= point[0] <= end]
        if len(together) < 2:  # a race of a few updates
            together = runner.progress
        (first, updates, _), (last, more, _) = together[0], together[-1]
        speeds.append((more - updates) * tokens / max(last - first, SHORTEST))
    return speeds
