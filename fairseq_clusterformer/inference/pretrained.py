"""``fairseq_clusterformer.load``: an object with what a checkpoint or a bundle can do."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from fairseq_clusterformer.errors import UserError, bad_option

from .load import Loaded, load_checkpoint

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: what is made of a model of each task that can be used, imported when it is needed
KINDS = {
    "language_modeling": "language_model.LanguageModel",
    "translation": "translate.Translator",
    "clusterformer_qa": "read.Reader",
    "clusterformer_sentence": "classify.Classifier",
    "masked_lm": "encoders.MaskedLanguageModel",
    "clusterformer_masked_lm": "encoders.MaskedLanguageModel",
    "etc_masked_lm": "encoders.DocumentModel",
    "etc_keyphrases": "keyphrases.KeyphraseModel",
}
ABILITIES = ("generate", "perplexity", "translate", "answer", "classify", "keyphrases", "encode")


class Unable(UserError, AttributeError):
    """What a model of this kind cannot do; `hasattr` is False."""


class Pretrained:
    """A model on its device.

    Args:
        loaded: by `load_checkpoint`.
        device: None: a GPU if there is one.
        dtype: of the parameters, or its name; None: float32.

    Attributes:
        kind: what it is, for people.
        abilities: names of the methods that it has.
    """

    kind: ClassVar[str]
    abilities: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        self.loaded = loaded
        self.device = device_of(device)
        self.model = loaded.model.to(self.device, dtype_of(dtype))

    def __getattr__(self, name: str):
        if name not in ABILITIES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        raise Unable(
            f"{self.loaded.path} is a {self.kind}: it cannot {name}; "
            f"allowed: {', '.join(self.abilities)}"
        )

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"{type(self).__name__}({str(self.loaded.path)!r}: {self.loaded.cfg.model._name}, "
            f"{parameters:,} parameters on {self.device}; {', '.join(self.abilities)})"
        )

    def encode(self, texts: str | Sequence[str], *, pooled: bool = False) -> list[Tensor] | Tensor:
        """What the model's last layer makes of texts.

        Args:
            texts: one or several. The marks that the model reads around a text, such as ``</s>``,
                are tokens as well.
            pooled: return the mean over the tokens of each text, [texts, D].

        Returns:
            Of each text its tokens' states [N, D]; of a single text a list of one.
        """
        states = [self._states(text) for text in ([texts] if isinstance(texts, str) else texts)]
        return torch.stack([x.mean(0) for x in states]) if pooled else states

    def _states(self, text: str) -> Tensor:
        """The states [N, D] of a text's tokens."""
        raise NotImplementedError


def device_of(device: torch.device | str | None) -> torch.device:
    """A device that is there; None: a GPU if there is one.

    Raises:
        UserError: a name that torch does not know, or a GPU that is not there.
    """
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    try:
        found = torch.device(there[-1] if device is None else device)
    except RuntimeError:
        raise bad_option("device", device, ", ".join(there)) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise bad_option("device", device, ", ".join(there))
    return found


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A type of floating-point numbers, by its name too.

    Raises:
        UserError: anything else.
    """
    if dtype is None:
        return None
    found = dtype
    if isinstance(dtype, str):
        found = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or found not in FLOATS:
        allowed = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATS)
        raise bad_option("dtype", dtype, allowed)
    return found


def load(
    path: Path | str,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    data: Path | str | None = None,
) -> Pretrained:
    """Load a checkpoint or a bundle; see `fairseq_clusterformer.load`."""
    loaded = load_checkpoint(path, data=data, task=list(KINDS), option="path")
    module, name = KINDS[loaded.cfg.task._name].split(".")
    kind = getattr(importlib.import_module(f".{module}", __package__), name)
    return kind(loaded, device=device, dtype=dtype)
