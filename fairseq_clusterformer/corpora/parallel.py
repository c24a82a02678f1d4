"""One function over many items, in several processes, with the results in order."""

import itertools
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path


def parallel(
    function: Callable,
    items: Iterable,
    workers: int | None,
    label: str,
    *,
    batch: int = 1000,
    size: Callable[[object], int] = lambda _: 1,
    unit: str = " pairs",
    total: int | None = None,
    kept: Path | None = None,
) -> Iterator:
    """Yield ``function(item)`` of each item in order.

    Args:
        workers: processes; None: one for each core. A single batch is done by this process.
        batch: the `size` of the items that a worker is handed at a time.
        unit, total: what `size` counts, and of all items, for the progress bar.
        kept: a folder for the results of each batch, which are arrays, or what JSON can hold. A
            run that was stopped goes on with those that are there, if it is given the same
            function and items.
    """
    from concurrent.futures import ProcessPoolExecutor

    from tqdm import tqdm

    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    workers = workers or (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    batches = _batches(items, batch, size)
    first = list(itertools.islice(batches, 2))
    how = {"unit": unit, "unit_scale": True, "disable": None, "leave": False}
    with ExitStack() as stack, tqdm(desc=label, total=total, **how) as bar:
        begin, ahead = partial(partial, _results, function), 0
        if workers > 1 and len(first) > 1:
            pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(function,))
            stack.callback(pool.shutdown, cancel_futures=True)
            begin, ahead = lambda *given: pool.submit(_call, *given).result, 2 * workers
        begun: deque[tuple[int, Callable[[], list], Path | None]] = deque()
        for start, end, each in itertools.chain(first, batches, [(0, 0, None)] * ahead):
            if each is not None:
                file = kept and kept / f"{start}-{end}"
                is_there = file is not None and file.exists()
                begun.append((end - start, None if is_there else begin(each, file), file))
            if len(begun) > ahead or (each is None and begun):
                number, done, file = begun.popleft()
                results = done() if done else None
                yield from _read(file) if file else results
                bar.update(number)


def _batches(
    items: Iterable, most: int, size: Callable[[object], int]
) -> Iterator[tuple[int, int, list]]:
    """Items, and the size of all before them and with them."""
    batch, start, end = [], 0, 0
    for item in items:
        batch.append(item)
        end += size(item)
        if end - start >= most:
            yield start, end, batch
            batch, start = [], end
    if batch:
        yield start, end, batch


def _results(function: Callable, batch: list, file: Path | None) -> list | None:
    """What is returned, or written to the file, in a form that can run no code."""
    import numpy as np

    results = [function(item) for item in batch]
    if file is None:
        return results
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(new := file.with_suffix(".new"), "wb") as opened:
        if isinstance(results[0], np.ndarray):
            np.savez(opened, *results)
        else:
            opened.write(json.dumps(results).encode())
    new.rename(file)
    return None


def _read(file: Path) -> list:
    import numpy as np

    with open(file, "rb") as opened:
        if opened.read(2) != b"PK":
            return json.loads(file.read_bytes())
        opened.seek(0)
        return list(np.load(opened, allow_pickle=False).values())


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


def _call(batch: list, file: Path | None) -> list | None:
    return _results(_function, batch, file)
