"""A process for each task, so many at a time."""

import multiprocessing
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import connection


def in_processes(
    tasks: dict[str, Callable[[], None]], workers: int
) -> Iterator[tuple[str, str | None]]:
    """Run tasks in forked processes; what dies in one, for want of memory say, ends that one
    alone.

    Args:
        tasks: what to call, by name.
        workers: processes at a time.

    Yields:
        The name of each as it ends, and what went wrong, or None.
    """
    context = multiprocessing.get_context("fork")
    running: dict = {}
    waiting = iter(tasks.items())
    try:
        while True:
            for name, task in islice(waiting, workers - len(running)):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(task, sender))
                process.start()
                sender.close()
                running[process.sentinel] = process, receiver, name
            if not running:
                return
            for sentinel in connection.wait(list(running)):
                process, receiver, name = running.pop(sentinel)
                process.join()
                try:
                    yield name, receiver.recv()
                except EOFError:
                    yield name, f"its process ended with status {process.exitcode}"
    finally:
        for process, *_ in running.values():
            process.terminate()


def _work(task: Callable[[], None], sender: connection.Connection) -> None:
    try:
        task()
    except Exception as error:
        sender.send(str(error) or type(error).__name__)
    else:
        sender.send(None)
