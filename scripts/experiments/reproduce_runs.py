"""The runs that a table of ``scripts/reproduce.py`` is made of, each in a process of its own."""

import json
import os
import shlex
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from tqdm import tqdm

from fairseq_clusterformer.errors import UserError, write_aside
from scripts.experiments.forked_runs import in_processes
from scripts.experiments.grid import json_records, machine, options_of, training_record

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run(ABC):
    """One line of a table, on one data set, fold and seed.

    Attributes:
        row: the model, as the table names it.
        data: the data set and fold.
        seed: of the program.
        options: of the program.
        best: score of the validation set that chooses the epoch.
    """

    row: str
    data: str
    seed: int
    options: dict
    best: str = "accuracy"

    #: options of a run that only shows that all works
    quick: ClassVar[dict]
    #: what the folder of data sets must be
    allowed: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.row}-{self.data}-{self.seed}".replace("/", "-").replace(" ", "_")

    @property
    def command(self) -> str:
        """What one that reads the result would type."""
        return shlex.join(self.words(Path("DATA"), plugin="fairseq_clusterformer"))

    @abstractmethod
    def words(self, data: Path, plugin: str) -> list[str]:
        """The command line, with the folder of data sets, and of the plug-in for fairseq."""

    @abstractmethod
    def needs(self, data: Path) -> Path:
        """A file or folder without which there is no such data set in the folder of data sets."""

    @abstractmethod
    def measure(self, data: Path, log: Path) -> dict:
        """Run in this process, whose output goes to the log; what is known then, "test" at
        least: scores of the test set."""


class Training(Run):
    """``fairseq-train`` on what ``scripts/prepare_classification.py`` made."""

    quick = {"max-update": 3, "max-epoch": 1, "log-interval": 1, "max-valid-steps": 3}
    allowed = "a folder that scripts/prepare_classification.py has made them in"

    def words(self, data: Path, plugin: str) -> list[str]:
        start = ["fairseq-train", str(data / self.data), "--user-dir", plugin]
        return start + options_of({**self.options, "seed": self.seed})

    def needs(self, data: Path) -> Path:
        return data / self.data / "input0"

    def measure(self, data: Path, log: Path) -> dict:
        from fairseq import options
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from fairseq.distributed import utils as distributed
        from fairseq_cli import train

        words = self.words(data, plugin=str(ROOT / "fairseq_clusterformer"))[1:]
        words += ["--no-save", "--valid-subset", "valid,test", "--log-format", "json"]
        words += ["--cpu", "--num-workers", "0"]
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        distributed.call_main(convert_namespace_to_omegaconf(args), train.main)
        valid, test = (json_records(log, split) for split in ("valid", "test"))
        epoch = max(range(len(valid)), key=lambda i: float(valid[i][f"valid_{self.best}"]))
        return {
            "best epoch": epoch + 1,
            "valid": _scores(valid[epoch], "valid_"),
            "test": _scores(test[epoch], "test_"),
            "epochs": [_scores(record, "valid_") for record in valid],
            **training_record(log),
        }


def _scores(record: dict, prefix: str) -> dict[str, float]:
    """Losses, scores and cluster use of one subset."""
    speed = ("wps", "wpb", "bsz", "num_updates", "best")
    named = {k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)}
    return {k: float(v) for k, v in named.items() if not k.startswith(speed)}


class Clustering(Run):
    """``python -m fairseq_clusterformer.clustering`` on the images of ``mnist/``."""

    quick = {"neural-epochs": 1, "kmeans-iterations": 1, "kmeans-redos": 1}
    allowed = "a folder that holds mnist/ with its four files"

    def words(self, data: Path, plugin: str) -> list[str]:
        part = {
            f"{split} {what}": str(data / "mnist" / f"{split}-{what}-ubyte.gz")
            for split in ("train", "t10k")
            for what in ("images-idx3", "labels-idx1")
        }
        start = ["python", "-m", "fairseq_clusterformer.clustering", "fit"]
        start += [part["train images-idx3"], "--labels", part["train labels-idx1"]]
        start += ["--test", part["t10k images-idx3"], "--test-labels", part["t10k labels-idx1"]]
        return start + options_of({**self.options, "seed": self.seed})

    def needs(self, data: Path) -> Path:
        return data / "mnist" / "train-images-idx3-ubyte.gz"

    def measure(self, data: Path, log: Path) -> dict:
        from fairseq_clusterformer.clustering import __main__ as clustering

        record = log.with_suffix(".json")
        words = self.words(data, plugin="fairseq_clusterformer")[3:]
        clustering.run([*words, "--json", str(record)])
        (row,) = json.loads(record.read_text())["rows"]
        return {"test": {key: row.pop(key) for key in ("accuracy", "effective", "empty")}, **row}


PROGRAMS = {"fairseq-train": Training, "clustering": Clustering}


def runs_of(suite: dict, quick: bool) -> list[Run]:
    """Every run of a table; first all rows on one fold, then on the next, so that an unfinished
    table compares equals."""
    kind = PROGRAMS[suite.get("program", "fairseq-train")]
    found = []
    for data, described in suite["data"].items():
        folds = [f"{data}/fold{n}" for n in range(described.get("folds", 0))] or [data]
        seeds = described.get("seeds", suite.get("seeds", [1]))
        pairs = [(fold, seed) for fold in folds for seed in seeds]
        for number, (fold, seed) in enumerate(pairs[:1] if quick else pairs):
            for row, model in suite["rows"].items():
                parts = (suite.get("shared", {}), described.get("options", {}), model["options"])
                options = {key: value for part in parts for key, value in part.items()}
                options |= kind.quick if quick else {}
                run = kind(row, fold, seed, options, described.get("best", "accuracy"))
                found.append((number, run))
    return [run for _, run in sorted(found, key=lambda pair: pair[0])]


def run_all(runs: list[Run], *, data: Path, out: Path, workers: int, title: str) -> list[str]:
    """Run what has no result yet, in processes of their own; what went wrong, a line each.

    Raises:
        UserError: data that is not there, or a result that is none.
    """
    todo = [run for run in runs if result_of(run, out) is None]
    missing = sorted({run.data for run in todo if not run.needs(data).exists()})
    if missing:
        raise UserError(
            f"--data is {data}, which has no {', '.join(missing)}; allowed: {todo[0].allowed}"
        )
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that are loaded later
    # Children are forked from a process that has imported everything and computed nothing: an
    # import takes longer than some of the trainings.
    import fairseq_cli.train  # noqa: F401
    import torch

    import fairseq_clusterformer.plugin  # noqa: F401

    torch.set_num_threads(1)
    failures = []
    progress = tqdm(total=len(runs), initial=len(runs) - len(todo), desc=title)
    tasks = {run.name: partial(_measure_and_keep, run, data, out, logs) for run in todo}
    for name, failure in in_processes(tasks, workers):
        progress.update()
        progress.set_postfix_str(name)
        if failure:
            failures.append(f"{name}: {failure}")
    progress.close()
    return failures


def _measure_and_keep(run: Run, data: Path, out: Path, logs: Path) -> None:
    log = logs / f"{run.name}.log"
    begin = time.perf_counter()
    try:
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            measured = run.measure(data, log)
    except (Exception, SystemExit) as error:
        raise RuntimeError(f"{type(error).__name__}: {error} (log: {log})") from error
    result = {
        "row": run.row,
        "data": run.data,
        "seed": run.seed,
        **measured,
        "seconds": round(time.perf_counter() - begin),
        "command": run.command,
        **machine(1),
    }
    write_aside(out / f"{run.name}.json", json.dumps(result, indent=1) + "\n")


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
        if result["command"] != run.command:
            return None
        return result | {"set": result["data"].split("/")[0], "test": result["test"]}
    except (ValueError, LookupError, AttributeError, TypeError):
        raise UserError(f"{path} is no result of this command; allowed: remove it") from None
