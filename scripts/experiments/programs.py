"""Runs the programs of an experiment: fairseq's, ours, and Python's modules."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fairseq_clusterformer.errors import UserError
from scripts.experiments.results import ROOT

#: programs as a user types them, and as this Python runs them
PROGRAMS = {
    "fairseq-train": [sys.executable, "-m", "fairseq_cli.train"],
    "fairseq-eval-lm": [sys.executable, "-m", "fairseq_cli.eval_lm"],
    "fairseq-validate": [sys.executable, "-m", "fairseq_cli.validate"],
    "clusterformer": [sys.executable, "-m", "fairseq_clusterformer"],
    "python": [sys.executable],
}
Listener = Callable[[str, str], None]  # gets a program's name and each line that it prints


def options_of(options: Mapping) -> list[str]:
    """Words of a command line; True is a flag, None and False are left out."""
    words = []
    for name, value in options.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def plug_in(options: Mapping) -> dict[str, Path]:
    """The option that loads the plug-in of a grid: its own, in the repository, or the package."""
    return {"user-dir": ROOT / options.get("user-dir", "fairseq_clusterformer")}


def fairseq(program: str, data: Path, options: Mapping) -> list[str]:
    """Words of one of fairseq's programs."""
    first = plug_in(options)  # where a reader looks for it
    return [program, str(data), *options_of(first | dict(options) | first)]


def run_together(
    programs: Mapping[str, tuple[Sequence[str], Path]],
    threads: int,
    listen: Listener = lambda name, line: None,
) -> dict[str, tuple[float, float]]:
    """Run programs at the same time, each with its output at the end of its log; returns wall
    seconds and peak MiB of each. Raises UserError: one fails. No program outlives this or any
    other exception."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes: dict[str, subprocess.Popen] = {}

    def follow(name: str) -> tuple[float, float]:
        (words, log), process, begin = programs[name], processes[name], time.perf_counter()
        last = ""
        try:
            with process.stdout as output, open(log, "a", encoding="utf-8") as file:
                for line in output:
                    file.write(line)
                    file.flush()
                    last = line.rstrip("\n")
                    listen(name, last)
        except BaseException:
            process.terminate()
            raise
        finally:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            ended = f"{words[0]} ended with status {process.returncode}"
            raise UserError(f"{ended}: {last or 'no output'} (log: {log})")
        return time.perf_counter() - begin, usage.ru_maxrss / 1024

    with ThreadPoolExecutor(len(programs)) as pool:
        try:
            for name, (words, _) in programs.items():
                argv = [*PROGRAMS[words[0]], *words[1:]]
                processes[name] = subprocess.Popen(
                    argv, env=environment, **pipes, encoding="utf-8", errors="replace"
                )
            futures = {pool.submit(follow, name): name for name in programs}
            return {futures[done]: done.result() for done in as_completed(futures)}
        except BaseException:
            for process in processes.values():
                if process.returncode is None:
                    process.terminate()
            raise
