"""Files of strangers are parsed in a process of their own, which has limits of time and memory.

The process parses one file after the other, of every form. It ends with the process that started
it, or with a file that takes too much.
"""

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from os import getpid

from .forms import Parsed, Unreadable, parse

SECONDS = 30.0  # of the processor for a file, and 10 more for each of its megabytes
MEMORY = 2_000_000_000  # bytes

_lock = threading.Lock()  # one file at a time


def parse_elsewhere(name: str, data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    """The title of a file, and its paragraphs with their places; see `forms.parse`. Raises
    Unreadable: if it cannot be parsed, or takes more time or memory than it may."""
    seconds, answer = SECONDS + len(data) / 100_000, b""
    how = {"name": name, "encoding": encoding, "main_text": main_text}
    with _lock:
        worker = _worker(getpid())
        try:
            with suppress(BrokenPipeError):
                worker.stdin.write(json.dumps([how, len(data), seconds]).encode() + b"\n" + data)
                worker.stdin.flush()
                answer = worker.stdout.readline()
        finally:
            if not answer.endswith(b"\n"):
                _worker.cache_clear()
                worker.kill()
                with suppress(BrokenPipeError):
                    worker.communicate()
    if not answer.endswith(b"\n"):
        if worker.returncode == -getattr(signal, "SIGPROF", 0):
            raise Unreadable(f"takes more than {seconds:.0f} seconds to read")
        raise Unreadable(f"cannot be read in {MEMORY:,} bytes of memory")
    title, found = json.loads(answer)
    if title is None:
        raise Unreadable(found)
    return title, [(text, place) for text, place in found]


@lru_cache(1)
def _worker(_owner: int) -> subprocess.Popen:
    """The process that parses, one for each process that asks."""
    command = [sys.executable, "-P", "-m", __name__, str(MEMORY)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)


def _serve(memory: int) -> None:
    """Parse what comes from stdin until it ends."""
    with suppress(ImportError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # no library prints between the answers
    for head in sys.stdin.buffer:
        how, size, seconds = json.loads(head)
        try:
            data = sys.stdin.buffer.read(size)
            _limit(max(seconds, 1e-6))
            answer = parse(data=data, **how)
        except Unreadable as error:
            answer = None, str(error)
        except MemoryError:
            return  # it may have left a part of the file in the pipe
        _limit(0)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _limit(seconds: float) -> None:
    """Let a signal end this process after so much time of the processor; 0: never."""
    with suppress(AttributeError):
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
