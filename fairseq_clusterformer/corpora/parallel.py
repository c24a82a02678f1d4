"""One function over many items, in several processes, with the results in order."""

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator

BATCH = 100_000  # items handed to the workers at a time


def parallel(
    function: Callable,
    items: Iterable,
    workers: int,
    label: str,
    *,
    batch: int | None = None,
    unit: str = " pairs",
) -> Iterator:
    """Yield ``function(item)`` of each item in order, by so many processes (1: this one alone).
    `batch`: how many items may be read ahead of what is yielded (default: `BATCH`)."""
    from concurrent.futures import ProcessPoolExecutor

    from tqdm import tqdm

    with contextlib.ExitStack() as stack:
        results = map(function, items)
        if workers > 1:
            pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(function,))
            stack.callback(pool.shutdown, cancel_futures=True)
            results = _batches(pool, iter(items), batch or BATCH)
        yield from tqdm(results, desc=label, unit=unit, disable=None, leave=False)


def _batches(pool, items: Iterator, size: int) -> Iterator:
    while batch := list(itertools.islice(items, size)):
        yield from pool.map(_call, batch, chunksize=max(1, size // 100))


# A worker keeps its own copy of the function, and with it what that function has cached.


def _start(function: Callable) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one acts
    global _function
    _function = function


def _call(item: object) -> object:
    return _function(item)
