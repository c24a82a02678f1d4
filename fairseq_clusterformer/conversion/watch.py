"""How far a long conversion is, and the memory that it may take."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from fairseq_clusterformer.errors import UserError


def progress(steps: range, name: str) -> Iterator[int]:
    """Yield the steps of what has a name: a bar on a terminal, else a line every half minute."""
    how = {} if sys.stderr.isatty() else {"mininterval": 30.0, "delay": 30.0}
    return iter(tqdm(steps, desc=name, unit="batch", **how))


@contextmanager
def memory_may_run_out() -> Iterator[None]:
    """Raises UserError where it does."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        problem = f"memory ran out; {free_memory() / 1e9:.1f} GB are free"
        allowed = "a smaller model, fewer --tokens-per-sample, or more memory"
        raise UserError(f"{problem}; allowed: {allowed}") from None


def free_memory() -> int:
    """Bytes that this program can still have: of the machine, its shell and its container; of
    systems other than Linux, all that there could be."""
    if not Path("/proc/meminfo").exists():
        return sys.maxsize
    machine = _sizes(Path("/proc/meminfo"))
    found = [1024 * (machine["MemAvailable:"] + machine["SwapFree:"])]
    if (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        found.append(most - used)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        if names in ("", "memory"):  # of version 2, of version 1
            found += _limits(Path("/sys/fs/cgroup", names), Path(group.lstrip("/")))
    return max(0, min(found))


def _limits(root: Path, group: Path) -> Iterator[int]:
    """Bytes that are left of the limits of a control group and of those that it is in; what files
    take in memory is given back."""
    for folder in (root / group, *(root / parent for parent in group.parents)):
        for most, used in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
            file = folder / f"memory.{most}"
            if file.is_file() and file.read_text().strip() != "max":
                free = int(file.read_text()) - int((folder / f"memory.{used}").read_text())
                yield free + _sizes(folder / "memory.stat").get("inactive_file", 0)


def _sizes(file: Path) -> dict[str, int]:
    return {name: int(size) for name, size, *_ in map(str.split, file.open())}
