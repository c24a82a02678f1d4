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


@pytest.mark.parametrize(
    ("values", "digits", "shown"),
    [
        ([], 1, "-"),
        ([37.84], 1, "37.8"),
        ([37.8, 38.2], 1, "37.8, 38.2"),
        ([38.0, 38.0], 1, "38.0, 38.0"),
        ([37.0, 38.0, 39.0], 1, "38.0 ± 1.0 (3)"),  # n - 1
        ([1234, 1234, 1234], 0, "1234"),
        ([100, 300], 0, "100, 300"),
    ],
)
def test_seeds(values, digits, shown):
    assert cell(values, digits) == shown


def result(row: str, data: str, **test: float) -> tuple[str, str, dict]:
    return row, data, {"test": test}


def test_the_papers_numbers_follow_each_column():
    results = [
        *(result("dense", "a", accuracy=score) for score in (80.0, 81.0)),
        *(result("dense", "b", map=score) for score in (0.5, 0.6, 0.8)),
        result("window", "a", accuracy=70.0),
    ]
    spread = statistics.stdev([50, 60, 80])
    assert table(GRID, results).splitlines() == [
        "| model | A | paper | B MAP | paper |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| dense | 80.0, 81.0 | 80.0 | 63.3 ± {spread:.1f} (3) | 60.0 |",
        "| window | 70.0 | - | - | - |",
    ]
    with_mean = table(GRID | {"mean": True}, results).splitlines()
    assert with_mean[0].endswith("| paper | mean | paper |")
    assert with_mean[2].endswith("| 71.9 | 70.0 |")
    assert with_mean[3].endswith("| - | - |")


def test_what_is_no_number_is_left_out():
    results = [result("dense", "a", accuracy={"x": 1}), result("window", "a", accuracy=80.0)]
    results.append(("dense", "b", {"test": [1, 2]}))
    assert table(GRID, results).splitlines()[2:] == ["| window | 80.0 | - |"]


def test_runs_compare_rows_fold_by_fold():
    runs = runs_of(GRID)
    assert [run.name for run in runs[:4]] == [
        *("dense-a-fold0@1", "window-a-fold0@1", "dense-b@1", "window-b@1")
    ]
    assert len(runs) == 2 * (2 + 3)
    assert runs[0].options == {"lr": 2, "attention": "full", "seed": 1}
    assert runs[2].best == "map"
    more = GRID | {"rows": {**GRID["rows"], "full": {"seeds": [4]}}}
    assert [(r.row, r.seed) for r in runs_of(more) if r.seed == 4] == [("full", 4)] * 3
    quick = runs_of(GRID, quick=True)
    assert len(quick) == 4
    assert all(run.options["max-update"] == 3 for run in quick)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["b@1"], None),
        (["window", "a"], ["window-a-fold0@1", "window-a-fold1@1"]),
        (["a/fold1"], ["dense-a-fold1@1", "window-a-fold1@1"]),
        (["dense-b@2"], ["dense-b@2"]),
        (["dense-b@2", "a/fold0"], ["dense-a-fold0@1", "window-a-fold0@1", "dense-b@2"]),
    ],
)
def test_only_names_rows_data_folds_or_runs(only, names):
    if names is None:
        with pytest.raises(UserError, match="--only is b@1; allowed: a, a/fold0, .*window"):
            chosen(runs_of(GRID), only)
    else:
        assert [run.name for run in chosen(runs_of(GRID), only)] == names
