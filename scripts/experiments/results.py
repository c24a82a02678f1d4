"""Results of examples/: where they come from, and the files that they are kept in.

    python -m scripts.experiments.results                        # list them, with their commands
    python -m scripts.experiments.results --check                # print what they lack
    python -m scripts.experiments.results --join FOLDER OUT.jsonl  # older results, a file a run

The results of a grid are one file of JSON lines: a line for each run, with its ``name``. Other
files are JSON: one record, or a list of them. A record has the fields of :data:`FIELDS`. A field
is null where nobody recorded it at the time; `added` then says when the file came into the
repository. A record without a command says under `not repeatable` why there is none.
"""

import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.errors import UserError, bad_option, check_no_device
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines = (json.dumps(record) + "\n" for record in (read(path) | records).values())
        write_aside(path, "".join(lines))
    finally:
        os.close(folder)


def join(folder: Path, out: Path) -> None:
    """Write the records of a folder, a file a run, as one file of JSON lines."""
    paths = sorted(folder.glob("*.json"))
    if not paths or out.exists():
        problem = "it exists" if out.exists() else f"no result in {folder}"
        raise bad_option("--join", out, "a new file, and a folder of results", problem)
    add(out, {p.stem: {"name": p.stem} | json.loads(p.read_text()) for p in paths})


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
    parser.add_argument("--check", action="store_true", help="print only what is missing")
    parser.add_argument("--join", nargs=2, type=Path, metavar=("FOLDER", "OUT"))
    args, lines, missing = parser.parse_args(arguments), [], []
    if args.join:
        try:
            join(*args.join)
        except (UserError, ValueError) as error:
            parser.error(str(error))
        return 0
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
