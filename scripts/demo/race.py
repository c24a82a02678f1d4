"""Trains language models at the same time with fairseq's own programs, and measures each."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from tqdm import tqdm

from fairseq_clusterformer.errors import UserError
from scripts.experiments.scores import command_line


@dataclass
class Runner:
    """One of the models that race.

    Attributes:
        name: of the model, and of its folder.
        options: of ``fairseq-train``, in addition to the shared ones.
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


class Programs:
    """Programs that run at the same time; none outlives :meth:`stop`."""

    def __init__(self, threads: int):
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.running: set[subprocess.Popen] = set()
        self.stopped = False
        self.lock = threading.Lock()

    def run(self, argv: list[str], log: Path, listen: Callable[[str], None]) -> float:
        """Run to the end, all output into a log and line by line to ``listen``.

        Returns:
            Peak memory in MiB.

        Raises:
            UserError: if it fails.
        """
        with self.lock:
            if self.stopped:
                raise UserError("stopped")
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self.environment,
            )
            self.running.add(process)
        with open(log, "w") as copy:
            for line in process.stdout:
                copy.write(line)
                copy.flush()
                listen(line)
        _, status, usage = os.wait4(process.pid, 0)
        with self.lock:
            self.running.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            last = (log.read_text().splitlines() or ["no output"])[-1]
            raise UserError(
                f"{argv[2]} ended with status {process.returncode}: {last} (log: {log})"
            )
        return usage.ru_maxrss / 1024

    def stop(self) -> None:
        """End what runs, and let nothing more begin."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.send_signal(signal.SIGTERM)


def race(
    runners: list[Runner],
    shared: dict,
    *,
    data: Path,
    work: Path,
    threads: int,
) -> None:
    """Train and test all models at the same time, each with its own threads; fills in the runners.

    Args:
        shared: options of ``fairseq-train`` for all of them.
        work: gets a folder for each model, with its checkpoint and logs.
        threads: of each model.

    Raises:
        UserError: if one fails; the others are then stopped.
    """
    programs = Programs(threads)
    bars = [ProgressBar(r, shared["max-update"], i) for i, r in enumerate(runners)]
    # An interruption can come anywhere in this thread: in the middle of concurrent.futures it
    # would leave a lock locked for ever.
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run_lane(runner: Runner, bar: ProgressBar) -> None:
        error = None
        try:
            _train_and_test(runner, shared, data, work, programs, bar)
        except BaseException as caught:
            error = caught
        ended.put(error)

    lanes = [
        threading.Thread(target=run_lane, args=lane) for lane in zip(runners, bars, strict=True)
    ]
    try:
        for lane in lanes:
            lane.start()
        for _ in lanes:
            if (error := ended.get()) is not None:
                raise error
    finally:
        programs.stop()
        for lane in lanes:
            if lane.is_alive():
                lane.join()
        for bar in bars:
            bar.close()


def _train_and_test(
    runner: Runner, shared: dict, data: Path, work: Path, programs: Programs, bar: "ProgressBar"
) -> None:
    folder = work / runner.name
    folder.mkdir()

    def listen(line: str) -> None:
        if "| train_inner | {" in line:
            record = json.loads(line[line.index("{") :])
            updates, loss = int(record["num_updates"]), float(record["loss"])
            runner.progress.append((time.monotonic(), updates, loss))
            bar.show(loss, float(record["wps"]))
        elif "num. shared model params: " in line:
            count = line.split("num. shared model params: ")[1].split()[0]
            runner.parameters = int(count.replace(",", ""))

    options = {**shared, **runner.options, "save-dir": folder}
    argv = command_line("fairseq-train", data, options)
    runner.peak_memory = programs.run(argv, folder / "train.log", listen)

    def take_loss(line: str) -> None:
        if "Loss (base 2): " in line:
            runner.bits_per_byte = float(line.split("Loss (base 2): ")[1].split(",")[0])

    testing = {
        "path": folder / "checkpoint_last.pt",
        "gen-subset": "valid",
        "tokens-per-sample": shared["tokens-per-sample"],
        "sample-break-mode": "none",
        "batch-size": shared["batch-size"],
        "log-format": "none",
        "cpu": True,
    }
    argv = command_line("fairseq-eval-lm", data, testing)
    programs.run(argv, folder / "test.log", take_loss)


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
        speeds.append((more - updates) * tokens / max(last - first, 1e-9))
    return speeds


class ProgressBar:
    """Progress of one model: a bar on a terminal, ten lines elsewhere."""

    def __init__(self, runner: Runner, updates: int, position: int):
        self.runner, self.updates = runner, updates
        self.next_line = 0.0
        self.bar = tqdm(
            total=updates,
            desc=f"{runner.name:8}",
            position=position,
            disable=not sys.stderr.isatty(),
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}{postfix}",
        )

    def show(self, bits: float, speed: float) -> None:
        done = self.runner.progress[-1][1]
        text = f"update {done} of {self.updates}, {bits:.2f} bits per byte, {speed:,.0f} tokens/s"
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(done - self.bar.n)
        if self.bar.disable and done >= self.next_line:
            print(f"  {self.runner.name:8} {text}", flush=True)
            self.next_line = done + self.updates / 10

    def close(self) -> None:
        self.bar.close()
