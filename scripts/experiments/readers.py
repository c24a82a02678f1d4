#!/usr/bin/env python3
"""Train readers that differ in one thing at equal budgets, and test each on several corpora.

    python scripts/compare_readers.py GRID.yaml --data DATA --out RESULTS
    python scripts/compare_readers.py GRID.yaml --out RESULTS --table

DATA holds folders that ``prepare_qa.py`` made, all with the subwords of the first. A grid names
the options that all runs share and, for each run, the options of its own; ``train``, the folder to
train on (of a run too); and ``tests``, for each name the folder whose ``valid`` is asked. A run
that names another one with ``from`` starts from its weights, which ``--keep`` holds: what a kind
of attention has of its own begins anew. Runs that have a result are skipped.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.experiments.grid import (
    command_line,
    machine,
    make_parser,
    plot,
    run_grid,
    run_measured,
    shown_command,
    table,
    training_record,
)


def own_options(name: str, grid: dict) -> dict:
    """What sets a run apart from the others."""
    return {
        key: value for key, value in grid["runs"][name].items() if key not in ("from", "train")
    }


def train(name: str, grid: dict, args: argparse.Namespace, data: Path, folder: Path) -> dict:
    """Train one run of the grid, from its start's weights if it has one, into ``folder``."""
    start = grid["runs"][name].get("from")
    options = {"seed": 1, **grid["shared"], **own_options(name, grid)}
    if start is not None:
        weights = (args.keep or folder) / start / "checkpoint_last.pt"
        if args.keep is None or not weights.is_file():
            sys.exit(f"--keep is {args.keep}; allowed: a folder that holds {start}, run before")
        options["finetune-from-model"] = weights
    training = {
        **options,
        "task": "clusterformer_qa",
        "criterion": "clusterformer_qa",
        "log-format": "json",
        "no-epoch-checkpoints": True,
        "save-dir": folder,
    }
    log = folder / "train.log"
    argv = command_line("fairseq-train", data, training)
    seconds, memory = run_measured(argv, log, args.threads)
    if start is not None:
        options["finetune-from-model"] = f"KEEP/{start}/checkpoint_last.pt"
    return {
        "name": name,
        "options": {key: str(value) for key, value in options.items()},
        **({"from": start} if start else {}),
        **training_record(log),
        "seconds": round(seconds),
        "peak memory MiB": round(memory),
        "command": shown_command(data, options),
        **machine(args.threads),
    }


def evaluate(checkpoint: Path, data: Path, out: Path, threads: int) -> dict[str, float]:
    """Exact match and F1 in percent, by ``evaluate_qa.py``."""
    argv = [sys.executable, "-m", "fairseq_clusterformer", "evaluate", "qa", "--cpu"]
    argv += ["--checkpoint", str(checkpoint), "--data", str(data), "--out", str(out)]
    out.mkdir(parents=True)
    run_measured(argv, out / "test.log", threads)
    found = json.loads((out / "scores.json").read_text())
    if "em" in found:  # HotpotQA's and 2Wiki's scripts have shares
        return {"EM": 100 * found["em"], "F1": 100 * found["f1"]}
    return {"EM": found.get("exact_match", found.get("exact")), "F1": found["f1"]}


@contextmanager
def run_folder(name: str, args: argparse.Namespace) -> Iterator[Path]:
    """A run's empty folder: in ``--keep``, or one that is gone afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.keep is None else args.keep / name
        # Nothing of an interrupted run: half a training run has no speed and no curve.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder


def train_and_test(name: str, grid: dict, args: argparse.Namespace) -> dict:
    """One run of the grid, from its start to its scores on all tests."""
    with run_folder(name, args) as folder:
        data = args.data / grid["runs"][name].get("train", grid["train"])
        result = train(name, grid, args, data, folder)
        for test, test_data in grid["tests"].items():
            scores = evaluate(
                folder / "checkpoint_last.pt", args.data / test_data, folder / test, args.threads
            )
            result |= {f"{test} {score}": value for score, value in scores.items()}
    return result


def main() -> None:
    """Run what the grid asks for; print its table."""
    args = make_parser(__doc__).parse_args()
    grid = run_grid(
        args,
        train_and_test,
        dictionary="*/dict.txt",
        scores=lambda key: key.endswith((" EM", " F1")),
    )
    if args.plot:
        plot(grid, args.out, args.plot, loss="training loss, bits a question", top=None)
    columns = [
        ("parameters", 0),
        ("updates", 0),
        *((f"{test} {score}", 1) for test in grid["tests"] for score in ("EM", "F1")),
        ("tokens per second", 0),
        ("peak memory MiB", 0),
    ]
    print(table(grid, args.out, columns))


if __name__ == "__main__":
    main()
