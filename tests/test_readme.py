"""The README is short, and its numbers are those of the results."""

import json
import re

from fairseq_clusterformer.attention.kind import attention_kinds, registered
from tests.pages import ROOT, commands

README = ROOT / "README.md"
TEXT = README.read_text()


def test_one_page():
    lines = TEXT.splitlines()
    assert len(lines) <= 110
    assert max(map(len, lines)) <= 120
    for name in ("setup", "demo"):
        assert ["bash", f"scripts/{name}.sh"] in [words[:2] for words in commands(README)]


def test_every_kind_is_in_the_table_of_kinds():
    page = (ROOT / "docs" / "attention-kinds.md").read_text()
    ours = [
        kind
        for kind in attention_kinds()
        if registered(kind).kind.__module__.startswith("fairseq_clusterformer.")
    ]
    assert len(ours) >= 8
    assert [kind for kind in ours if f"| `{kind}` |" not in page] == []


def test_speed_is_what_was_measured():
    record = json.loads((ROOT / "examples/efficiency/results/attention_cpu.json").read_text())
    measured = {(row["N"], row["kind"]): row["times as fast as dense"] for row in record["rows"]}
    found = re.search(
        r"at ([\d,]+) tokens: `neural` is (\d+) .* `taught` (\d+); with losses (\d+), (\d+)", TEXT
    )
    kinds = ("neural", "taught", "neural+losses", "taught+losses")
    length = int(found[1].replace(",", ""))
    assert [round(measured[length, kind]) for kind in kinds] == [*map(int, found.groups()[1:])]


def test_results_say_what_failed():
    """The paper's own kind, where it fails: recall, distance, long texts."""
    results = TEXT.split("## Results")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in results.splitlines() if line[:1] == "|"]
    for task, score in (("recall", "12"), ("two facts", "12"), ("20 Newsgroups", "71.9")):
        (cell,) = (cells[-1] for cells in rows if cells[0].startswith(task))
        assert cell.split(",")[0] == score
    assert "What failed" in results
