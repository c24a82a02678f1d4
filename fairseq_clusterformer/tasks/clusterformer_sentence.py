"""``--task clusterformer_sentence``: classify texts or pairs of texts, or rank pairs."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_clusterformer.data.sentences import PAIR_FORMS, SentenceDataset
from fairseq_clusterformer.data.stored import binarized, check_shards, load_dictionary, shard_of
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.clusterformer_classifier import ClusterformerClassifier
from fairseq_clusterformer.models.options import option

from .own_models import DataOptions, OwnModels

logger = logging.getLogger(__name__)
_MADE_BY = "clusterformer prepare classification"


@dataclass
class ClusterformerSentenceConfig(DataOptions):
    """Options; the data is a folder as for fairseq's ``sentence_prediction``."""

    num_classes: int = option(0, "number of classes; 0: as many as there are labels", at_least=0)
    regression_target: bool = option(False, "a label is a number, in label/SPLIT.label")
    pair_form: str = option(
        "joined",
        "how a pair is read: joined (one sequence with segments) or siamese (one after the other)",
        choices=PAIR_FORMS,
    )
    max_positions: int = option(512, "most tokens of a sequence", at_least=5)
    truncate_sequence: bool = option(False, "cut longer sequences, instead of refusing them")


@register_task("clusterformer_sentence", dataclass=ClusterformerSentenceConfig)
class ClusterformerSentenceTask(OwnModels):
    """Texts or pairs with a label each; pairs with a question each are ranked as well."""

    name, model, criterion = "clusterformer_sentence", ClusterformerClassifier, FairseqCriterion

    def __init__(
        self, cfg: ClusterformerSentenceConfig, dictionary: Dictionary, labels: Dictionary | None
    ):
        super().__init__(cfg, dictionary)
        folder = shard_of(cfg.data)
        self.label_dictionary = labels
        self.classes = labels.symbols[labels.nspecial :] if labels else []  # none: numbers
        self.is_pair = (folder / "input1").is_dir()
        self.is_siamese = self.is_pair and cfg.pair_form == "siamese"  # two sequences
        self.is_ranking = (folder / "group").is_dir()  # each pair belongs to a question

    @classmethod
    def setup_task(cls, cfg: ClusterformerSentenceConfig, **kwargs):
        """Read the dictionaries. Raises FileNotFoundError: no dictionary; ValueError: another
        number of classes, or two different dictionaries."""
        folder = shard_of(cfg.data)
        dictionary = load_dictionary(folder / "input0", _MADE_BY)
        if (folder / "input1").is_dir():
            second = load_dictionary(folder / "input1", _MADE_BY)
            if second.symbols != dictionary.symbols:
                problem = f"{folder}/input1/dict.txt differs from {folder}/input0/dict.txt"
                raise ValueError(f"{problem}; allowed: one dictionary for both texts of a pair")
        dictionary.add_symbol("<mask>")  # where fairseq's task masked_lm adds it
        check_shards(cfg.data, "input0/dict.txt")
        labels = None
        if not cfg.regression_target:
            if not (folder / "label/dict.txt").is_file() and any(folder.glob("label/*.label")):
                raise ValueError(f"{folder}/label holds numbers; allowed: --regression-target")
            check_shards(cfg.data, "label/dict.txt")
            labels = load_dictionary(folder / "label", _MADE_BY)
            # without the symbols that fairseq-preprocess fills up a dictionary with
            while re.fullmatch(r"madeupword\d{4}", labels.symbols[-1]):
                labels.count.pop()
                del labels.indices[labels.symbols.pop()]
        task = cls(cfg, dictionary, labels)
        number, known = len(task.classes), f"the labels of {folder}/label/dict.txt"
        if labels and number < 2:
            raise ValueError(f"{number} are {known}; allowed: 2 or more")
        if cfg.num_classes not in (0, number):
            allowed = f"{number}, {known}: {', '.join(task.classes)}"
            raise refused("--num-classes", cfg.num_classes, allowed)
        logger.info(f"{len(dictionary)} words, {len(task.classes)} classes")
        return task

    def load_dataset(self, split: str, combine=False, epoch=1, **kwargs) -> SentenceDataset:
        """Load "train", "valid" or "test". Raises FileNotFoundError: a file that is missing;
        ValueError: files that do not fit together, or a text that is too long."""
        folder = shard_of(self.cfg.data, epoch)
        texts = {
            name: binarized(folder / name / split, self.dictionary, combine)
            for name in ("input0", "input1")[: 1 + self.is_pair]
        }
        if self.label_dictionary:
            path = folder / "label" / split
            labels = self._classes_of(binarized(path, self.label_dictionary, combine), path)
        else:
            path, allowed = folder / "label" / f"{split}.label", "a number a line"
            try:
                labels = torch.tensor([*map(float, _read_lines(path, allowed))])
            except ValueError as error:
                raise ValueError(f"{path}: {error}; allowed: {allowed}") from None
            if not labels.isfinite().all():
                raise ValueError(f"{path}: a number is not finite; allowed: {allowed}")
        columns, questions = {**texts, "label": labels}, None
        if self.is_ranking:
            path, numbers = folder / "group" / f"{split}.txt", {}
            lines = _read_lines(path, f"a question's id a line, or no folder {path.parent}")
            # in the order of their first pairs
            of_lines = [numbers.setdefault(line.strip(), len(numbers)) for line in lines]
            questions = columns["group"] = torch.tensor(of_lines)
        if len(set(map(len, columns.values()))) > 1 or not len(labels):
            told = ", ".join(f"{name} {len(rows)}" for name, rows in columns.items())
            raise ValueError(f"lines of {split} in {folder}: {told}; allowed: as many in each")
        dataset = SentenceDataset(
            list(texts.values()),
            labels,
            self.dictionary,
            pair_form=self.cfg.pair_form,
            max_positions=self.cfg.max_positions,
            questions=questions,
            shuffle=not self.cfg.no_shuffle,
        )
        longest = int(dataset.full_sizes.max())
        if longest > self.cfg.max_positions and not self.cfg.truncate_sequence:
            number = int((dataset.full_sizes > self.cfg.max_positions).sum())
            given = f"{self.cfg.max_positions}, and {number} samples of {split} are longer"
            raise refused("--max-positions", given, f"{longest} or more, or --truncate-sequence")
        self.datasets[split] = dataset
        return dataset

    def _classes_of(self, labels, path: Path) -> Tensor:
        """Classes, int64 [n], of binarised lines; raises ValueError for one that is no label."""
        rows = [labels[index].tolist() for index in range(len(labels))]
        end, first = self.label_dictionary.eos(), self.label_dictionary.nspecial
        for number, row in enumerate(rows, 1):
            if row[-1:] == [end]:
                row.pop()
            if len(row) != 1 or not first <= row[0] < first + len(self.classes):
                given = f"{path}: line {number} is {self.label_dictionary.string(row)!r}"
                allowed = f"one label of {path.parent}/dict.txt: {', '.join(self.classes[:20])}"
                raise ValueError(f"{given}; allowed: {allowed}")
        return torch.tensor([row[0] - first for row in rows])

    def begin_valid_epoch(self, epoch: int, model) -> None:
        # fairseq never empties these meters, and saves them: what was ranked would pile up
        metrics.reset_meters("valid")

    def max_positions(self) -> int:
        return self.cfg.max_positions


def _read_lines(path: Path, allowed: str) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; allowed: {allowed}")
    return path.read_text(encoding="utf-8").splitlines()
