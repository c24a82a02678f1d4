"""What tests of every part need: one thread, a fixed seed, fairseq's command lines."""

import json
import logging
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

# Before torch and faiss read it: two pools of threads on few cores are slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from filelock import FileLock

import fairseq_clusterformer.plugin  # noqa: F401  models, criterions, tasks
from tests.composing import composed_once
from tests.forked import Forked

# Triton reads it where kernels are defined: without a GPU they run under its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

REPO_ROOT = Path(__file__).resolve().parents[1]
SECONDS = REPO_ROOT / "tests" / "passed" / "seconds.json"
SECONDS_OF_A_COMMAND = 300  # after which it is killed, with all that it started

RunCli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def logging_stays_as_it_was():
    """Programs change it for their process, which is that of the tests: they switch it off, write
    to where stdout is captured, ask fairseq for less, or disable loggers, as hydra does."""
    root, fairseqs = logging.getLogger(), logging.getLogger("fairseq")
    handlers, levels = root.handlers[:], (root.level, fairseqs.level)
    yield
    logging.disable(logging.NOTSET)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    fairseqs.setLevel(levels[1])
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _where_triton_can_run(request: pytest.FixtureRequest):
    """Tests whose ``impl`` is triton make their tensors on the GPU, if there is one."""
    of_triton = is_of_triton(request.node)
    if of_triton:
        needed = None if torch.cuda.is_available() else "3.9"  # of its interpreter
        pytest.importorskip("triton", needed, reason="no triton, or too old an interpreter")
    on_gpu = of_triton and torch.cuda.is_available()
    with torch.device("cuda") if on_gpu else nullcontext():
        yield


def is_of_triton(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    return given is not None and given.params.get("impl") == "triton"


@pytest.fixture(scope="session", autouse=True)
def _fast():
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with composed_once():
        yield


def sampled(values: Iterable, sample: Container, mark: str = "whole") -> list:
    """Values of a parametrisation, of which only those of the sample run by default."""
    rest = getattr(pytest.mark, mark)
    return [value if value in sample else pytest.param(value, marks=rest) for value in values]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one of pytest's workers makes, and all of them read."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            try:
                make(folder)
            except BaseException:
                shutil.rmtree(folder)
                raise
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first; what Triton's interpreter runs is of the matrix."""
    kept = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    items.sort(key=lambda item: -kept.get(item.nodeid.partition("::")[0], 1))
    for item in items:
        if is_of_triton(item):
            item.add_marker(pytest.mark.matrix)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Keeps the seconds of each file where ``scripts/test.sh --all`` asks for it."""
    if "KEEP_SECONDS" not in os.environ:
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    rounded = {name: round(spent) for name, spent in sorted(seconds.items()) if spent >= 1.5}
    SECONDS.write_text(json.dumps(rounded, indent=0) + "\n")


@pytest.fixture(scope="session")
def run_cli() -> RunCli:
    return run_command


def run_command(
    program: str,
    *arguments: object,
    user_dir: Path | str | None = REPO_ROOT / "fairseq_clusterformer",
    check: bool = True,
    fresh: bool = False,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs one of this environment's programs in a process of its own.

    Args:
        program: ``python``, or what is installed, such as ``fairseq-train``.
        user_dir: handed to fairseq's programs as they want it.
        check: fail the test unless the exit status is 0.
        fresh: not even fairseq's programs begin with what ``tests/forked.py`` has imported.
        env: variables added to this process's.

    Returns:
        With everything it printed, errors too, as ``stdout``.
    """
    # not resolved: a virtual environment's python is a link to the one that it was made with
    beside_python = Path(sys.executable).parent / program
    command = [sys.executable if program == "python" else str(beside_python)]
    command += [str(argument) for argument in arguments]
    if user_dir is not None and program == "fairseq-hydra-train":
        command.append(f"common.user_dir={user_dir}")
    elif user_dir is not None and program.startswith("fairseq-"):
        command += ["--user-dir", str(user_dir)]

    where = {"cwd": cwd or Path.cwd(), "env": os.environ | (env or {})}
    with tempfile.TemporaryDirectory() as folder:
        (printed := Path(folder, "printed")).touch()
        try:
            if program.startswith(("fairseq-", "clusterformer")) and not fresh:
                files = {"stdin": Path(os.devnull), "stdout": printed, "stderr": printed}
                status = Forked(command, **where, **files).wait(SECONDS_OF_A_COMMAND)
            else:
                status = _run_anew(command, printed, **where)
        except (TimeoutError, subprocess.TimeoutExpired):
            status = "it runs on"
        output = printed.read_text()
    if check and status or isinstance(status, str):
        pytest.fail(f"exit status {status}: {shlex.join(command)}\n{output[-4000:]}")
    return subprocess.CompletedProcess(command, status, output)


def _run_anew(command: list[str], printed: Path, **where) -> int:
    how = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
    with (
        printed.open("w") as output,
        subprocess.Popen(command, stdout=output, **how, **where) as process,
    ):
        try:
            return process.wait(SECONDS_OF_A_COMMAND)
        finally:  # workers and ranks too, also if interrupted from the keyboard
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
