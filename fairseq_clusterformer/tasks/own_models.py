"""Bases of tasks: what they train, by what criterion, and from what it starts."""

import logging
from dataclasses import dataclass
from typing import ClassVar

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from omegaconf import II, MISSING

from fairseq_clusterformer.data.stored import load_dictionary
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models.options import option

logger = logging.getLogger(__name__)


@dataclass
class DataOptions(FairseqDataclass):
    """Options of every task that trains on a prepared folder."""

    data: str = option(MISSING, "folder that `clusterformer prepare` made for this task")
    no_shuffle: bool = option(False, "keep the order of samples of one length")
    train_subset: str = II("dataset.train_subset")


class InitialWeights:
    """Mixin before a task: models may start from weights of others."""

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the model, with its initial weights unless a checkpoint is loaded; raises
        ValueError for initial weights that do not fit."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and hasattr(model, "load_initial_weights"):
            model.load_initial_weights()
        return model


class OwnModels(InitialWeights, FairseqTask):
    """A task of one dictionary that trains some architectures alone."""

    name: ClassVar[str]  # of the task, and of its criterion
    model: ClassVar[type]  # base class of the architectures
    criterion: ClassVar[type]  # base class of its criterion
    made_by: ClassVar[str]  # the command that makes its data

    def __init__(self, cfg: FairseqDataclass, dictionary: Dictionary):
        super().__init__(cfg)
        self.dictionary = dictionary

    @classmethod
    def setup_task(cls, cfg: DataOptions, **kwargs):
        """Read the dictionary. Raises FileNotFoundError: there is none."""
        dictionary = load_dictionary(cfg.data, cls.made_by)
        logger.info(f"{len(dictionary)} symbols")
        return cls(cfg, dictionary)

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """As `InitialWeights` does; raises ValueError for another architecture."""
        architecture = getattr(cfg, "_name", None) or cfg.arch
        if not issubclass(ARCH_MODEL_REGISTRY.get(architecture, object), self.model):
            known = sorted(n for n, cls in MODEL_REGISTRY.items() if issubclass(cls, self.model))
            allowed = f"{', '.join(known)} and named sizes"
            raise refused("--arch", architecture, allowed, f"--task {self.name} does not train it")
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the criterion; raises ValueError for another one."""
        criterion = super().build_criterion(cfg, from_checkpoint)
        if not isinstance(criterion, self.criterion):
            raise refused("--task", f"{self.name}, and --criterion {cfg._name}", self.name)
        return criterion

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary | None:
        """None: what is right is no text."""
