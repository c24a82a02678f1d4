"""What a long conversion says of itself, and the memory that it may take."""

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from fairseq_clusterformer.errors import UserError

EVERY = 30.0  # seconds between lines where there is no terminal


class Watch:
    """Tells what is being done: a bar on a terminal, else a line every half minute.

    Args:
        every: seconds between lines.
    """

    def __init__(self, every: float = EVERY):
        self._what, self._done, self._begun = "begin", "", time.monotonic()
        self._every, self._ended = every, threading.Event()
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, steps: range, name: str) -> Iterator[int]:
        """Yield the steps of what has a name."""
        self.at(name)
        bar = tqdm(steps, desc=name, unit="batch", disable=not self._is_terminal)
        for number, step in enumerate(bar):
            self._done = f" {number} of {len(steps)} batches,"
            yield step
        self._done = " done,"

    def at(self, what: str) -> None:
        """Say what comes now."""
        self._what, self._done = what, ""

    @contextmanager
    def told(self) -> Iterator["Watch"]:
        """Write lines in the meantime. Memory that runs out is a UserError."""
        thread = threading.Thread(target=self._write, daemon=True)
        if not self._is_terminal:
            thread.start()
        try:
            yield self
        except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            problem = f"memory ran out ({self._what}); {free_memory() / 1e9:.1f} GB are free"
            allowed = "a smaller model, fewer --tokens-per-sample, or more memory"
            raise UserError(f"{problem}; allowed: {allowed}") from None
        finally:
            self._ended.set()

    def _write(self) -> None:
        while not self._ended.wait(self._every):
            seconds = time.monotonic() - self._begun
            print(f"{self._what}:{self._done} {seconds:.0f} s", file=sys.stderr, flush=True)


def free_memory() -> int:
    """Bytes that this program can still have: of the machine, its container and its shell; of
    systems other than Linux, all that there could be."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        own = Path("/proc/self/status").read_text().splitlines()
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return sys.maxsize
    sizes = {name: rest.split() for name, _, rest in (s.partition(":") for s in (*lines, *own))}
    found = [sum(1024 * int(sizes[name][0]) for name in ("MemAvailable", "SwapFree"))]
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY:
            found.append(most - 1024 * int(sizes[used][0]))
    for group in groups:
        _, names, path = group.split(":", 2)
        if names in ("", "memory"):
            found += _limits(Path("/sys/fs/cgroup", names), Path(path.lstrip("/")))
    return max(0, min(found))


def _limits(root: Path, group: Path) -> Iterator[int]:
    """Bytes that are left of the limits of a control group and of those that it is in."""
    old = {"memory.limit_in_bytes": "memory.usage_in_bytes"}
    for folder in (root / group, *(root / parent for parent in group.parents)):
        for limit, used in ({"memory.max": "memory.current"} | old).items():
            try:
                most, now = ((folder / name).read_text().strip() for name in (limit, used))
                cached = (folder / "memory.stat").read_text().split()
            except OSError:
                continue
            if most != "max":  # what files take in memory is given back
                files = cached.index("inactive_file") + 1 if "inactive_file" in cached else None
                yield int(most) - int(now) + (int(cached[files]) if files else 0)
