"""Tables: one convention for seeds, the paper's numbers, means of columns; and the grids' runs."""

import statistics

import pytest

from fairseq_clusterformer.errors import UserError
from scripts.experiments.grids import chosen, runs_of
from scripts.experiments.tables import cell, table

GRID = {
    "score": "classification",
    "shared": {"lr": 1},
    "rows": {
        "dense": {"attention": "full", "paper": {"A": 80.0, "B MAP": 60.0}},
        "window": {"attention": "window"},
    },
    "data": {"a": {"folds": 2, "options": {"lr": 2}}, "b": {"seeds": [1, 2, 3], "best": "map"}},
    "columns": {
        "A": {"data": "a", "score": "test/accuracy"},
        "B MAP": {"data": "b", "score": "test/map", "percent": True},
    },
}


def test_seeds():
    for values, digits, shown in (
        ([], 1, "-"),
        ([37.84], 1, "37.8"),
        ([38.0, 38.0], 1, "38.0, 38.0"),
        ([37.0, 38.0, 39.0], 1, "38.0 ± 1.0 (3)"),  # n - 1
        ([1234, 1234, 1234], 0, "1234"),
        ([100, 300], 0, "100, 300"),
    ):
        assert cell(values, digits) == shown


def result(row: str, data: str, **test: object) -> tuple[str, str, dict]:
    return row, data, {"test": test}


def test_the_papers_numbers_follow_each_column():
    results = [
        *(result("dense", "a", accuracy=score) for score in (80.0, 81.0)),
        *(result("dense", "b", map=score) for score in (0.5, 0.6, 0.8)),
        result("window", "a", accuracy=70.0),
        result("window", "b", map={"x": 1}),  # what is no number is left out
    ]
    spread = statistics.stdev([50, 60, 80])
    assert table(GRID, results).splitlines() == [
        "| model | A | paper | B MAP | paper |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| dense | 80.0, 81.0 | 80.0 | 63.3 ± {spread:.1f} (3) | 60.0 |",
        "| window | 70.0 | - | - | - |",
    ]
    head, _, dense, window = table(GRID | {"mean": True}, results).splitlines()
    assert head.endswith("| paper | mean | paper |")
    assert dense.endswith("| 71.9 | 70.0 |")
    assert window.endswith("| - | - |")


def test_runs_compare_rows_fold_by_fold():
    runs = runs_of(GRID)
    names = ["dense-a-fold0@1", "window-a-fold0@1", "dense-b@1", "window-b@1"]
    assert [run.name for run in runs[:4]] == names
    assert len(runs) == 2 * (2 + 3)
    assert runs[0].options == {"lr": 2, "attention": "full", "seed": 1}
    assert runs[2].best == "map"
    more = GRID | {"rows": {**GRID["rows"], "full": {"seeds": [4]}}}
    assert [(r.row, r.seed) for r in runs_of(more) if r.seed == 4] == [("full", 4)] * 3
    quick = runs_of(GRID, quick=True)
    assert [run.options["max-update"] for run in quick] == [3] * 4


def test_only_names_rows_data_folds_or_runs():
    runs = runs_of(GRID)
    for only, names in (
        ("window a", ["window-a-fold0@1", "window-a-fold1@1"]),
        ("a/fold1", ["dense-a-fold1@1", "window-a-fold1@1"]),
        ("dense-b@2 a/fold0", ["dense-a-fold0@1", "window-a-fold0@1", "dense-b@2"]),
    ):
        assert [run.name for run in chosen(runs, only.split())] == names
    with pytest.raises(UserError, match="--only is b@1; allowed: a, a/fold0, .*window"):
        chosen(runs, ["b@1"])
