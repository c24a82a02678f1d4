"""What fairseq's commands print and log, as several tests check it."""

import math
import traceback

import torch

from tests.cli.in_process import Run

LOSSES = {"clustering_loss", "sorting_loss"}  # of training alone: validation computes none
STATISTICS = LOSSES | {
    *("cluster_entropy", "cluster_effective", "cluster_largest", "cluster_empty")
}


def assert_logged(run: Run) -> None:
    """Of each batch what it should, all of it finite."""
    for logs, names in ((run.updates, STATISTICS), (run.valid, STATISTICS - LOSSES)):
        for log in logs:
            assert log.keys() & STATISTICS == names
            assert all(math.isfinite(value) for value in log.values()), log


def assert_trains(run: Run, *, clusters: bool = True) -> None:
    """It learns, everything is finite, and everything that it should log is there."""
    assert run.mean_loss(-1) < run.mean_loss(0) - 0.1
    assert_logged(run)
    for update in run.updates + run.valid:
        assert update["clustered_size"] == (update["sample_size"] if clusters else 0)


def last_line(error: BaseException) -> str:
    """What a process prints last that ends with an exception."""
    return "".join(traceback.format_exception(error)).splitlines()[-1]


#: by number of the sentence, of each hypothesis: score, symbols, log2 probability of each
Results = dict[int, list[tuple[float, str, list[float]]]]


def parse(lines: list[str]) -> Results:
    results: Results = {}
    scores, texts = {}, {}
    for line in lines:
        label, *fields = line.split("\t")
        kind, _, number = label.partition("-")
        if kind == "H":
            scores[number], texts[number] = float(fields[0]), fields[1]
        elif kind == "P":
            positions = [float(x) for x in fields[0].split()]
            hypothesis = (scores[number], texts[number], positions)
            results.setdefault(int(number), []).append(hypothesis)
    return results


def assert_same(results: Results, others: Results) -> None:
    """Equal texts and scores, but for the few that a search loses by rounding."""
    assert results.keys() == others.keys()
    texts = []
    for number, hypotheses in results.items():
        for (score, text, positions), (other_score, other_text, other_positions) in zip(
            hypotheses, others[number], strict=True
        ):
            texts.append(text == other_text)
            if texts[-1]:
                assert math.isclose(score, other_score, rel_tol=1e-4)
                torch.testing.assert_close(positions, other_positions, rtol=1e-4, atol=2e-4)
    assert sum(texts) >= 0.9 * len(texts)
