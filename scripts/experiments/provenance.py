"""Where a result comes from: the fields that every result file of ``examples/`` has."""

import os
import platform
import subprocess
import time
from importlib.metadata import packages_distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Code whose changes change a result.
CODE = ("fairseq_clusterformer", "scripts")
#: None means that it was not recorded when the result was made.
FIELDS = ("command", "machine", "cpu", "torch", "fairseq", "commit", "date")


def provenance(command: str, *, threads: int, device: str = "cpu") -> dict[str, str | None]:
    """The fields of a result that is made here and now by what a reader types; on a GPU, ``gpu``
    too."""
    found = {
        "command": command,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {threads} thread(s)",
        "cpu": cpu_model(),
        "torch": version("torch"),
        "fairseq": version(packages_distributions()["fairseq"][0]),  # it has several forks
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        import torch

        found["gpu"] = torch.cuda.get_device_name()
    return found


def cpu_model() -> str | None:
    """The processor's name, as the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def commit() -> str | None:
    """The checkout's commit, with a note where the code has uncommitted changes."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + (" with uncommitted changes" if changed else "")


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
