"""Commands in processes of their own, forked from one that has imported torch and fairseq: that
import takes several times as long as a short command.

    python -P forked.py SOCKET

Nothing of the plug-in and no command is imported before the fork: that ``--user-dir`` and entry
points find them is what these commands show.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

#: what commands import besides the plug-in
IMPORTED = ("fairseq.options", "fairseq.tasks", "fairseq.trainer", "hydra")


class Forker:
    """A Python that runs commands in forks of itself.

    Args:
        python: which one.
        env: what its imports see.
    """

    def __init__(self, python: Path | str, env: dict[str, str]):
        self.folder = tempfile.TemporaryDirectory(prefix="forked")
        self.address = str(Path(self.folder.name) / "socket")
        # -P: this file's folder is no place to import from
        command = [str(python), "-P", __file__, self.address]
        self.log = Path(self.folder.name) / "log"
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start(self, words: list[str], **where: Any) -> "Forked":
        """Starts ``python WORDS``: ``-m MODULE`` or a path, and arguments.

        Args:
            where: cwd, env (all of it), and paths of files as stdin, stdout and stderr.
        """
        connection = socket.socket(socket.AF_UNIX)
        while True:
            try:
                connection.connect(self.address)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                assert self.server.poll() is None, self.log.read_text()
                time.sleep(0.05)
        stream = connection.makefile("rw")
        where = {name: value if name == "env" else str(value) for name, value in where.items()}
        print(json.dumps({"words": words, **where}), file=stream, flush=True)
        return Forked(stream, connection)

    def close(self) -> None:
        self.server.terminate()
        self.server.wait()
        self.folder.cleanup()


class Forked:
    """A command that runs, in a process group of its own."""

    def __init__(self, stream: IO[str], connection: socket.socket):
        self.stream, self.connection = stream, connection
        self.pid = int(stream.readline())

    def wait(self, timeout: float) -> int:
        """Its exit status, or minus the signal that ended it.

        Raises:
            TimeoutError: it ran on, and was killed with all that it started.
        """
        self.connection.settimeout(timeout)
        try:
            return int(self.stream.readline())
        except BaseException:
            os.killpg(self.pid, signal.SIGABRT)  # those with a faulthandler say where they are
            time.sleep(1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            raise
        finally:
            self.connection.close()


def serve(address: str) -> None:
    """For as long as whoever started this runs."""
    for name in IMPORTED:
        importlib.import_module(name)
    # a shell lets what it starts in the background ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for who has served
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(1)
        while os.getppid() == parent:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                if os.fork() == 0:
                    listener.close()
                    connection.settimeout(None)
                    run_one(connection.makefile("rw"))
                    os._exit(0)


def run_one(stream: IO[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(stream.readline())
    pid = os.fork()
    if pid == 0:
        os.setsid()
        become(**request)
    print(pid, file=stream, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=stream, flush=True)


def become(
    words: list[str], cwd: str, env: dict[str, str], stdin: str, stdout: str, stderr: str
) -> NoReturn:
    """What ``python WORDS`` would be."""
    status: object = 0
    try:
        for number, path in enumerate((stdin, stdout, stderr)):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT
            os.dup2(os.open(path, flags), number)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        program, *rest = words
        here = cwd if program == "-m" else str(Path(program).parent)
        if env.get("PYTHONFAULTHANDLER"):
            faulthandler.enable()
        sys.path[:0] = [here, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        if program == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.modules["__main__"] = ModuleType("__main__")
            runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        status = ended.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


if __name__ == "__main__":
    serve(sys.argv[1])
