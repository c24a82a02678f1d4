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
    """Yield ``function(item)`` of each item in order, by so many workers, or one for each core;
    each is handed a batch at a time. A single batch is done by this process."""
    from tqdm import tqdm

    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    workers = workers or (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    items = iter(items)
    batches = iter(lambda: list(islice(items, batch)), [])
    first = list(islice(batches, 2))
    if workers == 1 or len(first) < 2:
        results = map(function, chain(*first, items))
    else:
        results = _in_processes(function, chain(first, batches), workers)
    yield from tqdm(results, label, unit_scale=True, disable=None, leave=False)


def _in_processes(function: Callable, batches: Iterator, workers: int) -> Iterator:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(workers, initializer=_start, initargs=(function,)) as pool:
        try:
            begun = deque(pool.submit(_call, each) for each in islice(batches, 2 * workers))
            while begun:
                results = begun.popleft().result()
                begun.extend(pool.submit(_call, each) for each in islice(batches, 1))
                yield from results
        finally:
            pool.shutdown(cancel_futures=True)


def _start(function: Callable) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one acts
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    global _function
    _function = function  # a worker's own copy, with what it has cached


def _end_with(parent: int) -> None:
    """End when the main process is killed, whose pipes a worker would hold on to."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def _call(batch: list) -> list:
    return list(map(_function, batch))
