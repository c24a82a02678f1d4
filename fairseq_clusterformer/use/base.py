"""``fairseq_clusterformer.load``: an object with what a checkpoint or a bundle can do."""

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import torch
from fairseq.utils import apply_to_sample
from torch import Tensor

from fairseq_clusterformer.data.characters import sentences as sentences_in
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.encoder import EncoderOnlyModel
from fairseq_clusterformer.ranges import OF_USE

from ..checkpoints.load import Loaded, load_checkpoint
from . import CLASSES

FLOATS = {n: getattr(torch, n) for n in ("float64", "float32", "bfloat16", "float16")}
ABILITIES = ("generate", "perplexity", "translate", "answer", "classify", "encode")


class Unable(UserError, AttributeError):
    """What a model of this kind cannot do; `hasattr` is False."""


class Pretrained:
    """A model on its device; `device` and `dtype` as of `device_of` and `dtype_of`."""

    kind: ClassVar[str]  # what it is, for people
    abilities: ClassVar[tuple[str, ...]]  # names of the methods that it has

    def __init__(self, loaded: Loaded, *, device=None, dtype=None) -> None:
        self.loaded = loaded
        self.device = device_of(device)
        self.model = loaded.model.to(self.device, dtype_of(dtype))

    def __getattr__(self, name: str):
        if name not in ABILITIES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        problem = f"{self.loaded.path} is a {self.kind}: it cannot {name}"
        raise Unable(f"{problem}; allowed: {', '.join(self.abilities)}")

    def __repr__(self) -> str:
        what = f"{self.loaded.path}: {self.loaded.cfg.model._name} on {self.device}"
        return f"{type(self).__name__}({what}; {', '.join(self.abilities)})"

    def encode(self, texts: str | Sequence[str], *, pooled: bool = False) -> list[Tensor] | Tensor:
        """What the model's last layer makes of each text: the states [N, D] of its tokens, which
        the marks around it are as well, such as ``</s>``; `pooled`: their means, [texts, D]."""
        states = [self._states(text) for text in ([texts] if isinstance(texts, str) else texts)]
        return torch.stack([x.mean(0) for x in states]) if pooled else states


class MaskedLanguageModel(Pretrained):
    """An encoder that was trained to guess masked words, such as RoBERTa."""

    kind = "masked language model"
    abilities = ("encode",)

    def __init__(self, loaded: Loaded, **options) -> None:
        super().__init__(loaded, **options)
        self.coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        tokens = framed(self.coding.encode(text), self.coding.dictionary, 1 << 30)
        if len(tokens) > (most := self.model.max_positions()):
            raise bad_option("text", repr(text)[:60], f"{most}", f"it has {len(tokens)} tokens")
        tokens = tokens[None].to(self.device)
        if isinstance(self.model, EncoderOnlyModel):
            return self.model.encoded(tokens)[0][0]
        return self.model(tokens, features_only=True)[0][0]  # fairseq's roberta


class DocumentModel(MaskedLanguageModel):
    """ETC's encoder, which reads a text as a document of sentences."""

    @torch.no_grad()
    def _states(self, text: str) -> Tensor:
        parts = [line[i:j] for line in text.splitlines() for i, j in sentences_in(line)]
        if not parts:
            raise bad_option("text", repr(text), "a word or more")
        given = self.loaded.task.document([self.coding.encode(part) for part in parts])
        given = apply_to_sample(lambda x: x.to(self.device), given)
        return self.model.read(given["src_tokens"], given["parts"]).of_long[0]


def check_numbers(**given: float | None) -> None:
    """Refuse numbers outside of `OF_USE`; None is not given. Raises UserError."""
    for name, value in given.items():
        if OF_USE[name].forbids(value):
            raise bad_option(name, value, OF_USE[name].allowed(value))


def device_of(device: torch.device | str | None) -> torch.device:
    """A device; None: a GPU if there is one. Raises UserError: unknown to torch, or not there."""
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    with suppress(RuntimeError):
        found = torch.device(there[-1] if device is None else device)
        if found.type != "cuda" or "cuda" in there:
            return found
    raise bad_option("device", device, ", ".join(there))


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A type of floating-point numbers, by its name too. Raises UserError: anything else."""
    found = FLOATS.get(str(dtype).removeprefix("torch."))
    if dtype is not None and found is None:
        raise bad_option("dtype", dtype, ", ".join(FLOATS))
    return found


def load(path: Path | str, *, device=None, dtype=None, **how: object) -> Pretrained:
    """See `fairseq_clusterformer.load`; what else is given is for `load_checkpoint`."""
    loaded = load_checkpoint(path, **{"task": list(CLASSES), "option": "path"} | how)
    module, _, name = CLASSES[loaded.cfg.task._name].partition(":")
    return getattr(import_module(module), name)(loaded, device=device, dtype=dtype)
