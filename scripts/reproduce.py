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

The last five are other commands' work, which this one calls: ``python -m
fairseq_clusterformer.clustering`` on DATA/mnist, and ``scripts/reproduce_efficiency.py``.
``--plot`` draws the training loss by updates, as figure 5 does (appendix D).

DATA holds what ``scripts/prepare_classification.py`` made. What a table trains stands in
``examples/classification/TABLE.yaml``: options that all runs share, a row for each model, and a
column for each score with its data. A run is one model on one data set, fold and seed; its test
score is of the epoch with the best validation score.

A run's result is one JSON file in OUT/TABLE, written when all of it is known. Runs that have one,
made by the same options, are not trained again: the command can be stopped and given again, and
several can share the work by ``--only``. ``--quick`` makes a few updates of the first fold and
seed, to see that all works.
"""

import json
import os
import shlex
import statistics
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from data_command import Parser, whole_number
from data_folder import UserError, write_aside
from experiment_grid import json_records, machine, options_of, plot_curves, training_record
from forked_runs import in_processes
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
SUITES = ROOT / "examples" / "classification"
TABLES = ("table2", "table3", "table5")
EFFICIENCY = {"table4": "table4", "table7": "table7", "figure3": "fig3", "figure4": "fig4"}
PARTS = ("train", "t10k")  # of MNIST
QUICK = {"max-update": 3, "max-epoch": 1, "log-interval": 1, "max-valid-steps": 3}


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        row: the model, as the table names it.
        data: folder of the data, relative to --data.
        seed: of fairseq.
        options: of ``fairseq-train``.
        best: score of the validation set that chooses the epoch.
    """

    row: str
    data: str
    seed: int
    options: dict
    best: str

    @property
    def name(self) -> str:
        return f"{self.row}-{self.data}-{self.seed}".replace("/", "-").replace(" ", "_")


def runs_of(suite: dict, quick: bool) -> list[Run]:
    """Every training of a table; first all models on one fold, then on the next, so that an
    unfinished table compares equals."""
    found = []
    for data, described in suite["data"].items():
        folds = [f"{data}/fold{n}" for n in range(described.get("folds", 0))] or [data]
        seeds = described.get("seeds", suite.get("seeds", [1]))
        pairs = [(fold, seed) for fold in folds for seed in seeds]
        for number, (fold, seed) in enumerate(pairs[:1] if quick else pairs):
            for row, model in suite["rows"].items():
                options = {**suite["shared"], **described.get("options", {}), **model["options"]}
                if quick:
                    options |= QUICK
                run = Run(row, fold, seed, options, described.get("best", "accuracy"))
                found.append((number, run))
    return [run for _, run in sorted(found, key=lambda pair: pair[0])]


def shown_command(run: Run) -> str:
    """The command of a run, as one that reads its result would type it."""
    words = options_of({**run.options, "seed": run.seed})
    start = ["fairseq-train", f"DATA/{run.data}", "--user-dir", "fairseq_clusterformer"]
    return shlex.join([*start, *words])


def train(run: Run, data: Path, log: Path) -> dict:
    """Train in this process, whose output goes to the log, and read the result from there."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed
    from fairseq_cli import train as fairseq_train

    words = [str(data / run.data), "--user-dir", str(ROOT / "fairseq_clusterformer")]
    words += options_of({**run.options, "seed": run.seed})
    words += ["--no-save", "--valid-subset", "valid,test", "--log-format", "json"]
    words += ["--cpu", "--num-workers", "0"]
    begin = time.perf_counter()
    with open(log, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        distributed.call_main(convert_namespace_to_omegaconf(args), fairseq_train.main)
    valid, test = (json_records(log, split) for split in ("valid", "test"))
    epoch = max(range(len(valid)), key=lambda i: float(valid[i][f"valid_{run.best}"]))
    return {
        "row": run.row,
        "data": run.data,
        "seed": run.seed,
        "best epoch": epoch + 1,
        "valid": _scores(valid[epoch], "valid_"),
        "test": _scores(test[epoch], "test_"),
        "epochs": [_scores(record, "valid_") for record in valid],
        **training_record(log),
        "seconds": round(time.perf_counter() - begin),
        "command": shown_command(run),
        **machine(1),
    }


def _scores(record: dict, prefix: str) -> dict[str, float]:
    """Losses, scores and cluster use of one subset."""
    speed = ("wps", "wpb", "bsz", "num_updates", "best")
    named = {k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)}
    return {k: float(v) for k, v in named.items() if not k.startswith(speed)}


def _train_and_keep(run: Run, data: Path, out: Path, logs: Path) -> None:
    log = logs / f"{run.name}.log"
    try:
        result = train(run, data, log)
    except (Exception, SystemExit) as error:
        raise RuntimeError(f"{type(error).__name__}: {error} (log: {log})") from error
    write_aside(out / f"{run.name}.json", json.dumps(result, indent=1) + "\n")


def train_all(runs: list[Run], args: Namespace, out: Path) -> list[str]:
    """Train what has no result yet, in processes of their own; what went wrong, a line each."""
    todo = [run for run in runs if result_of(run, out) is None]
    missing = sorted({r.data for r in todo if not (args.data / r.data / "input0").is_dir()})
    if missing:
        raise UserError(
            f"--data is {args.data}, which has no {', '.join(missing)}; allowed: a folder that "
            "scripts/prepare_classification.py has made them in"
        )
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    # Children are forked from a process that has imported everything and computed nothing: an
    # import takes longer than some of the trainings.
    import fairseq_cli.train  # noqa: F401
    import torch

    import fairseq_clusterformer  # noqa: F401

    torch.set_num_threads(1)
    failures = []
    progress = tqdm(total=len(runs), initial=len(runs) - len(todo), desc=args.table)
    tasks = {run.name: partial(_train_and_keep, run, args.data, out, logs) for run in todo}
    for name, failure in in_processes(tasks, args.workers):
        progress.update()
        progress.set_postfix_str(name)
        if failure:
            failures.append(f"{name}: {failure}")
    progress.close()
    return failures


def result_of(run: Run, out: Path) -> dict | None:
    """The result of a run, if it is there and of the same options.

    Raises:
        UserError: a file that is no result.
    """
    path = out / f"{run.name}.json"
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text())
        if result["command"] != shown_command(run):
            return None
        return result | {"set": result["data"].split("/")[0], "test": result["test"]}
    except (ValueError, LookupError, AttributeError, TypeError):
        raise UserError(f"{path} is no result of this command; allowed: remove it") from None


def table(suite: dict, results: list[dict]) -> str:
    """Markdown: a row for each model; mean and spread over folds and seeds, the paper's number
    beside it."""
    columns = suite["columns"]
    alike = len({column["score"] for column in columns.values()}) == 1
    shown = [*columns, "mean"] if alike else list(columns)
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
        for numbers in (means, papers) if alike else ():
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
    parser.add_argument("table", choices=(*TABLES, "table6", *EFFICIENCY))
    parser.add_argument("--data", type=Path, help="folder of prepared data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--workers", type=whole_number, default=1, help="trainings at a time")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="models; default: all")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="data sets; default: all")
    parser.add_argument("--folds", type=whole_number, help="the first folds; default: all")
    parser.add_argument("--quick", action="store_true", help="a few updates, to see that it works")
    parser.add_argument("--show", action="store_true", help="train nothing, show what is there")
    parser.add_argument("--plot", type=Path, help="also draw the training loss here, as PNG")
    return parser


def settle(parser: Parser, args: Namespace) -> dict:
    """The table's suite, cut down to what was asked for; refuses what cannot be done."""
    suite = yaml.safe_load((SUITES / f"{args.table}.yaml").read_text())
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
    if args.plot and len(suite["data"]) > 1:
        parser.error(
            f"--plot without --only; allowed: one data set, of {', '.join(suite['data'])}"
        )
    if not args.show and (args.data is None or not args.data.is_dir()):
        parser.error(
            f"--data is {args.data}; allowed: a folder of data sets, see "
            "scripts/prepare_classification.py"
        )
    return suite


def cluster_mnist(data: Path, out: Path, quick: bool) -> int:
    """Table 6, by the command that clusters any matrix; the exit status."""
    from fairseq_clusterformer.clustering import __main__ as clustering

    images, labels = ("{}-images-idx3-ubyte.gz", "{}-labels-idx1-ubyte.gz")
    train, test = ([data / "mnist" / n.format(part) for n in (images, labels)] for part in PARTS)
    words = ["fit", train[0], "--labels", train[1], "--test", test[0], "--test-labels", test[1]]
    words += (
        ["--methods", "neural", "kmeans"] if quick else ["--methods", "all", "--seed", 1, 2, 3]
    )
    words += ["--num-clusters", *((10,) if quick else (10, 50, 100, 200, 300))]
    out.mkdir(parents=True, exist_ok=True)
    return clustering.main([str(word) for word in [*words, "--json", out / "table6.json"]])


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.table in EFFICIENCY:
        import reproduce_efficiency  # which imports torch and fairseq: seconds

        quick = ["--quick"] if args.quick else []
        words = [EFFICIENCY[args.table], "--out", str(args.out), *quick]
        return reproduce_efficiency.main(words)
    if args.table == "table6":
        if args.data is None or not (args.data / "mnist").is_dir():
            parser.error(f"--data is {args.data}; allowed: a folder that holds mnist/")
        return cluster_mnist(args.data, args.out, args.quick)
    suite = settle(parser, args)
    out = args.out / (args.table + ("-quick" if args.quick else ""))
    try:
        failures = []
        runs = runs_of(suite, args.quick)
        if not args.show:
            out.mkdir(parents=True, exist_ok=True)
            failures = train_all(runs, args, out)
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
