"""Trains language models at the same time with fairseq's own programs, and measures each."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clusterformer.errors import UserError
from scripts.experiments.scores import command_line

PAUSE = 0.1  # seconds between two looks at the logs


@dataclass
class Runner:
    """One of the models that race.

    Attributes:
        name: of the model, and of its folder.
        options: of ``fairseq-train``, in addition to the shared ones; with max-update.
        progress: for each log line its time, the updates done by then, and bits per byte.
        peak_memory: MiB of the training.
        bits_per_byte: on the held-out text.
    """

    name: str
    options: dict
    progress: list[tuple[float, int, float]] = field(default_factory=list)
    parameters: int = 0
    peak_memory: float = 0.0
    bits_per_byte: float = 0.0

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


class Program:
    """A program that runs, and the log that all its output goes to."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]):
        self.words, self.log, self.read = words, log, 0
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def new_lines(self) -> list[str]:
        """Whole lines that it has printed since the last call."""
        with open(self.log, "rb") as log:
            log.seek(self.read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def peak_memory(self) -> float | None:
        """MiB, once it has ended; None while it runs.

        Raises:
            UserError: it failed.
        """
        ended, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if not ended:
            return None
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            last = (self.log.read_text(errors="replace").splitlines() or ["no output"])[-1]
            raise UserError(
                f"{self.words[2]} ended with status {self.process.returncode}: {last} "
                f"(log: {self.log})"
            )
        return usage.ru_maxrss / 1024

    def stop(self) -> None:
        """End it if it still runs."""
        if self.process.returncode is None:
            self.process.terminate()
            self.process.wait()


def run_together(
    programs: Mapping[str, tuple[list[str], Path]],
    threads: int,
    listen: Callable[[str, str], None],
) -> dict[str, float]:
    """Run programs at the same time.

    Args:
        programs: command and log by name.
        threads: of each program.
        listen: gets the name and each line that the program prints.

    Returns:
        Peak memory in MiB of each program.

    Raises:
        UserError: one fails. No program outlives this or any other exception.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    peaks: dict[str, float] = {}
    running: dict[str, Program] = {}
    try:
        for name, (words, log) in programs.items():
            running[name] = Program(words, log, environment)
        while running:
            time.sleep(PAUSE)
            for name, program in list(running.items()):
                peak = program.peak_memory()
                for line in program.new_lines():
                    listen(name, line)
                if peak is not None:
                    peaks[name] = peak
                    del running[name]
    finally:
        for program in running.values():
            program.stop()
    return peaks


def race(runners: list[Runner], shared: dict, *, data: Path, work: Path, threads: int) -> None:
    """Train all models at the same time, each with its own threads; fills in the runners.

    Args:
        shared: options of ``fairseq-train`` for all of them; a runner's own have max-update.
        work: gets a folder for each model, with its checkpoint and log.
        threads: of each model.

    Raises:
        UserError: if one fails; the others are then stopped.
    """
    programs = {}
    for runner in runners:
        folder = work / runner.name
        folder.mkdir()
        options = {**shared, **runner.options, "save-dir": folder}
        programs[runner.name] = command_line("fairseq-train", data, options), folder / "train.log"
    by_name = {runner.name: runner for runner in runners}
    peaks = run_together(programs, threads, lambda name, line: by_name[name].listen(line))
    for runner in runners:
        runner.peak_memory = peaks[runner.name]


def tokens_per_second(runners: list[Runner], tokens: int) -> list[float]:
    """Speed of each model while all of them trained, so that none had the machine to itself.

    Args:
        tokens: tokens of an update.
    """
    begin = max(runner.progress[0][0] for runner in runners)
    end = min(runner.progress[-1][0] for runner in runners)
    speeds = []
    for runner in runners:
        together = [point for point in runner.progress if begin <= point[0] <= end]
        if len(together) < 2:  # a race of a few updates
            together = runner.progress
        (first, updates, _), (last, more, _) = together[0], together[-1]
        speeds.append((more - updates) * tokens / max(last - first, PAUSE))
    return speeds
