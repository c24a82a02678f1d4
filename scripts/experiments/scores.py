"""How the runs of a grid are trained and scored: one :class:`Task` for each kind of model."""

import json
import re
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path

from fairseq_clusterformer.errors import UserError
from scripts.experiments.grids import Run
from scripts.experiments.programs import fairseq, options_of, plug_in
from scripts.experiments.results import ROOT

BITS = "bits per symbol"
BESIDES = ("cluster_effective", "cluster_largest", "parts_loss", "parts_accuracy")
BESIDES += ("next_sentence_loss", "next_sentence_accuracy")
SAVE_EVERY = 200  # updates, with --keep
AVERAGE = "average"  # a step of the scoring that has no score


@dataclass(frozen=True)
class Place:
    """A run, and where it works."""

    run: Run
    grid: dict
    data: Path | None  # the folder of ``--data``, for a task that needs one
    folder: Path  # for the run's checkpoints and logs
    keep: Path | None = None  # the folder of ``--keep``

    @property
    def trained_on(self) -> Path:
        """The folder of the training's data."""
        return self.data / self.run.folder

    @property
    def log(self) -> Path:
        """Of the training."""
        return self.folder / "train.log"

    def checkpoint(self, which: str = "last") -> str:
        return str(self.folder / f"checkpoint_{which}.pt")

    def shown(self, words: list[str]) -> str:
        """A command as a reader types it, with DATA and KEEP for the folders."""
        folders = {str(self.folder): f"KEEP/{self.run.name}", str(self.data): "DATA"}
        folders[str(self.keep)] = "KEEP"
        shown = []
        for word in words:
            word = word.removeprefix(f"{ROOT}/")
            found = (f for f in folders if word == f or word.startswith(f + "/"))
            if folder := next(found, ""):
                word = folders[folder] + word[len(folder) :]
            shown.append(word)
        return shlex.join(shown)

    def found(self, name: str) -> dict:
        """What a file of JSON in the run's folder holds."""
        return json.loads((self.folder / name).read_text())


def json_records(log: Path, tag: str) -> list[dict]:
    """fairseq's JSON log lines of one kind ("train_inner", "valid", ...), one for each update.

    A log of a resumed training has some updates twice: the later ones count.
    """
    found = {}
    for line in log.read_text().splitlines():
        if f"| {tag} | {{" in line:
            record = json.loads(line[line.index("{") :])
            updates = record.get("num_updates") or record[f"{tag}_num_updates"]
            found[int(updates)] = record
    return [found[updates] for updates in sorted(found)]


def numbers(record: dict, prefix: str, names: tuple[str, ...] = ()) -> dict[str, float]:
    """Scores of a validation, without the prefix: those named, or all but speeds."""
    speed = ("wps", "wpb", "bsz", "num_updates", "best")
    found = {k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)}
    wanted = (k for k in found if (k in names if names else not k.startswith(speed)))
    return {k: float(found[k]) for k in wanted}


class Task:
    """How one kind of model is trained by fairseq, and scored."""

    needs = "dict.txt"  # pattern of a file in the folder that a run trains on; empty: none
    made_by = "clusterformer prepare"  # the command that makes that folder

    def files(self, place: Place) -> list[tuple[str, str]]:
        """Folders below ``--data``, and patterns of files in them, without which the run would
        end: what it trains on, and what is scored after that."""
        return [(place.run.folder, self.needs)] if self.needs else []

    def train(self, place: Place) -> list[str]:
        """Words of the training's command."""
        options = dict(place.run.options)
        if place.run.start:
            start = (place.keep or Path("KEEP")) / place.run.start
            options["finetune-from-model"] = start / "checkpoint_last.pt"
        return fairseq("fairseq-train", place.trained_on, options)

    def unshown(self, place: Place) -> dict:
        """More options of it: where and how often it saves, which changes no result."""
        options = {"log-format": "json", "save-dir": place.folder, "no-epoch-checkpoints": True}
        if place.keep and "save-interval-updates" not in place.run.options:
            options |= {"save-interval-updates": SAVE_EVERY, "keep-interval-updates": 1}
            # fairseq validates whenever it saves; only the last validation counts here
            options["validate-after-updates"] = place.run.options.get("max-update")
        return options

    def read(self, place: Place) -> dict:
        """What the training's log says: size, curve, speed; UserError if it has no update."""
        inner = json_records(place.log, "train_inner")
        if not inner:
            problem = f"{place.log} has no update"
            raise UserError(f"{problem}; allowed: a log-interval below their number")
        size = place.log.read_text().split("num. shared model params: ")[1].split()[0]
        curve = [[int(r["num_updates"]), float(r["loss"])] for r in inner]
        speed = round(statistics.median(float(r["wps"]) for r in inner))
        found = {"parameters": int(size.replace(",", "")), "updates": curve[-1][0]}
        return found | {"curve": curve, "tokens per second": speed}

    def tests(self, place: Place) -> dict[str, list[str]]:
        """Words of the commands that score the model, by the test's name."""
        return {}

    def scores(self, place: Place, test: str) -> dict:
        """What a test's files say."""
        return {}


class LanguageModelTask(Task):
    """Bits on validation, and on the test set with the options of the grid's ``test``.

    With a ``breakdown`` (options of ``clusterformer perplexity``), also bits on what the text has
    had before: near, and from ``far`` tokens back on.
    """

    made_by = "clusterformer prepare lm"
    bits = re.compile(r"Loss \(base 2\): ([\d.]+)")

    def files(self, place: Place) -> list[tuple[str, str]]:
        subset = place.grid["test"].get("gen-subset", "test") if "test" in place.grid else "train"
        return [*super().files(place), (place.run.folder, f"{subset}.idx")]

    def read(self, place: Place) -> dict:
        record = super().read(place)
        record["train " + BITS] = record["curve"][-1][1]
        for valid in json_records(place.log, "valid")[-1:]:
            record["valid " + BITS] = float(valid["valid_loss"])
            record |= numbers(valid, "valid_", BESIDES)
        return record

    def tests(self, place: Place) -> dict[str, list[str]]:
        if "test" not in place.grid:
            return {}
        options = {**place.grid["test"], "path": place.checkpoint()}
        words = {"test": fairseq("fairseq-eval-lm", place.trained_on, options)}
        if own := dict(place.grid.get("breakdown", {})):
            del own["far"]
            files = {"checkpoint": place.checkpoint(), "data": place.trained_on}
            files |= {"out": place.folder / "breakdown.json", "teacher-forced": True, "cpu": True}
            options = options_of({**files, "breakdown": True, **own})
            words["breakdown"] = ["clusterformer", "perplexity", *options]
        return words

    def scores(self, place: Place, test: str) -> dict:
        if test != "breakdown":
            log = (place.folder / f"{test}.log").read_text()
            return {"test " + BITS: float(self.bits.findall(log)[-1])}
        buckets = place.found("breakdown.json")["bits on repeats by distance"]
        record, far = {"repeats by distance": buckets}, place.grid["breakdown"]["far"]
        parts = {"far": [b for b in buckets if b["from"] >= far]}
        parts["near"] = [b for b in buckets if b["to"] <= far]
        for name, of in parts.items():
            bits = sum(bucket["bits"] * bucket["tokens"] for bucket in of)
            tokens = sum(bucket["tokens"] for bucket in of)
            record[f"bits on {name} repeats"] = bits / max(tokens, 1)
        return record


class MaskedLanguageModelTask(LanguageModelTask):
    """Bits for each word to guess, with the options of the grid's ``test``."""

    bits = re.compile(r'"test_loss": "?([\d.]+)')

    def tests(self, place: Place) -> dict[str, list[str]]:
        options = {**place.grid["test"], "path": place.checkpoint(), "log-format": "json"}
        options |= {"task": place.run.options["task"], "valid-subset": "test"}
        return {"test": fairseq("fairseq-validate", place.trained_on, options)}


class TranslationTask(Task):
    """BLEU of the checkpoint that is best on validation.

    The grid's ``test`` has ``sets``, names of splits, and ``options`` of `evaluate translation`.
    """

    needs = "dict.*.txt"
    made_by = "clusterformer prepare translation"

    def files(self, place: Place) -> list[tuple[str, str]]:
        target = place.run.options["target-lang"]
        sets = [f"{split}.*.{target}.idx" for split in place.grid["test"]["sets"]]
        return [*super().files(place), *((place.run.folder, pattern) for pattern in sets)]

    def read(self, place: Place) -> dict:
        valid = json_records(place.log, "valid")
        best = max(valid, key=lambda record: float(record["valid_bleu"]))
        found = super().read(place) | numbers(best, "valid_", BESIDES)
        found |= {"valid loss": float(best["valid_loss"]), "valid BLEU": float(best["valid_bleu"])}
        found["updates of the best checkpoint"] = int(best["valid_num_updates"])
        curve = [[int(r["valid_num_updates"]), float(r["valid_bleu"])] for r in valid]
        return found | {"valid BLEU by updates": curve}

    def tests(self, place: Place) -> dict[str, list[str]]:
        shared = {"checkpoint": place.checkpoint("best"), "data": place.trained_on}
        shared |= {key: place.run.options[key] for key in ("source-lang", "target-lang")}
        commands = {}
        for split, test in place.grid["test"]["sets"].items():
            files = {"out": place.folder / "generated", "json": place.folder / f"{test}.json"}
            words = options_of({**shared, "split": split, **files})
            words += [str(word) for word in place.grid["test"]["options"]]
            commands[test] = ["clusterformer", "evaluate", "translation", *words]
        return commands

    def scores(self, place: Place, test: str) -> dict:
        found = place.found(f"{test}.json")["scores"]
        return {f"{test} BLEU": found["sacreBLEU"]["bleu"], f"{test} scores": found}


class AnswersTask(Task):
    """Exact match and F1 on the validation sets (or the grid's ``split``) in the folders of the
    grid's ``tests``; and what a reader of supporting sentences gets for these. With ``store-ema``,
    the average is scored. ``valid`` is the last validation of the training: NLL and AvNA, if it
    was validated."""

    made_by = "clusterformer prepare qa"

    def files(self, place: Place) -> list[tuple[str, str]]:
        scored = f"{place.grid.get('split', 'valid')}.question.idx"
        tests = ((folder, scored) for folder in place.grid.get("tests", {}).values())
        return [*super().files(place), *tests]

    def read(self, place: Place) -> dict:
        found, validations = super().read(place), json_records(place.log, "valid")
        return found | ({"valid": numbers(validations[-1], "valid_")} if validations else {})

    def tests(self, place: Place) -> dict[str, list[str]]:
        checkpoint, found = place.checkpoint(), {}
        if place.run.options.get("store-ema"):
            words = ["clusterformer", "average", "--ema", "--force", "--inputs", checkpoint]
            checkpoint = place.checkpoint("average")
            found[AVERAGE] = [*words, "--output", checkpoint]
        words = ["clusterformer", "evaluate", "qa", "--cpu", "--checkpoint", checkpoint]
        words += options_of(plug_in(place.run.options) if "user-dir" in place.run.options else {})
        for test, folder in place.grid["tests"].items():
            places = {"data": place.data / folder, "out": place.folder / test}
            places["split"] = place.grid.get("split")
            found[test] = words + options_of(places)
        return found

    def scores(self, place: Place, test: str) -> dict:
        if test == AVERAGE:
            return {}
        found = place.found(f"{test}/scores.json")
        if "em" in found:  # HotpotQA's and 2Wiki's scripts have shares
            names = {"EM": "em", "F1": "f1", "support EM": "sp_em", "support F1": "sp_f1"}
            names |= {"joint EM": "joint_em", "joint F1": "joint_f1"}
            return {f"{test} {n}": 100 * found[of] for n, of in names.items() if of in found}
        if "long-best-threshold-f1" in found:  # Natural Questions' script
            kinds = ("long", "short")
            return {f"{test} {k} F1": 100 * found[f"{k}-best-threshold-f1"] for k in kinds}
        exact = found.get("exact_match", found.get("exact"))
        return {f"{test} EM": exact, f"{test} F1": found["f1"]}


class DistanceTask(AnswersTask):
    """Exact match for each distance between the two facts of a question."""

    def tests(self, place: Place) -> dict[str, list[str]]:
        words = ["python", "-m", "examples.question_answering.distance", "score"]
        options = {"data": place.trained_on, "json": place.folder / "distance.json"}
        return {"distance": [*words, place.checkpoint(), *options_of(options)]}

    def scores(self, place: Place, test: str) -> dict:
        found = place.found(f"{test}.json")
        return {f"EM at {distance}": score for distance, score in found.items()}


class ClassificationTask(Task):
    """The scores of the epoch with the best validation score.

    Where a grid has ``valid-subset: valid,test``, the training's log has both.
    """

    needs = "input0"
    made_by = "clusterformer prepare classification"

    def unshown(self, place: Place) -> dict:
        options = {"log-format": "json", "save-dir": place.folder, "no-epoch-checkpoints": True}
        return options if place.keep else options | {"no-save": True}

    def read(self, place: Place) -> dict:
        valid, test = (json_records(place.log, split) for split in ("valid", "test"))
        epochs = [numbers(record, "valid_") for record in valid]
        best = max(range(len(epochs)), key=lambda i: epochs[i][place.run.best])
        found = {"best epoch": best + 1, "valid": epochs[best], "epochs": epochs}
        found["test"] = numbers(test[best], "test_") if test else {}
        return found | super().read(place)


class KeyphrasesTask(Task):
    """Precision, recall and F1 of the validation with the best F1 of three phrases."""

    made_by = "python examples/etc/openkp/prepare.py"

    def unshown(self, place: Place) -> dict:
        """The best validation counts, so that each epoch has one."""
        options = super().unshown(place)
        options.pop("validate-after-updates", None)
        return options

    def read(self, place: Place) -> dict:
        best = max(json_records(place.log, "valid"), key=lambda r: float(r["valid_f1_at_3"]))
        return super().read(place) | numbers(best, "valid_")


class RecallTask(Task):
    """A model and a training of its own."""

    needs = made_by = ""

    def train(self, place: Place) -> list[str]:
        options = dict(place.run.options)
        words = ["python", "-m", "examples.language_model.recall", options.pop("kind")]
        return words + options_of(options)

    def unshown(self, place: Place) -> dict:
        return {"json": place.folder / "result.json"}

    def read(self, place: Place) -> dict:
        return place.found("result.json")


class ClusteringTask(RecallTask):
    """Clustering on its own, of the images of mnist/."""

    needs = "train-images-idx3-ubyte.gz"
    made_by = "a download of MNIST's four files"

    def train(self, place: Place) -> list[str]:
        images, labels = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
        mnist = place.trained_on
        options = {"labels": mnist / f"train-{labels}", "test": mnist / f"t10k-{images}"}
        options |= {"test-labels": mnist / f"t10k-{labels}", **place.run.options}
        words = ["python", "-m", "examples.clustering", "fit"]
        return [*words, str(mnist / f"train-{images}"), *options_of(options)]

    def read(self, place: Place) -> dict:
        row = super().read(place)
        return {"test": {key: row.pop(key) for key in ("accuracy", "effective", "empty")}, **row}


#: by the ``score`` of a grid
TASKS: dict[str, Task] = {
    "language_model": LanguageModelTask(),
    "masked_language_model": MaskedLanguageModelTask(),
    "translation": TranslationTask(),
    "qa": AnswersTask(),
    "distance": DistanceTask(),
    "classification": ClassificationTask(),
    "keyphrases": KeyphrasesTask(),
    "clustering": ClusteringTask(),
    "recall": RecallTask(),
}
