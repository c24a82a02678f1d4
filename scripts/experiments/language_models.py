#!/usr/bin/env python3
"""Train language models that differ in one thing at equal budgets, and tabulate what came of it.

    python scripts/compare_language_models.py GRID.yaml --data DATA_BIN --out RESULTS
    python scripts/compare_language_models.py GRID.yaml --out RESULTS --table

A grid names the options that all runs share, and for each run the options of its own. A run is
trained by ``fairseq-train`` and, if the grid says how, tested by ``fairseq-eval-lm``; its result
is one JSON file, written when all of it is known. Runs that have a result are skipped, so the
command can be stopped and given again, and several can share the work with ``--only``.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from scripts.experiments.grid import (
    command_line,
    json_records,
    machine,
    make_parser,
    plot,
    run_grid,
    run_measured,
    shown_command,
    table,
    training_record,
)

BITS = "bits per symbol"
COLUMNS = (
    ("parameters", 0),
    ("valid " + BITS, 3),
    ("test " + BITS, 3),
    ("tokens per second", 0),
    ("peak memory MiB", 0),
    ("cluster_effective", 1),
)


def train_and_test(name: str, grid: dict, args: argparse.Namespace) -> dict:
    """One run of the grid, from nothing to its result."""
    seed = grid["runs"][name].get("seed", 1)
    options = {**grid["shared"], **grid["runs"][name], "seed": seed}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.keep is None else args.keep / name
        # Nothing of an interrupted run: half a training run has no speed and no curve.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        log = folder / "train.log"
        training = {
            **options,
            "task": "language_modeling",
            "log-format": "json",
            "no-epoch-checkpoints": True,
            "save-dir": folder,
        }
        argv = command_line("fairseq-train", args.data, training)
        seconds, memory = run_measured(argv, log, args.threads)
        record = training_record(log)
        valid = (json_records(log, "valid") or [{}])[-1]
        result = {
            "name": name,
            "options": options,
            **record,
            "train " + BITS: record["curve"][-1][1],
            "seconds": round(seconds),
            "peak memory MiB": round(memory),
        }
        if "valid_loss" in valid:
            result["valid " + BITS] = float(valid["valid_loss"])
        for key in ("clustering_loss", "sorting_loss", "cluster_effective", "cluster_largest"):
            if "valid_" + key in valid:
                result[key] = float(valid["valid_" + key])
        if grid.get("test"):
            testing = {**grid["test"], "path": folder / "checkpoint_last.pt"}
            argv = command_line("fairseq-eval-lm", args.data, testing)
            run_measured(argv, folder / "test.log", args.threads)
            loss = (folder / "test.log").read_text().split("Loss (base 2): ")[1].split(",")[0]
            result["test " + BITS] = float(loss)
    return {**result, "command": shown_command(args.data, options), **machine(args.threads)}


def main() -> None:
    args = make_parser(__doc__).parse_args()
    grid = run_grid(
        args, train_and_test, dictionary="dict.txt", scores=lambda key: key.endswith(BITS)
    )
    if args.plot:
        plot(grid, args.out, args.plot, loss="training loss, " + BITS, top=4.2)
    print(table(grid, args.out, COLUMNS))


if __name__ == "__main__":
    main()
