#!/usr/bin/env python3
"""ClusterFormer's tables (Wang et al., ACL 2022), made again from the data.

    python scripts/reproduce.py table2 --data DATA --out RESULTS --workers 2
    python scripts/reproduce.py table5 --data DATA --out RESULTS --quick
    python scripts/reproduce.py table3 --only sick --out RESULTS --show --plot figure5.png

table2    accuracy of text classification                  (section 4.2)
table3    inference and matching of pairs                  (section 4.3)
table5    what the two clustering losses are worth         (section 4.5)
table6    clustering by itself, of MNIST                   (appendix A)
table4, table7, figure3, figure4    time and memory        (sections 4.4, 4.6, appendix E)

DATA holds what ``scripts/prepare_classification.py`` made, for table6 ``mnist/`` with its four
files. What a table runs stands in ``examples/classification/TABLE.yaml``, for table6 in
``examples/clustering/table6.yaml``: options that all runs share, a row for each model, and a
column for each score with its data. A run is one model on one data set, fold and seed; the test
score of a training is of the epoch with the best validation score. ``--plot`` draws the training
loss by updates, as figure 5 does (appendix D).

A run's result is one JSON file in OUT/TABLE, written when all of it is known. Runs that have one,
made by the same options, are not made again: the command can be stopped and given again, and
several can share the work by ``--only``. ``--quick`` takes the first fold and seed and as little
work as can be, to see that all works.

Time and memory are ``scripts/reproduce_efficiency.py``'s work, which this calls.
"""

import statistics
import sys
from argparse import Namespace
from pathlib import Path

import yaml

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError
from scripts.experiments.grid import plot_curves
from scripts.experiments.reproduce_runs import ROOT, Training, result_of, run_all, runs_of

EXAMPLES = ROOT / "examples"
TABLES = {table: "classification" for table in ("table2", "table3", "table5")}
TABLES["table6"] = "clustering"
EFFICIENCY = {"table4": "table4", "table7": "table7", "figure3": "fig3", "figure4": "fig4"}


def table(suite: dict, results: list[dict]) -> str:
    """Markdown: a row for each model; mean and spread over folds and seeds, the paper's number
    beside it."""
    columns = suite["columns"]
    with_mean = suite.get("mean", False) and len(columns) > 1
    shown = [*columns, "mean"] if with_mean else list(columns)
    lines = [
        "| model | " + " | ".join(f"{name} | paper" for name in shown) + " |",
        "| --- |" + " ---: |" * (2 * len(shown)),
    ]
    for row, model in suite["rows"].items():
        cells, means, papers = [], [], []
        for name, column in columns.items():
            scale = 100 if column.get("percent") else 1
            values = [
                scale * result["test"][column["score"]]
                for result in results
                if (result["row"], result["set"]) == (row, column["data"])
            ]
            cells.append(_cell(values))
            means += [statistics.mean(values)] if values else []
            number = model.get("paper", {}).get(name)
            papers += [] if number is None else [number]
            cells.append("-" if number is None else str(number))
        for numbers in (means, papers) if with_mean else ():
            complete = len(numbers) == len(columns)
            cells.append(f"{statistics.mean(numbers):.1f}" if complete else "-")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    """Mean ± standard deviation (number of runs)."""
    if not values:
        return "-"
    text = f"{statistics.mean(values):.1f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.1f} ({len(values)})"
    return text


def draw(suite: dict, results: list[dict], picture: Path) -> None:
    """Training loss by updates, a colour a model."""
    curves = {
        row: [result["curve"] for result in results if result["row"] == row]
        for row in suite["rows"]
    }
    plot_curves({k: v for k, v in curves.items() if v}, picture, loss="training loss, bits")


def make_parser() -> Parser:
    parser = Parser(prog="reproduce.py", description=__doc__)
    parser.add_argument("table", metavar="TABLE", choices=(*TABLES, *EFFICIENCY))
    parser.add_argument("--data", type=Path, help="folder of prepared data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--workers", type=whole_number, default=1, help="runs at a time")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="models; default: all")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="data sets; default: all")
    parser.add_argument("--folds", type=whole_number, help="the first folds; default: all")
    parser.add_argument("--quick", action="store_true", help="little work, to see that it works")
    parser.add_argument("--show", action="store_true", help="run nothing, show what is there")
    parser.add_argument("--plot", type=Path, help="also draw the training loss here, as PNG")
    return parser


def settle(parser: Parser, args: Namespace) -> dict:
    """The table's suite, cut down to what was asked for; refuses what cannot be done."""
    suite = yaml.safe_load((EXAMPLES / TABLES[args.table] / f"{args.table}.yaml").read_text())
    for option, key in (("rows", "rows"), ("only", "data")):
        wanted = getattr(args, option)
        unknown = sorted(set(wanted or ()) - set(suite[key]))
        if unknown:
            parser.error(f"--{option} is {', '.join(unknown)}; allowed: {', '.join(suite[key])}")
        if wanted:
            suite[key] = {name: suite[key][name] for name in suite[key] if name in wanted}
    for described in suite["data"].values():
        if args.folds and "folds" in described:
            described["folds"] = min(args.folds, described["folds"])
    columns = suite["columns"].items()
    suite["columns"] = {name: c for name, c in columns if c["data"] in suite["data"]}
    if args.plot and not all(isinstance(run, Training) for run in runs_of(suite, quick=True)):
        parser.error(f"--plot with {args.table}, which trains nothing; allowed: another table")
    if args.plot and len(suite["data"]) > 1:
        parser.error(
            f"--plot without --only; allowed: one data set, of {', '.join(suite['data'])}"
        )
    if not args.show and (args.data is None or not args.data.is_dir()):
        kind = type(runs_of(suite, quick=True)[0])
        parser.error(f"--data is {args.data}; allowed: {kind.allowed}")
    return suite


def measure_efficiency(parser: Parser, args: Namespace) -> int:
    """Time and memory, by the command that measures them; the exit status."""
    for option in ("data", "workers", "rows", "only", "folds", "show", "plot"):
        if getattr(args, option) != parser.get_default(option):
            parser.error(f"--{option} with {args.table}; allowed with it: --out and --quick")
    from scripts.benchmarks import (
        cf22 as reproduce_efficiency,  # which imports torch and fairseq: seconds
    )

    quick = ["--quick"] if args.quick else []
    return reproduce_efficiency.main([EFFICIENCY[args.table], "--out", str(args.out), *quick])


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.table in EFFICIENCY:
        return measure_efficiency(parser, args)
    suite = settle(parser, args)
    out = args.out / (args.table + ("-quick" if args.quick else ""))
    try:
        failures = []
        runs = runs_of(suite, args.quick)
        if not args.show:
            out.mkdir(parents=True, exist_ok=True)
            failures = run_all(
                runs, data=args.data, out=out, workers=args.workers, title=args.table
            )
        results = [result for run in runs if (result := result_of(run, out))]
        if args.plot:
            draw(suite, results, args.plot)
    except UserError as error:
        parser.error(str(error))
    print(table(suite, results))
    for failure in failures:
        print(f"reproduce.py: error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
