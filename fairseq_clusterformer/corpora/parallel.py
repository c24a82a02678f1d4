"""One function over many items, in several processes, with the results in order."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice


def parallel(
    function: Callable, items: Iterable, workers: int | None, label: str, *, batch: int = 1000
) -> Iterator:
    """Yield ``function(item)`` of each item in order.

    Args:
        workers: processes; None: one for each core. A single batch is done by this process.
        batch: items that a worker is handed at a time.
    """
    from concurrent.futures import ProcessPoolExecutor

    from tqdm import tqdm

    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    workers = workers or (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    items = iter(items)
    first = list(islice(items, batch + 1))
    bar = tqdm(desc=label, unit_scale=True, disable=None, leave=False)
    if workers == 1 or len(first) <= batch:
        with bar:
            for item in chain(first, items):
                yield function(item)
                bar.update()
        return
    items = chain(first, items)
    batches = iter(lambda: list(islice(items, batch)), [])
    with bar, ProcessPoolExecutor(workers, initializer=_start, initargs=(function,)) as pool:
        try:
            begun = deque(pool.submit(_call, each) for each in islice(batches, 2 * workers))
            while begun:
                results = begun.popleft().result()
                begun.extend(pool.submit(_call, each) for each in islice(batches, 1))
                yield from results
                bar.update(len(results))
        finally:
            pool.shutdown(cancel_futures=True)


# A worker keeps its own copy of the function, and with it what that function has cached.


def _start(function: Callable) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one acts
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    global _function
    _function = function


def _end_with(parent: int) -> None:
    """End when the main process is killed, whose pipes a worker would hold on to."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def _call(batch: list) -> list:
    return list(map(_function, batch))
