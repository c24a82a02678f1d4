"""OpenKP's scores, by hand."""

import pytest

from fairseq_clusterformer.etc.keyphrases import keyphrase_scores

GOLD = ["Star Trek", "discovery  season"]


def scores(found: list[str], gold: list[str] = GOLD) -> list[list[float]]:
    """Precision, recall and F1 of each depth."""
    named = keyphrase_scores(found, gold)
    return [[named[f"{n}_at_{k}"] for n in ("precision", "recall", "f1")] for k in (1, 3, 5)]


def test_written_out() -> None:
    found = scores(["STAR trek", "something"])
    assert found == [
        pytest.approx([1, 1 / 2, 2 / 3]),
        pytest.approx([1 / 3, 1 / 2, 2 / 5]),
        pytest.approx([1 / 5, 1 / 2, 2 / 7]),
    ]
    found = scores(["something", "discovery season", "b", "c", "star trek"])
    assert found == [
        pytest.approx([0, 0, 0]),
        pytest.approx([1 / 3, 1 / 2, 2 / 5]),
        pytest.approx([2 / 5, 1, 4 / 7]),
    ]


def test_repeated_phrases_count_once() -> None:
    assert scores(["a", "A", "a ", "star trek"]) == scores(["a", "star trek"])
    assert scores(["star trek"], [*GOLD, "STAR TREK"]) == scores(["star trek"])


def test_nothing_found_and_nothing_right() -> None:
    assert scores([]) == [[0, 0, 0]] * 3
    with pytest.raises(ValueError, match="no gold keyphrase; allowed: one or more"):
        keyphrase_scores(["a"], [""])
