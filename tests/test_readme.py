"""The README is short, and its numbers are those of the results."""

import json
import re

from fairseq_clusterformer.attention.kind import attention_kinds, registered
from tests.pages import ROOT, commands

README = ROOT / "README.md"
TEXT = README.read_text()


def test_one_page() -> None:
    assert len(TEXT.splitlines()) <= 150
    assert ["bash", "scripts/test.sh"] in commands(README)
    assert ["bash", "scripts/demo.sh"] in commands(README)


def test_every_kind_is_in_the_tables() -> None:
    ours = [
        kind
        for kind in attention_kinds()
        if registered(kind).kind.__module__.startswith("fairseq_clusterformer.")
    ]
    assert len(ours) >= 8
    for kind in ours:
        assert f"| `{kind}` |" in TEXT
        assert f"| `{kind}` |" in (ROOT / "docs" / "attention-kinds.md").read_text()


def test_speed_is_what_was_measured() -> None:
    record = json.loads((ROOT / "examples/efficiency/results/attention_cpu.json").read_text())
    measured = {(row["N"], row["kind"]): row["times as fast as dense"] for row in record["rows"]}
    kinds = ["window", "neural", "neural+losses", "local", "routing", "reformer"]
    rows = re.findall(r"^\| ([\d,]+) \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert len(rows) >= 4
    for length, cells in rows:
        wanted = [f"{measured[int(length.replace(',', '')), kind]:.1f}" for kind in kinds]
        assert cells.split(" | ") == wanted, length


def test_results_say_what_failed() -> None:
    """The paper's own kind, where it fails: recall, distance, long texts."""
    results = TEXT.split("## Results")[1].split("\n## ")[0]
    for score in ("0.12", "12", "71.9"):
        assert f"`neural` **{score}**" in results
