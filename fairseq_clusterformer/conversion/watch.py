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
    """Bytes that this program can still have: of the machine, its shell and its container."""
    machine = _sizes(Path("/proc/meminfo"))
    found = [1024 * (machine["MemAvailable:"] + machine["SwapFree:"])]
    if (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        found.append(most - used)
    _, _, group = Path("/proc/self/cgroup").read_text().strip().rpartition(":")
    found += _limits(Path("/sys/fs/cgroup"), Path(group.lstrip("/")))
    return max(0, min(found))


def _limits(root: Path, group: Path) -> Iterator[int]:
    """Bytes that are left of the limits of a control group and of those that it is in; what files
    take in memory is given back."""
    for folder in (root / group, *(root / parent for parent in group.parents)):
        if (file := folder / "memory.max").is_file() and file.read_text().strip() != "max":
            used = int((folder / "memory.current").read_text())
            yield int(file.read_text()) - used + _sizes(folder / "memory.stat")["inactive_file"]


def _sizes(file: Path) -> dict[str, int]:
    return {name: int(size) for name, size, *_ in map(str.split, file.open())}
