#!/usr/bin/env python3
"""Train translation models that differ in one thing at equal budgets, and tabulate their BLEU.

    python scripts/compare_translation_models.py GRID.yaml --data DATA_BIN --out RESULTS
    python scripts/compare_translation_models.py GRID.yaml --out RESULTS --table

A grid names the options that all runs share, and for each run the options of its own. A run is
trained by ``fairseq-train``; its best checkpoint by validation BLEU translates the test sets of
the grid, which ``score_translation.py`` scores. The result is one JSON file, written when all of
it is known. Runs that have a result are skipped, so the command can be stopped and given again,
and several can share the work with ``--only``. With ``--keep``, a training that has ended is only
scored; one that was stopped starts anew.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from fairseq_clusterformer.errors import write_aside
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

TRAINED = "trained.json"
CLUSTERS = ("clustering_loss", "sorting_loss", "cluster_effective", "cluster_largest")


def train(options: dict, folder: Path, args: argparse.Namespace) -> dict:
    """Train to the end, unless that has been done; what the log tells."""
    done = folder / TRAINED
    if done.is_file():
        return json.loads(done.read_text())
    # Nothing of an interrupted run: half a training run has no speed and no curve.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    training = {**options, "task": "translation", "log-format": "json", "save-dir": folder}
    log = folder / "train.log"
    argv = command_line("fairseq-train", args.data, training)
    seconds, memory = run_measured(argv, log, args.threads)
    valid = json_records(log, "valid")
    best = max(valid, key=lambda record: float(record["valid_bleu"]))
    record = {
        **training_record(log),
        "valid loss": float(best["valid_loss"]),
        "valid BLEU": float(best["valid_bleu"]),
        "updates of the best checkpoint": int(best["valid_num_updates"]),
        "valid BLEU by updates": [
            [int(r["valid_num_updates"]), float(r["valid_bleu"])] for r in valid
        ],
        **{name: float(best["valid_" + name]) for name in CLUSTERS if "valid_" + name in best},
        "seconds": round(seconds),
        "peak memory MiB": round(memory),
    }
    write_aside(done, json.dumps(record, indent=2) + "\n")
    return record


def train_and_score(name: str, grid: dict, args: argparse.Namespace) -> dict:
    """One run of the grid, from nothing to its result."""
    options = {**grid["shared"], **grid["runs"][name]}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.keep is None else args.keep / name
        result = {"name": name, "options": options, **train(options, folder, args)}
        for split, test in grid["test"]["sets"].items():
            scores = folder / f"{test}.json"
            argv = [sys.executable, "-m", "fairseq_clusterformer", "evaluate", "translation"]
            argv += ["--checkpoint", str(folder / "checkpoint_best.pt"), "--data", str(args.data)]
            argv += ["-s", options["source-lang"], "-t", options["target-lang"]]
            argv += ["--split", split, "--out", str(folder / "generated"), "--json", str(scores)]
            argv += [str(word) for word in grid["test"]["options"]]
            run_measured(argv, folder / f"{test}.log", args.threads)
            found = json.loads(scores.read_text())["scores"]
            result[f"{test} BLEU"] = found["sacreBLEU"]["bleu"]
            result[f"{test} scores"] = found
    return {**result, "command": shown_command(args.data, options), **machine(args.threads)}


def main() -> None:
    args = make_parser(__doc__).parse_args()
    grid = run_grid(
        args, train_and_score, dictionary="dict.*.txt", scores=lambda key: key.endswith("BLEU")
    )
    if args.plot:
        plot(grid, args.out, args.plot, loss="training loss, bits per subword", top=9.0)
    tests = [(f"{test} BLEU", 1) for test in grid["test"]["sets"].values()]
    columns = (
        ("parameters", 0),
        ("valid loss", 3),
        ("valid BLEU", 1),
        *tests,
        ("tokens per second", 0),
        ("cluster_effective", 1),
    )
    print(table(grid, args.out, columns))


if __name__ == "__main__":
    main()
