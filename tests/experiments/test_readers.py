"""compare_readers.py: from a grid to a table; a run that goes on from another one's weights."""

import json
import sys
from pathlib import Path

import pytest
import torch

from scripts.experiments import readers as compare_readers
from tests.cli.in_process import HERE, QUESTIONS
from tests.cli.qa_data import TYPES, write_questions

ANSWERED = [name for name in TYPES if name in ("short", "yes", "no")]


def write_grid(folder: Path) -> list[str]:
    """A grid of two runs, its data, and the command line's words."""
    for name, corpus in (("long", "squad1"), ("other", "hotpotqa")):
        record = {"recipe": {"corpus": corpus}}
        (write_questions(folder / name, ANSWERED) / "prepared.json").write_text(json.dumps(record))
    words = QUESTIONS[QUESTIONS.index("--arch") : QUESTIONS.index(f" {HERE}")].split()
    options = {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }
    shared = {**options, "max-update": 1, "log-interval": 1, "disable-validation": True}
    grid = {
        "train": "long",
        "tests": {"HotpotQA": "other"},
        "shared": {**shared, "lr": 0.0, "num-workers": 0, "cpu": True},
        "runs": {
            "start@1": {"train": "other", "cluster-attention": "window"},
            "kmeans@2": {"cluster-attention": "kmeans", "from": "start@1", "seed": 2},
        },
    }
    (folder / "grid.yaml").write_text(json.dumps(grid))
    return [f"{folder}/grid.yaml", "--data", f"{folder}", "--out", f"{folder}/out"]


@pytest.mark.slow
def test_a_grid_becomes_a_table(tmp_path: Path, monkeypatch, capsys) -> None:
    keep = tmp_path / "keep"
    monkeypatch.setattr(
        sys, "argv", ["compare_readers.py", *write_grid(tmp_path), "--keep", f"{keep}"]
    )
    compare_readers.main()
    result = json.loads((tmp_path / "out" / "kmeans@2.json").read_text())
    told = json.loads((keep / "kmeans@2" / "HotpotQA" / "scores.json").read_text())
    assert result["HotpotQA F1"] == pytest.approx(100 * told["f1"])
    # without a learning rate, all that was learned is the start's
    weights = [
        torch.load(keep / name / "checkpoint_last.pt")["model"]["encoder.embed_tokens.weight"]
        for name in ("start@1", "kmeans@2")
    ]
    assert torch.equal(*weights)
    assert "--finetune-from-model KEEP/start@1/checkpoint_last.pt" in result["command"]
    assert "DATA --user-dir fairseq_clusterformer" in result["command"]
    *_, head, _, start, kmeans = capsys.readouterr().out.splitlines()
    assert "HotpotQA EM | HotpotQA F1" in head
    assert start.startswith("| start | 1 |")
    assert f"| {result['HotpotQA F1']:.1f} |" in kmeans
    compare_readers.main()
    assert "kmeans@2: done before" in capsys.readouterr().out


def test_a_start_that_is_not_there(tmp_path: Path, monkeypatch) -> None:
    words = [*write_grid(tmp_path), "--only", "kmeans@2", "--keep", f"{tmp_path}/keep"]
    monkeypatch.setattr(sys, "argv", ["compare_readers.py", *words])
    with pytest.raises(SystemExit, match=r"--keep is .*keep; allowed: .* holds start@1"):
        compare_readers.main()


@pytest.mark.parametrize(
    "told",
    [
        {"exact_match": 25.0, "f1": 50.0},  # SQuAD 1.1
        {"exact": 25.0, "f1": 50.0, "best_f1": 60.0},  # SQuAD 2.0
        {"em": 0.25, "f1": 0.5, "prec": 0.4, "recall": 0.6},  # HotpotQA
    ],
)
def test_scores_are_in_percent(told: dict, tmp_path: Path, monkeypatch) -> None:
    def run(argv: list[str], log: Path, threads: int) -> None:
        (log.parent / "scores.json").write_text(json.dumps(told))

    monkeypatch.setattr(compare_readers, "run_measured", run)
    scores = compare_readers.evaluate(tmp_path / "model.pt", tmp_path, tmp_path / "out", 1)
    assert scores == {"EM": 25.0, "F1": 50.0}
