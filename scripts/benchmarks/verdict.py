"""The first page of the GPU suite: what passed, and what is slower than dense at which N.

    python -m scripts.benchmarks.verdict OUT

Reads what ``scripts/gpu_suite.sh OUT`` has written there, and writes ``OUT/VERDICT.md``.
"""

import json
import re
import sys
from pathlib import Path

DENSE = ("dense", "transformer_lm")


def verdict(out: Path) -> str:
    """The page, in Markdown."""
    lines = ["# Verdict", ""]
    for line in (out / "parts.txt").read_text().splitlines():
        name, status, seconds = line.split()
        result = "passed" if status == "0" else f"FAILED (status {status}, see {name}.log)"
        log = out / f"{name}.log"
        *_, last = ["", *log.read_text().strip().splitlines()] if log.is_file() else [""]
        last = last.strip("= ") if re.search("passed|failed", last) else ""
        lines.append(f"- {name}: {result}, {seconds} s. {last}")
    for name, key in (("attention", "kind"), ("training", "model"), ("generation", "")):
        path = out / f"{name}.json"
        record = json.loads(path.read_text()) if path.is_file() else {"rows": []}
        if key:
            lines += ["", f"## {name}", "", record.get("settings", "No results."), ""]
            lines += _of_rows(record["rows"], key) if "settings" in record else []
            continue
        for row in record["rows"]:
            what = f"length {row['length']:,}, {row['sentences']} sentences, beam {row['beam']}"
            lines.append(f"- generation: {what}: {row['ratio']:.2f} times dense's time")
    return "\n".join(lines) + "\n"


def _of_rows(rows: list[dict], key: str) -> list[str]:
    """What is slower than dense, what is not, and what has no speed."""
    ratio = "times as fast as dense"
    lines = []
    for name in dict.fromkeys(row[key] for row in rows if row[key] not in DENSE):
        own = [row for row in rows if row[key] == name]
        slower = [row for row in own if row.get(ratio, 1) < 1]
        others = [row for row in own if row.get(ratio, 0) >= 1]
        for what, found in (("SLOWER than dense", slower), ("as fast or faster", others)):
            if found:
                at = ", ".join(f"{row['N']:,} ({row[ratio]:.2f} x)" for row in found)
                lines.append(f"- {name}: {what} at N = {at}")
        for row in own:
            for what in ("wrong", "not run"):
                if what in row:
                    lines.append(f"- {name}: {what.upper()} at N = {row['N']:,}: {row[what]}")
    return lines or ["Nothing was compared with dense."]


def main(arguments: list[str]) -> int:
    """Write the page and print it; the status is 1 if a part failed."""
    out = Path(*arguments)
    page = verdict(out)
    (out / "VERDICT.md").write_text(page)
    print(page, end="")
    return 1 if "FAILED" in page or "WRONG" in page else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
