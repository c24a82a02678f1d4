"""Commands in processes of their own, forked from one that has imported torch and fairseq: that
import takes several times as long as a short command.

Nothing of the plug-in and no command is imported before the fork: that ``--user-dir`` and entry
points find them is what these commands show.
"""

import faulthandler
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

CONTEXT = multiprocessing.get_context("forkserver")
#: what commands import besides the plug-in
CONTEXT.set_forkserver_preload(["fairseq.options", "fairseq.tasks", "fairseq.trainer", "hydra"])


class Forked:
    """``python WORDS``, which are a path and arguments.

    Args:
        where: cwd, env (all of it), and paths of files as stdin, stdout and stderr.
    """

    def __init__(self, words: list[str], **where: object):
        self.process = CONTEXT.Process(target=_become, args=(words,), kwargs=where)
        self.process.start()
        self.pid = self.process.pid

    def wait(self, timeout: float) -> int:
        """Its exit status, or minus the signal that ended it.

        Raises:
            TimeoutError: it ran on, and was killed with all that it started.
        """
        self.process.join(timeout)
        if self.process.exitcode is None:
            os.killpg(self.pid, signal.SIGABRT)  # those with a faulthandler say where they are
            time.sleep(1)
            os.killpg(self.pid, signal.SIGKILL)
            raise TimeoutError
        return self.process.exitcode


def end_as_a_program(work: Callable[[], object]) -> NoReturn:
    """Ends this process with what `work` returns, or as Python ends for an error."""
    status: object = 1
    try:
        status = work()
    except SystemExit as ended:
        status = ended.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # as Python does where nothing catches it
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


def _become(words: list[str], cwd: Path, env: dict[str, str], **files: Path) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as Python begins with
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT
        os.dup2(os.open(files[name], flags), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  multiprocessing closes it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if env.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    root = str(Path(__file__).resolve().parents[1])  # where this file was imported from
    path = [str(Path(words[0]).parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = path + [place for place in sys.path if place != root]
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "pytest")]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = words
    end_as_a_program(lambda: runpy.run_path(words[0], run_name="__main__") and None)
