"""List every result of examples/, with the command that makes it, and check where it comes from.

    python -m scripts.experiments.registry
    python -m scripts.experiments.registry --check

A result has the fields of scripts/experiments/provenance.py. A field is null where nobody recorded
it at the time; `added` then says when the file came into the repository. A result without a
command says under `not repeatable` why there is none.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser
from scripts.experiments.provenance import FIELDS, ROOT
from scripts.experiments.tables import markdown


def results(root: Path = ROOT) -> Iterator[tuple[Path, list[dict]]]:
    """Every file of results with its records: one, or a list of them."""
    for path in sorted((root / "examples").glob("*/results/**/*.json")):
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
    parser = Parser(prog="python -m scripts.experiments.registry", description=__doc__)
    parser.add_argument("--check", action="store_true", help="print only what is missing")
    check, lines, missing = parser.parse_args(arguments).check, [], []
    for path, records in results():
        name, first = path.relative_to(ROOT / "examples"), records[0]
        found = dict.fromkeys(problem for record in records for problem in problems(record))
        missing += [f"{name}: {problem}" for problem in found]
        command = first.get("command") or f"none: {first.get('not repeatable')}"
        made = first.get("commit") or f"added {first.get('added', {}).get('commit')}"
        lines.append((name, len(records), first.get("date") or "-", made, command))
    if not check:
        print(markdown(["file", "records", "date", "commit", "command"], lines))
    print("".join(f"{line}\n" for line in missing), end="", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
