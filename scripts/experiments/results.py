"""Results of examples/: where they come from, and the files that they are kept in.

    python -m scripts.experiments.results                        # list them, with their commands
    python -m scripts.experiments.results --check                # print what they lack

The results of a grid are one file of JSON lines: a line for each run, with its ``name``. Other
files are JSON: one record, or a list of them. A record has the fields of :data:`FIELDS`. A field
is null where nobody recorded it at the time; `added` then says when the file came into the
repository. A record without a command says under `not repeatable` why there is none.
"""

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.errors import bad_option, check_no_device
from fairseq_clusterformer.outputs import write_aside
from scripts.experiments.tables import markdown

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
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.is_file() else None
    return found[1].strip() if found else platform.processor() or None


def commit() -> str | None:
    """The checkout's commit, with a note where the code has uncommitted changes."""

    def git(*words: str) -> str:
        command, how = ["git", "-C", str(ROOT), *words], {"capture_output": True, "text": True}
        return subprocess.run(command, check=True, **how).stdout.strip()

    try:
        head, changed = git("rev-parse", "--short=10", "HEAD"), git("status", "-s", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + (" with uncommitted changes" if changed else "")


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep other commands out of a folder; ends with this process, whatever ends it. Raises
    UserError: another command is at work there, unless it waits for that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            allowed, problem = "one command at a time", "another command is at work there"
            raise bad_option("--keep", folder, allowed, problem) from None
        yield
    finally:
        os.close(descriptor)


def read(path: Path) -> dict[str, dict]:
    """The records of a file of JSON lines, by their runs' names; none if there is no file. Raises
    UserError: something else."""
    if path.suffix != ".jsonl":
        raise bad_option("--out", path, "a file that ends in .jsonl")
    check_no_device("--out", path, "results of a grid")
    try:
        lines = path.read_text().splitlines() if path.exists() else []
        return {record["name"]: record for record in map(json.loads, lines)}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise bad_option("--out", path, "results of a grid", "not lines of results") from None


def add(path: Path, records: dict[str, dict]) -> None:
    """Add the records of runs to a file of JSON lines, which is whole at any time; several
    processes may do so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent, wait=True):
        lines = (json.dumps(record) + "\n" for record in (read(path) | records).values())
        write_aside(path, "".join(lines))


def results(root: Path = ROOT) -> Iterator[tuple[Path, list[dict]]]:
    """Every file of results with its records."""
    for path in sorted((root / "examples").rglob("results/*.json*")):
        if path.suffix == ".jsonl":
            yield path, [*read(path).values()]
        else:
            content = json.loads(path.read_text())
            yield path, content if isinstance(content, list) else [content]


def problems(record: dict) -> Iterator[str]:
    """What a record lacks."""
    for field in FIELDS:
        if field not in record:
            yield f"no {field}"
        elif record[field] is None and "added" not in record:
            yield f"{field} is null, and it does not say when the file was added"
    if not record.get("command") and "not repeatable" not in record:
        yield "no command, and it does not say why"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m scripts.experiments.results", description=__doc__)
    parser.add("--check", "print only what is missing")
    args, lines, missing = parser.parse_args(arguments), [], []
    for path, records in results():
        name, first = path.relative_to(ROOT / "examples"), records[0]
        found = dict.fromkeys(problem for record in records for problem in problems(record))
        missing += [f"{name}: {problem}" for problem in found]
        command = first.get("command") or f"none: {first.get('not repeatable')}"
        made = first.get("commit") or f"added {first.get('added', {}).get('commit')}"
        lines.append((name, len(records), first.get("date") or "-", made, command))
    if not args.check:
        print(markdown(["file", "records", "date", "commit", "command"], lines))
    print("".join(f"{line}\n" for line in missing), end="", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
