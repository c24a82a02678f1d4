"""Mixins before a fairseq task: what it trains, by what, and from what it starts."""

from typing import ClassVar

from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY


class InitialWeights:
    """Models may start from weights of others."""

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the model, with its initial weights unless a checkpoint is loaded.

        Raises:
            ValueError: initial weights that do not fit.
        """
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and hasattr(model, "load_initial_weights"):
            model.load_initial_weights()
        return model


class OwnModels(InitialWeights):
    """The task trains some architectures alone, by one criterion.

    Attributes:
        name: of the task, and of its criterion.
        model: base class of the architectures.
        criterion: its class.
    """

    name: ClassVar[str]
    model: ClassVar[type]
    criterion: ClassVar[type]

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the model, with its initial weights unless a checkpoint is loaded.

        Raises:
            ValueError: another architecture, or initial weights that do not fit.
        """
        architecture = getattr(cfg, "_name", None) or cfg.arch
        if not issubclass(ARCH_MODEL_REGISTRY.get(architecture, object), self.model):
            known = sorted(n for n, cls in MODEL_REGISTRY.items() if issubclass(cls, self.model))
            raise ValueError(
                f"--arch is {architecture}: --task {self.name} does not train it; allowed: "
                f"{', '.join(known)} and {'its' if len(known) == 1 else 'their'} named sizes"
            )
        return super().build_model(cfg, from_checkpoint)

    def build_criterion(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the criterion.

        Raises:
            ValueError: another one.
        """
        criterion = super().build_criterion(cfg, from_checkpoint)
        if not isinstance(criterion, self.criterion):
            raise ValueError(
                f"--task is {self.name}, and --criterion {cfg._name}; allowed: {self.name}"
            )
        return criterion
